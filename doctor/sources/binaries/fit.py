"""Whether the symbols of a library bind: against the files of a process, or against the index of torch releases."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from doctor.packages.torch_symbols import TorchBuild, load_torch_symbols

from .elf import BadElf, ElfFile, Reference
from .files import stamp
from .layout import has_new_layout, registers_operators, torch_has_new_layout
from .loader import Failure, FailureKind, Loaded

#: Names that only torch's own libraries define: mangled names of its namespaces, and its C interface. The latter holds
#: the stable ABI (torch/csrc/stable/c/shim.h and the shims of AOTInductor), whose functions also come with releases.
_OF_TORCH = re.compile(
    r"_Z(?:T[VISTHW]|GV)?N[KVrRO]*(?:3c10|2at|5torch(?!8executor)|6caffe2)|THP[A-Z]\w+|aoti_torch_\w+"
    r"|torch_(?:call_dispatcher|from_blob|parallel_for|empty|clone|"
    r"(?:library|new|delete|get|set|list|string|dtype|tag|exception|parse|stream|generator|cuda|c10|layout|device)_\w+)"
)
_MAX_SHOWN = 3


def of_torch(name: str) -> bool:
    """Return whether only torch's own libraries can define a symbol."""
    return _OF_TORCH.match(name) is not None


class SymbolBinder:
    """Looks up every undefined symbol as the loader does with RTLD_NOW; remembers what it found per set of files."""

    def __init__(self, remembered: dict[str, Any] | None = None) -> None:
        self.remembered = {} if remembered is None else remembered
        self.used: dict[str, Any] = {}
        self._open: dict[str, ElfFile | None] = {}

    def close(self) -> None:
        """Unmap all files."""
        for elf in self._open.values():
            if elf is not None:
                elf.__exit__(None, None, None)
        self._open.clear()

    def unbound(self, library: Loaded, scope: list[Loaded]) -> Failure | None:
        """Return which symbols of a library no file of the scope defines."""
        key = _key(library, scope)
        found = self.remembered.get(key)
        if found is None:
            missing, count = self._missing(library, scope)
            found = [list(missing), count, not missing and self._differs(library, scope)]
        self.used[key] = found
        missing, count = tuple(found[0]), int(found[1])
        if missing:
            return Failure(FailureKind.UNDEFINED_SYMBOL, library.path, missing, count=count)
        return Failure(FailureKind.CLASS_LAYOUT, library.path, ("c10::KernelFunction",)) if found[2] else None

    def _differs(self, library: Loaded, scope: list[Loaded]) -> bool:
        """Return whether a library and torch disagree on the layout of a class."""
        of_torch = [one for one in scope if os.path.basename(one.path).startswith("libtorch_cpu.so")]  # noqa: PTH119
        elf = self._elf(library.identity)
        others = [found for one in of_torch if (found := self._elf(one.identity)) is not None]
        if elf is None or not others or any(one is library for one in of_torch):
            return False
        inside = os.path.dirname(of_torch[0].identity)  # noqa: PTH120 - torch's own libraries are of one build
        if os.path.dirname(library.identity) == inside or not registers_operators(one.name for one in elf.undefined()):  # noqa: PTH120
            return False
        return has_new_layout(elf) is not torch_has_new_layout(others)

    def _missing(self, library: Loaded, scope: list[Loaded]) -> tuple[tuple[str, ...], int]:
        elf = self._elf(library.identity)
        if elf is None:
            return (), 0
        unknown = [name for one in scope for name in one.unknown]
        order = _likely_first(scope)
        by_name = {name: one for one in scope for name in (*one.names, one.summary.soname or "") if name}
        missing: list[str] = []
        count = 0
        for reference in elf.undefined():
            if reference.weak:
                continue
            count += 1
            if reference.library in by_name and self._defines(by_name[reference.library], reference):
                continue
            if unknown and not self._certain(reference, unknown, by_name):
                continue
            if not any(self._defines(one, reference) for one in order):
                missing.append(reference.name)
        return tuple(self._used(elf, missing)), count

    @staticmethod
    def _used(elf: ElfFile, missing: list[str]) -> list[str]:
        """Return the missing symbols that the loader looks up: a name in the table alone is of no importance."""
        if not missing:
            return missing
        try:
            used = elf.looked_up(missing)
        except (BadElf, OSError, ValueError):
            return missing
        return [name for name in missing if name in used]

    @staticmethod
    def _certain(reference: Reference, unknown: list[str], by_name: Mapping[str, Loaded]) -> bool:
        """Return whether a symbol cannot come from a library that is not known."""
        if reference.library is not None:
            return reference.library in by_name
        return of_torch(reference.name) and not any(name.startswith(("libtorch", "libc10")) for name in unknown)

    def _defines(self, library: Loaded, reference: Reference) -> bool:
        elf = self._elf(library.identity)
        if elf is None:
            return True  # unreadable: it may define anything
        try:
            return elf.defines(reference.name, reference.version)
        except BadElf:
            return True

    def _elf(self, path: str) -> ElfFile | None:
        if path not in self._open:
            self._open[path] = None
            with suppress(OSError, ValueError):
                self._open[path] = ElfFile(path)
        return self._open[path]


