"""Which CUDA compiler and which ninja an image has: by its base, and by what its commands install."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, MutableMapping

from doctor.facts.vocabulary import fact as make_fact
from doctor.model import ABSENT, Fact

NVCC, NINJA, C_COMPILER = "toolkit.nvcc", "toolkit.ninja", "toolkit.c_compiler"
_KINDS = re.compile(r"(?:^|-)(?P<kind>devel|runtime|base)(?:-|$)")
_RELEASE = re.compile(r"^(?:[\d.]+-cuda)?(?P<cuda>\d+\.\d+)")
#: Images of operating systems and of Python: no CUDA compiler, no ninja.
_PLAIN = re.compile(r"(?:ubuntu|debian|alpine|rockylinux|almalinux|centos|fedora|amazonlinux|python|buildpack-deps)")
#: What brings a CUDA compiler, as package managers and NVIDIA's installers name it.
_BRINGS_NVCC = re.compile(
    r"(?:nvidia-)?cuda-(?:toolkit|nvcc|compiler|minimal-build|command-line-tools|devel)(?:[-=](?P<dashed>1\d[-.]\d))?.*"
    r"|cuda(?:-1\d-\d)?(?:=.*)?|cudatoolkit-dev.*|.*cuda_1\d[\d.]*_.*\.run|nvhpc.*|.*/cuda_[\d.]+_linux\.run"
)
#: Packages of a system that bring a C compiler, or may: those for development, and what recommends one.
_MAY_BRING_C = re.compile(
    r"(?:build-essential|gcc|g\+\+|clang|gcc-c\+\+|llvm|cmake|autoconf|automake|libtool|dkms|r-base|python3?-pip|"
    r"gcc_linux-64|gxx_linux-64|compilers|c-compiler|cxx-compiler|@?development.*|musl-dev|build-base|.*-dev|.*-devel)"
    r"(?:[-=:]?[\d.]+.*)?", re.IGNORECASE
)  # fmt: skip
_BRINGS_NINJA = re.compile(r"ninja(?:-build)?(?:[=<>~!].*)?")
_MANAGERS = ("apt-get", "apt", "dnf", "yum", "microdnf", "apk", "conda", "mamba", "micromamba", "sh", "bash", "zypper")
_OF_TOOLKIT = re.compile(r"/usr/local/cuda|^/usr/local/?$|^/usr/?$|^/$")


def of_image(name: str, tag: str, place: str) -> Iterator[Fact]:
    """Yield what the name and tag of an image say of its compilers; nothing where they do not say it."""
    kind = _KINDS.search(tag)
    if name in ("nvidia/cuda", "nvcr.io/nvidia/cuda", "pytorch/pytorch") and kind is not None:
        release = _RELEASE.match(tag)
        if kind["kind"] != "devel":
            yield Fact(NVCC, ABSENT, place)
        elif release is not None:
            yield make_fact(NVCC, release["cuda"], place)
    elif _PLAIN.fullmatch(name):
        yield Fact(NVCC, ABSENT, place)
    else:
        return
    if name != "pytorch/pytorch":
        yield Fact(NINJA, False, place)
        if kind is None and ("slim" in tag or name not in ("python", "buildpack-deps")):
            yield Fact(C_COMPILER, False, place)
        elif kind is not None:
            yield Fact(C_COMPILER, kind["kind"] == "devel", place)


def of_command(words: Iterable[str], facts: MutableMapping[str, Fact], place: str, *, certain: bool) -> None:
    """Take what a command installs into the facts; a compiler of unknown release makes it unknown."""
    given = [word.strip("\"'") for word in words]
    program = given[0].rpartition("/")[2] if given else ""
    installs = program in _MANAGERS or program.endswith(".run")
    for word in given if installs else ():
        if (found := _BRINGS_NVCC.fullmatch(word)) is not None and NVCC in facts:
            facts.pop(C_COMPILER, None)  # NVIDIA's packages need one
            release = (found["dashed"] or "").replace("-", ".")
            problem = None if release and certain else f"`{word}` brings it, in a release that is not known"
            facts[NVCC] = make_fact(NVCC, release if release and certain else None, place, problem=problem)
    if installs and C_COMPILER in facts and any(map(_MAY_BRING_C.fullmatch, given)):
        facts[C_COMPILER] = Fact(C_COMPILER, None, place, problem="a package of the system may bring it")
    if any(_BRINGS_NINJA.fullmatch(word) for word in given) and "install" in given and NINJA in facts:
        facts[NINJA] = Fact(NINJA, True, place) if certain else Fact(NINJA, None, place, problem="it may be installed")


def carried(facts: Iterable[Fact], paths: Iterable[str]) -> list[Fact]:
    """Return the facts of an earlier stage that come along with copied folders: a compiler with its own folder only."""
    whole = any(_OF_TOOLKIT.search(path) for path in paths)
    return [fact for fact in facts if whole or fact.key not in (NVCC, NINJA, C_COMPILER)]
