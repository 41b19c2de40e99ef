"""Run the probes of an installed environment in order; facts of a later one replace those of an earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from doctor.model import Fact, Facts
from doctor.sources.watch import Watch

from . import (
    compiled,
    conda_meta,
    cudnn,
    distributions,
    env_vars,
    gpu,
    module_copies,
    platform,
    te_cudnn,
    toolkit,
    torch_build,
    triton_tools,
    wheel_files,
    xformers_build,
)
from .target import Probe, Target

#: In their order: torch's own version file has the build label that its metadata lacks.
PROBES: Mapping[str, Probe] = {
    "platform": platform,
    "distributions": distributions,
    "torch_build": torch_build,
    "xformers_build": xformers_build,
    "wheel_files": wheel_files,
    "module_copies": module_copies,
    "conda_meta": conda_meta,
    "compiled": compiled,
    "cudnn": cudnn,
    "te_cudnn": te_cudnn,
    "gpu": gpu,
    "toolkit": toolkit,
    "triton_tools": triton_tools,
    "env_vars": env_vars,
}


def collect(target: Target, watch: Watch, probes: Iterable[str] = tuple(PROBES)) -> Facts:
    """Return the facts of these probes; a probe that fails leaves unknown facts with the reason."""
    facts: dict[str, Fact] = {}
    for name in probes:
        probe = PROBES[name]
        found: dict[str, Fact] = {}
        try:
            for fact in probe.collect(target, watch):
                found[fact.key] = fact
        except Exception as problem:  # a probe reads files of any content: a failure must not stop the others
            text = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
            for key in probe.PROMISES:
                if key not in found and key not in facts:
                    found[key] = Fact(key, None, f"{name} probe", problem=f"the {name} probe failed: {text}")
        facts.update(found)
    return Facts(facts.values())
