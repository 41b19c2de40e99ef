"""Facts from what other programs print of an environment, as people paste it into bug reports.

Read are the lists of `pip list`, `pip freeze` and `conda list`, the reports of torch's and vLLM's `collect_env`, of
SGLang's `check_env`, verl's `diagnose.py`, FlashInfer's `collect_env`, `transformers env`, `accelerate env`,
`diffusers-cli env`, `llamafactory-cli env` and `ds_report`, the first lines of Unsloth, and `nvidia-smi`. Text around
them is skipped, so that a whole bug report can be given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from doctor.errors import DoctorError
from doctor.facts.libraries.titles import OTHER_NAMES
from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, TORCH, Fact, Facts
from doctor.packages.conda_names import conda_names
from doctor.util.redact import NOT_READ, is_secret

from .printed_form import BARE, NAME, VERSION

_PIP_TABLE = re.compile(r"Package\s+Version\b")
_CONDA_TABLE = re.compile(r"#\s+Name\s+Version\s+Build")
_RULE = re.compile(r"[- ]+")
_ROW = re.compile(rf"(?P<name>{NAME})\s+(?P<version>{VERSION})(?:\s+(?P<build>\S+)(?:\s+(?P<channel>\S+))?)?(?:\s.*)?")
_PINNED = re.compile(rf"(?:\[pip3?\] )?(?P<name>{NAME})==(?P<version>{VERSION})")
_BY_ADDRESS = re.compile(rf"(?P<name>{NAME}) @ \S*/(?P<file>[^/\s#]+\.whl)\S*")
_VARIABLE = re.compile(r"(?:export )?(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+)=(?P<value>\S+)")
_LABELLED = re.compile(r"(?P<label>[^:=|]{2,60}?)\s*(?::|(?<= )\.{3,}) (?P<value>.*)")
_HEADING = re.compile(r"^GPU models and configuration\s*: (?=GPU \d)")
_GPUS = re.compile(r"GPU (?P<numbers>\d+(?:,\s?\d+)*): (?P<name>[^(]+)")
_CAPABILITY = re.compile(r"GPU [\d, ]+ Compute Capability: (?P<sm>\d+\.\d)")
_SMI_GPU = re.compile(r"\|\s+\d+\s+(?P<name>(?:NVIDIA|Tesla|Quadro|GeForce)\b[\w .-]*?)\s{2,}.*\|")
_SMI_DRIVER = re.compile(r"\|\sNVIDIA-SMI\s.*\bDriver Version: (?P<version>[\d.]+)")
_UNSLOTH = (
    ("unsloth.version", re.compile(rf"==\(\(====\)\)==\s+Unsloth (?P<v>{VERSION}):")),
    ("transformers.version", re.compile(rf"==\(\(====\)\)==.* Transformers: (?P<v>{VERSION})")),
    ("vllm.version", re.compile(rf"==\(\(====\)\)==.* vLLM: (?P<v>{VERSION})")),
    ("gpu.name", re.compile(r"\\\\   /\|\s+(?P<v>[^.|]+)\. (?:Num GPUs|Max memory)")),
    ("torch.version", re.compile(rf"O\^O/.* Torch: (?P<v>{VERSION})")),
    ("gpu.sm", re.compile(r"O\^O/.* CUDA: (?P<v>\d+\.\d)\.")),
    ("triton.version", re.compile(rf"O\^O/.* Triton: (?P<v>{VERSION})")),
    ("xformers.version", re.compile(rf".* FA \[Xformers = (?P<v>{VERSION})")),
)
#: What a report calls a fact -> its key.
_KEYS = {
    "torch": "torch.version", "torch version": "torch.version", "pytorch": "torch.version",
    "pytorch version": "torch.version", "cuda used to build pytorch": "torch.cuda", "torch cuda version": "torch.cuda",
    "python": "python.version", "python version": "python.version", "nvidia driver version": "driver.version",
    "cuda driver version": "driver.version", "driver version": "driver.version", "cuda runtime version": "toolkit.nvcc",
    "nvcc version": "toolkit.nvcc", "nvcc": "toolkit.nvcc", "cuda compiler": "toolkit.nvcc",
    "gcc version": "toolkit.gcc", "libc version": "platform.glibc", "gpu type": "gpu.name", "accelerator": "gpu.name",
    "gpu number": "gpu.count", "gpu count": "gpu.count", "os": "platform", "platform": "platform",
    "python platform": "platform", "deepspeed info": "deepspeed.version",
}  # fmt: skip
#: Programs and drivers, which are no distributions.
_OTHERS = frozenset({
    "api", "cann", "clang", "cmake", "cuda", "cudnn", "docker", "driver", "gcc", "git", "hip", "image", "kernel",
    "libc", "linux", "miopen", "node", "nvcc", "os", "python", "rocm", "rust", "ubuntu", "version", "windows",
})  # fmt: skip
_MISSING = ("not installed", "module not found", "not found")
_MACHINES = ("x86_64", "aarch64", "arm64", "ppc64le")
_SYSTEMS = (
    ("Linux", r"linux|ubuntu|debian|centos|red hat|rocky|suse"),
    ("Windows", "windows"),
    ("Darwin", "macos|darwin"),
)
_CUDA_BUILD = re.compile(r"cuda_?(\d{2})\.?(\d)")


def printed_facts(text: str, origin: str) -> Facts:
    """Return the facts that a pasted report states, each with its line; DoctorError where it states none.

    A key that has two values in it is unknown, and its problem names both lines. A list with its heading is taken as
    the whole environment.
    """
    stated: dict[str, list[Fact]] = {}
    for found in _stated(text, origin):
        stated.setdefault(found.key, []).append(found)
    facts = Facts(_agreed(found) for found in stated.values())
    if not facts:
        raise DoctorError(f"no facts could be read from the report in `{origin}`")
    return facts


def _stated(text: str, origin: str) -> Iterator[Fact]:
    table = None  # the kind of the list that the lines belong to
    bare = re.search(BARE, text, re.MULTILINE) is not None
    gpus: set[str] = set()
    for number, written in enumerate(text.splitlines(), 1):
        line, place = _HEADING.sub("", written.strip()), f"{origin}:{number}"
        if _PIP_TABLE.match(line) or _CONDA_TABLE.match(line):
            table = "pip" if _PIP_TABLE.match(line) else "conda"
            yield Fact("distributions.complete", True, place)
        elif table and not line:
            table = None
        elif table and (row := _ROW.fullmatch(line)):
            yield from _row(row, place, conda=table == "conda")
        elif not (table and _RULE.fullmatch(line)):
            yield from _of_line(line, place, bare)
            gpus.update(_gpu_numbers(line, number))
    if gpus:
        yield fact("gpu.count", len(gpus), origin)


def _row(row: re.Match[str], place: str, *, conda: bool) -> Iterator[Fact]:
    """Yield what a row of a list states; conda's names are those of conda-forge, except for packages from PyPI."""
    name, build = str(canonicalize_name(row["name"])), row["build"] or ""
    if conda and row["channel"] != "pypi":
        name = _from_conda().get(name, name)
        if name == TORCH and (cuda := _CUDA_BUILD.search(build)):
            yield fact("torch.cuda", f"{cuda[1]}.{cuda[2]}", place)
        elif name == TORCH and "cpu" in build:
            yield Fact("torch.cuda", ABSENT, place)
        elif name == "python":
            yield fact("python.version", row["version"], place)
            return
    yield fact(f"{name}.version", row["version"], place)


