"""The category of a failure, for rules that group their findings by other words."""

from __future__ import annotations

import re

from doctor.rulebook.signatures import CATEGORIES

#: Words of rules for `check` that name one of the categories of failures.
_WORDS = {
    "cudnn-shadowed-library": "cudnn-shadowed-library/sublibrary mismatch",
    "missing-module": "missing-module/package",
    "no-kernel-image": "no-kernel-image/arch",
    "wheel-unavailable": "wheel-unavailable/build-failure",
    "wrong-numerics": "NaN/wrong numerics",
    "oom-by-math-fallback": "OOM-by-math-fallback",
    "head_dim": "head-dim-limit",
    "mask": "mask/cudnn-version",
    "cudnn-version": "mask/cudnn-version",
    "driver": "cuda-toolkit/driver mismatch",
    "toolkit": "cuda-toolkit/driver mismatch",
    "triton": "triton/ptxas",
    "glibc": "glibc/GLIBCXX",
    "layout": "layout/stride wrong result",
    "unknown-model": "api-signature-drift",
    "gpu-architecture": "no-kernel-image/arch",
    "shared-memory": "triton/ptxas",
    "compile-failure": "triton/ptxas",
}
#: Words for releases that do not fit each other: the category of the line, or this one where its shape says nothing.
_OF_RELEASES = ("version-window", "lockstep", "bad-release")
#: Shapes of messages, the first that matches counts.
_SHAPES = tuple(
    (re.compile(pattern), category)
    for pattern, category in (
        (r"GLIBC(?:XX)?_\d|CXXABI_", "glibc/GLIBCXX"),
        (r"undefined symbol|ABI\b|torchvision::nms", "abi-undefined-symbol"),
        (r"(?i)no module named|not installed|no package metadata", "missing-module/package"),
        (r"has no attribute", "missing-attribute"),
        (
            r"cannot import name|unexpected keyword|required positional|values? to unpack|positional arguments?"
            r"|incompatible function arguments|unrecognized arguments",
            "api-signature-drift",
        ),
        (r"CUDNN_STATUS_SUBLIBRARY|cuDNN version incompat|libcudnn", "cudnn-shadowed-library/sublibrary mismatch"),
        (r"(?i)attention[-_ ]backend|\btriton (?:attention )?backend", "backend-unavailable"),
        (r"(?i)\btriton(?![ _]?(?:attention|attn|mla))|ptxas|fp8e4nv|nvcc.*Killed", "triton/ptxas"),
        (r"no kernel image|(?i:compute capability|ampere|blackwell|hopper)|sm_?\d\d", "no-kernel-image/arch"),
        (
            r"lib(?:cudart|cublas|cusparse|cusolver|cufft|curand|nvrtc)[\w.-]*\.so.*cannot open shared object",
            "cuda-toolkit/driver mismatch",
        ),
        (r"cannot open shared object", "missing-module/package"),
        (r"(?i)head.?(?:dim|size)|\.shape\[-1\]|headdim", "head-dim-limit"),
        (r"(?i)dtype|bf16|bfloat16|fp16|float16|data type", "dtype-limit"),
        (r"(?i)driver|toolchain|CUDA version", "cuda-toolkit/driver mismatch"),
        (r"(?i)\bnan\b", "NaN/wrong numerics"),
        (r"(?i)stride|contiguous|layout|aligned", "layout/stride wrong result"),
        (r"(?i)cudnn|mask", "mask/cudnn-version"),
        (r"(?i)out of memory", "OOM-by-math-fallback"),
        (r"(?i)metadata-generation|build dependency|wheel", "wheel-unavailable/build-failure"),
    )
)

#: A class or module lacks a name. A tuple in place of a tensor is another result of a call, and lacks none.
_MISSES = re.compile(r"(?<!'tuple' object )has no attribute")

#: A call with other arguments or results than the callee of this release has.
_CALLS = re.compile(
    r"values? to unpack|cannot unpack|got an unexpected keyword argument|required (?:positional|keyword-only) argument"
)

#: Messages that any library may raise: a rule for `check` needs its library in the lines around them.
_AMBIGUOUS = re.compile(
    r"values? to unpack|no kernel image|unexpected keyword argument|takes \d positional arguments? but|NoneType"
    r"|KeyError|object has no attribute|invalid configuration argument|illegal memory access"
    r"|cannot open shared object|GLIBC_|undefined symbol"
)

#: What compiled code of any package ends with: the line says nothing of whose code it is.
_COMPILED_FAULT = re.compile(
    r"no kernel image|kernel image is invalid|invalid device function|illegal memory access|misaligned address"
    r"|illegal instruction was|unspecified launch failure|global/shared address space"
    r"|CUDA_ERROR_(?:NO_BINARY_FOR_GPU|INVALID_IMAGE|ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_OUT_OF_RESOURCES)"
    r"|lib(?:cudart|cublas|cublasLt|cusparse|cusolver|cufft|curand|nvrtc|nvJitLink)\b[\w.-]*: cannot open shared"
    r"|undefined symbol:? ?_ZT?[ISV]?N?K?(?:3c10|2at|5torch|4c10d)|(?i:out of resources?)\b"
    r"|too many resources requested|OutOfResources|does not define module export function"
    r"|: (?:file too short|invalid ELF header|wrong ELF class)"
)


def is_compiled_fault(line: str) -> bool:
    """Return whether a message is one of compiled code, which says nothing of the package that failed."""
    return _COMPILED_FAULT.search(line) is not None


def is_ambiguous(line: str) -> bool:
    """Return whether a message says too little of the library that raised it."""
    return _AMBIGUOUS.search(line) is not None


def category_of(word: str | None, line: str) -> str:
    """Return the category of a rule's own word, else of the shape of the line that shows it."""
    if word in ("api-signature-drift", "missing-module/package") and _MISSES.search(line):
        return "missing-attribute"  # a pair of releases, or a part that was not built, shows in names of both kinds
    if word == "missing-attribute" and _CALLS.search(line):
        return "api-signature-drift"  # releases that do not fit show in calls, too
    if word in ("api-signature-drift", "missing-attribute", "abi-undefined-symbol") and (
        "No module named" in line or "is not installed" in line
    ):
        return "missing-module/package"
    if word in CATEGORIES:
        return word
    if word in _WORDS:
        return _WORDS[word]
    other = "api-signature-drift" if word in _OF_RELEASES else "backend-unavailable"
    return next((category for shape, category in _SHAPES if shape.search(line)), other)
