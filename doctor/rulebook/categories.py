"""The kinds of failure: one word for each rule, one list for rules, logs, docs and the JSON Schema."""

from __future__ import annotations

NONE = "none"
WRONG_NUMBERS = "NaN/wrong numerics"
WRONG_LAYOUT = "layout/stride wrong result"
API_DRIFT = "api-signature-drift"
MISSING_ATTRIBUTE = "missing-attribute"
MISSING_MODULE = "missing-module/package"
NO_KERNEL = "no-kernel-image/arch"
WRONG_ABI = "abi-undefined-symbol"
UNAVAILABLE = "backend-unavailable"
DECLARED_RANGE = "version-window"
LOCKSTEP = "lockstep"
BAD_RELEASE = "bad-release"
UNKNOWN_MODEL = "unknown-model"

#: What an answer about a log names, and what it means.
OF_LOGS = {
    API_DRIFT: "a call that the installed release does not take: other arguments, results or names",
    MISSING_ATTRIBUTE: "a class or module of the installed release lacks a name",
    MISSING_MODULE: "a package, module or shared library is not installed",
    WRONG_ABI: "compiled code was built for another torch or C++ ABI",
    "wheel-unavailable/build-failure": "no wheel fits, or a build from source fails",
    NO_KERNEL: "compiled code has nothing for this GPU",
    "cuda-toolkit/driver mismatch": "the CUDA toolkit, its libraries or the driver do not fit",
    "cudnn-shadowed-library/sublibrary mismatch": "two copies or releases of cuDNN in one process",
    "glibc/GLIBCXX": "the system's C or C++ library is too old",
    "triton/ptxas": "Triton or the compiler of its kernels fails",
    UNAVAILABLE: "a backend refuses the job",
    "head-dim-limit": "a kernel has no code for this head dimension",
    "dtype-limit": "a kernel has no code for this dtype",
    "mask/cudnn-version": "a mask or shape that this release of cuDNN does not support",
    WRONG_NUMBERS: "NaN, infinite or wrong results",
    WRONG_LAYOUT: "wrong results, or a refusal, because of strides or the layout",
    "OOM-by-math-fallback": "out of memory: a slow implementation writes out all scores",
    "other": "none of the other kinds",
    NONE: "no incompatibility",
}
#: What groups findings further; the line of a log that shows one of these decides what an answer names.
OF_FINDINGS = {
    "crash": "the process ends or hangs in compiled code",
    "slow": "right, but much slower than it could be",
    DECLARED_RANGE: "a release that the metadata or code of another package does not admit",
    LOCKSTEP: "parts that need the same or fitting releases have others",
    BAD_RELEASE: "a release that is broken by itself",
    UNKNOWN_MODEL: "a release that does not know the model",
    "installation": "files of packages are replaced, shadowed or left over",
    "configuration": "settings that contradict each other or have no effect",
}
CATEGORIES = {**OF_LOGS, **OF_FINDINGS}
#: Words that rules of a team may still have, and what they are now.
FORMER = {
    "wrong-numerics": WRONG_NUMBERS,
    "missing-module": MISSING_MODULE,
    "no-kernel-image": NO_KERNEL,
    "gpu-architecture": NO_KERNEL,
    "wheel-unavailable": "wheel-unavailable/build-failure",
    "cudnn-shadowed-library": "cudnn-shadowed-library/sublibrary mismatch",
    "oom-by-math-fallback": "OOM-by-math-fallback",
    "head_dim": "head-dim-limit",
    "mask": "mask/cudnn-version",
    "cudnn-version": "mask/cudnn-version",
    "driver": "cuda-toolkit/driver mismatch",
    "toolkit": "cuda-toolkit/driver mismatch",
    "triton": "triton/ptxas",
    "shared-memory": "triton/ptxas",
    "compile-failure": "triton/ptxas",
    "glibc": "glibc/GLIBCXX",
    "layout": WRONG_LAYOUT,
}
