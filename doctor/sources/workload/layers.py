"""The attention of a model's other layers, where heads are wider or fewer than the config's main fields say.

Configs name such fields by the kind of layer: `global_head_dim`, `num_global_key_value_heads` (Gemma 4) or
`swa_head_dim`; transformers 5 writes `per_layer_config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from doctor.model import ABSENT, Fact, Facts

from .model_config import Config

#: Kind of layer -> how configs begin, or infix, the fields of its heads.
_NAMES = {"full_attention": ("global",), "sliding_attention": ("swa", "sliding")}
_KEYS = {
    "workload.head_dim_qk": "head_dim", "workload.head_dim_v": "head_dim", "workload.num_heads": "num_attention_heads",
    "workload.num_kv_heads": "num_key_value_heads",
}  # fmt: skip


class LayerKind(NamedTuple):
    """One more kind of attention layer, and what differs from the main one."""

    name: str
    facts: Facts


def other_layers(config: Config, main: Facts) -> list[LayerKind]:
    """Return the kinds of layers whose heads differ from those of `main`."""
    found: list[LayerKind] = []
    for kind, names in _NAMES.items():
        facts = [fact for key in _KEYS if (fact := _own(config, key, names)) is not None]
        found += _differing(kind, facts, main)
    table = config.get("per_layer_config")
    if not found and isinstance(table, Mapping):
        kinds = {str(sorted(own.items())): own for own in table.values() if isinstance(own, Mapping)}
        for own in kinds.values():
            found += _differing("full_attention", list(_written(config, own)), main)
    return found


def _own(config: Config, key: str, names: tuple[str, ...]) -> Fact | None:
    plain = _KEYS[key]
    fields = [f"{name}_{plain}" for name in names]
    fields += [plain.replace("num_", f"num_{name}_", 1) for name in names if plain.startswith("num_")]
    found = config.integer(*fields)
    return None if found.value is None else Fact(key, found.value, found.source)


def _written(config: Config, own: Mapping[str, Any]) -> Iterator[Fact]:
    for key, plain in _KEYS.items():
        value = own.get(plain)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            yield Fact(key, value, config.source("per_layer_config"))


def _differing(kind: str, facts: list[Fact], main: Facts) -> Iterator[LayerKind]:
    changed = [fact for fact in facts if main.value(fact.key) not in (None, fact.value)]
    if not changed:
        return
    if kind == "full_attention":
        changed.append(Fact("workload.window", ABSENT, changed[0].source))
    yield LayerKind(f"{kind} layers", Facts(changed))
