"""Which backend a library will choose for a workload: support rules × order of preference.

A backend may have parts (`te.fused` is one of three cuDNN sub-backends). Rules take parts out like backends; which
part serves is the fact `te.fused.variant`, on which later rules may build, and the backend is out when none does.
A workload that is cut into steps (`te.fused.steps`: context parallelism) needs the same in every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from doctor.facts.vocabulary import parse
from doctor.model import ABSENT, Candidate, Fact, Facts, Prediction, Reason

from .compiled_facts import compiled_answer, is_compiled
from .decisions import chosen
from .index import RuleIndex
from .messages import message_of, missing_keys
from .resolver import FactResolver, unknown
from .rule import Library, Orders, Rule
from .rulebook import Rulebook

#: What `te.selected` is where the job does not call that library at all: neither a backend nor `absent`.
INAPPLICABLE = "inapplicable"

Judged = Mapping[str, tuple[Reason, ...]]


class Predictor:
    """Answers what follows from the rules of a library: `te.selected`, `te.fused.available`, `te.fused.variant`."""

    def __init__(self, rulebook: Rulebook) -> None:
        self.predictions: dict[str, Prediction] = {}
        self._rulebook = rulebook

    def answers(self, key: str) -> bool:
        """Whether it takes a prediction to answer `key`."""
        found = self._rulebook.predicted.get(key)
        if found is None:
            prefix, _, rest = key.partition(".")
            predicted = rest in ("selected", "selected_by_default") or key.rpartition(".")[2] in _QUESTIONS
            found = (
                is_compiled(key)
                or key in self._rulebook.decisions
                or (predicted and prefix in self._rulebook.by_prefix)
            )
            self._rulebook.predicted[key] = found
        return found

    def __call__(self, known: FactResolver, key: str) -> Fact | None:
        """The fact of `key`, or None when no prediction answers it."""
        answers = self._rulebook.predicted.get(key)
        if answers is False or (answers is None and not self.answers(key)):
            return None
        if is_compiled(key):
            return compiled_answer(key, known, self._rulebook.packages)
        prefix, _, rest = key.partition(".")
        if (decision := self._rulebook.decisions.get(key)) is not None:
            chooser = self._rulebook.by_prefix.get(prefix)
            if chooser is not None and key in chooser.choice.values() and not_called(chooser, known):
                return Fact(key, ABSENT, f"this job does not call {chooser.name}")
            return decision.decide(known)
        backend, _, question = key.rpartition(".")
        library = self._rulebook.by_prefix[prefix]
        source = f"predicted for {library.name}"
        if rest == "selected_by_default":
            return self._by_default(library, known, key)
        if question == "variant":
            value, reasons = variant(self._rulebook, library, backend, known)
            return Fact(key, value, source) if value else unknown(key, source, _lacking(reasons))
        if question == "reached":
            return Fact(key, reached(self._rulebook, library, backend, known), source, None, "unknown")
        if question in ("step_variant", "step_refusal"):
            return _of_steps(self._rulebook, library, backend, known, self, question == "step_variant")
        if rest == "selected" and not_called(library, known):
            return Fact(key, INAPPLICABLE, f"this job does not call {library.name}")
        prediction = self._prediction(library, known)
        if rest == "selected":
            if not prediction.could_tell:
                unclear = [reason for candidate in prediction.candidates for reason in candidate.reasons]
                refusal = [] if prediction.import_error is None else [prediction.import_error]
                return unknown(key, source, _lacking((*refusal, *unclear)))
            return Fact(key, prediction.selected or ABSENT, source)
        found = next((candidate for candidate in prediction.candidates if candidate.backend == backend), None)
        available = None if found is None else found.available
        reasons = () if found is None else found.reasons
        return Fact(key, available, source) if available is not None else unknown(key, source, _lacking(reasons))

    def _by_default(self, library: Library, known: FactResolver, key: str) -> Fact:
        """What would be selected if none of the library's environment variables were set."""
        predictor = Predictor(self._rulebook)
        fact = predictor(known.with_(unset(library, known), predictor), f"{library.prefix}.selected")
        assert fact is not None  # a library with a prefix always answers
        return Fact(key, fact.value, fact.source, None, fact.problem)

    def _prediction(self, library: Library, known: FactResolver) -> Prediction:
        prefix = library.prefix or library.name
        if prefix not in self.predictions:
            self.predictions[prefix] = predict(self._rulebook, library, known)
        return self.predictions[prefix]


def not_called(library: Library, known: FactResolver) -> bool:
    """Whether the job certainly does not call this library."""
    return library.applies is not None and library.applies.holds(known) is False


_QUESTIONS = ("available", "reached", "variant", "step_variant", "step_refusal")


