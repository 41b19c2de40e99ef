"""Whether a package's compiled files serve a GPU, a CUDA and a torch: one judgement for every distribution.

`fit_of` takes, in this order, what the installed files say (`gpu_code`), what the local label of the version says, and
what is on record of the registry's wheel or of the build of that release. Each answer is true, false or unknown, and
says where it comes from. It reads no file but the records, so that `explain` can call it for any package:

    fit_of("mamba-ssm", "2.2.5", Wanted(sm="12.0", cuda="13.0")).gpu.answer  # False
"""

# No postponed annotations: a named tuple would compile each of them again, at every start.

from collections.abc import Sequence
from typing import NamedTuple

from doctor.facts.derived.compiled import runs_on
from doctor.facts.vocabulary import parse_version
from doctor.facts.wheel_labels import abi_fits, cuda_fits, parse_label, torch_fits
from doctor.model import ABSENT

from .compiled_records import WheelRecord, load_compiled_records
from .source_build import SourceBuild


class Wanted(NamedTuple):
    """The environment that the files shall serve; None means unknown."""

    sm: str | None = None  # 12.1
    torch: str | None = None  # 2.13.0+cu130
    cuda: str | None = None  # of torch: 13.0; `absent` for a build without
    cxx11_abi: bool | None = None
    machine: str | None = None
    python: str | None = None
    nvcc: str | None = None  # which compiles the package here; None where a ready wheel may be taken


class Answer(NamedTuple):
    """One answer: true, false, or None where it is not known, with what was found and where."""

    answer: bool | None = None
    found: str = ""  # `8.0, 9.0a`, `CUDA 12`, `torch 2.8`
    source: str = ""
    how: str = ""  # of code for a GPU: machine code, PTX


class CompiledFit(NamedTuple):
    """What is known of one build next to one environment."""

    gpu: Answer = Answer()
    cuda: Answer = Answer()
    torch: Answer = Answer()
    abi: Answer = Answer()
    on_record: bool = False  # its files were read, or a record says what they hold

    @property
    def fails(self) -> bool:
        """Whether some answer is no."""
        return any(one.answer is False for one in (self.gpu, self.cuda, self.torch, self.abi))


def fit_of(package: str, version: str, wanted: Wanted, gpu_code: Sequence[str] | None = None) -> CompiledFit:
    """Return whether the compiled files of a release serve an environment.

    `gpu_code`: the architectures that its installed files have code for, where they were read.
    """
    records = load_compiled_records()
    labelled = "+" in version  # another file than the registry's
    wheel = None if labelled else records.wheel(package, version, wanted.machine, wanted.python)
    build = records.source(package, version) if wheel is None else None
    return CompiledFit(
        gpu=_gpu(version, wanted, gpu_code, wheel, build),
        cuda=_cuda(version, wanted, wheel, build),
        torch=_torch(version, wanted, wheel),
        abi=_abi(version, wanted),
        on_record=gpu_code is not None or wheel is not None,
    )


def _gpu(
    version: str, wanted: Wanted, gpu_code: Sequence[str] | None, wheel: WheelRecord | None, build: SourceBuild | None
) -> Answer:
    if wanted.sm in (None, ABSENT):
        return Answer()
    sm = str(wanted.sm)
    if gpu_code is None and wheel is not None and wheel.gpu_code:
        return _code(wheel.gpu_code, sm, f"the record of {wheel.file}")
    if gpu_code:
        return _code(tuple(gpu_code), sm, "the installed files")
    if gpu_code is None and build is not None:
        return _code_of_build(build, version, wanted, sm)
    return Answer()


def _code(archs: tuple[str, ...], sm: str, source: str) -> Answer:
    how = runs_on(archs, sm)
    return Answer(how is not None, ", ".join(archs), source, how or "")


