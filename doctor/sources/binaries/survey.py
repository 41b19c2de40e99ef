"""Judge the compiled files of installed packages: whether they load next to torch, and on which GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from doctor.model import TORCH
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecord
from doctor.packages.torch_symbols import TorchBuild, load_torch_symbols
from doctor.util.deep_search import SearchTooLarge

from .elf import BadElf, ElfFile, Summary
from .fatbin import read_gpu_code
from .files import Disk, read_summary, stamp
from .fit import SymbolBinder, by_index, describe_symbols, fitting_torch, of_torch, range_of
from .layout import builds_with, has_new_layout, registers_operators
from .loader import Failure, FailureKind, Loaded, Process
from .packages import OF_DRIVER, Opening, archs_for_pick, is_alternative, is_related, opening_of
from .repair import Places
from .te_import import import_te_common
from .torch_import import TorchFiles, import_torch, read_text

_CUDART = re.compile(r"libcudart\.so\.(\d+)(?:\..*)?")
_MAX_SIBLINGS = 16
TE_CORE = "/libtransformer_engine.so"
_TE_FOLDERS = ("transformer_engine/wheel_lib", "transformer_engine", ".")
PYTHON_TAG = re.compile(r"\.cpython-(\d{2,3})t?-")


@dataclass(frozen=True)
class Place:
    """The environment whose files are judged."""

    site_dirs: tuple[str, ...]
    machine: str
    environ: Mapping[str, str]
    program: str | None = None  # the interpreter's file; None for a tree of packages
    python: str | None = None  # its version
    torch_folder: str | None = None
    torch_version: str | None = None
    torch_cuda: str | None = None  # empty: a build without CUDA
    conda: str | None = None  # the folder of a conda environment


@dataclass(frozen=True)
class Installed:
    """One distribution with the compiled files that its RECORD lists, below its site-packages folder."""

    name: str
    version: str | None
    base: str
    files: tuple[str, ...]
    record: PackageRecord = UNKNOWN_PACKAGE


@dataclass(frozen=True)
class Verdict:
    """What becomes of one file at import: True loads, False does not, None unknown."""

    file: str
    loads: bool | None
    problem: str = ""  # a sentence, also where that is unknown
    kind: FailureKind | None = None
    about_torch: bool = True  # False: a library of another package is missing, which its own code may load first
    failure: Failure | None = None


@dataclass
class PackageVerdict:
    """What becomes of one package."""

    name: str
    version: str | None
    loads: bool | None
    verdicts: tuple[Verdict, ...]
    known: bool  # what it opens at import is known
    gpu_code: tuple[str, ...] = ()
    torch_fits: tuple[str, ...] | None = None  # torch builds on record that export all its symbols, as 2.8.0+cu128
    source: str = ""

    @property
    def problem(self) -> str:
        """The sentence of the first file that does not load."""
        return next((one.problem for one in self.verdicts if one.loads is False), "")

    @property
    def failure(self) -> Failure | None:
        """Why the first file does not load, where the loader decides it."""
        return next((one.failure for one in self.verdicts if one.loads is False), None)


@dataclass
class Survey:
    """Judges packages one after another in one simulated process."""

    place: Place
    remembered: dict[str, Any] = field(default_factory=dict)  # of an earlier run, by stamps of files
    torch_failure: Failure | None = None
    load_siblings: bool = True  # of the same package, where a file needs them

    def __post_init__(self) -> None:
        self.used: dict[str, Any] = {}
        if self.place.program is not None and not isinstance(read_summary(self.place.program), Summary):
            self.place = replace(self.place, program=None)  # what it brings is unknown
        self.files = Disk(has_system=self.place.program is not None, remembered=self.remembered.get("summaries", {}))
        self.binder = SymbolBinder(self.remembered.get("symbols"))
        self.process = Process(
            self.files, self.place.environ, self.place.machine, closed=self.place.program is not None,
            may_exist=OF_DRIVER,
        )  # fmt: skip
        if self.place.program is not None:
            self.process.start(self.place.program)
        self.torch: TorchFiles | None = None
        self.torch_text = ""
        if self.place.torch_folder is not None:
            self.torch_text = read_text(f"{self.place.torch_folder}/__init__.py")
            major = (self.place.torch_cuda or "").partition(".")[0] or None
            tag = "cpython-" + "".join((self.place.python or "").split(".")[:2])
            self.torch = TorchFiles(self.place.torch_folder, self.place.site_dirs, major, tag)
            self.torch_failure = import_torch(self.process, self.torch, self.torch_text, self.binder)

    def places(self) -> Places:
        """Return where this environment has libraries that the loader may not search."""
        place = self.place
        return Places(self.files, place.site_dirs, place.conda, place.torch_cuda, self.process.system.folders)

    def with_environ(self, environ: Mapping[str, str]) -> Survey:
        """Return a survey of the same environment under other variables; it uses what this one read."""
        return Survey(replace(self.place, environ=environ), self.to_remember())

    def to_remember(self) -> dict[str, Any]:
        """Return what a later run needs: all of it is tied to size and time of files."""
        return {"symbols": self.binder.used, "files": self.used, "summaries": self.files.to_remember()}

    def close(self) -> None:
        """Unmap all files."""
        self.binder.close()

    def judge(self, package: Installed) -> PackageVerdict | None:
        """Return the verdict on one package; None for one that has no file for torch or CUDA."""
        files = self.own_files(package)
        if not files:
            return None
        opens = package.record.opens
        opening = opening_of(opens, self.place.torch_cuda, self.place.environ)
        picked = [name for name in files if opening and re.fullmatch(opening.files, name)]
        if opening is None:
            picked = [name for name in files if not is_alternative(opens, name)]
        verdicts = tuple(self.verdict(package, name, opening) for name in self._of_this_python(picked))
        fits = self._torch_releases(package, picked)
        return PackageVerdict(
            package.name, package.version, _together(verdicts, opening), verdicts, opens is not None,
            self._gpu_code(package, picked), fits, ", ".join(f"{package.base}/{name}" for name in picked[:2]),
        )  # fmt: skip

    def _is_ours(self, package: Installed, name: str) -> bool:
        if re.search(r"\.so(\.[\d.]+)?$", name) is None or name.startswith(("torch/", "nvidia/")):
            return False
        summary = self.files.summary(f"{package.base}/{name}")
        if isinstance(summary, Summary):
            return is_related(summary.needed)
        opening = opening_of(package.record.opens, self.place.torch_cuda, {})
        return opening is not None and re.fullmatch(opening.files, name) is not None

    def _of_this_python(self, names: Iterable[str]) -> list[str]:
        return sorted(dict.fromkeys(names))

    def own_files(self, package: Installed) -> list[str]:
        """Return the files of a package that need torch or CUDA."""
        return [name for name in package.files if self._is_ours(package, name)]

    def verdict(self, package: Installed, name: str, opening: Opening | None = None) -> Verdict:
        """Return what becomes of one file, opened after all that its package loads first."""
        path = f"{package.base}/{name}"
        tagged = PYTHON_TAG.search(name)
        if tagged and self.place.python and tagged[1] != "".join(self.place.python.split(".")[:2]):
            own = f"{tagged[1][0]}.{tagged[1][1:]}"
            return Verdict(name, False, f"`{name}` is for Python {own}, and this is Python {self.place.python}")
        found = self._open(package, path, opening)
        if isinstance(found, Failure):
            return Verdict(name, False, self.sentence(found, name), found.kind, _about_torch(found), found)
        if isinstance(found, str):
            return Verdict(name, None, found)
        if self.torch_failure is not None:
            return Verdict(name, None, "torch itself does not load")
        return Verdict(name, True)

    def _open(self, package: Installed, path: str, opening: Opening | None) -> Loaded | Failure | str:
        """Load a file after all that its package loads first; a text says why the outcome is unknown."""
        before = self.process.mark()
        try:
            for pattern in opening.after if opening else ():
                for library in self._matching(pattern):
                    self.process.dlopen(library, make_global=True, binder=self.binder)
            if package.name.startswith("transformer-engine") and self.place.program is not None:
                import_te_common(self.process, self.place.site_dirs, package.version, self.place.machine)
                if not path.endswith(TE_CORE) and isinstance(core := self._te_core(), Failure):
                    return core
            summary = self.files.summary(path)
            if isinstance(summary, Summary) and self.place.torch_folder is None and self.place.program is None:
                return self._without_torch(path, summary)
            return self._with_siblings(package, path)
        except SearchTooLarge as problem:
            return str(problem)
        finally:
            self.process.reset(before)

    def _with_siblings(self, package: Installed, path: str) -> Loaded | Failure:
        """Load a file; libraries of the same package that it needs by name are loaded before it, as packages do."""
        siblings = {os.path.basename(name): name for name in package.files}  # noqa: PTH119
        binder = None if path.endswith(TE_CORE) and self._te_is_lazy(package.base) else self.binder
        for _ in range(_MAX_SIBLINGS):
            found = self.process.dlopen(path, binder=binder)
            if not isinstance(found, Failure) or found.kind != FailureKind.MISSING_LIBRARY:
                return found
            sibling = siblings.get(found.missing[0])
            if sibling is None or not self.load_siblings:
                return found
            before = self.process.dlopen(f"{package.base}/{sibling}", binder=self.binder)
            if isinstance(before, Failure):
                return before
        return found

    def _te_core(self) -> Loaded | Failure | None:
        """Load TransformerEngine's core library, whose symbols its other modules use; None where it is not there."""
        folders = (f"{base}/{inner}" for base in self.place.site_dirs for inner in _TE_FOLDERS)
        path = next((f"{folder}{TE_CORE}" for folder in folders if self.files.summary(f"{folder}{TE_CORE}")), None)
        return self.process.dlopen(path, make_global=True) if path else None

    @staticmethod
    def _te_is_lazy(base: str) -> bool:
        """Return whether this TransformerEngine opens its core library so that functions bind at their first call."""
        return "RTLD_LAZY" in read_text(f"{base}/transformer_engine/common/__init__.py")

    def _without_torch(self, path: str, summary: Summary) -> Failure | str | Loaded:
        build = self._build()
        if build is None:
            return "the tree has no torch"
        try:
            return by_index(path, build) or f"its symbols fit torch {build.version}; the libraries are not in this tree"
        except (BadElf, OSError) as problem:
            return str(problem)

    def _build(self) -> TorchBuild | None:
        if self.place.torch_version is None:
            return None
        return load_torch_symbols().build(self.place.torch_version, self.place.torch_cuda or None)

    def _matching(self, pattern: str) -> Iterator[str]:
        folder, _, name = pattern.replace("\\", "").rpartition("/")
        for base in self.place.site_dirs:
            if name in self.files.listing(f"{base}/{folder}" if folder else base):
                yield f"{base}/{folder}/{name}" if folder else f"{base}/{name}"

    def sentence(self, failure: Failure, name: str = "-") -> str:
        """Return what is wrong, as a sentence for the user."""
        own = f"`{name}`" if failure.file.endswith(name) else f"`{os.path.basename(failure.file)}`"  # noqa: PTH119
        if failure.kind == FailureKind.MISSING_LIBRARY:
            why = ""
            if re.match(r"lib(cu|nv|torch_cuda|c10_cuda)", failure.missing[0]) and self.place.torch_cuda is not None:
                why = f": this torch is built for CUDA {self.place.torch_cuda}"
                why = why if self.place.torch_cuda else ": this torch is built without CUDA"
            need = f"{own} needs `{failure.missing[0]}`, which the loader does not find{why}"
            return need + self._fitting_words(failure.file)
        if failure.kind == FailureKind.SYMBOL_VERSION:
            return f"{own} needs {failure.missing[0]}: {failure.detail}"
        if failure.kind == FailureKind.CLASS_LAYOUT:
            why = f"was compiled for another torch, whose `{failure.missing[0]}` has another layout: loading it aborts"
            return f"{own} {why}{self._fitting_words(failure.file)}"
        if failure.kind == FailureKind.UNDEFINED_SYMBOL:
            return f"{own} does not fit: {describe_symbols(failure)}{self._fitting_words(failure.file)}"
        return f"{own} cannot be loaded: {failure.detail}"

    def _fitting_words(self, path: str) -> str:
        """Return which torch releases on record export all that a file needs, as the end of a sentence."""
        fitting = self._once(TORCH, path, lambda: fitting_builds(path))
        if not fitting:
            return ""
        return f"; it fits torch {range_of(fitting, self._once('builds', '', _all_builds))}"

    def _torch_releases(self, package: Installed, names: Iterable[str]) -> tuple[str, ...] | None:
        """Return the torch builds on record whose exports serve all files; None where no file needs torch."""
        common: set[str] | None = None
        for name in names:
            path = f"{package.base}/{name}"
            found = self._once(TORCH, path, lambda path=path: fitting_builds(path))
            if found is not None:
                common = set(found) if common is None else common & set(found)
        if common is None:
            return None
        return tuple(one for one in self._once("builds", "", _all_builds) if one in common)

    def _gpu_code(self, package: Installed, names: Iterable[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in names:
            path = f"{package.base}/{name}"
            archs = self._once("gpu", path, lambda path=path: archs_of(path)) or ()
            found.update(dict.fromkeys(archs_for_pick(package.record.opens, name, archs)))
        return tuple(found)

    def _once(self, kind: str, path: str, compute: Any) -> Any:
        key = f"{kind} {path} {stamp(path) if path else ''}"
        if key not in self.used:
            old = self.remembered.get("files", {})
            self.used[key] = old[key] if key in old else compute()
        return self.used[key]


def _together(verdicts: tuple[Verdict, ...], opening: Opening | None) -> bool | None:
    outcomes = [one.loads for one in verdicts]
    if not outcomes:
        return None
    if opening is not None and opening.any_one:
        return True if True in outcomes else None if None in outcomes else False
    return False if False in outcomes else None if None in outcomes else True


def _about_torch(failure: Failure) -> bool:
    """Return whether torch or its CUDA decides a failure, and no other library that a package may load by itself."""
    if failure.kind == FailureKind.MISSING_LIBRARY:
        return failure.missing[0].startswith(("libtorch", "libc10", "libcudart"))
    return failure.kind != FailureKind.UNDEFINED_SYMBOL or any(of_torch(name) for name in failure.missing)


def labelled(build: TorchBuild) -> str:
    """Return a build as `2.8.0+cu128`."""
    if "+" in build.version:
        return build.version
    return f"{build.version}+{'cpu' if build.cuda is None else 'cu' + build.cuda.replace('.', '')}"


def _all_builds() -> list[str]:
    return [labelled(build) for build in load_torch_symbols().builds]


def fitting_builds(path: str) -> list[str] | None:
    """Return the torch builds that export all symbols of torch that a file needs; None where it needs none."""
    try:
        with ElfFile(path) as elf:
            names = [one.name for one in elf.undefined() if not one.weak and of_torch(one.name)]
            needed = elf.summary().needed
            layout = has_new_layout(elf) if registers_operators(names) else None
    except (BadElf, OSError, ValueError):
        return None
    return builds_for(names, needed, layout)


def builds_for(names: Sequence[str], needed: Iterable[str], layout: bool | None) -> list[str] | None:
    """Return the torch builds that fit a file: by its symbols of torch, its libraries, and the layout of a class."""
    if not names:
        return None
    linked = next((match[1] for name in needed if (match := _CUDART.fullmatch(name))), None)
    builds = fitting_torch(names) if layout is None else builds_with(layout, fitting_torch(names))
    return [labelled(build) for build in builds if linked in (None, (build.cuda or "cpu").partition(".")[0])]


def archs_of(path: str) -> list[str]:
    """Return the GPU architectures of a file, empty where it has none or cannot be read."""
    try:
        with ElfFile(path) as elf:
            return list(read_gpu_code(elf).archs)
    except (BadElf, OSError, ValueError):
        return []
