"""Which environment variables a rule may name, and which it may set for a kernel: rules are data and run no code."""

from __future__ import annotations

import re

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
#: Switches that choose between backends. None of them names a file, a folder or a module that a process would load.
_KERNEL_SWITCHES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDNN_LOGLEVEL_DBG",
    "FLASH_ATTENTION_DETERMINISTIC", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED", "TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED", "TORCH_CUDNN_SDPA_PREFERRED",
    "XFORMERS_IGNORE_FLASH_VERSION_CHECK",
)  # fmt: skip
_NVTE = re.compile(r"NVTE_[A-Z0-9_]{1,64}")
_NVTE_PATHS = re.compile(r"PATH|DIR|FILE|LIB|HOME|FRAMEWORK|PROJECT")
_SWITCH_VALUE = re.compile(r"[A-Za-z0-9_.,:+-]{0,64}")


def is_variable_name(name: object) -> bool:
    """Return whether a shell takes this as the name of a variable, and as nothing else."""
    return isinstance(name, str) and name.isascii() and re.fullmatch(_NAME, name) is not None


def is_kernel_switch(name: object, value: object = None) -> bool:
    """Return whether a rule may set this variable to this value (None: remove it) in the process of a kernel."""
    if not isinstance(name, str) or (value is not None and not _SWITCH_VALUE.fullmatch(str(value))):
        return False
    return name in _KERNEL_SWITCHES or (_NVTE.fullmatch(name) is not None and not _NVTE_PATHS.search(name))