def _likely_first(scope: list[Loaded]) -> list[Loaded]:
    """Return the scope with torch's libraries in front; where a symbol is found does not matter here."""
    return sorted(scope, key=lambda one: not os.path.basename(one.path).startswith(("libc10", "libtorch")))  # noqa: PTH119


def _key(library: Loaded, scope: Iterable[Loaded]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for one in (library, *scope):
        digest.update(repr((one.identity, stamp(one.identity), one.unknown)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def torch_symbols_of(path: str) -> tuple[str, ...]:
    """Return the symbols that a file leaves undefined and that only torch defines; raise BadElf or OSError."""
    with ElfFile(path) as elf:
        return tuple(one.name for one in elf.undefined() if not one.weak and of_torch(one.name))


def by_index(path: str, build: TorchBuild) -> Failure | None:
    """Return which symbols of a file the torch build on record does not export; raise BadElf or OSError."""
    names = torch_symbols_of(path)
    missing = load_torch_symbols().missing(names, build)
    return Failure(FailureKind.UNDEFINED_SYMBOL, path, missing, count=len(names)) if missing else None


def fitting_torch(names: Iterable[str]) -> tuple[TorchBuild, ...]:
    """Return the torch builds on record that export all these symbols, oldest first."""
    return load_torch_symbols().exporters(names)


def describe_symbols(failure: Failure) -> str:
    """Return the missing symbols as a sentence without a subject."""
    shown = demangled(failure.missing[0])
    if len(failure.missing) == 1:
        return f"1 of its {failure.count} undefined symbols is missing: `{shown}`"
    return f"{len(failure.missing)} of its {failure.count} undefined symbols are missing, for example `{shown}`"


def demangled(name: str) -> str:
    """Return the C++ name of a symbol, by the C++ library of this machine; the symbol itself where there is none."""
    function = _demangler()
    if function is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    pointer = function(name.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return name
    try:
        text = ctypes.cast(pointer, ctypes.c_char_p).value or b""
        return text.decode("utf-8", "replace") or name
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(pointer))


@functools.cache
def _demangler() -> Any:
    for library in ("libstdc++.so.6", "libc++abi.so.1"):
        with suppress(OSError, AttributeError):
            function = ctypes.CDLL(library).__cxa_demangle
            function.restype = ctypes.c_void_p
            return function
    return None


def range_of(wanted: Iterable[str], every: Iterable[str]) -> str:
    """Return builds such as 2.8.0+cu128 in words: consecutive releases as `2.6.0 to 2.8.0`."""
    chosen = set(wanted)
    runs: list[list[str]] = []
    previous = False
    for build in every:
        if build.endswith("+cpu"):
            continue
        if build in chosen:
            public = build.partition("+")[0]
            if previous:
                runs[-1].append(public)
            else:
                runs.append([public])
        previous = build in chosen
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or " ".join(sorted(chosen))
