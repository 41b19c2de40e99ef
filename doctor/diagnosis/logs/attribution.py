"""Whose code a line of a log blames: the package that failed, or an extension or the job itself, and its caller.

The evidence, best first: a compiled file that the line names, a native source file that it names, the source file and
the compiled files that C++ code prints after its message, and the frames before it. A message that any library prints
says nothing of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from doctor.model import TORCH, TextEnum
from doctor.util.traceback_frames import CELL, Frame

from .cpp_trace import trace_after
from .frames import Stack
from .scan import Match


class Origin(TextEnum):
    """What kind of code failed."""

    STACK = "a package of the stack"
    INSTALLED = "another installed package"
    EXTENSION = "an extension of the job"
    JOB = "the job's own code"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Attribution:
    """The package that failed, and how the log shows it."""

    origin: Origin
    package: str | None = None  # a distribution of the stack, else the name of a module
    frame: Frame | None = None  # the one that says so
    caller: str | None = None  # the package that called it; None for the job
    launches: bool = False  # a kernel that the job itself wrote, for Triton or another compiler

    def is_one_of(self, names: Sequence[str]) -> bool:
        """Return whether it is one of these packages."""
        return self.package is not None and plain(self.package) in {plain(name) for name in names}


UNKNOWN = Attribution(Origin.UNKNOWN)

#: A compiled file, with the part of its path that says whose it is.
_COMPILED = re.compile(
    r"(?P<folder>(?:[\w.+~-]*/)*)(?P<name>[A-Za-z_][\w+-]*)(?:\.[\w-]+)?\.(?:so|pyd|dll)\b(?![\w.]*\.so)"
)
_PACKAGES = re.compile(r"-packages/(\w+)")
#: A file that is no part of an extension: the libraries of CUDA, torch and the system.
_SYSTEM = re.compile(
    r"^lib(?:cu|nv|nccl|torch|c10|caffe|stdc|gcc|gomp|m$|dl|rt|pthread|shm|mkl|ATen|python|ssl|crypto|cuda)"
)
_NATIVE = re.compile(r"[\w.:/\\+-]{3,300}\.(?:cuh?|cpp|cc|cxx|hpp|h|inl)\b")
_THIRD_PARTY = re.compile(r"(?:third_?party|3rdparty|submodules)/([A-Za-z][\w.-]{2,40})/")
_IMPORT = re.compile(r"^(?:import (?P<a>[\w.]+)|from (?P<b>[\w.]+) import (?P<name>\w+))")
_CALL = re.compile(r"(?:^|[=(,\s.])(?P<module>[A-Za-z_]\w*)\.\w+\(")
_OPERATOR = re.compile(r"torch\.ops\.(?P<space>\w+)\.")
#: How compiled modules are called.
_EXTENSION = re.compile(r"(?:_cuda|_gpu|_C|_ext|_kernels?|_lib|_cpp|_ops|_hip|_fwd|_bwd)$|^_\w+|cuda$")
#: Files that start a kernel for the function before them.
_LAUNCH = re.compile(r"(?:^|/)(?:triton|cutlass|nvidia_cutlass_dsl|numba|tilelang|tvm_ffi|cupy)/")
#: Files of torch that wait for kernels, and raise what one of them did before.
_REPORTS = re.compile(r"torch/(?:cuda/(?:__init__|streams|memory|graphs)|_tensor(?:_str)?)\.py$")
_GENERATED = re.compile(r"torchinductor_|(?:^|/)torch/_inductor/")


def plain(name: str) -> str:
    """Return a name without the differences between modules, distributions and folders."""
    return re.sub(r"[-_.]+", "", name).lower()


def attributed(match: Match, stack: Stack) -> Attribution:
    """Return whose code failed, as far as a line and the lines around it say."""
    return (
        _of_compiled_file(match.text, match, stack)
        or _of_source(match, stack)
        or _of_cpp_trace(match, stack)
        or _of_frames(match, stack)
        or UNKNOWN
    )


def _of_cpp_trace(match: Match, stack: Stack) -> Attribution | None:
    """Return whose C++ code raised an error; where torch did, the frames say who called it."""
    trace = trace_after(match)
    if trace.is_of_torch:
        return None if match.frames or trace.only_reports else Attribution(Origin.STACK, TORCH)
    owner = stack.owner_of_line(trace.file)
    if owner is not None:
        return Attribution(Origin.STACK, owner, _last(match))
    return _of_compiled_file(trace.library, match, stack) if trace.library else None


def _of_compiled_file(text: str, match: Match, stack: Stack) -> Attribution | None:
    for found in _COMPILED.finditer(text.replace("\\", "/")):
        if _SYSTEM.match(found["name"]) or "torch_extensions" in found["folder"]:
            continue
        installed = _PACKAGES.search(found["folder"])
        if installed is None:
            name = stack.owner_of_file(found[0]) or stack.owner(found["name"])
            if name is not None:
                return _made(stack, name, _last(match))
            return Attribution(Origin.EXTENSION, _named(found["folder"], found["name"]), _last(match))
        return _made(stack, installed[1] if f"/{installed[1]}/" in found["folder"] else found["name"], _last(match))
    return None


def _named(folder: str, name: str) -> str:
    """Return the name of an extension; of one that is called as any is, its folder."""
    parent = folder.rstrip("/").rpartition("/")[2]
    return parent if parent and re.fullmatch(r"_\w{1,12}|ops|lib\w{0,6}|kernels?", name) else name


def _of_source(match: Match, stack: Stack) -> Attribution | None:
    """Return whose native source file the line names; files of torch are part of what any package prints."""
    for file in _NATIVE.findall(match.text.replace("\\", "/")):
        found = _THIRD_PARTY.search(file)
        if found is not None:  # copies of a known library are in many packages
            return _made(stack, found[1], _last(match)) if stack.named(found[1]) is None else UNKNOWN
    owner = stack.owner_of_line(match.text)
    return Attribution(Origin.STACK, owner, _last(match)) if owner is not None else None


def _of_frames(match: Match, stack: Stack) -> Attribution | None:
    frames = [frame for frame in match.frames if not (frame.passes_on or _REPORTS.search(frame.file))]
    if not frames:
        return Attribution(Origin.JOB, None) if match.frame == CELL else None
    kernels = [frame for frame in frames if not _LAUNCH.search(frame.file)] or frames
    last = kernels[-1]
    caller = _caller(kernels, stack)
    if _GENERATED.search(last.file):
        return Attribution(Origin.STACK, TORCH, last, caller)
    called = _called(last, stack)
    if called is not None:
        made = _made(stack, called, last, caller)
        installed = _owner_of(last, stack)
        return made if made.origin != Origin.INSTALLED or installed is None else installed
    return _owner_of(last, stack, caller) or Attribution(Origin.JOB, None, last, launches=len(kernels) < len(frames))


def _owner_of(frame: Frame, stack: Stack, caller: str | None = None) -> Attribution | None:
    """Return the package that the file of a frame belongs to; None for a file of the job."""
    owner = stack.owner_of_file(frame.file)
    is_certain = "-packages" in frame.file or owner not in stack.plain_words  # a folder of the job may be `kernels`
    if owner is not None and is_certain:
        return Attribution(Origin.STACK, owner, frame, caller)
    installed = _PACKAGES.search(frame.file)
    if installed is not None:
        return Attribution(Origin.INSTALLED, installed[1].replace("_", "-"), frame, caller)
    return None


def _caller(frames: Sequence[Frame], stack: Stack) -> str | None:
    """Return the package whose code called the one of the last frame; None for the job."""
    owner = _name_of(frames[-1], stack)
    return next((name for frame in reversed(frames) if (name := _name_of(frame, stack)) != owner), None)


def _name_of(frame: Frame, stack: Stack) -> str | None:
    found = _owner_of(frame, stack)
    return found.package if found is not None else None


def _called(frame: Frame, stack: Stack) -> str | None:
    """Return the compiled module that the source text of a frame calls or imports; None where it shows none."""
    operator = _OPERATOR.search(frame.code)
    if operator is not None and operator["space"] not in ("aten", "prims"):
        return operator["space"]
    imported = _IMPORT.match(frame.code)
    if imported is not None:
        name = (imported["a"] or imported["b"]).partition(".")[0]
        own = imported["name"] or ""
        return name or (own if _EXTENSION.search(own) else None)
    for found in _CALL.finditer(frame.code):
        name = found["module"]
        if _EXTENSION.search(name) and name not in ("self", TORCH, "cuda", "_C"):
            return name
    return None


def _made(stack: Stack, name: str, frame: Frame | None, caller: str | None = None) -> Attribution:
    owner = stack.owner(name)
    if owner is not None:
        return Attribution(Origin.STACK, owner, frame, caller)
    known = next((value for key, value in stack.owners.items() if plain(key) == plain(name)), None)
    if known is not None:
        return Attribution(Origin.STACK, known, frame, caller)
    installed = frame is not None and _PACKAGES.search(frame.file) is not None
    own = name.strip("_").replace("_", "-")
    return Attribution(Origin.INSTALLED if installed else Origin.EXTENSION, own, frame, caller)


def _last(match: Match) -> Frame | None:
    return match.frames[-1] if match.frames else None
