"""Derived facts of triton's tools: which ptxas serves this GPU, and whether it knows it."""

from __future__ import annotations

from doctor.facts.kinds import BOOLEAN, VERSION
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT

from .registry import derived

_BLACKWELL = "TRITON_PTXAS_BLACKWELL_PATH"


@derived(
    "triton.ptxas_cuda", VERSION, "CUDA release of the ptxas that triton calls for this GPU",
    needs=("triton.ptxas_variable",),
    uses=("triton.own_ptxas", "triton.ptxas_override", "triton.blackwell_ptxas_override"),
)  # fmt: skip
def _ptxas(variable: str, own: str | None, plain: str | None, blackwell: str | None) -> str | None:
    named = {"TRITON_PTXAS_PATH": plain, _BLACKWELL: blackwell}.get(variable)
    return own if named in (None, ABSENT) else named


@derived(
    "triton.ptxas_too_old", BOOLEAN, "the ptxas that triton calls does not know this GPU; false where not known",
    uses=("triton.ptxas_cuda", "gpu.first_cuda", "triton.given"),
)  # fmt: skip
def _too_old(cuda: str | None, first: str | None, given: bool | None) -> bool:
    if not given or cuda in (None, ABSENT) or first in (None, ABSENT):
        return False
    return parse_version(str(cuda)) < parse_version(str(first))


@derived(
    "triton.libcuda_unusable", BOOLEAN,
    "triton cannot link against the library of the driver that is present; false where not known",
    uses=("triton.libcuda_problem", "driver.version"),
)  # fmt: skip
def _unusable(problem: str | None, driver: str | None) -> bool:
    return problem not in (None, ABSENT) and driver not in (None, ABSENT)


@derived(
    "triton.ptxas_unusable", BOOLEAN, "a variable names a ptxas that triton cannot use; false where not known",
    uses=("triton.ptxas_problem",),
)  # fmt: skip
def _no_tool(problem: str | None) -> bool:
    return problem not in (None, ABSENT)


@derived(
    "triton.ptxas_path_is_ignored", BOOLEAN,
    "TRITON_PTXAS_PATH is set, and triton reads another variable for this GPU; false where not known",
    uses=("triton.ptxas_variable", "env.TRITON_PTXAS_PATH", f"env.{_BLACKWELL}"),
)  # fmt: skip
def _ignored(variable: str | None, path: str | None, blackwell: str | None) -> bool:
    replaced = variable == _BLACKWELL and blackwell not in (None, ABSENT)
    return variable not in (None, "TRITON_PTXAS_PATH") and path not in (None, ABSENT) and not replaced


@derived(
    "triton.missing", BOOLEAN, "no package that brings triton is installed",
    needs=("triton.version",), uses=("triton-windows.version", "pytorch-triton.version", "platform.system"),
)  # fmt: skip
def _missing(version: str, windows: str | None, nightly: str | None, system: str | None) -> bool | None:
    if any(found not in (None, ABSENT) for found in (version, windows, nightly)):
        return False
    return None if system == "Windows" and windows is None else True
