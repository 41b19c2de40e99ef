"""Follow install commands in their order; of each package the last command that changes it counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from doctor.errors import DoctorError
from doctor.model import ABSENT, TORCH, Fact
from doctor.packages.relations import BUILT_PER_INDEX, PINNED_BY
from doctor.packages.specifiers import admits
from doctor.sources.manifests.base import (
    BEFORE_TORCH,
    BUILT,
    IN_IMAGE,
    ISOLATED,
    LOCAL_STOPS,
    WITHOUT_NVCC,
    DeclaredRequirement,
    Manifest,
    cuda_of_index,
    index_builds,
    own_builds,
)  # fmt: skip
from doctor.sources.manifests.formats.pyproject import read_project
from doctor.sources.manifests.formats.requirements import Reader
from doctor.sources.manifests.formats.setuptools_project import read_extras
from doctor.sources.manifests.source_builds import displaced
from doctor.sources.variables import UNKNOWN
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .compiling import Building, building, compiled, local_builds

LineWord = tuple[int, str]  # line and word
#: Returns (path, text) of a file that a command names, None where it is not in the project.
Find = Callable[[str], "tuple[Path, str] | None"]

_VALUED = {
    "--platform", "--python-version", "--implementation", "--abi", "-t", "--target", "--prefix", "--root", "--src",
    "--python", "-p", "--upgrade-strategy", "-f", "--find-links", "--no-binary", "--only-binary", "-C",
    "--config-settings", "--config-setting", "--global-option", "--install-option", "--build-option", "--progress-bar",
    "--report", "--log", "--proxy", "--timeout", "--default-timeout", "--retries", "--cert", "--client-cert",
    "--cache-dir", "--trusted-host", "--exists-action", "--use-feature", "--use-deprecated", "--group",
    "--index-strategy", "--prerelease", "--resolution", "--override", "--overrides", "--build-constraint", "-b",
    "--link-mode", "--keyring-provider", "--extra", "--exclude-newer", "--allow-insecure-host",
    "--no-build-isolation-package", "--no-build-package", "--refresh-package", "--reinstall-package", "-P",
    "--upgrade-package",
}  # fmt: skip
_INDEXES = ("-i", "--index-url", "--extra-index-url", "--index", "--default-index", "--pypi-url")
_INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX",
                    "UV_DEFAULT_INDEX")  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?=\s*(?:[\[=<>!~;@ ]|$))")
_OF_TORCH = ("torch.", "cudnn.")


class Installs:
    """The packages and facts after the install commands that were followed so far."""

    def __init__(self, path: Path, top: Path, find: Find, rows: Sequence[str], watch: Watch) -> None:
        self.path, self.top, self.find, self.rows, self.watch = path, top, find, rows, watch
        self.entries: dict[str, list[DeclaredRequirement]] = {}
        self.facts: dict[str, Fact] = {}
        self.notes: list[str] = []
        self.included: set[str] = set()
        self.notes_of_base = 0  # what the base image noted; later notes are of commands that were not understood

    def copy(self) -> Installs:
        """Return a copy that later commands can change."""
        other = Installs(self.path, self.top, self.find, self.rows, self.watch)
        other.entries = {name: list(entries) for name, entries in self.entries.items()}
        other.facts, other.notes = dict(self.facts), list(self.notes)
        other.included, other.notes_of_base = set(self.included), self.notes_of_base
        return other

    def raw(self, line: int) -> str:
        """Return a line of the file."""
        return self.rows[line - 1].strip() if 0 < line <= len(self.rows) else ""

    def pip_install(
        self, words: Sequence[LineWord], variables: Mapping[str, str | None], *, certain: bool = True
    ) -> None:
        """Follow `pip install`; `words` are those behind it."""
        reader = Reader(self.top)
        understood = len(self.notes) == self.notes_of_base  # every command before this one
        upgrade, alone = False, any(word == "--no-deps" for _, word in words)
        indexes: list[LineWord] = []
        torch_backend = ""
        at = words[0][0] if words else 1
        index = 0
        while index < len(words):
            line, word = words[index]
            index += 1
            if not word.startswith("-"):
                self._word(word, line, reader, alone=alone)
                continue
            name, equals, value = word.partition("=")
            if not name.startswith("--") and len(name) > 2 and name[:2] in ("-r", "-c", "-e", "-i"):
                name, value, equals = name[:2], word[2:].lstrip("="), "="
            if name in ("-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed", "--reinstall"):
                upgrade = True
                continue
            takes = name in _VALUED or name in _INDEXES or name in (
                "-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints", "-e", "--editable",
                "--torch-backend",
            )  # fmt: skip
            if takes and not equals and index < len(words):
                value = words[index][1]
                index += 1
            if name in _INDEXES:
                indexes.append((line, value))
            elif name == "--torch-backend":
                torch_backend, at = value, line
            elif name in ("-r", "--requirement", "--requirements"):
                self._file(value, line, reader, constraint=False)
            elif name in ("-c", "--constraint", "--constraints"):
                self._file(value, line, reader, constraint=True)
            elif name in ("-e", "--editable"):
                self._word(value, line, reader, alone=alone)
        self.notes += reader.notes
        if certain:
            self._note_builds(reader.entries, words, variables, f"{self.path}:{at}", understood=understood)
        entries = [replace(entry, alone=True) for entry in reader.entries] if alone else reader.entries
        self.add(entries, upgrade=upgrade, certain=certain, facts=reader.facts)
        wanted = {entry.name for entry in reader.entries if not entry.constraint}
        for fact in reader.facts:
            if certain and fact.key == "torch.cuda":  # an index that an included file names
                self.facts.update({item.key: item for item in index_builds(wanted, fact.source)})
        if certain and not alone:
            self.remove(displaced(self.entries, wanted))
            self._doubt_pins(wanted, at)
        urls = (variables.get(name) or "" for name in _INDEX_VARIABLES)
        indexes = [*((0, url) for url in urls if url), *indexes]
        if certain:
            named = [*((f"{self.path}:{line or at}", url) for line, url in indexes), *reader.indexes]
            self.facts.update({fact.key: fact for fact in own_builds(wanted, named)})
        if TORCH in wanted or not wanted.isdisjoint(BUILT_PER_INDEX):
            built = [(line, cuda) for line, url in indexes if (cuda := cuda_of_index(url))]
            match = re.fullmatch(r"cu([0-9]+)([0-9])", torch_backend or variables.get("UV_TORCH_BACKEND") or "")
            if match:
                built.append((at, f"{match[1]}.{match[2]}"))
            if built and certain:
                line, cuda = built[-1]
                place = f"{self.path}:{line or at}"
                self.facts.update({fact.key: fact for fact in index_builds(wanted, place)})
                if TORCH in wanted or TORCH not in self.entries:
                    self.facts["torch.cuda"] = Fact("torch.cuda", cuda, place)

    def _note_builds(
        self, entries: Sequence[DeclaredRequirement], words: Sequence[LineWord], variables: Mapping[str, str | None],
        place: str, *, understood: bool,
    ) -> None:  # fmt: skip
        """Note what a command compiles and what is not there yet; a later command of the same package counts."""
        how = building([word for _, word in words], variables)
        before = frozenset(self.entries)
        folders = [] if how is Building.NONE else list(local_builds((word for _, word in words), self.find))
        found = compiled(entries, folders, how, before, self.facts, place, certain=understood)
        requested = {entry.name for entry in entries}
        for key in (ISOLATED, BUILT, BEFORE_TORCH, WITHOUT_NVCC, IN_IMAGE, LOCAL_STOPS):
            earlier = self.facts.pop(key, None)
            names = {*(earlier.value if earlier is not None else ())} - requested | set(found.get(key, ()))
            if names:
                self.facts[key] = Fact(key, tuple(sorted(names)), place)

    def _doubt_pins(self, names: set[str], line: int) -> None:
        """Mark earlier installs as unknown that a package of this command may replace: its pins are not on record."""
        for owner in names & PINNED_BY.keys():
            for name in self.entries.keys() & set(PINNED_BY[owner]) - names:
                problem = f"`{owner}` in {self.path}:{line} pins its own release"
                self.entries[name] = [replace(entry, problem=entry.problem or problem) for entry in self.entries[name]]

    def add(
        self,
        entries: Iterable[DeclaredRequirement],
        *,
        upgrade: bool = False,
        certain: bool = True,
        facts: Iterable[Fact] = (),
    ) -> None:
        """Install the packages of one command: an installed release that fits stays, any other is replaced."""
        groups: dict[str, list[DeclaredRequirement]] = {}
        for entry in entries:
            groups.setdefault(entry.name, []).append(entry)
        for name, found in groups.items():
            before = next((entry for entry in self.entries.get(name, ()) if not entry.constraint), None)
            wanted = [entry for entry in found if not entry.constraint]
            if not certain:
                problem = "is installed under a condition"
                found = [replace(entry, problem=f"{entry.place}: {problem}") for entry in found]
            elif before is not None and wanted and not upgrade and not any(entry.problem for entry in wanted):
                if before.version and all(admits(entry.range, before.version) for entry in wanted):
                    if not any("+" in (entry.version or "") for entry in wanted):
                        continue  # already satisfied
                elif before.problem and not any(entry.range for entry in wanted):
                    continue
            if before is not None and wanted and name == TORCH:
                self._drop_torch()
            if not wanted:
                self.entries.setdefault(name, []).extend(found)
            else:
                self.entries[name] = found
                self.facts.pop(f"{name}.version", None)  # an earlier uninstall no longer holds
                self.facts.pop(f"{name}.fitting_torch", None)
                self.facts.pop(f"{name}.wheel_cuda_major", None)
        self.facts.update({fact.key: fact for fact in facts})

    def remove(self, names: Iterable[str], line: int | None = None) -> None:
        """Remove packages; with the line of a `pip uninstall`, they are known to be absent."""
        for name in names:
            self.entries.pop(canonicalize_name(name), None)
            if line is not None and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                key = f"{canonicalize_name(name).strip('-')}.version"
                self.facts[key] = Fact(key, ABSENT, f"{self.path}:{line}")
            if canonicalize_name(name) == TORCH:
                self._drop_torch()

    def _drop_torch(self) -> None:
        """Drop what came with torch: another torch brings another CUDA, cuDNN and triton."""
        self.entries.pop("triton", None)
        self.facts = {key: fact for key, fact in self.facts.items() if not key.startswith(_OF_TORCH)}

    def _doubt_removals(self, word: str, line: int) -> None:
        """Mark uninstalled packages as unknown: a command that was not read may install them again."""
        for key, fact in self.facts.items():
            if key.endswith(".version") and fact.value == ABSENT:
                problem = f"uninstalled in {fact.source}; `{word}` in {self.path}:{line} may install it again"
                self.facts[key] = Fact(key, None, fact.source, None, problem)

    def _word(self, word: str, line: int, reader: Reader, *, alone: bool) -> None:
        """Read one requirement, address or folder; `alone` says that its own requirements are not installed."""
        name = _NAME.match(word)
        if UNKNOWN in word:
            known = word.partition(UNKNOWN)[0]
            name = _NAME.match(known) if re.search(r"[\[=<>!~;@ ]", known) else None
            if name is None:
                shown = shortened(word.replace(UNKNOWN, "…"), 60)
                self.notes.append(f"{self.path}:{line}: `{shown}` was not read: only the build knows its value")
                self._doubt_removals(shown, line)
                return
            problem = (
                f"`{shortened(word.replace(UNKNOWN, '…'), 60)}` in {self.path}:{line} depends on a value of the build"
            )
            reader.entries.append(
                DeclaredRequirement(
                    canonicalize_name(name[0]), str(self.path), line, raw=self.raw(line), problem=problem
                )
            )
            return
        project = re.fullmatch(r"(?:file:)?((?:\.{1,2}|~)?/[^\[]*|\.{1,2}|[\w.-]+/[\w./-]*)(?:\[([^\]]*)\])?", word)
        if project and not re.search(r"\.(whl|tar\.gz|zip)$", word):
            if not alone:
                self._project(project[1], project[2] or "", line, reader)
            return
        try:
            reader.line(word, self.path, line, self.raw(line))
        except DoctorError as problem:
            if name is None or "://" in word:
                self.notes.append(f"{problem.message}: skipped")
                self._doubt_removals(shortened(word, 60), line)
                return
            why = problem.message.removeprefix(f"{self.path}:{line}: ")
            reader.entries.append(
                DeclaredRequirement(
                    canonicalize_name(name[0]),
                    str(self.path),
                    line,
                    raw=self.raw(line),
                    problem=f"{self.path}:{line}: {why}",
                )
            )

    def _project(self, folder: str, extras: str, line: int, reader: Reader) -> None:
        """Install the requirements of the project in a folder: `pip install .`."""
        here = folder.rstrip("/") in (".", "", "/workspace", "/app", "/src")
        chosen = tuple(filter(None, re.split(r"[\s,]+", extras)))
        why = ""
        for name in ("pyproject.toml", "setup.cfg", "setup.py") if here else ():
            if (found := self.find(name)) is None:
                continue
            try:
                if name == "pyproject.toml":
                    manifest = read_project(*found, self.watch, chosen, groups=())
                else:
                    manifest = read_extras(*found, self.watch, chosen)
            except DoctorError as problem:
                why = why or f": {problem.message}"
                continue
            if manifest.entries or name == "pyproject.toml":
                reader.entries += manifest.entries
                reader.facts += manifest.facts
                return
        shown = shortened(folder, 60)
        self.notes.append(f"{self.path}:{line}: the requirements of the project in `{shown}` were not read{why}")
        self._doubt_removals(shown, line)

    def _file(self, name: str, line: int, reader: Reader, *, constraint: bool) -> None:
        """Read the file of `-r` or `-c`."""
        found = None if UNKNOWN in name or "://" in name else self.find(name)
        if found is None:
            shown = shortened(name.replace(UNKNOWN, "…"), 60)
            self.notes.append(f"{self.path}:{line}: `{shown}` is not in the project and was not read")
            return
        path, text = found
        if path.name == "pyproject.toml":
            self._project(".", "", line, reader)
            return
        try:
            reader.file(path, text, (self.path.resolve(),), constraint=constraint)
        except DoctorError as problem:  # the command would fail; the other lines of the file count all the same
            self.notes.append(f"{self.path}:{line}: {problem.message}")

    def add_manifest(self, manifest: Manifest, *, certain: bool = True) -> None:
        """Install everything that another file declares, by one command."""
        self.notes += manifest.notes
        self.add(manifest.entries, certain=certain, facts=manifest.facts if certain else ())
