"""What is said of a cause: the message, the packages and the fixes of its rule, in the words of the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from doctor.model import Remedy
from doctor.report.log_model import Doubt, Explanation, LogLine
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.messages import interpolate
from doctor.rulebook.resolver import FactResolver

from .choose import Candidate, packages_of
from .frames import Stack
from .kinds import category_of, is_compiled_fault
from .names import NameHistory
from .stated_ranges import stated

_PLACEHOLDER = re.compile(r"\{log\.(\w+)(?:\|[\w-]+)?\}")
#: A placeholder at the start of a word: the name of a package, not its release.
_PACKAGE_WORD = re.compile(r"""(?:^|[\s"'])\{log\.(\w+)(?:\|[\w-]+)?\}""")


def explanation(
    item: Candidate, doubts: tuple[Doubt, ...], decisive: Sequence[Candidate], known: FactResolver, stack: Stack
) -> Explanation:
    """Return what is said of one candidate; `decisive`: candidates of its line that missing facts decide."""
    rule, groups = item.rule.rule, item.groups
    message = rule.message if item.holds or item.rule.explains_only else rule.summary
    message = _worded(message, groups, known)
    named = (_filled(name, groups) or "" for name in item.rule.packages)
    packages = tuple(dict.fromkeys(named)) or packages_of(item.rule)
    if (failed := _failed(item, packages)) is not None:
        packages, message = (failed, *packages), f"in {failed}: {message}"
    history = item.history
    message = history.sentence if history is not None and item.weight < 0 else message
    why = rule.why
    if history is not None and history.sentence != message:
        why = f"{why} {history.sentence[0].upper()}{history.sentence[1:]}." if why else history.sentence
    of_name = _of_name(history, groups.get("name")) if history is not None else ()
    return Explanation(
        cause=item.rule.cause,
        rule=rule.id,
        category=category_of(item.rule.category or rule.category, item.match.text),
        packages=packages,
        doubts=doubts,
        signature=item.signature.match,
        line=LogLine(item.match.line, item.match.text.strip(), item.match.rank),
        message=message,
        why=why,
        remedies=_as_required(
            item.match.text, packages, (*of_name, *_remedies(rule.alternatives, known, groups, stack))
        ),
        no_pin=rule.no_pin,
        references=rule.references,
        missing=tuple(dict.fromkeys(key for other in decisive for key in _missing(other, known))),
        holds=item.holds,
    )


def _as_required(line: str, packages: Sequence[str], remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """Return the releases that the message itself requires, before what a rule says without that range."""
    required = stated(line, packages)
    if required is None:
        return remedies
    (name,) = required.require
    newest = re.compile(rf"pip install (?:-U|--upgrade) (?:[\w-]+ )*{re.escape(name)}(?: |$)")
    return (
        required,
        *(remedy for remedy in remedies if not (name in remedy.require or newest.search(remedy.call or ""))),
    )


def _failed(item: Candidate, packages: Sequence[str]) -> str | None:
    """Return the package whose kernel failed, where a rule speaks of the compiler or library that ran it."""
    blame = item.blame
    if not is_compiled_fault(item.match.text) or blame.package is None or blame.is_one_of(packages):
        return None
    return blame.package


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
            yield remedy._replace(require={}, call=None, note=_from_its_project(groups[strange], remedy))
            continue
        call = _filled(remedy.call, {**groups, **{name: owner for name, owner in named.items() if owner}})
        note = _filled(remedy.note, groups)
        ranges = {_filled(name, groups) or name: wanted for name, wanted in _ranges(remedy, known)}
        yield remedy._replace(require=ranges, call=call, note=note)


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
