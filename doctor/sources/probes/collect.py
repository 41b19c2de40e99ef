"""Where facts come from: one module per source, asked in order; what a later one says replaces the earlier."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from doctor.model import Fact, Facts

from .locate import ask, find_target, named_interpreter
from .target import Probe, Target, Watch

#: Later ones know better: torch's own version file knows the build label that its metadata lacks.
PROBES = (
    "platform", "distributions", "torch_build", "xformers_build", "wheel_files", "cudnn", "te_cudnn", "gpu", "toolkit",
    "env_vars",
)  # fmt: skip

__all__ = ["PROBES", "Probe", "Target", "Watch", "ask", "collect", "find_target", "named_interpreter"]


def collect(target: Target, watch: Watch, probes: tuple[str, ...] = PROBES) -> Facts:
    """All that the probes find out; one that fails leaves unknown facts with the reason, never an exception."""
    facts: dict[str, Fact] = {}
    for name in probes:
        probe = cast(Probe, import_module(f"doctor.sources.probes.{name}"))
        found: dict[str, Fact] = {}
        try:
            for fact in probe.collect(target, watch):
                found[fact.key] = fact
        except Exception as problem:  # a probe reads what anyone may have left there: nothing of it may stop the rest
            said = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
            reason = f"the {name} probe failed: {said}"
            for key in probe.PROMISES:
                if key not in found and key not in facts:
                    found[key] = Fact(key, None, f"{name} probe", problem=reason)
        facts.update(found)
    return Facts(facts.values())
