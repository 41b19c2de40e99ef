"""Derived facts of an installation: drivers, wheels that belong together, and what a build at run time finds."""

from __future__ import annotations

import re

from doctor.facts.derived.registry import derived, shape
from doctor.facts.kinds import BOOLEAN, LIST, TEXT, VERSION
from doctor.facts.vocabulary import Term, declare, parse_version
from doctor.model import ABSENT
from doctor.util.patterns import pattern

declare(Term("driver.cuda_branch", VERSION, "major CUDA release that the driver's branch serves", derived=True))
declare(Term("torch.default_build", TEXT, "what the default index serves on this platform: cpu, cuda", derived=True))
declare(Term("torch.arch_list_aarch64", TEXT, "SM architectures of the release's wheel for aarch64", derived=True))
declare(Term("vllm.wheel_cuda_major", TEXT, "major CUDA release of vLLM's wheel on the default index", derived=True))
declare(Term("vllm.requires_xformers", BOOLEAN, "this vLLM's metadata requires xFormers", derived=True))
declare(Term("gpu.first_cuda", VERSION, "the first CUDA toolkit whose compiler knows this GPU", derived=True))

#: Names of GPUs for which NVIDIA supports forward compatibility: data-centre boards and Jetson modules.
_DATA_CENTRE = pattern(
    r"\b(P4|P6|P40|P100|V100S?|T4G?|A2|A10G?|A16|A30X?|A40|A100X?|A800|L2|L4|L20|L40[SG]?|H20|H100|H200|H800"
    r"|GH200|B100|B200|B300|GB200|GB300|Orin|Thor|Xavier|K80|M60)\b"
)
_DATA_CENTRE_SM = ("8.0", "9.0", "10.0", "10.3")  # no consumer board has these


@derived(
    "gpu.data_center",
    BOOLEAN,
    "a data-centre GPU or a Jetson, for which NVIDIA supports forward compatibility of the driver; false if not known",
    uses=("gpu.name", "gpu.sm"),
)
def _data_center(name: str | None, sm: str | None) -> bool:
    if name not in (None, ABSENT) and "RTX" not in str(name):
        return bool(_DATA_CENTRE.search(re.sub(r"[-_]", " ", str(name))))
    return sm in _DATA_CENTRE_SM


@derived(
    "driver.serves_torch",
    BOOLEAN,
    "the driver serves the major release of CUDA that torch was built for, without a forward-compatibility package",
    needs=("torch.cuda",),
    uses=("driver.cuda", "driver.cuda_branch"),
)
def _serves_torch(cuda: str, reported: str | None, branch: str | None) -> bool | None:
    if cuda == ABSENT:
        return True
    served = reported if reported not in (None, ABSENT) else branch
    if served in (None, ABSENT):
        return None
    return parse_version(str(served)).major >= parse_version(cuda).major


@derived(
    "torch.known_cpu_build",
    BOOLEAN,
    "torch is known to be built without CUDA; false where that is not known",
    uses=("torch.cuda",),
)
def _known_cpu_build(cuda: str | None) -> bool:
    return cuda == ABSENT


@derived(
    "torch.known_on_cpu",
    BOOLEAN,
    "torch is known to compute on the CPU: a build without CUDA, or no GPU; false where that is not known",
    uses=("torch.cuda", "gpu.count"),
)
def _known_on_cpu(cuda: str | None, gpus: int | None) -> bool:
    return cuda == ABSENT or gpus == 0


@derived(
    "torch.known_rocm_build",
    BOOLEAN,
    "torch is known to be built for ROCm, by its local label; false where that is not known",
    uses=("torch.version",),
)
def _known_rocm_build(version: str | None) -> bool:
    return version is not None and "+rocm" in version


@derived(
    "platform.known_windows",
    BOOLEAN,
    "the system is known to be Windows; false where that is not known",
    uses=("platform.system",),
)
def _known_windows(system: str | None) -> bool:
    return system == "Windows"


@derived(
    "torch.cuda",
    VERSION,
    "CUDA the torch build was made for: by its label, or by what the default index serves on this platform",
    needs=("torch.version",),
    uses=("torch.default_build",),
)
def _torch_cuda(version: str, default: str | None) -> str | None:
    if version == ABSENT:
        return None
    label = version.partition("+")[2]
    if label == "cpu" or (not label and default == "cpu" and not parse_version(version).is_prerelease):
        return ABSENT
    named = re.fullmatch(r"cu(\d{2,3})", label)
    return f"{named[1][:-1]}.{named[1][-1]}" if named else None


