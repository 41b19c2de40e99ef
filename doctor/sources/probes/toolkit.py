"""The CUDA toolkit and host compiler that a build at install or run time will find; nothing is started."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact
from doctor.sources.watch import Watch
from doctor.util.reading import open_regular

from .target import Target, TargetKind

PROMISES = ("toolkit.nvcc", "toolkit.cuda_home", "toolkit.gcc", "toolkit.c_compiler", "toolkit.ninja")

_DEFAULT_HOME = "/usr/local/cuda"
_CUDA_VERSION = re.compile(rb"#define\s+CUDA_VERSION\s+(\d{4,6})")
_NUMBER_IN_PATH = re.compile(r"cuda[-_/]?(\d{1,2}\.\d{1,2})")
_COMPILER_MAJOR = re.compile(r"(?:gcc|g\+\+|c\+\+)-(\d{1,2})$")
_MAX_HEADER = 1 << 18


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield the CUDA toolkit, the C and C++ compilers and ninja, for an interpreter of this machine."""
    if target.kind != TargetKind.INTERPRETER or target.system not in (None, "Linux"):
        return
    home = cuda_home(target.prefix)
    if home is None:
        yield Fact("toolkit.nvcc", ABSENT, "CUDA_HOME, CUDA_PATH, PATH and " + _DEFAULT_HOME)
    else:
        yield Fact("toolkit.cuda_home", str(home), "CUDA_HOME, CUDA_PATH, PATH or " + _DEFAULT_HOME)
        release, source = nvcc_release(home)
        yield fact("toolkit.nvcc", release, source, problem=None if release else f"`{home}` does not give its release")
    compiler = os.environ.get("CXX") or "g++"
    path = shutil.which(compiler.split()[0]) if compiler.strip() else None
    if path is None:
        yield Fact("toolkit.gcc", ABSENT, "PATH")
    elif found := _COMPILER_MAJOR.search(os.path.realpath(path)):
        yield fact("toolkit.gcc", found[1], path)
    there = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    yield Fact("toolkit.c_compiler", there is not None, "CC and PATH")
    ninja = (target.prefix / "bin" / "ninja").is_file() or shutil.which("ninja") is not None
    yield Fact("toolkit.ninja", ninja, "PATH and the target's environment")


def cuda_home(prefix: Path) -> Path | None:
    """Return the toolkit that torch's extension builder takes: CUDA_HOME, CUDA_PATH, nvcc's folder, the default."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        value = os.environ.get(variable)
        if value:
            named = Path(value)
            return named if (named / "bin" / "nvcc").is_file() else None
    found = shutil.which("nvcc")
    inside = prefix / "bin" / "nvcc"
    if found is None and inside.is_file():
        found = str(inside)
    if found is not None:
        return Path(found).resolve().parent.parent
    default = Path(_DEFAULT_HOME)
    return default if (default / "bin" / "nvcc").is_file() else None


def nvcc_release(home: Path) -> tuple[str | None, str]:
    """Return the toolkit's release and its source: version.json, cuda.h, else the folder's name."""
    note = home / "version.json"
    try:
        with open_regular(note) as stream:
            reported = json.loads(stream.read(_MAX_HEADER))
        text = str((reported["cuda_nvcc"] if "cuda_nvcc" in reported else reported["cuda"])["version"])
        return ".".join(text.split(".")[:2]), str(note)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    for header in (home / "include" / "cuda.h", home / "targets" / "x86_64-linux" / "include" / "cuda.h"):
        try:
            with open_regular(header) as stream:
                number = _CUDA_VERSION.search(stream.read(_MAX_HEADER))
        except OSError:
            continue
        if number:
            code = int(number[1])
            return f"{code // 1000}.{code % 1000 // 10}", str(header)
    named = _NUMBER_IN_PATH.search(str(home.resolve()))
    return (named[1], str(home)) if named else (None, str(home))
