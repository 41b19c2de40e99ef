"""requirements.txt edited in place, with the files it includes: each line where it lives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from doctor.errors import DoctorError, fault
from doctor.sources.manifests.base import DeclaredRequirement, cuda_of_index
from doctor.sources.manifests.formats.requirements import address_entry, project_top, split_marker
from doctor.sources.manifests.markers import applies
from doctor.util.redact import shortened

from .changes import ChangeSet, PackageChange
from .files import SourceFile
from .lines import Line, compiled_by, newline_of, read_lines
from .specifier import Edit, Parts, apply, changes, is_exact, take_apart

_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|\s*=\s*|(?<=^-[rc]))(?P<file>.+)")
_INDEX = re.compile(r"(?:-i|--index-url|--extra-index-url)(?:\s+|\s*=\s*|(?<=^-i))(?P<url>\S+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


#: (0 exact or 1 open, file, where the line begins)
Anchor = tuple[int, Path, int]


class RequirementsFile:
    """One file under edit."""

    def __init__(self, source: SourceFile, constraint: bool = False) -> None:
        self.source = source
        self.constraint = constraint
        self.lines = read_lines(source.text)
        self.edits: list[Edit] = []
        self.named: dict[str, list[Line]] = {}  # package → lines that count here, the last one last
        self.elsewhere: set[str] = set()  # named for other machines only
        self.anchors: Mapping[str, Anchor] = {}

    @property
    def text(self) -> str:
        """What it is to become."""
        return apply(self.source.text, self.edits)

    def edit(self, goals: ChangeSet, anchors: Mapping[str, Anchor]) -> None:
        """Every line that the fix changes; what an anchor says need not be said again."""
        self.anchors = anchors
        self._indexes(goals)
        touched: list[tuple[Line, str]] = []
        for line in self.lines:
            if line.is_option:
                self._refuse_checkout(line, goals)
            elif line.body:
                before = len(self.edits)
                name = self._requirement(line, goals)
                if name and len(self.edits) > before:
                    touched.append((line, name))
        self._refuse_if_made([(name, line) for line, name in touched], goals)

    def _refuse_if_made(self, touched: Sequence[tuple[str, Line]], goals: ChangeSet) -> None:
        """A file that a tool wrote, or that has hashes, is no file to change a line of."""
        for name, line in touched:
            if line.hashed:
                raise fault(
                    self.source.path, line.number,
                    f"`{name}` is pinned with hashes, which another release does not have",
                    f"`uv pip compile --generate-hashes` makes them again, from a file that says {_want(goals)}",
                )  # fmt: skip
        command = compiled_by(self.source.text)
        if touched and command:
            raise DoctorError(
                f"`{self.source.path}` is made by `{command}`: a line changed by hand would not last",
                f"edit what it is made from with `--write FILE`, so that it says {_want(goals)}; then run that again",
            )

    def _requirement(self, line: Line, goals: ChangeSet) -> str | None:
        parts = take_apart(line.body)
        bare = None if parts else self._bare(line)
        if parts is None and bare is None:
            self._refuse_unreadable(line, goals)
            return None
        name, marker = (parts.name, parts.marker) if parts else (bare.name, bare.marker)  # type: ignore[union-attr]
        if (
            applies(DeclaredRequirement(name, str(self.source.path), line.number, marker=marker), goals.platforms)
            is False
        ):
            self.elsewhere.add(name)
            return None
        made = self._changes(line, parts, bare, goals)
        if made is None:
            self.edits.append(Edit(line.start, line.end, ""))
            goals.say(f"{self.source.path}:{line.number}: `{name}` is taken out: {goals.items[name].why}")
        else:
            self.named.setdefault(name, []).append(line)
            self.edits += [Edit(line.at + edit.start, line.at + edit.end, edit.text) for edit in made]
        return name

    def _changes(
        self, line: Line, parts: Parts | None, bare: DeclaredRequirement | None, goals: ChangeSet
    ) -> list[Edit] | None:
        try:
            if parts is not None:
                anchor = self.anchors.get(parts.name)
                loose = anchor is not None and anchor[1:] != (self.source.path, line.start)
                return changes(line.body, parts, goals, loose)
            assert bare is not None
            return _bare_changes(line.body, bare, goals)
        except DoctorError as problem:
            raise fault(self.source.path, line.number, problem.message, problem.hint) from None

    def _bare(self, line: Line) -> DeclaredRequirement | None:
        """An address that names no package before it: its file's name does."""
        return address_entry(line.body, str(self.source.path), line.number)

    def _refuse_unreadable(self, line: Line, goals: ChangeSet) -> None:
        name = _NAME.match(line.body)
        goal = goals.items.get(canonicalize_name(name[0])) if name else None
        if goal is not None:
            wanted = f"`{goal.package}=={goal.version}`" if goal.version else f"`{goal.package}` gone"
            raise fault(
                self.source.path, line.number,
                f"`{shortened(line.body, 60)}` cannot be edited: it is no plain requirement", f"the fix wants {wanted}",
            )  # fmt: skip

    def _refuse_checkout(self, line: Line, goals: ChangeSet) -> None:
        checkout = re.match(r"(?:-e|--editable)(?:\s+|\s*=\s*)(?P<address>.+)", line.body)
        entry = address_entry(checkout["address"], str(self.source.path), line.number) if checkout else None
        goal = goals.items.get(entry.name) if entry else None
        if goal is not None and goal.version is not None:
            raise fault(
                self.source.path, line.number,
                f"`{goal.package}` is installed from a checkout, and the fix wants `{goal.package}=={goal.version}`",
                "check that release out, or put it there instead of the checkout",
            )  # fmt: skip

    def _indexes(self, goals: ChangeSet) -> None:
        urls = {
            (line.at + match.start("url"), line.at + match.end("url")): match["url"]
            for line in self.lines
            if (match := _INDEX.fullmatch(line.body))
        }
        changed = goals.indexes(urls, str(self.source.path))
        self.edits += [Edit(*span, url) for span, url in changed.items()]

    @property
    def has_index(self) -> bool:
        """Whether it names an index of PyTorch's for some CUDA."""
        urls = (match["url"] for line in self.lines if (match := _INDEX.fullmatch(line.body)))
        return any(cuda_of_index(url) for url in urls)

    def add(self, goal: PackageChange, after: Line | None, goals: ChangeSet) -> None:
        """A line of its own for a package, after a related one, else at the end."""
        first = next((line for line in self.lines if line.hashed), None) or next(iter(self.lines), None)
        self._refuse_if_made([(goal.package, first)] if first else [], goals)
        marker = '; sys_platform == "linux"' if goal.package in self.elsewhere else ""
        rows = [f"# attn-doctor: {goal.why}", f"{goal.package}{goal.extra}=={goal.version}{marker}"]
        self._insert(after.end if after else len(self.source.text), rows)

    def add_index(self, url: str, why: str) -> None:
        """The index of another torch build, before the first requirement and behind other options."""
        contents = [line for line in self.lines if line.body]
        at = 0
        for line in contents:
            if not line.is_option:
                break
            at = line.end
        if at == 0 and contents:
            at = contents[0].start
        self._insert(at, [f"# attn-doctor: {why}", f"--extra-index-url {url}"])

    def _insert(self, at: int, rows: list[str]) -> None:
        text, newline = self.source.text, newline_of(self.source.text)
        block = newline.join(rows)
        if at > 0 and text[at - 1 : at] not in ("\n", "\r"):
            self.edits.append(Edit(at, at, newline + block))  # the last line has no end, and the new last one has none
        else:
            self.edits.append(Edit(at, at, block + newline))


