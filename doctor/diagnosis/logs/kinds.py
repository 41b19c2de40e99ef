"""The category of a failure in a log, where the line decides it: of rules that group findings by further words."""

from __future__ import annotations

import re

from doctor.rulebook.categories import (
    API_DRIFT,
    BAD_RELEASE,
    DECLARED_RANGE,
    LOCKSTEP,
    MISSING_ATTRIBUTE,
    MISSING_MODULE,
    OF_LOGS,
    UNAVAILABLE,
    UNKNOWN_MODEL,
    WRONG_ABI,
)

#: Words for releases that do not fit each other: the category of the line, or this one where its shape says nothing.
_OF_RELEASES = (DECLARED_RANGE, LOCKSTEP, BAD_RELEASE)
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
    """Return the category of a rule, else of the shape of the line that shows it."""
    if word in (API_DRIFT, MISSING_MODULE) and _MISSES.search(line):
        return MISSING_ATTRIBUTE  # a pair of releases, or a part that was not built, shows in names of both kinds
    if word == MISSING_ATTRIBUTE and _CALLS.search(line):
        return API_DRIFT  # releases that do not fit show in calls, too
    if word in (API_DRIFT, MISSING_ATTRIBUTE, WRONG_ABI) and ("No module named" in line or "is not installed" in line):
        return MISSING_MODULE
    if word in OF_LOGS:
        return str(word)
    if word == UNKNOWN_MODEL:
        return API_DRIFT
    other = API_DRIFT if word in _OF_RELEASES else UNAVAILABLE
    return next((category for shape, category in _SHAPES if shape.search(line)), other)
