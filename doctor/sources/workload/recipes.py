"""`--workload` with the config of a trainer: axolotl, LLaMA-Factory, TRL, accelerate, DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.libraries.record import Trainer
from doctor.facts.training.recipes import fact_of, recipe_statements, trainer_of
from doctor.model import Facts
from doctor.sources.attention_options import not_understood
from doctor.util.reading import read_text
from doctor.util.yaml_text import parse_document

from .files import workload_of


def read_job(path: Path, trainers: Mapping[str, Trainer] | None = None) -> Facts:
    """Return the workload of a file in our own words, or of the config of one of these trainers.

    DoctorError names file and line.
    """
    content, lines = parse_document(read_text(path, "workload file", named=True), str(path))
    trainer = trainer_of(content, trainers or {}) if isinstance(content, dict) else None
    if trainer is None:
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

    def source(option: str) -> str:
        line = lines.get((option,))
        return f"{path.name}:{line}: {option}" if line else f"{path.name}: {option}"

    found = recipe_statements(trainer, content, read_named)
    values = (statement.value for statement in found)
    unread = not_understood(content, (statement.option for statement in found), path.name, values)
    return Facts([*(fact_of(statement, source(statement.option)) for statement in found), *unread])