def _code_of_build(build: SourceBuild, version: str, wanted: Wanted, sm: str) -> Answer:
    """Return what its set-up script names: no, where it names the GPU for no compiler that could have made the file."""
    if not build.archs:
        return Answer()
    own = build.archs_with(wanted.nvcc) if wanted.nvcc not in (None, ABSENT) else None
    if own is not None:
        return _code(own, sm, f"the architectures that its setup.py names for nvcc {wanted.nvcc}")
    major = parse_label(version).cuda_major or _major_of_download(build, wanted.cuda)
    serves = {release: runs_on(archs, sm) is not None for release, archs in build.archs.items()}
    possible = _compilers(build, major)
    source = "the architectures that its setup.py names"
    if not any(serves[release] for release in possible):
        every = dict.fromkeys(arch for release in possible for arch in build.archs[release])
        return Answer(False, ", ".join(every), source)
    if all(serves.values()):
        return Answer(True, sm, source)
    since = min((release for release, answer in serves.items() if answer), key=parse_version)
    return Answer(None, f"{sm} only where nvcc >= {since} made it", source)


def _compilers(build: SourceBuild, major: int | None) -> list[str]:
    """Return the releases of nvcc that could have made a file, of those from which on the script names others."""
    if major is None:
        return list(build.archs)
    own = [release for release in build.archs if parse_version(release).major == major]
    below = [release for release in build.archs if parse_version(release).major < major]
    return own if f"{major}.0" in own or not below else [max(below, key=parse_version), *own]


def _major_of_download(build: SourceBuild, cuda: str | None) -> int | None:
    """Return the CUDA of the wheel that its build downloads, or torch's, with which it is compiled."""
    if cuda in (None, ABSENT):
        return None
    own = str(parse_version(str(cuda)).major)
    return int(build.wheels.get(own, own))


def _cuda(version: str, wanted: Wanted, wheel: WheelRecord | None, build: SourceBuild | None) -> Answer:
    label = parse_label(version)
    if label.cuda_major is not None:
        return Answer(cuda_fits(label, wanted.cuda), f"CUDA {label.cuda_major}", "the label of its wheel")
    if wanted.cuda in (None, ABSENT):
        return Answer()
    own = parse_version(str(wanted.cuda)).major
    if wheel is not None and wheel.cuda:
        named = " or ".join(map(str, wheel.cuda))
        return Answer(own in wheel.cuda, f"CUDA {named}", f"the record of {wheel.file}")
    if build is not None and str(own) in build.wheels and "+" not in version:
        taken = int(build.wheels[str(own)])
        source = "its setup.py, which downloads a wheel for that CUDA"
        return Answer(None if taken == own else False, f"CUDA {taken}", source)
    return Answer()


def _torch(version: str, wanted: Wanted, wheel: WheelRecord | None) -> Answer:
    if wanted.torch in (None, ABSENT):
        return Answer()
    label = parse_label(version)
    named = torch_fits(label, str(wanted.torch))
    if named is not None:
        return Answer(named, label.torch_words, "the label of its wheel")
    if wheel is None or not wheel.torch:
        return Answer()
    public = str(wanted.torch).partition("+")[0]
    releases = [build.partition("+")[0] for build in wheel.torch]
    if public in releases:
        return Answer(True, f"torch {public}", f"the record of {wheel.file}")
    known = {parse_version(release).release[:2] for release in releases}
    first, last = min(known), max(known)
    here = parse_version(public).release[:2]
    outside = here < first or (here > last and last < load_compiled_records().newest_torch)
    return Answer(False if outside else None, f"torch {releases[0]} to {releases[-1]}", f"the record of {wheel.file}")


def _abi(version: str, wanted: Wanted) -> Answer:
    label = parse_label(version)
    if label.cxx11_abi is None:
        return Answer()
    found = f"cxx11abi{str(label.cxx11_abi).upper()}"
    return Answer(abi_fits(label, wanted.cxx11_abi), found, "the label of its wheel")
