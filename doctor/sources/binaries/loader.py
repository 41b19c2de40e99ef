"""Predict which file glibc's dynamic loader takes for each library of a process (ld.so(8), elf/dl-load.c).

A `Process` starts with a program and receives the calls of `dlopen` that the frameworks make at import. Nothing is
loaded or executed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from doctor.model import TextEnum

from .elf import Summary, expand
from .files import Damaged, Files
from .ldso import System


class FailureKind(TextEnum):
    """Why the loader refuses."""

    MISSING_LIBRARY = "missing library"
    DAMAGED = "damaged file"
    OTHER_MACHINE = "other machine"
    SYMBOL_VERSION = "symbol version"
    UNDEFINED_SYMBOL = "undefined symbol"
    CLASS_LAYOUT = "class layout"  # every symbol binds, and the registration of operators aborts


@dataclass(frozen=True)
class Failure:
    """What the loader would report, first of all that is wrong."""

    kind: FailureKind
    file: str  # the file that cannot be loaded, or that has the unmet need
    missing: tuple[str, ...]  # the library, the version or the symbols that are missing
    detail: str = ""
    count: int = 0  # of the symbols that were looked up
    provider: str = ""  # the file that lacks the version


@dataclass
class Loaded:
    """One file in the process."""

    path: str  # the name under which it was opened: `$ORIGIN` is its folder
    identity: str
    summary: Summary
    loader: Loaded | None = None  # the file whose NEEDED entry brought it
    how: str = ""  # which step of the search found it
    names: set[str] = field(default_factory=set)
    needed: list[Loaded] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # NEEDED entries that a tree of packages cannot determine


class Binder(Protocol):
    """Looks up symbols; kept apart, as it has to open files that the search does not."""

    def unbound(self, library: Loaded, scope: list[Loaded]) -> Failure | None:
        """Return why the symbols of a library do not bind in a scope."""
        ...


class Process:
    """The libraries of one process, in the order in which they are loaded."""

    def __init__(
        self,
        files: Files,
        environ: Mapping[str, str],
        machine: str = "x86_64",
        *,
        closed: bool = True,
        may_exist: tuple[str, ...] = (),
    ) -> None:
        self.files = files
        self.environ = environ
        self.machine = machine
        self.closed = closed  # False: libraries outside the known files may exist, so that missing means unknown
        self.may_exist = ("linux-vdso", "ld-linux", *may_exist)  # beginnings of names that another machine may have
        self.loaded: list[Loaded] = []
        self.program: Loaded | None = None
        self._global: list[Loaded] = []
        self._by_name: dict[str, Loaded] = {}
        self.system = System((), "lib64", machine)

    def start(self, program: str) -> Failure | None:
        """Load a program with its libraries, LD_PRELOAD first; return why it does not start."""
        summary = self.files.summary(program)
        if not isinstance(summary, Summary):
            return Failure(FailureKind.MISSING_LIBRARY, program, (program,), "it is no program")
        self.system = self.files.system(summary.interpreter, self.machine)
        self.program = self._add(program, summary, None, "the program")
        interpreter = self.files.summary(summary.interpreter) if summary.interpreter else None
        if isinstance(interpreter, Summary):
            self._add(summary.interpreter, interpreter, None, "the kernel")
        roots = [self.program]
        for name in self.environ.get("LD_PRELOAD", "").replace(":", " ").split():
            found = self._find(name, self.program)
            if isinstance(found, Loaded):  # a missing one is ignored with a message
                found.how = "LD_PRELOAD"
                roots.append(found)
        failure = self._close(roots)
        self._global = list(self.loaded)
        return failure or next((bad for bad in (self._versions(one) for one in self.loaded) if bad), None)

    def dlopen(
        self, name: str, *, caller: Loaded | None = None, make_global: bool = False, binder: Binder | None = None
    ) -> Loaded | Failure:
        """Load a library as `dlopen(name, RTLD_NOW)` does; on failure nothing stays loaded.

        `caller` is the library that calls: its run path counts where the name has no folder.
        """
        before = len(self.loaded)
        root = self._find(name, None if "/" in name else caller)
        if isinstance(root, Failure):
            self._undo(before)
            return root
        if len(self.loaded) > before:
            root.loader = None  # the DT_RPATH of the caller of `dlopen` does not count for what the library needs
        failure = self._close([root])
        new = self.loaded[before:]
        if failure is None:
            failure = next((bad for bad in (self._versions(one) for one in new) if bad), None)
        if failure is None and binder is not None:
            scope = _unique([*self._global, *closure(root)])
            failure = next((bad for bad in (binder.unbound(one, scope) for one in reversed(new)) if bad), None)
        if failure is not None:
            self._undo(before)
            return failure
        if make_global:
            self._global = _unique([*self._global, *closure(root)])
        return root

    def mark(self) -> tuple[int, list[Loaded]]:
        """Return the state, for `reset`."""
        return len(self.loaded), list(self._global)

    def reset(self, state: tuple[int, list[Loaded]]) -> None:
        """Forget what was loaded since."""
        self._undo(state[0])
        self._global = state[1]

    def find_loaded(self, prefix: str) -> list[Loaded]:
        """Return the loaded files whose name or SONAME begins with a text, as `libcudnn.so`."""
        return [
            one
            for one in self.loaded
            if os.path.basename(one.path).startswith(prefix) or (one.summary.soname or "").startswith(prefix)  # noqa: PTH119
        ]

    def _close(self, roots: list[Loaded]) -> Failure | None:
        """Load what the roots need, breadth first."""
        queue = list(roots)
        seen = {id(one) for one in queue}
        while queue:
            library = queue.pop(0)
            if library.needed or library.unknown:
                continue
            for name in library.summary.needed:
                found = self._find(name, library)
                if isinstance(found, Failure):
                    if found.kind == FailureKind.MISSING_LIBRARY and self._may_exist(name):
                        library.unknown.append(name)
                        continue
                    return found
                library.needed.append(found)
                if id(found) not in seen:
                    seen.add(id(found))
                    queue.append(found)
        return None

    def _may_exist(self, name: str) -> bool:
        return not self.closed or name.startswith(self.may_exist)

    def _find(self, name: str, caller: Loaded | None) -> Loaded | Failure:
        if "/" in name:
            return self._open(name, caller, "by its path")
        present = self._by_name.get(name)
        if present is None:
            present = next((one for one in self.loaded if one.summary.soname == name), None)
        if present is not None:
            present.names.add(name)
            return present
        for path, how in self._places(name, caller):
            summary = self.files.summary(path)
            if summary is None or self._is_foreign(summary):
                continue  # glibc passes over libraries of another machine
            found = self._open(path, caller, how)
            if isinstance(found, Loaded):
                self._by_name[name] = found
                found.names.add(name)
            return found
        needed_by = caller.path if caller else name
        return Failure(FailureKind.MISSING_LIBRARY, needed_by, (name,), "no folder that the loader searches has it")

    def _places(self, name: str, caller: Loaded | None) -> Iterator[tuple[str, str]]:
        if caller is None or not caller.summary.runpath:  # a DT_RUNPATH disables every DT_RPATH
            chain: Loaded | None = caller
            visited: list[Loaded] = []
            while chain is not None and not any(chain is one for one in visited):
                visited.append(chain)
                yield from self._in(chain, chain.summary.rpath, name, "DT_RPATH of")
                chain = chain.loader
            if self.program is not None and not any(self.program is one for one in visited):
                yield from self._in(self.program, self.program.summary.rpath, name, "DT_RPATH of")
        program = self.program.identity if self.program is not None else ""
        paths = self.environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
        if paths:
            yield from self._each(
                expand(paths, program, self.system.lib, self.system.platform), name, "LD_LIBRARY_PATH"
            )
        if caller is not None:
            yield from self._in(caller, caller.summary.runpath, name, "DT_RUNPATH of")
        searcher = caller or self.program
        limited = searcher is not None and searcher.summary.no_default_folders
        cached = self.files.cached_path(name)
        if cached is not None and not (limited and cached.startswith(self.system.folders)):
            yield cached, "ldconfig's cache"
        if self.closed and not limited:
            yield from self._each(self.system.folders, name, "the system's folders")

    def _in(self, owner: Loaded, paths: str, name: str, how: str) -> Iterator[tuple[str, str]]:
        if not paths:
            return
        # The kernel names the program by its path without links; libraries keep the name under which they were opened.
        file = owner.identity if owner is self.program else owner.path
        folders = expand(paths, file, self.system.lib, self.system.platform)
        yield from self._each(folders, name, f"{how} {os.path.basename(owner.path)}")  # noqa: PTH119

    def _each(self, folders: Iterable[str], name: str, how: str) -> Iterator[tuple[str, str]]:
        """Yield the paths of a library in folders and their hardware subfolders."""
        roots = dict.fromkeys(path.partition("/")[0] for path in self.system.subfolders)
        for folder in folders:
            present = [root for root in roots if self.files.is_folder(f"{folder}/{root}")]
            for inner in self.system.subfolders if present else ():
                if inner.partition("/")[0] in present:
                    yield f"{folder}/{inner}/{name}", how
            yield f"{folder}/{name}", how

    def _open(self, path: str, caller: Loaded | None, how: str) -> Loaded | Failure:
        identity = self.files.identity(path)
        present = next((one for one in self.loaded if one.identity == identity), None)
        if present is not None:
            return present
        summary = self.files.summary(path)
        if summary is None:
            return Failure(FailureKind.MISSING_LIBRARY, path, (path,), "there is no such file")
        if self._is_foreign(summary):
            own = summary.machine if isinstance(summary, Summary) else "a 32-bit system"
            return Failure(FailureKind.OTHER_MACHINE, path, (), f"it is for {own}, this is {self.machine}")
        if isinstance(summary, Damaged):
            return Failure(FailureKind.DAMAGED, path, (), summary.reason)
        return self._add(path, summary, caller, how)

    def _is_foreign(self, summary: Summary | Damaged) -> bool:
        if isinstance(summary, Damaged):
            return "32-bit" in summary.reason
        return summary.machine != self.machine

    def _add(self, path: str, summary: Summary, caller: Loaded | None, how: str) -> Loaded:
        library = Loaded(path, self.files.identity(path), summary, caller, how)
        self.loaded.append(library)
        if summary.soname:
            self._by_name.setdefault(summary.soname, library)
        return library

    def _versions(self, library: Loaded) -> Failure | None:
        """Return the first version that a needed library does not define, as `GLIBC_2.32`."""
        for file, version, weak in library.summary.requires:
            if weak:
                continue
            provider = self._by_name.get(file)
            if provider is None or not provider.summary.provides:
                continue  # a library without version tables takes every reference
            if version not in provider.summary.provides:
                path = os.path.normpath(provider.path)
                detail = f"`{path}` does not define it"
                return Failure(FailureKind.SYMBOL_VERSION, library.path, (version,), detail, provider=path)
        return None

    def _undo(self, before: int) -> None:
        gone = {id(one) for one in self.loaded[before:]}
        del self.loaded[before:]
        self._by_name = {name: one for name, one in self._by_name.items() if id(one) not in gone}


def closure(root: Loaded) -> list[Loaded]:
    """Return a library and all that it needs, breadth first: the order in which symbols are looked up."""
    found = [root]
    seen = {id(root)}
    for library in found:
        for one in library.needed:
            if id(one) not in seen:
                seen.add(id(one))
                found.append(one)
    return found


def _unique(libraries: Iterable[Loaded]) -> list[Loaded]:
    return list({id(one): one for one in libraries}.values())


def library_path(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders of LD_LIBRARY_PATH, without empty ones (the current folder)."""
    return tuple(part for part in environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":") if part)