def unset(library: Library, known: FactResolver) -> Facts:
    """What would differ if none of the library's environment variables were set."""
    prefixes = tuple(f"env.{name.rstrip('*')}" for name in library.environment)
    return Facts(Fact(name, ABSENT, "if it were unset") for name in known.given if name.startswith(prefixes))


def predict(rulebook: Rulebook, library: Library, known: FactResolver) -> Prediction:
    """Judge every backend of `library` and follow its order of preference."""
    judged = _judge(rulebook, library, known, parts=False)
    candidates = []
    for backend in library.backends:
        if backend.part_of is None:
            reasons = list(judged.get(backend.id, ()))
            if backend.id in library.variants:
                reasons.extend(_variant_reasons(rulebook, library, backend.id, known))
            candidates.append(_candidate(library, backend.id, backend.title, reasons, known))
    ready = tuple(candidates)
    import_error = _first_runtime(rulebook, library, known, None)
    if import_error is not None and import_error.holds:
        return Prediction(library.name, None, True, _refused(ready, import_error), None, import_error)
    prefill = None
    if library.choice:
        selected, could_tell = chosen(library.prefix, library.choice["decode"], known)
        prefill, _ = chosen(library.prefix, library.choice["prefill"], known)
    else:
        selected, could_tell = _select(library.preferences, {c.backend: c.available for c in ready}, known)
    if import_error is not None:
        could_tell, selected, prefill = False, None, None  # it may not even come to a choice
    elif selected is None and could_tell and (refusals := rulebook.refusals.get(library.name)) is not None:
        known.settle(Fact(f"{library.prefix}.selected", ABSENT, f"predicted for {library.name}"))
        import_error = _first_firing(refusals, known, None)
    serving = frozenset(backend for backend in (selected, prefill) if backend is not None)
    fails = None if selected is None else _first_runtime(rulebook, library, known, serving)
    return Prediction(library.name, selected, could_tell, ready, fails, import_error, prefill)


def _refused(candidates: tuple[Candidate, ...], error: Reason) -> tuple[Candidate, ...]:
    """Return the candidates of a library that cannot be imported: none is available, each for its own reason too."""
    return tuple(
        item._replace(available=False, reasons=(error, *(reason for reason in item.reasons if reason.holds)))
        for item in candidates
    )


def variant(
    rulebook: Rulebook, library: Library, backend: str, known: FactResolver
) -> tuple[str | None, tuple[Reason, ...]]:
    """(the part of `backend` that serves, `absent` for none, None for unknown; the reasons against the rest)."""
    remembered = known.memo.get(backend)
    if remembered is not None:
        chosen, reasons = remembered
        return chosen, reasons
    order = order_that_counts(library.variants[backend], known)
    if order is None:
        return None, ()
    judged = _judge(rulebook, library, known, parts=True, only=order)
    usable = {part: _available(judged.get(part, ())) for part in order}
    found, could_tell = _first(order, usable)
    reasons = tuple(reason for part in order for reason in judged.get(part, ()))
    chosen = (found or ABSENT) if could_tell else None
    known.memo[backend] = chosen, reasons
    return chosen, reasons


def reached(rulebook: Rulebook, library: Library, backend: str, known: FactResolver) -> bool | None:
    """Whether the library's own filters let `backend` through to where its parts are tested."""
    index = rulebook.support.get(library.name)
    inner = index.any_of(parts=True) if index else None
    if index is None or inner is None:
        return None
    stages = _stages(library, known)
    border = stages.get(inner.stage, len(stages))
    verdict: bool | None = True
    for _, rule, holds in index.firing(known, False):
        if backend in rule.disables and stages.get(rule.stage, len(stages)) < border:
            if holds:
                return False
            verdict = None
    return verdict


def _variant_reasons(rulebook: Rulebook, library: Library, backend: str, known: FactResolver) -> list[Reason]:
    chosen = known.value(f"{backend}.variant")
    if chosen not in (None, ABSENT):
        return []
    _, reasons = variant(rulebook, library, backend, known)
    if chosen == ABSENT:
        return [reason for reason in reasons if reason.holds]
    return list(reasons)


def _of_steps(
    rulebook: Rulebook, library: Library, backend: str, known: FactResolver, predictor: Predictor, wants_variant: bool
) -> Fact:
    key = f"{backend}.step_{'variant' if wants_variant else 'refusal'}"
    source = f"predicted for each step of {library.name}"
    steps = known.look_up(f"{backend}.steps")
    if steps.value is None:
        return Fact(key, None, source, None, steps.problem)
    serving = known.value(f"{backend}.variant")
    for text in steps.value:
        at_step = known.with_(step_facts(text), predictor)
        chosen, reasons = variant(rulebook, library, backend, at_step)
        if chosen == ABSENT:
            firm = next((reason for reason in reasons if reason.holds), None)
            shape = f"a step of {at_step.value('te.seqlen_q')} query and {at_step.value('te.seqlen_kv')} key tokens"
            refusal = f"{shape} under mask {at_step.value('te.mask')}: {firm.message if firm else 'no part serves it'}"
            return Fact(key, ABSENT if wants_variant else refusal, source)
        if chosen is None:
            return unknown(key, source, _lacking(reasons))
        serving = chosen
    return Fact(key, serving if wants_variant else ABSENT, source)


