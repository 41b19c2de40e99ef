"""`--workload` with the config of a trainer, or with a file that lists the options of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.training.recipes import command_options, fact_of, recipe_statements, trainer_of, unmet
from doctor.model import Fact, Facts
from doctor.sources.attention_options import joined, not_understood, unread
from doctor.sources.variables import is_read, variable
from doctor.sources.watch import Watch
from doctor.util.reading import read_text
from doctor.util.yaml_text import parse_document

from .files import workload_of


def read_job(path: Path, watch: Watch | None = None) -> Facts:
    """Return the workload of a file in our own words, or of the config of a trainer of `watch`.

    DoctorError names file and line.
    """
    content, lines = parse_document(read_text(path, "workload file", named=True), str(path))
    trainer = trainer_of(content, watch.trainers) if watch and isinstance(content, dict) else None
    if trainer is None or watch is None:
        return workload_of(path, content, lines)

    def read_named(name: str) -> Mapping[str, Any] | None:
        """Return a config that this one names, relative to the job's folder or to the config."""
        for folder in (Path(), path.parent):
            try:
                found = parse_document(read_text(folder / name, "named config"), name)[0]
            except (DoctorError, OSError, ValueError):
                continue
            return found if isinstance(found, dict) else None
        return None

    options = command_options(content) or content
    places = {at[-1].lstrip("-").replace("-", "_"): line for at, line in lines.items() if at}

    def source(option: str) -> str:
        line = lines.get((option,)) or places.get(option)
        return f"{path.name}:{line}: {option}" if line else f"{path.name}: {option}"

    found = recipe_statements(trainer, options, read_named)
    values = (statement.value for statement in found)
    left = not_understood(options, (statement.option for statement in found), path.name, values)
    left = joined((*left, *unread(unmet(trainer, options), path.name)))
    variables = _variables(content, path.name, watch) if options is not content else ()
    return Facts([*(fact_of(statement, source(statement.option)) for statement in found), *left, *variables])


def _variables(content: Mapping[str, Any], name: str, watch: Watch) -> Iterator[Fact]:
    """Yield the variables that a file sets for a command next to its options: a table of names in capitals."""
    for at, table in content.items():
        if isinstance(table, dict) and all(str(key).isupper() for key in table):
            for key, value in table.items():
                if is_read(str(key), watch) and isinstance(value, (str, int, float)):
                    yield variable(str(key), str(value), f"{name}: {at}.{key}")
