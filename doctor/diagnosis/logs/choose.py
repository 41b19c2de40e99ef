"""Which of the causes that a log shows is the root: specific before general, the first before what follows from it."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from doctor.errors import DoctorError
from doctor.model import TORCH, Severity
from doctor.rulebook.anchors import fixed_length
from doctor.rulebook.categories import API_DRIFT, MISSING_ATTRIBUTE, MISSING_MODULE, NO_KERNEL, NONE
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library
from doctor.rulebook.signatures import LogRule, Signature

from .attribution import UNKNOWN, Attribution, Origin, attributed, plain
from .frames import Stack
from .kinds import is_ambiguous, is_compiled_fault
from .names import NameHistory, class_owner, history_of, is_unheard_of, is_wrapped, with_class
from .notices import names_alternative
from .scan import Match

GENERAL = -10  # weight from which on a rule names the kind of a failure and not its cause
_KINDS = (1, 4, -GENERAL)  # weights from 0, -1, -4 and -10 on: own message, vague one, kind of failure, last resort
_OWN = 5  # score of a rule that was written for logs
_KNOWN = -2  # least weight of a rule whose line names something that is known to come or go with a release
_UNSURE = -5  # most weight of a rule for `check` whose facts are missing, by a message that any library may raise
_GUESS = -4  # weight from which on a rule takes any missing name for one of another release, also of a library
_CLEARER = 1.5  # times the fixed characters of a vague rule, from which on another one says clearly more of a line
_OF_MACHINE = frozenset(["cuda-toolkit", "nvidia-driver", "driver", "python", "gcc"])  # no frame is in their code
_TELLING = 3  # characters of a name that may be part of any word
_OF_NAME = re.compile(r"has no attribute|unexpected keyword|No module named|cannot import name|required (?:pos|key)")
_OF_NAMES = (API_DRIFT, MISSING_ATTRIBUTE, MISSING_MODULE)
_BY_SEVERITY = {Severity.ERROR: -1, Severity.WARNING: -3, Severity.NOTE: -6, None: -2}
#: The package that the line names, else that of the last frame; after `|` the name for one outside the stack.
OWNER = re.compile(r"\{log\.package(?:\|([\w-]+))?\}")


@dataclass(frozen=True)
class Candidate:
    """One rule, the line that shows it, and how well they fit."""

    rule: LogRule
    signature: Signature
    match: Match
    holds: bool | None  # the rule's condition on the known facts
    weight: int
    score: int
    groups: Mapping[str, str]  # what the expressions name; `package` is a distribution
    follows: bool = False  # of another rank than the one that failed first
    history: NameHistory | None = None  # of what the message misses, for a rule that is vague
    blame: Attribution = UNKNOWN  # whose code failed, for a message that any compiled code prints

    @property
    def kind(self) -> int:
        """Return 0 for a message of its own, and more for what says less of the cause."""
        return bisect_right(_KINDS, -self.weight)

    @property
    def undecided(self) -> bool:
        """Whether facts that are missing decide about the rule."""
        return self.rule.when is not None and self.holds is None

    @property
    def order(self) -> tuple[int, bool, int, int, int, str]:
        """Return the sort key: the kind of evidence, the rank that failed first, the first line, then the best fit."""
        return self.kind, self.follows, self.match.line, -self.score, -self.match.length, self.rule.rule.id


def candidates(
    rules: Sequence[LogRule],
    matches: Mapping[str, list[Match]],
    known: FactResolver,
    stack: Stack,
    root: str | None = None,
) -> list[Candidate]:
    """Return every rule that the log shows, best first; a rule whose condition fails on known facts is left out.

    A harmless line shows no cause, and a line of an unrelated failure no cause of a general rule. `root`: the rank that
    failed first, where that is known.
    """
    quiet = _lines(matches, [rule for rule in rules if rule.benign])
    explained = _lines(matches, [rule for rule in rules if rule.category == NONE and not rule.benign])
    found: dict[str, Candidate] = {}
    for rule in rules:
        for signature in rule.signatures:
            for match in _fitting(signature, matches):
                made = _candidate(rule, signature, match, known, stack)
                if made is not None and rule.category != NONE and _is_no_cause(made, quiet, explained):
                    continue
                if made is not None and root is not None and match.rank not in (None, root):
                    made = replace(made, follows=True)
                if made is not None and (rule.rule.id not in found or made.order < found[rule.rule.id].order):
                    found[rule.rule.id] = made
    kept = [item for item in found.values() if not found.keys() & set(item.rule.yields_to)]
    return sorted(_clearer_first(kept), key=lambda item: item.order)


def _clearer_first(items: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates; a finding of `check` that spells out clearly more of a line passes vague rules.

    Both are of the same kind, and the score of the finding becomes higher. A rule that is only the reason against a
    backend does not pass: its message holds for a state of the machine that the log does not show.
    """
    vague: dict[tuple[int, int], list[Candidate]] = {}
    for item in items:
        if item.rule.explains_only and item.weight < 0:
            vague.setdefault((item.kind, item.match.line), []).append(item)
    for item in items:
        finding = not item.rule.explains_only and (item.holds or item.rule.rule.severity is not None)
        rivals = vague.get((item.kind, item.match.line), ()) if finding else ()
        most = max((fixed_length(rival.signature.match) for rival in rivals), default=0)
        if rivals and item.score > _UNSURE and fixed_length(item.signature.match) >= _CLEARER * most:
            yield replace(item, score=max(item.score, *(rival.score + 1 for rival in rivals)))
        else:
            yield item