@derived(
    "torch.arch_list",
    LIST,
    "SM architectures that torch has code for: those of the wheel for aarch64 where that is the machine",
    needs=("platform.machine", "torch.arch_list_aarch64"),
)
def _arch_list(machine: str, aarch64: str) -> tuple[str, ...] | None:
    return tuple(aarch64.split()) if machine == "aarch64" and aarch64 != ABSENT else None


@derived(
    "vllm.cuda_major_held",
    BOOLEAN,
    "torch is built for the major release of CUDA of vLLM's wheel",
    needs=("vllm.version", "torch.cuda_major"),
    uses=("vllm.wheel_cuda_major",),
)
def _vllm_cuda_held(version: str, torch_major: str, wheel_major: str | None) -> bool | None:
    if ABSENT in (version, torch_major):
        return None
    label = version.partition("+")[2]
    named = re.search(r"cu(1[0-9])\d\b", label)
    if named is None and (parse_version(version).is_devrelease or re.match(r"g[0-9a-f]{7,}", label)):
        return None  # built from a commit: by the user, for the torch that was there, or by a nightly job
    built_for = named[1] if named else wheel_major
    return None if built_for in (None, ABSENT) else built_for == torch_major


@derived(
    "torch.cudnn_newer_than_pin",
    BOOLEAN,
    "the cuDNN wheel is later than the one torch requires, of the same major release",
    needs=("cudnn.pinned_wheel", "torch.cudnn_pin"),
)
def _cudnn_newer(found: str, pin: str) -> bool:
    if ABSENT in (found, pin):
        return False
    one, other = parse_version(found), parse_version(pin)
    return one.major == other.major and one > other


@derived(
    "cudnn.wheel_read",
    BOOLEAN,
    "a cuDNN wheel was found installed, and is not only what the torch release would bring",
    uses=("nvidia-cudnn-cu13.given", "nvidia-cudnn-cu12.given", "nvidia-cudnn-cu11.given", "torch.version"),
)
def _wheel_read(cu13: bool | None, cu12: bool | None, cu11: bool | None, torch: str | None) -> bool:
    official = torch is not None and re.search(r"\+cu\d{2,3}$", torch) is not None
    return official or any((cu13, cu12, cu11))


@shape(
    "toolkit.builds_for_gpu",
    BOOLEAN,
    "nvcc knows this GPU's architecture: sm 10.0 and 12.0 from 12.8, 10.3 and 12.1 from 12.9, 9.0 from 11.8",
    needs=("toolkit.nvcc", "gpu.first_cuda"),
)
def _builds_for_gpu(nvcc: str, first: str) -> bool:
    return parse_version(nvcc).release[:2] >= parse_version(first).release[:2]


@derived(
    "torch.arch_env_without_gpu",
    BOOLEAN,
    "TORCH_CUDA_ARCH_LIST is set and names no architecture that this GPU runs",
    needs=("env.TORCH_CUDA_ARCH_LIST", "gpu.sm"),
)
def _arch_env(value: str, sm: str) -> bool:
    if ABSENT in (value, sm):
        return False
    major, minor = map(int, sm.split("."))
    named = re.findall(r"(?<![\d.])(\d{1,2})\.?(\d)([af]?)(\+PTX)?(?![\d.])", value)  # 10.0f, or 100f as nvcc writes it
    for one, two, letter, ptx in named:
        there = (int(one), int(two))
        if letter == "a" and there != (major, minor):
            continue
        if (there[0] == major and there[1] <= minor) or (ptx and there <= (major, minor)):
            return False
    return bool(named)


@derived(
    "torch.arch_env_mixes_hopper",
    BOOLEAN,
    "TORCH_CUDA_ARCH_LIST names 9.0 and a later architecture together",
    needs=("env.TORCH_CUDA_ARCH_LIST",),
)
def _mixes_hopper(value: str) -> bool:
    if value == ABSENT:
        return False
    majors = {int(number) for number in re.findall(r"(\d{1,2})\.\d", value)}
    return 9 in majors and max(majors) > 9


@derived(
    "toolkit.cuda_home_is_list",
    BOOLEAN,
    "CUDA_HOME is written like a search path on Linux: it begins or ends with a colon, or names several folders",
    needs=("env.CUDA_HOME",),
    uses=("platform.system",),
)
def _cuda_home_is_list(folder: str, system: str | None) -> bool:
    return folder != ABSENT and system != "Windows" and ":" in folder


