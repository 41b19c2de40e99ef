"""Which of the causes that a log shows is the root: specific before general, the first before what follows from it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from doctor.model import Remedy, Severity
from doctor.report.log_model import Doubt, Explanation, LogLine
from doctor.rulebook.anchors import fixed_length
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.messages import interpolate
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library
from doctor.rulebook.signatures import NONE, LogRule, Signature

from .frames import Stack
from .kinds import category_of, is_ambiguous
from .names import NameHistory, class_owner, history_of, is_unheard_of, is_wrapped, with_class
from .scan import Match

GENERAL = -10  # weight from which on a rule names the kind of a failure and not its cause
MOST = 5  # causes of one log that are reported
_KINDS = (1, 4, -GENERAL)  # weights from 0, -1, -4 and -10 on: own message, vague one, kind of failure, last resort
_OWN = 5  # score of a rule that was written for logs
_KNOWN = -2  # least weight of a rule whose line names something that is known to come or go with a release
_UNSURE = -5  # most weight of a rule for `check` whose facts are missing, by a message that any library may raise
_GUESS = -4  # weight from which on a rule takes any missing name for one of another release, also of a library
_CLEARER = 1.5  # times the fixed characters of a vague rule, from which on another one says clearly more of a line
_OF_NAMES = ("api-signature-drift", "missing-attribute", "missing-module/package")
_BY_SEVERITY = {Severity.ERROR: -1, Severity.WARNING: -3, Severity.NOTE: -6, None: -2}
#: The package that the line names, else that of the last frame; after `|` the name for one outside the stack.
OWNER = re.compile(r"\{log\.package(?:\|([\w-]+))?\}")
_PLACEHOLDER = re.compile(r"\{log\.(\w+)(?:\|[\w-]+)?\}")
#: A placeholder at the start of a word: the name of a package, not its release.
_PACKAGE_WORD = re.compile(r"""(?:^|[\s"'])\{log\.(\w+)(?:\|[\w-]+)?\}""")


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
    return item.match.line in explained and _owned(item.rule) is not None


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
    stated = rule.rule.body.get("weight") if rule.explains_only else None
    weight = int(stated) if stated is not None else 0 if rule.explains_only else _BY_SEVERITY[rule.rule.severity]
    history = _history(rule, match, stack) if weight <= 0 and rule.category in _OF_NAMES else None
    if weight <= _KNOWN and history is None and rule.category in _OF_NAMES and _is_slip(match, stack, weight):
        return None
    if (owned := _owned(rule)) is not None:
        owner = stack.owner(groups["package"]) if "package" in groups else _code_of(match, stack)
        owner = (
            (history and history.package)
            or owner
            or (class_owner(match.text) if rule.category in _OF_NAMES else None)
            or (owned[1] and groups.get("package", _spoken_of(match, stack) or owned[1]).replace("_", "-"))
        )
        if owner is None:  # a message of code outside the stack
            return None
        groups["package"] = owner
    if holds and rule.when is not None:
        weight = max(weight, 0)
    if history is not None:
        weight = max(weight, _KNOWN)
    score = weight + signature.conditions + (3 if holds else 0)
    if rule.explains_only:
        return Candidate(rule, signature, match, holds, weight, score + _OWN, groups, history=history)
    mentioned = _mentioned(stack.libraries.get(rule.rule.library), match)
    if not holds and is_ambiguous(match.text) and not (mentioned and signature.conditions):
        if not mentioned:
            return None
        weight, score = min(weight, _UNSURE), min(score, _UNSURE)  # a rule for logs knows such a message better
    return Candidate(rule, signature, match, holds, weight, score + mentioned, groups)


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
    if _owned(rule) is None:
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


def _owned(rule: LogRule) -> re.Match[str] | None:
    """Return the placeholder for the package whose code failed; None for a rule that names its packages."""
    return next((found for name in rule.packages if (found := OWNER.fullmatch(name))), None)


def _mentioned(library: Library | None, match: Match) -> int:
    """Return 2 where the line names the rule's library, 1 where the lines around it do."""
    if library is None:
        return 0
    names = {*library.distributions, str(library.body.get("import_name") or library.name), library.name}
    names |= {name.replace("-", "_") for name in names}
    return 2 if any(name in match.text for name in names) else int(any(name in match.around for name in names))


def split(found: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Return known causes, benign lines, and failures that are no incompatibility."""
    benign = [item for item in found if item.rule.benign]
    unrelated = [item for item in found if item.rule.category == NONE and not item.rule.benign]
    causes = [item for item in found if item.rule.category != NONE]
    return causes, benign, unrelated


def explanations(found: Sequence[Candidate], known: FactResolver, stack: Stack) -> tuple[Explanation, ...]:
    """Return one explanation for each cause, best first; general ones only if nothing better is known."""
    first: dict[str, Candidate] = {}
    for item in found:
        first.setdefault(item.rule.cause, item)
    distinct = list(first.values())
    distinct = [item for item in distinct if item.kind <= distinct[0].kind + 1 and not _repeats(item, distinct[0])]
    return tuple(explanation(item, known, stack, _rivals(item, distinct), distinct[0]) for item in distinct[:MOST])


def _repeats(item: Candidate, root: Candidate) -> bool:
    """Return whether a rule for messages of any package says less of a line than the rule that is reported first."""
    return item is not root and item.match.line == root.match.line and _owned(item.rule) is not None


def _rivals(item: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    """Return the other causes that rest on the same line, and fit as well or would with facts that are missing."""
    return [
        other
        for other in others
        if other is not item
        and other.match.line == item.match.line
        and (other.score >= item.score or (other.rule.explains_only and other.undecided))
    ]


def _doubts(item: Candidate, rivals: Sequence[Candidate], root: Candidate | None, named: bool) -> Iterator[Doubt]:
    """Yield what leaves a candidate open.

    `rivals`: other causes of the same line. `root`: the candidate of the log that is reported first. `named`: the
    message names something of which the releases that have it are known.
    """
    if named:
        return
    if item.kind > 1:
        yield Doubt.GENERAL
    elif item.kind == 1 and not item.holds and item.rule.explains_only:
        yield Doubt.VAGUE
    if rivals and not item.holds:
        yield Doubt.SHARED
    if item.undecided:
        yield Doubt.UNDECIDED
    if root is not None and root.match.line < item.match.line:
        yield Doubt.LATER
    if item.follows:
        yield Doubt.OTHER_RANK


def explanation(
    item: Candidate, known: FactResolver, stack: Stack, rivals: Sequence[Candidate] = (), root: Candidate | None = None
) -> Explanation:
    """Return what is said of one candidate; `rivals` and `root` as for its doubts."""
    rule, body, groups = item.rule.rule, item.rule.rule.body, item.groups
    message = str(body.get("message") or body["summary"]) if item.holds or item.rule.explains_only else body["summary"]
    message = _worded(str(message), groups, known)
    named = (_filled(name, groups) or "" for name in item.rule.packages)
    packages = tuple(dict.fromkeys(named)) or _packages(item.rule)
    history = item.history
    message = history.sentence if history is not None and item.weight < 0 else message
    why = str(body.get("why") or "").strip()
    if history is not None and history.sentence != message:
        why = f"{why} {history.sentence[0].upper()}{history.sentence[1:]}." if why else history.sentence
    of_name = _of_name(history, groups.get("name")) if history is not None else ()
    doubts = tuple(_doubts(item, rivals, root, history is not None and item.weight < 0))
    decisive = [other for other in (item, *rivals) if other.undecided]
    return Explanation(
        cause=item.rule.cause,
        rule=rule.id,
        category=category_of(item.rule.category or body.get("category"), item.match.text),
        packages=packages,
        doubts=doubts,
        signature=item.signature.match,
        line=LogLine(item.match.line, item.match.text.strip(), item.match.rank),
        message=message,
        why=why,
        remedies=(*of_name, *_remedies(rule.alternatives, known, groups, stack)),
        no_pin=body.get("no_pin"),
        references=rule.references,
        missing=tuple(dict.fromkeys(key for other in decisive for key in _missing(other, known))),
        holds=item.holds,
    )


def _of_name(history: NameHistory, name: str | None) -> tuple[Remedy, ...]:
    """Return what gives the caller what it misses."""
    pinned = Remedy(require={history.package: history.specifier})
    if history.spelled is not None:
        return Remedy(note=f"write `{history.spelled}` in the importing file"), pinned
    if history.home is None or name is None:
        return (pinned,)
    moved = Remedy(
        call=f"from {history.home} import {name}", note="in the importing file; newer releases have it there"
    )
    return pinned, moved


def _packages(rule: LogRule) -> tuple[str, ...]:
    """Return the distributions of a rule's conditions and fixes."""
    conditions = rule.when.leaves() if rule.when is not None else ()
    named = [leaf.key.removesuffix(".version") for leaf in conditions if leaf.key.endswith(".version")]
    named += [name for remedy in rule.rule.alternatives for name in remedy.require]
    return tuple(dict.fromkeys(named)) or (rule.rule.library.replace("_", "-"),)


def _missing(item: Candidate, known: FactResolver) -> list[str]:
    if item.rule.when is None:
        return []
    return [leaf.key for leaf in item.rule.when.leaves() if known.value(leaf.key) is None]


def _remedies(
    remedies: Iterable[Remedy], known: FactResolver, groups: Mapping[str, str], stack: Stack
) -> Iterator[Remedy]:
    """Yield the remedies whose own condition does not fail, with words of the log filled in.

    No command installs a package that only the log names: anyone could register that name.
    """
    for remedy in remedies:
        if remedy.when and parse_conditions(remedy.when).holds(known) is False:
            continue
        if any(name not in groups for name in _PLACEHOLDER.findall(remedy.call or "")):
            continue  # the line does not say what the command needs
        named = {name: stack.owner(groups[name]) for name in _installed_names(remedy)}
        strange = next((name for name, owner in named.items() if not stack.is_registered(owner)), None)
        if strange is not None:
            yield replace(remedy, require={}, call=None, note=_from_its_project(groups[strange], remedy))
            continue
        call = _filled(remedy.call, {**groups, **{name: owner for name, owner in named.items() if owner}})
        note = _filled(remedy.note, groups)
        ranges = {_filled(name, groups) or name: wanted for name, wanted in _ranges(remedy, known)}
        yield replace(remedy, require=ranges, call=call, note=note)


def _from_its_project(package: str, remedy: Remedy) -> str:
    """Return what to do with a package that the registry does not have on record."""
    isolated = "--no-build-isolation" not in (remedy.call or "")
    how = f"install `{package}` from" if isolated else f"build `{package}` with `--no-build-isolation`, from"
    return f"{how} the source that its project names; no record says whose package the registry has under this name"


def _installed_names(remedy: Remedy) -> Iterator[str]:
    """Yield the placeholders for the packages that the remedy installs."""
    call = remedy.call or ""
    if "install" in call and "uninstall" not in call:
        yield from _PACKAGE_WORD.findall(call)
    yield from (name for text in remedy.require for name in _PLACEHOLDER.findall(text))


def _filled(text: str | None, groups: Mapping[str, str]) -> str | None:
    """Return a text with `{log.name}` replaced by what the line says."""
    return None if text is None else _PLACEHOLDER.sub(lambda found: groups.get(found[1], "?"), text)


def _worded(message: str, groups: Mapping[str, str], known: FactResolver) -> str:
    """Return a message with facts and words of the line filled in; braces in the line itself name no fact."""
    start, parts = 0, []
    for found in _PLACEHOLDER.finditer(message):
        parts += [interpolate(message[start : found.start()], known), groups.get(found[1], "?")]
        start = found.end()
    return "".join(parts) + interpolate(message[start:], known)


def _ranges(remedy: Remedy, known: FactResolver) -> Iterator[tuple[str, str]]:
    """Yield the wanted ranges; one that follows from an unknown fact is left out."""
    for name, wanted in remedy.require.items():
        shown = interpolate(wanted, known)
        yield name, "" if "(unknown)" in shown else shown
