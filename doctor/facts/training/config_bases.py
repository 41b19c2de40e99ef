"""Configs that build on other files, and values that point to others: `defaults: base.yaml`, `${policy.precision}`.

The names are those of Hydra, OmegaConf and MMEngine. A base that is not there leaves what the config states itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .options import ReadConfig

_KEYS = ("defaults", "_base_", "base_config", "extends", "inherit_from")
MOST_BASES = 20  # files, of one config and its bases
_POINTER = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_MOST_STEPS = 4  # of a value that points to one that points …


def builds_on_others(text: str) -> bool:
    """Return whether the text of a config may name a base or point to another value."""
    return "${" in text or any(key in text for key in _KEYS)


def with_bases(config: Mapping[str, Any], read: ReadConfig) -> dict[str, Any]:
    """Return a config on top of the files that it builds on, with its pointers replaced by what they point to."""
    merged = _merged(config, read, [])
    return {key: _resolved(value, merged) for key, value in merged.items()}


def _merged(config: Mapping[str, Any], read: ReadConfig, seen: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, group in _bases(config):
        if len(seen) >= MOST_BASES:
            continue
        seen.append(name)
        base = read(name)
        if base is not None:
            below = _merged(base, reader_next_to(name, read), seen)
            found = _over(found, {group: below} if group else below)
    return _over(found, {key: value for key, value in config.items() if key not in _KEYS or isinstance(value, Mapping)})


def reader_next_to(name: str, read: ReadConfig) -> ReadConfig:
    """Return a reader of the files that a base names: next to the base first."""
    folder, slash, _ = name.rpartition("/")
    if not slash:
        return read

    def read_next_to(inner: str) -> Mapping[str, Any] | None:
        found = None if inner.startswith("/") else read(f"{folder}/{inner}")
        return read(inner) if found is None else found

    return read_next_to


def _bases(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the files that a config names as its base, and the table that each fills; empty for the whole config."""
    for key in _KEYS:
        value = config.get(key)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and item != "_self_":
                yield _file(item), ""
            elif isinstance(item, Mapping):  # `- model: llama`: the file model/llama.yaml fills the table `model`
                for group, name in item.items():
                    if isinstance(name, str) and re.fullmatch(r"[\w/]+", str(group)):
                        yield _file(f"{group}/{name}"), str(group)


def _file(name: str) -> str:
    return name if name.endswith((".yaml", ".yml", ".json", ".toml")) else f"{name}.yaml"


def _over(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in more.items():
        before = merged.get(key)
        merged[key] = _over(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def _resolved(value: Any, top: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolved(inner, top) for key, inner in value.items()}
    for _ in range(_MOST_STEPS):
        pointer = _POINTER.fullmatch(value) if isinstance(value, str) else None
        if pointer is None:
            break
        target = _at(top, pointer[1].split("."))
        if target is None or isinstance(target, Mapping):
            break
        value = target
    return value


def _at(top: Any, path: list[str]) -> Any:
    for name in path:
        top = top.get(name) if isinstance(top, Mapping) else None
    return top