def step_facts(text: str) -> Facts:
    """What differs in one step that a workload is cut into."""
    pairs = (part.split("=", 1) for part in text.split(";"))
    return Facts(Fact(key, parse(key, value), "one context-parallel step") for key, value in pairs)


def _judge(
    rulebook: Rulebook, library: Library, known: FactResolver, *, parts: bool, only: tuple[str, ...] | None = None
) -> Judged:
    """Backend (or part) → the reasons against it, in the order in which the installed release filters."""
    index = rulebook.support.get(library.name)
    if index is None:
        return {}
    stages = _stages(library, known)
    found: dict[str, list[tuple[int, int, Reason]]] = {}
    for position, rule, holds in index.firing(known, parts):
        disabling = rule.disables if only is None else [backend for backend in rule.disables if backend in only]
        if not disabling:
            continue
        reason = _reason(rule, known, holds)
        rank = stages.get(rule.stage, len(stages))
        for backend in disabling:
            found.setdefault(backend, []).append((rank, position, reason))
    return {
        backend: tuple(reason for _, _, reason in sorted(reasons, key=_place)) for backend, reasons in found.items()
    }


def _place(item: tuple[int, int, Reason]) -> tuple[int, int]:
    return item[0], item[1]


def _stages(library: Library, known: FactResolver) -> Mapping[str, int]:
    for when, order in library.stage_orders:
        if when is None or when.holds(known):
            return order
    return {}


def _available(reasons: Iterable[Reason]) -> bool | None:
    verdict: bool | None = True
    for reason in reasons:
        if reason.holds:
            return False
        verdict = None
    return verdict


def _candidate(library: Library, backend: str, title: str, reasons: list[Reason], known: FactResolver) -> Candidate:
    certain = tuple(reason for reason in reasons if reason.holds)
    available = False if certain else None if reasons else True
    return Candidate(backend, title, available, certain or tuple(reasons))


def order_that_counts(orders: Orders, known: FactResolver) -> tuple[str, ...] | None:
    """The order of preference that counts for these facts; None when it is unknown which."""
    for when, order in orders:
        holds = True if when is None else when.holds(known)
        if holds:
            return order
        if holds is None:
            return None
    return ()


def _select(orders: Orders, usable: Mapping[str, bool | None], known: FactResolver) -> tuple[str | None, bool]:
    """(backend or None, whether it is known). An unknown candidate ahead of a usable one decides nothing."""
    verdicts: set[tuple[str | None, bool]] = set()
    for when, order in orders:
        holds = True if when is None else when.holds(known)
        if holds is False:
            continue
        verdicts.add(_first(order, usable))
        if holds:
            break
    return verdicts.pop() if len(verdicts) == 1 else (None, False)


def _first(order: tuple[str, ...], usable: Mapping[str, bool | None]) -> tuple[str | None, bool]:
    for backend in order:
        available = usable.get(backend, False)
        if available:
            return backend, True
        if available is None:
            return None, False
    return None, True


def _first_runtime(
    rulebook: Rulebook, library: Library, known: FactResolver, serving: frozenset[str] | None
) -> Reason | None:
    """What fails at import (`serving` None) or in a step; an unknown one only where nothing is certain."""
    if serving is None:
        index = rulebook.import_errors.get(library.name)
        return None if index is None else _first_firing(index, known, None)
    index = rulebook.failures.get(library.name)
    reason = None if index is None else _first_firing(index, known, serving)
    return reason if reason is not None and reason.holds else None


def _first_firing(index: RuleIndex, known: FactResolver, failing: frozenset[str] | None) -> Reason | None:
    """Return the reason of the first rule that fires; one that is undetermined only where no rule fires."""
    firing = index.firing(known, None, failing)
    if not firing:
        return None
    _, rule, holds = min(firing, key=lambda item: (not item[2], item[0]))  # certain ones first, then the most specific
    return _reason(rule, known, holds)


def _reason(rule: Rule, known: FactResolver, holds: bool | None) -> Reason:
    missing = missing_keys(rule, known) if holds is None else ()
    return Reason(rule.id, message_of(rule, known), holds, (*rule.references, "")[0], missing)


def _lacking(reasons: Iterable[Reason]) -> Iterator[str]:
    """Yield the keys without which the reasons remain unknown."""
    return (key for reason in reasons for key in reason.missing)