def anchors_of(files: Iterable[RequirementsFile]) -> dict[str, Anchor]:
    """Package → the line that says its version for all of these files: one that always counts, an exact one rather."""
    found: dict[str, Anchor] = {}
    for file in files:
        for line in file.lines if not file.constraint else ():
            parts = None if line.is_option or not line.body else take_apart(line.body)
            if parts is None or parts.marker is not None or parts.spec is None:
                continue
            rank = 0 if is_exact(line.body, parts) else 1
            if parts.name not in found or rank < found[parts.name][0]:
                found[parts.name] = rank, file.source.path, line.start
    return found


def _bare_changes(body: str, entry: DeclaredRequirement, goals: ChangeSet) -> list[Edit] | None:
    """`https://…/torch-2.6.0….whl` in the words of `torch @ https://…`, edited, and written bare again if it can be."""
    address = split_marker(body)[0]
    prefix = f"{entry.name} @ "
    if address.startswith("-"):
        return []
    parts = take_apart(prefix + address)
    if parts is None:
        return []
    made = changes(prefix + address, parts, goals)
    if not made:
        return made
    after = apply(prefix + address, made)
    return [Edit(0, len(address), after.removeprefix(prefix) if after.startswith(prefix) else after)]


def _want(goals: ChangeSet) -> str:
    wanted = []
    for goal in goals.items.values():
        if goal.range is not None:
            wanted.append(f"`{goal.package}{goal.range}`")
        elif goal.named:
            wanted.append(f"`{goal.package}=={goal.version}`" if goal.version else f"no `{goal.package}`")
    return ", ".join(wanted)


def family(source: SourceFile) -> list[RequirementsFile]:
    """The file and those it includes, each once, in the order in which pip reads them."""
    top = project_top(source.path)
    return list(_family(source, False, top, set()))


def _family(source: SourceFile, constraint: bool, top: Path, seen: set[Path]) -> Iterator[RequirementsFile]:
    here = source.path.resolve()
    if here in seen:
        return
    seen.add(here)
    file = RequirementsFile(source, constraint)
    yield file
    for line in file.lines:
        match = _INCLUDE.fullmatch(line.body)
        if match is None:
            continue
        name = match["file"].strip().strip("'\"")
        if re.match(r"[a-z]+://", name) or "${" in name:
            continue
        target = source.path.parent / name
        if not target.resolve().is_relative_to(top):
            continue  # another project's file
        inner = constraint or line.body.startswith(("-c", "--constraint"))
        try:
            included = SourceFile.read(target)
        except DoctorError as problem:
            raise fault(source.path, line.number, problem.message, problem.hint) from None
        yield from _family(included, inner, top, seen)
