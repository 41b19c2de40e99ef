"""What a config of DeepSpeed says: how ranks share the model, where the optimizer is, which operators it compiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from doctor.util.patterns import pattern

from .options import Options, Statement

#: Stage of ZeRO -> how ranks share parameters and optimizer.
STAGES = {"0": "zero0", "1": "zero1", "2": "zero2", "3": "zero3"}
_OF_HOST = ("cpu", "nvme")
#: Types of `optimizer` that DeepSpeed computes with an operator of its own (engine.py, _configure_basic_optimizer).
_COMPILED = pattern(r"adamw?|.*lamb|lion|onebitadam|zerooneadam")
#: Words that only the config says.
_WORDS = ("sharding", "optimizer_offload", "deepspeed_optimizer", "zero_quantized")


def zero(config: Mapping[str, Any] | None, option: str) -> Iterator[Statement]:
    """Yield what a config of DeepSpeed says; unknown where it is not there."""
    if config is None:
        yield from (Statement(word, None, option) for word in _WORDS)
        return
    yield from _of_table(config, option)
    yield Statement("deepspeed_optimizer", _compiles(Options(config).mapping("optimizer")), option)


def brought(name: str, stage: str, option: str) -> Iterator[Statement]:
    """Yield what the name of a config says that a trainer brings: `zero3_offload`."""
    yield Statement("sharding", STAGES[stage], option)
    yield Statement("optimizer_offload", "offload" in name, option)
    yield from plain(option)


def plain(option: str) -> Iterator[Statement]:
    """Yield what a config says that neither names an optimizer nor quantizes."""
    yield Statement("deepspeed_optimizer", False, option)
    yield Statement("zero_quantized", False, option)


def _of_table(config: Mapping[str, Any], option: str) -> Iterator[Statement]:
    table = config.get("zero_optimization", {})
    if not isinstance(table, dict):
        return
    stage = STAGES.get(str(table.get("stage", 0)))
    if stage:
        yield Statement("sharding", stage, option)
    yield offload(_device(table), option)
    quantized = [Options(table).flag(name) for name in ("zero_quantized_weights", "zero_quantized_gradients")]
    yield Statement("zero_quantized", any(quantized), option)


def offload(device: Any, option: str) -> Statement:
    """Return whether the optimizer is on the host; `auto` leaves that to the trainer."""
    text = str(device).lower()
    known = text in (*_OF_HOST, "none")
    return Statement("optimizer_offload", text in _OF_HOST if known else None, option)


def _device(table: Mapping[str, Any]) -> Any:
    given = table.get("offload_optimizer")
    if isinstance(given, dict):
        return given.get("device", "none")
    return "cpu" if Options(table).flag("cpu_offload") else "none"  # `cpu_offload`: DeepSpeed before 0.3.16


def _compiles(optimizer: Mapping[str, Any] | None) -> bool:
    """Return whether DeepSpeed makes the optimizer, with an operator that it compiles."""
    if optimizer is None:
        return False
    parameters = Options(Options(optimizer).mapping("params") or {})
    return bool(_COMPILED.fullmatch(str(optimizer.get("type")).lower())) and not parameters.flag("torch_adam")
