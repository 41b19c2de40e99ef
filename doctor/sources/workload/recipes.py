"""`--workload` with the config of a trainer, or with a file that lists the options of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.training import any_table
from doctor.facts.training.config_bases import builds_on_others, with_bases
from doctor.facts.training.options import ReadConfig
from doctor.facts.training.recipes import (
    fact_of,
    options_in,
    read_names,
    recipe_statements,
    trainer_of,
    unmet,
)
from doctor.model import Fact, Facts
from doctor.sources.attention_options import joined, not_understood, unread
from doctor.sources.variables import is_read, variable
from doctor.sources.watch import Watch
from doctor.util.reading import read_text
from doctor.util.toml_text import parse_toml
from doctor.util.yaml_text import Lines, parse_document

from .files import workload_of


def read_job(path: Path, watch: Watch | None = None) -> Facts:
    """Return the workload of a file in our own words, or of the config of a trainer of `watch`.

    DoctorError names file and line.
    """
    own, config, lines = _documents(path)
    trainer = trainer_of(config, watch.trainers) if watch and isinstance(config, dict) else None
    if trainer is None or watch is None:
        return workload_of(path, own, lines)
    options = options_in(trainer, config)
    places = _places(config, lines, nested=bool(trainer.signs))

    def source(option: str) -> str:
        line = lines.get((option,)) or places.get(option)
        return f"{path.name}:{line}: {option}" if line else f"{path.name}: {option}"

    found = recipe_statements(trainer, options, _reader((Path(), path.parent)))
    values = (statement.value for statement in found)
    names = read_names(trainer, config, found)
    left = not_understood(config if trainer.signs else options, names, path.name, values)
    left = joined((*left, *unread(unmet(trainer, options), path.name)))
    variables = _variables(config, path.name, watch) if options is not config else ()
    return Facts([*(fact_of(statement, source(statement.option)) for statement in found), *left, *variables])


def _places(config: Mapping[str, Any], lines: Lines, *, nested: bool) -> Mapping[str, int]:
    """Return the line of each option by its last name; of nested tables, in the part that is trained."""
    if nested:
        return {name: lines[at] for name, at in any_table.places(config).items() if at in lines}
    return {at[-1].lstrip("-").replace("-", "_"): line for at, line in lines.items() if at}


def job_config(path: Path) -> Any:
    """Return the content of a file on top of the files that it builds on; DoctorError names file and line."""
    return _documents(path)[1]


def _documents(path: Path) -> tuple[Any, Any, Lines]:
    """Return what a file states, that on top of the files it builds on, and the lines of its keys."""
    text = read_text(path, "workload file", named=True)
    lines: Lines = {}
    if path.suffix.lower() == ".toml":
        own: Any = parse_toml(text, str(path))
    else:
        own, lines = parse_document(text, str(path))
    if not isinstance(own, dict) or not builds_on_others(text):
        return own, own, lines
    return own, with_bases(own, _reader((path.parent, Path()))), lines


def _reader(folders: Iterable[Path]) -> ReadConfig:
    """Return what reads a config that another names, in the first of the folders that has it."""

    def read_named(name: str) -> Mapping[str, Any] | None:
        for folder in folders:
            try:
                found = parse_document(read_text(folder / name, "named config"), name)[0]
            except (DoctorError, OSError, ValueError):
                continue
            return found if isinstance(found, dict) else None
        return None

    return read_named


def _variables(content: Mapping[str, Any], name: str, watch: Watch) -> Iterator[Fact]:
    """Yield the variables that a file sets for a command next to its options: a table of names in capitals."""
    for at, table in content.items():
        if isinstance(table, dict) and all(str(key).isupper() for key in table):
            for key, value in table.items():
                if is_read(str(key), watch) and isinstance(value, (str, int, float)):
                    yield variable(str(key), str(value), f"{name}: {at}.{key}")
