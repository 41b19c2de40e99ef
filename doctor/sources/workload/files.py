"""Workload files and `--set`: flat keys become `workload.*` facts; errors name file and line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.long_form import kind_of
from doctor.facts.workload import PREFIX, setting_fact, setting_keys, workload_facts
from doctor.model import ABSENT, Fact, Facts
from doctor.util.printable import one_line

_SECTIONS = ("workload", "facts", "schema", "tool")  # of a facts file, which may be used as a workload file too
_NULLS = ("null", "~")


def split_part(name: str) -> tuple[str, str | None]:
    """Split `config.json[vision_config]` into the file and the part of the model; None for the language model."""
    file, bracket, part = name.removesuffix("]").rpartition("[")
    chosen = bool(bracket) and name.endswith("]") and not Path(name).exists()
    return (file, part) if chosen else (name, None)


def workload_of(path: Path, content: Any, lines: Mapping[tuple[str, ...], int]) -> Facts:
    """Return the workload of a parsed file; DoctorError names the file, the line and the nearest key."""
    if content is None:
        raise DoctorError(f"{path}: the workload file is empty", "write keys such as `head_dim_qk: 128`")
    if not isinstance(content, dict):
        raise DoctorError(f"{path}:1: a workload needs a mapping of keys, found {kind_of(content)}")
    at: tuple[str, ...] = ()
    if "workload" in content:
        stray = next((key for key in content if key not in _SECTIONS), None)
        if stray is not None:
            raise _fault(path, lines.get((stray,)), f"`{stray}` is outside `workload:`", "move it under `workload:`")
        content, at = content["workload"], ("workload",)
        if not isinstance(content, dict):
            raise _fault(path, lines.get(at), f"`workload:` needs a mapping of keys, found {kind_of(content)}", None)
    name = path.name

    def where(key: str) -> str:
        line = lines.get((*at, key))
        return f"{path}:{line}: " if line else f"{path}: "

    return workload_facts(content, lambda key: f"{name}: {key}", where)


def parse_settings(settings: Iterable[str]) -> Facts:
    """Return the facts of `--set KEY=VALUE` options; the last one of a key wins."""
    facts: dict[str, Fact] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key, text = key.strip(), text.strip()
        if not equals or not key:
            raise DoctorError(one_line(f"`--set {setting}` needs KEY=VALUE"), "for example `--set gpu.sm=9.0`")
        if not text and not key.startswith("env."):
            raise DoctorError(
                one_line(f"`--set {setting}` has no value"), f"`--set {key}={ABSENT}` means that it is not there"
            )
        value = None if text in _NULLS and not key.startswith("env.") else text
        try:
            found = [setting_fact(full, value, f"--set {key}") for full in setting_keys(key)]
        except DoctorError as error:
            raise DoctorError(one_line(f"`--set {setting}`: {error.message}"), error.hint) from None
        facts.update({fact.key: fact for fact in found if fact is not None})
    return Facts(facts.values())


def stated_settings(settings: Mapping[str, Any], source: str) -> Facts:
    """Return the facts that a program states by their keys, with the names and nulls that `--set` takes."""
    words, facts = {}, []
    for key, value in settings.items():
        keys = setting_keys(str(key))
        if keys[0].startswith(PREFIX):
            words[str(key)] = value
        elif (found := setting_fact(keys[0], value, source)) is not None:
            facts.append(found)
    return Facts(facts).with_(*workload_facts(words, lambda key: source).values())


def _fault(path: Path, line: int | None, message: str, hint: str | None) -> DoctorError:
    return DoctorError(one_line(f"{path}:{line}: {message}" if line else f"{path}: {message}"), hint)
