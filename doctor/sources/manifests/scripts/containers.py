"""Compose files and Kubernetes manifests: images, variables and commands of their containers.

The containers that start a server count; without one, all do. What they state differently is unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.sources.manifests.base import Manifest, without_conflicts
from doctor.sources.variables import UNKNOWN
from doctor.sources.watch import Watch
from doctor.util.yaml_text import Lines, parse_yaml

from .interpreter import Script
from .jobs import STARTS_JOB, job_facts
from .serving import add_job, add_served, default_command
from .shell import substituted

_DOCUMENT = re.compile(r"^---[^\n]*$", re.MULTILINE)
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
MAX_DOCUMENTS = 200
_DEEPEST = 12  # levels between a manifest and its containers

At = tuple[str, ...]


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return what the containers of a file declare together."""
    scripts: list[Script] = []
    begin = 0
    for number, part in enumerate(_DOCUMENT.split(_TEMPLATE.sub(UNKNOWN, text))):
        if number >= MAX_DOCUMENTS:
            raise fault(path, None, f"more than {MAX_DOCUMENTS} documents")
        padded = "\n" * begin + part  # keeps the line numbers
        begin += part.count("\n")
        if not part.strip():
            continue
        content, lines = parse_yaml(padded, str(path))
        scripts += [
            _container(Script(path, text, watch), container, at, lines) for container, at in _containers(content, ())
        ]
    counted = [script for script in scripts if script.served] or scripts
    served: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for script in counted:
        add_job(served, script.served.values())
        add_served(facts, (*script.installs.facts.values(), *script.environment.values()))
    entries = dict.fromkeys(
        entry for script in counted for found in script.installs.entries.values() for entry in found
    )
    notes = tuple(dict.fromkeys(note for script in counted for note in script.installs.notes))
    kept = tuple(without_conflicts(entries, "the containers of"))
    return Manifest(kept, (*facts.values(), *served.values()), False, "", notes)


def _containers(content: Any, at: At) -> Iterator[tuple[dict[str, Any], At]]:
    """Yield every mapping that describes a container: an entry of `services`, of `containers`, or a predictor."""
    if isinstance(content, dict) and len(at) < _DEEPEST:
        for key, value in content.items():
            here = (*at, str(key))
            if key == "services" and isinstance(value, dict):
                yield from ((item, (*here, name)) for name, item in value.items() if isinstance(item, dict))
            elif key == "containers" and isinstance(value, list):
                yield from ((item, (*here, str(place))) for place, item in enumerate(value) if isinstance(item, dict))
            elif isinstance(value, (dict, list)):
                yield from _containers(value, here)
    elif isinstance(content, list) and len(at) < _DEEPEST:
        for place, value in enumerate(content):
            yield from _containers(value, (*at, str(place)))


def _container(script: Script, container: dict[str, Any], at: At, lines: Lines) -> Script:
    image = container.get("image")
    reference = substituted(image, {}) if isinstance(image, str) else ""
    line = lines.get((*at, "image"), lines.get(at, 1))
    if reference and UNKNOWN not in reference:
        script.base(reference, line)
    for key in ("environment", "env"):
        for name, value, place in _variables(container.get(key), (*at, key), lines):
            script.set(name, value, place)
    # Compose: `entrypoint` and `command`; Kubernetes: `command` and `args`.
    composed = at[:1] == ("services",) or "entrypoint" in container
    start, arguments = ("entrypoint", "command") if composed else ("command", "args")
    words = list(_words(container.get(start), (*at, start), lines))
    if not words:
        words = [(line, word) for word in default_command(reference)]
    words += _words(container.get(arguments), (*at, arguments), lines)
    for place, text in words:
        if text.count(" ") and STARTS_JOB.search(text):
            script.run(text, place)  # `sh -c "vllm serve …"`
    add_job(script.served, job_facts(words, script.path, script.find, script.watch))
    return script


def _words(value: Any, at: At, lines: Lines) -> Iterator[tuple[int, str]]:
    if isinstance(value, list):
        for place, item in enumerate(value):
            if isinstance(item, str):
                yield lines.get((*at, str(place)), lines.get(at, 1)), substituted(item, {})
    elif isinstance(value, str):
        try:
            parts = shlex.split(substituted(value, {}), comments=True)
        except ValueError:  # an open quote
            return
        yield from ((lines.get(at, 1), part) for part in parts)


def _variables(given: Any, at: At, lines: Lines) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and line: a mapping, `NAME=value` items, or mappings with `name` and `value`."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield name, substituted(value, {}) if isinstance(value, str) else UNKNOWN, lines.get((*at, name), 1)
    elif isinstance(given, list):
        for place, item in enumerate(given):
            line = lines.get((*at, str(place)), 1)
            if isinstance(item, str) and "=" in item:
                name, _, value = item.partition("=")
                yield name, substituted(value, {}), line
            elif isinstance(item, dict) and isinstance(item.get("name"), str):
                value = item.get("value")
                yield item["name"], substituted(value, {}) if isinstance(value, str) else UNKNOWN, line