@cache
def _from_conda() -> dict[str, str]:
    """Return the distribution of each conda package that has another name, or the same."""
    names = {conda: name for name, conda in conda_names().items()}
    return {**names, "pytorch": TORCH, "pytorch-gpu": TORCH}


def _of_line(line: str, place: str, bare: bool) -> Iterator[Fact]:
    """Yield what a line outside a table states."""
    if pinned := _PINNED.fullmatch(line):
        yield fact(f"{canonicalize_name(pinned['name'])}.version", pinned["version"], place)
    elif line.startswith("[conda] ") and (row := _ROW.fullmatch(line.removeprefix("[conda] "))):
        yield from _row(row, place, conda=True)
    elif address := _BY_ADDRESS.fullmatch(line):
        yield from _wheel(address, place)
    elif variable := _VARIABLE.fullmatch(line):
        key, value = f"env.{variable['name']}", variable["value"].strip("'\"")
        hidden = is_secret(variable["name"], value)
        yield Fact(key, None, place, problem=NOT_READ) if hidden else fact(key, value, place)
    elif capability := _CAPABILITY.fullmatch(line):
        yield fact("gpu.sm", capability["sm"], place)
    elif gpu := _GPUS.match(line) or _SMI_GPU.fullmatch(line):
        yield fact("gpu.name", gpu["name"].strip(), place)
    elif driver := _SMI_DRIVER.match(line):
        yield fact("driver.version", driver["version"], place)
    elif line.startswith(("==((", "\\", "O^O")):
        for key, pattern in _UNSLOTH:
            if said := pattern.match(line):
                yield fact(key, said["v"].rstrip("."), place)
    elif labelled := _LABELLED.fullmatch(line):
        yield from _labelled(labelled["label"], labelled["value"].strip(), place, bare)


