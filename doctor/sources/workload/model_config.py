"""Typed access to a Hugging Face config: a value of the wrong type or size becomes a one-line error with its key."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from doctor.errors import DoctorError
from doctor.facts.workload import LARGEST
from doctor.util.printable import one_line
from doctor.util.reading import read_text
from doctor.util.redact import shortened
from doctor.util.resources import rules_dir

from .files import split_part

#: Keys below which a multimodal config has its language model.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

#: Keys of the number of attention heads, of language models and of encoders for images and audio.
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
#: Keys of the dtype of the weights.
DTYPE_KEYS = ("dtype", "torch_dtype")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Setting(Generic[Value]):
    """One value of a config, None where it has none, with the key that names it and the source for facts."""

    value: Value | None = None
    key: str = ""
    source: str = ""


def load_config(path: Path) -> Config:
    """Return the config of a file, or of the model folder that contains it; of one part for `config.json[PART]`."""
    name, part = split_part(str(path))
    path = Path(name)
    with contextlib.suppress(OSError):  # read_text reports a folder without permission
        if path.is_dir():
            path = path / "config.json"
    text = read_text(path, "model config", named=True)
    if not text.strip():
        raise DoctorError(one_line(f"{path}: the model config is empty"))
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        raise DoctorError(one_line(f"{path}:{problem.lineno}: not JSON: {problem.msg}")) from None
    except RecursionError:
        raise DoctorError(one_line(f"{path}: nested too deeply")) from None
    except ValueError as problem:  # an integer of thousands of digits
        raise DoctorError(one_line(f"{path}: not JSON: {str(problem).split(';')[0]}")) from None
    if not isinstance(content, dict):
        raise DoctorError(one_line(f"{path}:1: a model config needs a JSON object"))
    config = Config(content, path, text)
    return config if part is None or part in NESTED else config.part(part)


class Config:
    """One config; the nested language model of a multimodal one comes first."""

    def __init__(self, content: Mapping[str, Any], path: Path, text: str) -> None:
        self.path, self.name, self._text = path, path.name, text
        self.part_name: str | None = None  # of an encoder next to the language model
        self._levels: list[tuple[str, Mapping[str, Any]]] = [("", content)]
        level: Mapping[str, Any] = content
        prefix = ""
        for _ in NESTED:
            key = next((key for key in NESTED if isinstance(level.get(key), dict)), None)
            if key is None:
                break
            prefix, level = f"{prefix}{key}.", level[key]
            self._levels.insert(0, (prefix, level))
        model_type = self._find("model_type")[1]
        self.model_type = one_line(model_type) if isinstance(model_type, str) else ""
        self._defaults = _class_defaults().get(self.model_type, {})

    def part(self, name: str) -> Config:
        """Return the config of an encoder next to the language model; DoctorError names the parts that there are."""
        found = self.other_parts()
        if name not in found:
            known = ", ".join(f"`{key}`" for key in found) or "none"
            raise DoctorError(one_line(f"{self.path}: no part `{name}` with attention heads (found {known})"))
        made = Config(found[name], self.path, self._text)
        outer = {key: value for key in DTYPE_KEYS if (value := self.get(key)) is not None}
        made.part_name, made.model_type = name, ""  # what is known of a type holds for its language model
        made._levels, made._defaults = [(f"{name}.", found[name]), ("", outer)], {}
        return made

    def other_parts(self) -> dict[str, Mapping[str, Any]]:
        """Return the parts with attention heads next to the language model: `vision_config`, `audio_config`."""
        return {
            prefix + key: value
            for prefix, level in self._levels
            for key, value in level.items()
            if isinstance(value, dict) and key not in NESTED
            if key.endswith("_config") and any(isinstance(value.get(name), int) for name in HEADS)
        }

    def _find(self, key: str) -> tuple[str, Any]:
        """Return (key with its path, value); the value is None where it is missing or null."""
        for prefix, level in self._levels:
            value: Any = level
            for part in key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return prefix + key, value
        return key, None

    def get(self, key: str) -> Any:
        """Return the value of `key`, else the default of the model's class, else None."""
        value = self._find(key)[1]
        return self._defaults.get(key) if value is None and not self.has(key) else value

    def has(self, key: str) -> bool:
        """Return whether the file has `key`, even as null."""
        return any(key in level for _, level in self._levels)

    def outermost(self, key: str) -> Any:
        """Return the value of `key` in the file's outermost object, or None."""
        return self._levels[-1][1].get(key)

    def source(self, key: str) -> str:
        """Return `config.json: key`, with the path of a nested one, or whose default it is."""
        where, value = self._find(key)
        if value is None and key in self._defaults and not self.has(key):
            return f"default of {self.model_type} in transformers: {key}"
        return f"{self.name}: {where}"

    def integer(self, *keys: str, least: int = 1) -> Setting[int]:
        """Return the first of `keys` that is given; DoctorError unless an integer from `least` to 2^40."""
        key, value = self._first(keys)
        if value is None or isinstance(value, list):  # a list has a value per layer, and which one counts is unknown
            return Setting()
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(key, f"needs an integer, found {_shown(value)}")
        if not least <= value <= LARGEST:
            raise self.fault(key, f"needs an integer from {least} to 2^40, found {_shown(value)}")
        return Setting(value, key, self.source(key))

    def number(self, *keys: str, most: float = float(1 << 40)) -> Setting[float]:
        """Return the first of `keys` that is given; DoctorError unless a number from 0 to `most`."""
        key, value = self._first(keys)
        if value is None:
            return Setting()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise self.fault(key, f"needs a number from 0 to {most:g}, found {_shown(value)}")
        return Setting(float(value), key, self.source(key))

    def text(self, *keys: str) -> Setting[str]:
        """Return the first of `keys` that is given as a text."""
        key, value = self._first(keys)
        if value is None or isinstance(value, dict):  # a mapping has one per sub-model, and which counts is unknown
            return Setting()
        if not isinstance(value, str):
            raise self.fault(key, f"needs a text, found {_shown(value)}")
        return Setting(one_line(value), key, self.source(key))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the list of texts of `key`, empty where it is missing."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fault(key, f"needs a list of texts, found {_shown(value)}")
        return tuple(map(one_line, value))

    def flag(self, key: str) -> bool | None:
        """Return the boolean of `key`, None where it is missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise self.fault(key, f"needs true or false, found {_shown(value)}")
        return value

    def fault(self, key: str, why: str) -> DoctorError:
        """Return a one-line error with file, line and key."""
        at = self._text.find(f'"{key.rpartition(".")[2]}"')
        line = f":{self._text.count(chr(10), 0, at) + 1}" if at >= 0 else ""
        return DoctorError(one_line(f"{self.path}{line}: `{self._find(key)[0]}`: {why}"))

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        for key in keys:  # values of the file before defaults
            if self._find(key)[1] is not None:
                return key, self._find(key)[1]
        for key in keys:
            if self.get(key) is not None:
                return key, self.get(key)
        return keys[0], None


@lru_cache(maxsize=1)
def _class_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return model type -> what the class of transformers takes for keys that a config leaves out.

    Written by `scripts/release/refresh_model_configs.py` from the classes themselves.
    """
    found: dict[str, Any] = json.loads((rules_dir() / "index" / "model_configs.json").read_text("utf-8"))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > 1 << 200:
        return "a very large number"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return f"`{shortened(text, 60)}`"