def _lines(matches: Mapping[str, list[Match]], rules: Iterable[LogRule]) -> frozenset[int]:
    """Return every line that some of these rules explains."""
    signatures = (signature for rule in rules for signature in rule.signatures)
    return frozenset(match.line for signature in signatures for match in _fitting(signature, matches))


def _is_no_cause(item: Candidate, quiet: frozenset[int], explained: frozenset[int]) -> bool:
    """Return whether the line of a candidate is harmless, or belongs to a failure of another kind."""
    if item.match.line in quiet and not item.holds and item.weight < 1:
        return True
    return item.match.line in explained and owned_by_line(item.rule) is not None


def _fitting(signature: Signature, matches: Mapping[str, list[Match]]) -> Iterator[Match]:
    """Yield the matches of a signature around which its further lines are as they have to be."""
    if all(matches.get(pattern) for pattern in signature.anywhere):
        for match in matches.get(signature.match, ()):
            if signature.fits(match.around, match.frame):
                yield match


def _candidate(
    rule: LogRule, signature: Signature, match: Match, known: FactResolver, stack: Stack
) -> Candidate | None:
    holds = rule.when.holds(known) if rule.when is not None else None
    if holds is False:
        return None
    groups = {**signature.groups_near(match.around), **dict(match.groups), "line": match.text}
    stated = rule.rule.stated_weight if rule.explains_only else None
    weight = stated if stated is not None else 0 if rule.explains_only else _BY_SEVERITY[rule.rule.severity]
    blame = attributed(match, stack)
    foreign = not holds and _is_foreign(rule, match, blame, stack, weight < 0 or not signature.conditions)
    if foreign is None:
        return None
    history = _history(rule, match, stack) if weight <= 0 and rule.category in _OF_NAMES else None
    if weight <= _KNOWN and history is None and rule.category in _OF_NAMES and _is_slip(match, stack, weight):
        return None
    if (owned := owned_by_line(rule)) is not None:
        owner = _owner(rule, match, groups, history, blame, stack, owned[1])
        if owner is None:  # a message of code outside the stack
            return None
        groups["package"] = owner
    if not holds and _serves_gpu(rule, groups.get("package"), known):
        return None
    if holds and rule.when is not None:
        weight = max(weight, 0)
    if foreign and rule.explains_only:  # the kind of failure may be right
        weight = min(weight, _UNSURE)
    if history is not None:
        weight = max(weight, _KNOWN)
    score = weight + signature.conditions + (3 if holds else 0)
    if rule.explains_only:
        return Candidate(rule, signature, match, holds, weight, score + _OWN, groups, history=history, blame=blame)
    mentioned = _mentioned(stack.libraries.get(rule.rule.library), match)
    if not holds and is_ambiguous(match.text) and not (mentioned and signature.conditions):
        if not mentioned:
            return None
        weight, score = min(weight, _UNSURE), min(score, _UNSURE)  # a rule for logs knows such a message better
    return Candidate(rule, signature, match, holds, weight, score + mentioned, groups, blame=blame)