def _wheel(address: re.Match[str], place: str) -> Iterator[Fact]:
    file = address["file"].replace("%2B", "+")
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return
    if name == canonicalize_name(address["name"]):
        yield fact(f"{name}.version", str(version), place)
        yield fact(f"{name}.wheel", file, place)


def _gpu_numbers(line: str, number: int) -> Iterator[str]:
    """Yield a name for each GPU that a line lists."""
    if listed := _GPUS.match(line):
        yield from (part.strip() for part in listed["numbers"].split(","))
    elif _SMI_GPU.fullmatch(line):
        yield f"line {number}"


def _labelled(label: str, value: str, place: str, bare: bool) -> Iterator[Fact]:
    """Yield what a line of the form `label: value` states."""
    name = re.sub(r"\([^)]*\)|[^\w .+-]", "", " ".join(label.lower().split())).strip(" -")
    word = value.split()[0].strip(",;") if value.split() else ""
    key = _KEYS.get(re.sub(r"^gpu \d+(?: type)?$", "gpu type", name))
    if key == "platform":
        yield from _platform(value, place)
    elif key == "gpu.name":
        if re.match(r"NVIDIA|Tesla|Quadro|GeForce", value):
            yield fact(key, re.split(r"[,|]", value)[0].strip(), place)
    elif key == "toolkit.gcc":
        if found := re.search(r"(\d+)\.\d+\.\d+$", value):
            yield fact(key, found[1], place)
    elif key == "toolkit.nvcc":
        if found := re.search(r"(?:release |^)(\d+\.\d+)", value):
            yield fact(key, found[1], place)
    elif key is not None:
        if found := re.search(VERSION if key != "gpu.count" else r"\d+", word.removeprefix("glibc-")):
            yield fact(key, found[0], place)
        elif key == "torch.cuda" and word in ("None", "N/A"):
            yield Fact(key, ABSENT, place)
    else:
        yield from _distribution(name, value, word, place, bare)


def _platform(value: str, place: str) -> Iterator[Fact]:
    for system, pattern in _SYSTEMS:
        if re.match(rf"(?:{pattern})\b", value, re.IGNORECASE):
            yield fact("platform.system", system, place)
    for machine in _MACHINES:
        if machine in value:
            yield fact("platform.machine", machine, place)


def _distribution(label: str, value: str, word: str, place: str, bare: bool) -> Iterator[Fact]:
    """Yield the version of a distribution: `vLLM version: 0.11.0`, and `flashinfer_python: 0.5.3` of SGLang."""
    name = label.removesuffix(" version")
    name = OTHER_NAMES.get(name, name)
    if (name == label and not bare) or name in _OTHERS or not re.fullmatch(NAME, name):
        return
    key = f"{canonicalize_name(name)}.version"
    if value.lower().startswith(_MISSING):
        yield Fact(key, ABSENT, place)
    elif re.fullmatch(r"\d+\.\d[0-9A-Za-z.+]*", word.partition("@")[0]):
        yield fact(key, word.partition("@")[0], place)


def _agreed(found: list[Fact]) -> Fact:
    """Return the fact that these state together; a version with a build label counts over the plain one."""
    known = [item for item in found if item.known]
    if not known:
        return found[0]
    best = max(known, key=lambda item: "+" in str(item.value))
    for other in known:
        if other.value != best.value and str(other.value) != str(best.value).partition("+")[0]:
            problem = f"{best.source} says {best.value}, {other.source} says {other.value}"
            return Fact(best.key, None, best.source, problem=problem)
    return best
