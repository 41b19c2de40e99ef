"""Lines that carry out a remedy or a fix, each with its kind, so that every format can write it in its own way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any, NamedTuple

from doctor.facts.settings import setting_text
from doctor.model import ABSENT, ChangeKind, Finding, Fix, FixSafety, Remedy, TextEnum
from doctor.packages.relations import BUILT_AGAINST_TORCH, EXTRAS, extra_of
from doctor.util.call_text import CallKind, call_kind

from .install_commands import install_commands

_OPERATORS = "<>=!~@"
_GONE = (None, "", ABSENT)
REBUILD = "rebuild against the newly installed torch:"


class LineKind(TextEnum):
    """What a line does."""

    COMMAND = "command"
    SET = "set"  # an environment variable
    UNSET = "unset"
    CODE = "code"
    NOTE = "note"  # a setting of the job, or advice: no shell runs it


class FixLine(NamedTuple):
    """One line of a remedy or fix; `names` are the variables that it sets or unsets."""

    kind: LineKind
    text: str
    names: tuple[str, ...] = ()
    foreign: bool = False  # from a rule that is not built in: a script shows it as a comment

    @property
    def shown(self) -> str:
        """Return the line as printed: what is neither a command nor code becomes a comment."""
        if self.kind == LineKind.SET:
            return f"export {self.names[0]}={self.text}"
        if self.kind == LineKind.UNSET:
            return f"unset {' '.join(self.names)}"
        return f"# {self.text}" if self.kind == LineKind.NOTE else self.text

    @property
    def computed(self) -> bool:
        """Whether it sets a variable to the output of a command."""
        return self.kind == LineKind.SET and _is_computed(self.text.strip('"'))

    @property
    def runnable(self) -> bool:
        """Whether a shell can run it, and a script may."""
        return not self.foreign and self.kind in (LineKind.COMMAND, LineKind.SET, LineKind.UNSET)


def safety_text(item: Remedy | Fix, otherwise: str = "see note") -> str:
    """Return ` (risky: …)` or ` (changes numbers: …)` with the reason; nothing for what is safe."""
    if item.safety == FixSafety.SAFE:
        return ""
    word = "risky" if item.safety == FixSafety.CONDITIONAL else str(item.safety)
    return f" ({word}: {item.risk or otherwise})"


def alternative_lines(item: Remedy) -> list[str]:
    """Return the printed lines of one remedy."""
    return [line.shown for line in remedy_lines(item)]


def fix_lines(item: Fix) -> list[str]:
    """Return the printed lines of a fix."""
    return [line.shown for line in ordered_lines(item)]


def ordered_lines(item: Fix, *, held: bool = False) -> list[FixLine]:
    """Return the lines of a fix in the order in which every format shows them: packages, variables, settings, code.

    With `held` the packages that stay are named too, and what the plan notes comes first.
    """
    notes = [FixLine(LineKind.NOTE, text) for text in item.plan.notes] if held and item.changes_packages else []
    return [*notes, *package_lines(item, held=held), *other_lines(item)]


def no_pin_lead(finding: Finding) -> str:
    """Return the words before a finding's `no_pin`: no general verdict where one of its remedies changes packages."""
    calls = (item.call for item in finding.alternatives if item.call and call_kind(item.call) == CallKind.COMMAND)
    installs = any(item.require or item.build for item in finding.alternatives)
    return "Note" if installs or any("install" in call for call in calls) else "No version change fixes this"


def remedy_lines(item: Remedy) -> Iterator[FixLine]:
    """Yield the lines of one remedy of a rule."""
    removed = [name for name, wanted in item.require.items() if wanted in _GONE]
    if removed:
        yield FixLine(LineKind.COMMAND, f"pip uninstall --yes {' '.join(removed)}")
    kept = {name: wanted for name, wanted in item.require.items() if wanted not in _GONE}
    if kept:
        yield from _install(kept, item.index_url)
    if item.build:
        yield FixLine(LineKind.NOTE, f"install the same release of `{item.build}` in a build for a CUDA of your driver")
    yield from (_set(name, str(value), item.foreign) for name, value in item.set_env.items())
    if item.unset_env:
        yield FixLine(LineKind.UNSET, "", tuple(item.unset_env), item.foreign)
    yield from (_setting(name, value) for name, value in item.config.items())
    if item.call:
        yield from _call(item.call, item.foreign)


