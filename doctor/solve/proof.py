"""Why nothing helps: for each error that no fix clears, which rule excludes which releases, in sentences.

A backend is refuted by cases: the limit that decides at one choice of releases decides at every choice that agrees in
the packages it reads; only over those is a further case made. What the packages require of one another is left out,
so that the cases cover more than can be installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..evaluate import know, rule_holds
from ..model import ABSENT, Facts, Finding, NoFix
from ..records import dataclass
from ..rulebook import Library, Rule
from ..vocabulary import fact, parse_version
from ..wording import interpolate
from .causes import Causes, Limit
from .kinds import Kinds
from .plan import Pick, Plan
from .repair import Repair

_CASES = 60  # judged for one backend
_ALL = 300  # and for all errors of a patient together
_BACKENDS = 5  # one sentence each; with what would help instead, six at most
_GPUS = ("a100", "h100", "b200", "rtx5090")
#: Changes of the job that cost something and are nobody's fix, but worth knowing where nothing else helps.
_JOBS: tuple[tuple[str, Any, str], ...] = (
    ("workload.cp_size", 1, "without context parallelism"),
    ("workload.cp_comm_type", "p2p", "with `cp_comm_type` p2p"),
    ("workload.cp_comm_type", "a2a", "with `cp_comm_type` a2a"),
    ("workload.qkv_layout", "bshd_bshd_bshd", "in the bshd layout"),
    ("workload.mask", "padding_causal", "with mask padding_causal"),
    ("workload.deterministic", False, "without determinism"),
    ("workload.dropout", 0.0, "without dropout"),
    ("workload.framework", "torch_sdpa", "through torch's own attention"),
)


@dataclass(frozen=True)
class Case:
    """With these releases (others at will) this rule refuses, in these words."""

    fixed: Mapping[str, str]
    rule: str
    message: str


class Proof:
    """The proof for one patient."""

    def __init__(self, repair: Repair) -> None:
        self.repair, self.stack, self.rulebook = repair, repair.stack, repair.rulebook
        self.kinds = Kinds(repair.rulebook, repair.stack)
        self.left, self.all = _CASES, _ALL
        self._memo: dict[Any, Causes] = {}
        self._plan = _settled(repair)

    def of(self, finding: Finding) -> NoFix:
        """The sentences for one error; not `proved` where cases remained open."""
        rule = self.rulebook.rules[finding.rule]
        self.left = _CASES
        library = Causes(self.rulebook, self.stack, self.repair.facts).selection(rule)
        told, proved = self._of_backends(rule, library) if library else self._of_rule(rule)
        proved = proved and bool(told or finding.no_pin)
        if finding.no_pin:
            told.insert(0, _sentence(finding.no_pin))
        if proved:
            told[-1] = f"{told[-1][:-1]}: no change of releases or variables helps."
        else:
            told.append(
                "Could not tell whether some other release would do it: no way was found within "
                f"{len(self._memo)} judged choices of releases and variables."
            )
        return NoFix(rule.id, tuple(told), self._instead(rule, library), proved)

    # --- by cases -----------------------------------------------------------------------------------------------

    def _of_backends(self, rule: Rule, library: Library) -> tuple[list[str], bool]:
        present = self._causes({}).blocked(library)
        whole: dict[str, list[Case]] = {}
        proved = True
        titles = {backend.id: backend.title for backend in library.backends}
        for blocked in present:
            self.left = _CASES
            cases = list(self._cases(rule, library, blocked.backend, {}))
            proved = proved and None not in cases
            parent = next((b.part_of for b in library.backends if b.id == blocked.backend), None) or blocked.backend
            if any(limit.rule is None for limit in blocked.limits) and parent != blocked.backend:
                continue  # a part that is not made for such a job is no news
            whole.setdefault(parent, []).extend(case for case in cases if case is not None)
        by_text: dict[str, list[str]] = {}
        for backend, known in whole.items():
            by_text.setdefault(self._because(known), []).append(titles[backend])
        told = [f"{' and '.join(names)} cannot serve it: {text}." for text, names in by_text.items() if text]
        return told[:_BACKENDS], proved and len(told) <= _BACKENDS

    def _of_rule(self, rule: Rule) -> tuple[list[str], bool]:
        cases = list(self._cases(rule, None, None, {}))
        text = self._because([case for case in cases if case is not None])
        return ([_sentence(text)] if text else []), None not in cases

    def _cases(
        self, rule: Rule, library: Library | None, backend: str | None, fixed: dict[str, str]
    ) -> Iterator[Case | None]:
        """The cases below one choice of releases; None for one that stays open."""
        self.left -= 1
        self.all -= 1
        if self.left < 0 or self.all < 0:
            yield None
            return
        causes = self._causes(fixed)
        limits: list[Limit] = []
        if library is not None:
            limits += next(item for item in causes.blocked(library) if item.backend == backend).limits
        elif self._fires(rule, causes.facts):
            limits.append(Limit(rule))
        if not limits:  # nothing speaks against it here but another error, which no rule's way cures
            limits = [
                Limit(other) for other in self.repair.rules if other is not rule and self._fires(other, causes.facts)
            ]
        open_ = [(sorted(causes.movers(causes.reads_of(limit)) - set(fixed)), limit) for limit in limits]
        if not open_:
            yield None
            return
        packages, limit = min(open_, key=lambda pair: (len(pair[0]), _far(pair[1])))
        if packages:
            package = min(packages, key=lambda name: len(self.kinds.releases(name, "")))
            here = self.stack.installed.get(package, ABSENT)
            for version in [here, *self.kinds.releases(package, "")]:
                yield from self._cases(rule, library, backend, {**fixed, package: version})
        else:
            known, _ = know(self.rulebook, causes.facts)
            message = interpolate(limit.rule.message, known) if limit.rule else "this part is not made for it"
            yield Case(fixed, limit.rule.id if limit.rule else "", message)

    def _causes(self, fixed: Mapping[str, str]) -> Causes:
        """What decides with these releases, all variables unset that could be."""
        key = frozenset(fixed.items())
        if key not in self._memo:
            self._memo[key] = self._judged(fixed)
        return self._memo[key]

    def _judged(self, fixed: Mapping[str, str]) -> Causes:
        chosen = {name: version for name, version in fixed.items() if version != self.stack.installed.get(name, ABSENT)}
        facts = self.repair.facts_after(self._plan, chosen)
        switches = Causes(self.rulebook, self.stack, facts).switches(facts)
        return Causes(
            self.rulebook, self.stack, facts.with_(*(fact(f"env.{name}", ABSENT, "unset") for name in switches))
        )

    def _fires(self, rule: Rule, facts: Facts) -> bool:
        known, _ = know(self.rulebook, facts)
        return rule_holds(self.rulebook, rule, known) is not False

    # --- in words -----------------------------------------------------------------------------------------------

    def _because(self, cases: Sequence[Case]) -> str:
        """`… (TE281, with transformer-engine 1.10 to 2.16), and … (TE160, …)`, the rule with most cases first."""
        by_rule: dict[str, list[Case]] = {}
        for case in cases:
            if case.rule:
                by_rule.setdefault(case.rule, []).append(case)
        parts = []
        for name, some in sorted(by_rule.items(), key=lambda item: -len(item[1]))[:3]:
            where = self._where(some) if len(by_rule) > 1 else ""
            parts.append(f"{some[0].message.rstrip('.')} ({name}{', ' + where if where else ''})")
        return "; and ".join(parts)

    def _where(self, cases: Sequence[Case]) -> str:
        """The releases of the first package that the cases tell apart, as a range."""
        package = next((name for case in cases for name in case.fixed), None)
        if package is None:
            return ""
        found = {case.fixed[package] for case in cases if package in case.fixed}
        all_of = {v for rep in found if rep != ABSENT for v in self.kinds.alike(package, rep)}
        versions = sorted(all_of, key=parse_version)
        if not versions:
            return f"without `{package}`"
        span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        return f"`{package}` {span}"

    # --- what would help ----------------------------------------------------------------------------------------

    def _instead(self, rule: Rule, library: Library | None) -> str | None:
        """Another GPU or another setting of the job with which the rule would be silent, where one is found."""
        from ..probes.gpu_table import gpu_facts

        facts = self._causes({}).facts
        machines = []
        for name in _GPUS:
            found = {item.key: item for item in gpu_facts(name)}
            if found["gpu.sm"].value != facts.value("gpu.sm") and self._serves(
                rule, library, facts.with_(*found.values())
            ):
                machines.append(f"{found['gpu.name'].value} (sm {found['gpu.sm'].value})")
        jobs = [
            words for key, value, words in _JOBS
            if facts.value(key) not in (None, value)
            and self._serves(rule, library, facts.with_(fact(key, value, "another job")))
        ]  # fmt: skip
        ways = ([f"on {_or(machines)}"] if machines else []) + jobs[:3]
        return f"These releases would do it {_or(ways)}." if ways else None

    def _serves(self, rule: Rule, library: Library | None, facts: Facts) -> bool:
        known, _ = know(self.rulebook, facts)
        if rule_holds(self.rulebook, rule, known) is not False:
            return False
        return library is None or known.value(f"{library.prefix}.selected") not in (None, ABSENT)


def _settled(repair: Repair) -> Plan:
    """The settings that errors ask for which nothing else cures: without them there is nothing to prove."""
    plan = Plan()
    for rule in repair.rules:
        if rule.id in repair.firing:
            for order, way in enumerate(rule.alternatives):
                joined = (
                    plan.joined(Pick(rule.id, order, way)) if way.config and not (way.require or way.call) else None
                )
                if order == 0 and joined is not None and len(rule.alternatives) == 1:
                    plan = joined
    return plan


def _far(limit: Limit) -> int:
    """Limits of the GPU are told first, then those of the job: a reader can judge them."""
    keys = [leaf.key for leaf in limit.rule.when.leaves()] if limit.rule else []
    return (
        0 if any(key.startswith("gpu.") for key in keys) else 1 if any(k.startswith("workload.") for k in keys) else 2
    )


def proofs(repair: Repair, cleared: set[str]) -> tuple[NoFix, ...]:
    """One proof for every error that no fix clears."""
    proof = Proof(repair)
    open_ = [f for f in repair.base.findings if f.severity == "error" and f.rule not in cleared]
    return tuple(proof.of(finding) for finding in open_)


def _or(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