def _owner(
    rule: LogRule,
    match: Match,
    groups: Mapping[str, str],
    history: NameHistory | None,
    blame: Attribution,
    stack: Stack,
    default: str | None,
) -> str | None:
    """Return the package that a rule for any package speaks of; `default`: its name for one outside the stack."""
    fault = is_compiled_fault(match.text)
    if fault and (blame.package is not None or (blame.origin == Origin.JOB and default is None)):
        return blame.package
    owner = stack.owner(groups["package"]) if "package" in groups else _code_of(match, stack)
    of_class = class_owner(match.text) if rule.category in _OF_NAMES else None
    found = (history.package if history is not None else None) or owner or of_class
    return found or (default and groups.get("package", _spoken_of(match, stack) or default).replace("_", "-"))


def _is_foreign(rule: LogRule, match: Match, blame: Attribution, stack: Stack, vague: bool) -> bool | None:
    """Return whether a rule names other packages than the one that failed; None where it cannot be the cause.

    vague: no line around the message shows what the code of the job does, or such lines are of many causes.
    """
    if is_compiled_fault(match.text):
        return None if _blames_another(rule, match, blame, stack) else False
    if blame.origin == Origin.JOB:
        return None if vague and rule.explains_only and _is_of_job(rule, match, stack) else _is_value(match)
    return _is_value(match) or (blame.origin == Origin.STACK and _blames_another(rule, match, blame, stack))


def _blames_another(rule: LogRule, match: Match, blame: Attribution, stack: Stack) -> bool:
    """Return whether a rule names other packages than the one whose compiled code failed, as the log shows."""
    if owned_by_line(rule) is not None or blame.origin == Origin.UNKNOWN:
        return False
    library = stack.libraries.get(rule.rule.library)
    names = (*rule.packages, *packages_of(rule), *(library.distributions if library is not None else ()))
    if blame.origin == Origin.JOB:
        return blame.launches and not {"triton", "nvidia-cutlass-dsl"} & {*names}
    if blame.is_one_of(names) or _OF_MACHINE & {*rule.packages} or _is_named(names, match, stack):
        return False
    return is_compiled_fault(match.text) or not (TORCH in names or _is_called(names, match, stack))


def _is_named(names: Sequence[str], match: Match, stack: Stack) -> bool:
    """Return whether a line names one of some packages, or a module of one; torch is named by any line."""
    others = {name for name in names if name != TORCH}
    words = re.findall(r"[A-Za-z]\w+", match.text)
    line = plain(match.text)
    if stack.named(match.text) in others or any(plain(name) in line for name in others):
        return True
    return any(stack.owner(word) in others for word in words)


def _is_called(names: Sequence[str], match: Match, stack: Stack) -> bool:
    """Return whether code of some packages is among the frames of a failure, or the lines around it name them."""
    owners = {stack.owner_of_file(frame.file) for frame in match.frames}
    return bool(owners & {*names}) or any(len(name) > _TELLING and plain(name) in plain(match.around) for name in names)


def _serves_gpu(rule: LogRule, owner: str | None, known: FactResolver) -> bool:
    """Return whether the compiled files of the blamed package are known to hold code for this GPU."""
    blamed = owner or next(iter(rule.packages), None)
    if rule.category == NO_KERNEL and blamed is not None:
        with contextlib.suppress(DoctorError):  # of most packages no fact says what they hold
            return known.value(f"{blamed}.serves_gpu") is True
    return False