@derived(
    "flashinfer.arch_list_bare",
    BOOLEAN,
    "FLASHINFER_CUDA_ARCH_LIST names this GPU, of 9.0 or later, without the letter that its instructions need",
    needs=("env.FLASHINFER_CUDA_ARCH_LIST", "gpu.sm"),
)
def _arch_list_bare(value: str, sm: str) -> bool:
    return ABSENT not in (value, sm) and int(sm.split(".")[0]) >= 9 and sm in value.split()


@derived(
    "driver.compat_present",
    BOOLEAN,
    "CUDA's forward-compatibility libraries are on the loader path, or a container brings them; false if unknown",
    uses=("torch.version", "env.LD_LIBRARY_PATH"),
)
def _compat_present(torch: str | None, path: str | None) -> bool:
    container = torch not in (None, ABSENT) and re.search(r"\.nv\d|a0\+", str(torch)) is not None
    return container or (path not in (None, ABSENT) and "compat" in str(path))


@derived(
    "loader.cuda_folder",
    VERSION,
    "the release of the first CUDA toolkit on LD_LIBRARY_PATH, by its folder's name, or nvcc's for /usr/local/cuda",
    uses=("env.LD_LIBRARY_PATH", "toolkit.nvcc"),
)
def _cuda_folder(path: str | None, nvcc: str | None) -> str | None:
    for folder in "" if path in (None, ABSENT) else str(path).split(":"):
        if named := re.search(r"/cuda[-_/](1\d\.\d{1,2})(?:\.\d+)?(?:/|$)", folder):
            return named[1]
        if re.search(r"/cuda(?:/|$)", folder):
            return nvcc
    return ABSENT


@derived(
    "loader.compat_folder",
    TEXT,
    "the folder of CUDA's forward-compatibility libraries that LD_LIBRARY_PATH names",
    uses=("env.LD_LIBRARY_PATH",),
)
def _compat_folder(path: str | None) -> str:
    # NVIDIA's images name cuda/compat/lib, a link that is there only where the driver needs it.
    folders = "" if path in (None, ABSENT) else str(path)
    return next((one for one in folders.split(":") if re.search(r"/cuda[^/]*/compat/?$", one)), ABSENT)


@derived(
    "gpu.consumer",
    BOOLEAN,
    "a GeForce or TITAN, by its name; false if not known",
    uses=("gpu.name",),
)
def _consumer(name: str | None) -> bool:
    return name not in (None, ABSENT) and re.search(r"\b(GeForce|TITAN|GTX)\b", str(name)) is not None


@derived(
    "loader.cublaslt_release",
    VERSION,
    "the release of the CUDA toolkit on LD_LIBRARY_PATH whose cuBLASLt replaces the one of torch's cuBLAS wheel",
    needs=("loader.cuda_folder", "torch.cuda"),
    uses=("nvidia-cublas-cu12.version", "nvidia-cublas.version"),
)
def _cublaslt_release(folder: str, cuda: str, cublas12: str | None, cublas13: str | None) -> str | None:
    if ABSENT in (folder, cuda):
        return ABSENT
    torch_major = parse_version(cuda).major
    wheel = cublas12 if torch_major == 12 else cublas13
    cublas = parse_version(cuda if wheel in (None, ABSENT) else str(wheel)).release[:2]
    toolkit = parse_version(folder).release[:2]
    return folder if toolkit[0] == torch_major and toolkit != cublas else ABSENT  # another major has another file name


@derived(
    "vllm.official_build",
    BOOLEAN,
    "vLLM's version is that of a public release or of its builds by CUDA, and not that of a checkout or a nightly",
    needs=("vllm.version",),
)
@derived(
    "torch.official_build",
    BOOLEAN,
    "torch's version is that of a public release or of its builds by CUDA, and not that of a container or a nightly",
    needs=("torch.version",),
)
def _official_build(version: str) -> bool:
    if version == ABSENT:
        return False
    label = version.partition("+")[2]
    return not parse_version(version).is_prerelease and re.fullmatch(r"|cpu|cu\d{2,3}", label) is not None


@shape(
    "toolkit.is_of_torch",
    BOOLEAN,
    "nvcc is of the CUDA release that torch was built for, minor included",
    needs=("toolkit.nvcc", "torch.cuda"),
)
def _toolkit_of_torch(nvcc: str, cuda: str) -> bool:
    return parse_version(nvcc).release[:2] == parse_version(cuda).release[:2]


@shape(
    "toolkit.major_of_torch",
    BOOLEAN,
    "nvcc is of the major release of CUDA that torch was built for: else torch refuses to compile extensions",
    needs=("toolkit.nvcc", "torch.cuda"),
)
def _toolkit_major_of_torch(nvcc: str, cuda: str) -> bool:
    return parse_version(nvcc).major == parse_version(cuda).major