def package_lines(item: Fix, *, held: bool = False) -> Iterator[FixLine]:
    """Yield the commands that change packages, with a note before the first that compiles something."""
    noted = False
    for command in install_commands(item.plan, held=held):
        if command.compiles and not noted:
            noted = True
            yield FixLine(LineKind.NOTE, REBUILD)
        yield FixLine(LineKind.COMMAND, command.text)


def other_lines(item: Fix) -> Iterator[FixLine]:
    """Yield the lines for variables, settings and code."""
    for foreign in (False, True):
        removed = [change for change in item.changes if change.kind == ChangeKind.ENV and change.after in _GONE]
        unset = tuple(change.name.removeprefix("env.") for change in removed if change.foreign == foreign)
        if unset:
            yield FixLine(LineKind.UNSET, "", unset, foreign)
    for change in item.changes:
        if change.kind == ChangeKind.ENV and change.after not in _GONE:
            yield _set(change.name.removeprefix("env."), str(change.after), change.foreign)
        elif change.kind == ChangeKind.CONFIG:
            yield _setting(change.name, change.after)
        elif change.kind == ChangeKind.CALL:
            yield from _call(change.after or change.name, change.foreign)


def _set(name: str, value: str, foreign: bool) -> FixLine:
    return FixLine(LineKind.SET, _shell_value(value), (name,), foreign)


def _call(call: str, foreign: bool) -> Iterator[FixLine]:
    kinds = {CallKind.COMMAND: LineKind.COMMAND, CallKind.CODE: LineKind.CODE, CallKind.ADVICE: LineKind.NOTE}
    yield from (FixLine(kinds[call_kind(call)], line, (), foreign) for line in call.strip().splitlines())


def _install(packages: Mapping[str, str], index_url: str | None) -> Iterator[FixLine]:
    """Yield one command, or two where something is compiled against what the first one installs."""
    # Not --index-url: an index of torch builds lacks most other packages.
    index = f" --extra-index-url {quote(index_url)}" if index_url else ""
    plain: list[str] = []
    compiled: list[str] = []
    for name, wanted in packages.items():
        built = name in BUILT_AGAINST_TORCH or name in EXTRAS
        (compiled if built else plain).append(quote(_requirement(name, wanted, packages)))
    if plain:
        yield FixLine(LineKind.COMMAND, f"pip install{index} {' '.join(plain)}")
    if compiled:
        line = f"pip install{'' if plain else index} --no-build-isolation {' '.join(compiled)}"
        yield FixLine(LineKind.COMMAND, line)


def _requirement(name: str, wanted: str, others: Mapping[str, str]) -> str:
    wanted = str(wanted).strip()
    extra = "" if "transformer-engine-torch" in others else extra_of(name)
    return name + extra + (wanted if wanted[:1] in _OPERATORS else f"=={wanted}") if wanted else name


def _setting(name: str, value: Any) -> FixLine:
    return FixLine(LineKind.NOTE, setting_text(name, value))


def _shell_value(text: str) -> str:
    """Return the text quoted, except that the shell still expands `$LD_LIBRARY_PATH` or runs one whole `$(command)`."""
    if _is_computed(text):
        return f'"{text}"'
    return f'"{text}"' if "$" in text and not set('"`\\\n').intersection(text) and "$(" not in text else quote(text)


def _is_computed(value: str) -> bool:
    """Return whether the value of a variable is the output of one command."""
    return re.fullmatch(r"\$\([^$`\\\n]+\)", value) is not None