def _is_of_job(rule: LogRule, match: Match, stack: Stack) -> bool:
    """Return whether a whole traceback has frames of the job only, and nothing in it names a package of the rule."""
    if owned_by_line(rule) is not None or TORCH in rule.packages or "Traceback (" not in match.around:
        return False
    if _OF_NAME.search(match.text):  # the name says whose it is
        return False
    names = (*rule.packages, rule.rule.library)
    if any("-packages" in frame.file or stack.owner_of_file(frame.file) for frame in match.frames):
        return False
    return not (_is_named(names, match, stack) or _is_called(names, match, stack))


def _is_value(match: Match) -> bool:
    """Return whether the name that a module lacks is a value that the code looks up, as the name of a dtype."""
    frame = match.frames[-1] if match.frames else None
    return frame is not None and "getattr(" in frame.code and "has no attribute" in match.text


def _code_of(match: Match, stack: Stack) -> str | None:
    """Return whose code failed: the native file in the line, the last frame, or without any frame the server."""
    of_frame = stack.owner_of_file(match.frame)
    return stack.owner_of_line(match.text) or of_frame or (None if match.frame else stack.printer(match.text))


def _spoken_of(match: Match, stack: Stack) -> str | None:
    """Return the package that a line without a traceback names."""
    return None if match.frame else stack.named(match.text)


def _history(rule: LogRule, match: Match, stack: Stack) -> NameHistory | None:
    """Return which releases have what the line misses; for a rule that names its packages, of one of these."""
    line = with_class(match.text, match.around)
    owner = stack.owner_of_file(match.frame)
    wrapper = owner if is_wrapped(match.text, match.around) else None  # its function is not the called one
    if owned_by_line(rule) is None:
        expected = [name for name in rule.packages if name != wrapper]
        return history_of(line, stack.owner, expected) if expected else None
    of_frame = history_of(line, stack.owner, (owner,)) if owner not in (None, wrapper) else None
    found = of_frame or history_of(line, stack.owner)
    return found if found is None or found.package != wrapper else None


def _is_slip(match: Match, stack: Stack, weight: int) -> bool:
    """Return whether code outside the stack misses a name that no release ever had."""
    if stack.owner_of_file(match.frame) is not None:
        return False
    if weight > _GUESS and "-packages" in match.frame:  # what libraries miss, a narrow rule knows better
        return False
    return is_unheard_of(with_class(match.text, match.around), stack.owner, called_from=match.frame)


def packages_of(rule: LogRule) -> tuple[str, ...]:
    """Return the distributions of a rule's conditions and fixes."""
    conditions = rule.when.leaves() if rule.when is not None else ()
    named = [leaf.key.removesuffix(".version") for leaf in conditions if leaf.key.endswith(".version")]
    named += [name for remedy in rule.rule.alternatives for name in remedy.require]
    return tuple(dict.fromkeys(named)) or (rule.rule.library.replace("_", "-"),)


def owned_by_line(rule: LogRule) -> re.Match[str] | None:
    """Return the placeholder for the package whose code failed; None for a rule that names its packages."""
    return next((found for name in rule.packages if (found := OWNER.fullmatch(name))), None)


def _mentioned(library: Library | None, match: Match) -> int:
    """Return 2 where the line names the rule's library, 1 where the lines around it do."""
    if library is None:
        return 0
    names = {*library.distributions, library.import_name, library.name}
    names |= {name.replace("-", "_") for name in names}
    return 2 if any(name in match.text for name in names) else int(any(name in match.around for name in names))


def split(found: Sequence[Candidate], end: int) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Return known causes, benign lines, and failures that are no incompatibility.

    `end`: the line of the last error. A warning that names what runs instead is benign where no error follows.
    """
    harmless = [
        item for item in found if item.match.line > end and not item.holds and names_alternative(item.match.text)
    ]
    benign = [item for item in found if item.rule.benign or item in harmless]
    unrelated = [item for item in found if item.rule.category == NONE and item not in benign]
    causes = [item for item in found if item.rule.category != NONE and item not in harmless]
    return causes, benign, unrelated
