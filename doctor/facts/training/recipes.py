"""Which trainer a config file or a command belongs to, and the workload that its options describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from doctor.facts.libraries.record import Trainer
from doctor.facts.vocabulary import fact
from doctor.facts.workload import all_words
from doctor.model import Fact

from . import any_table
from .any_table import flattened, is_job
from .options import Options, ReadConfig, Statement, stated
from .readings import read_all


def trainer_of(config: Mapping[str, Any], trainers: Mapping[str, Trainer]) -> Trainer | None:
    """Return the trainer whose config this is; None for another file."""
    for trainer in trainers.values():
        if all(key in config for key in trainer.config_all) and any(key in config for key in trainer.config_any):
            return trainer
    return trainer_by_options(command_options(config), trainers) or _trainer_by_signs(config, trainers)


def _trainer_by_signs(config: Mapping[str, Any], trainers: Mapping[str, Trainer]) -> Trainer | None:
    """Return the trainer whose options the config of an unknown program has, in any of its tables."""
    if all_words(config):
        return None
    by_signs = [trainer for trainer in trainers.values() if trainer.signs]
    options = flattened(config) if by_signs else {}
    return next((trainer for trainer in by_signs if is_job(trainer, options)), None)


def options_in(trainer: Trainer, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a trainer that a config states."""
    return flattened(config) if trainer.signs else command_options(config) or config


def by_names_of(trainer: Trainer, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a command as the trainer names them: by their last name where any table may have them."""
    return {name.rpartition(".")[2]: value for name, value in given.items()} if trainer.signs else given


def read_names(trainer: Trainer, config: Mapping[str, Any], found: Iterable[Statement]) -> Iterator[str]:
    """Yield the names of options that were read, as the config has them."""
    yield from (any_table.read_names(trainer, config, found) if trainer.signs else (one.option for one in found))


def command_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command that a file lists by name, at its top or below one key; empty for other files."""
    for table in (config, *config.values()):
        if isinstance(table, Mapping) and table and all(str(name).startswith("--") for name in table):
            return {str(name).lstrip("-").replace("-", "_"): value for name, value in table.items()}
    return {}


def trainer_by_options(given: Mapping[str, Any], trainers: Mapping[str, Trainer]) -> Trainer | None:
    """Return the trainer that has such options, where no program or file names it."""
    for trainer in trainers.values():
        if any(all(name in given for name in group) for group in trainer.script_options):
            return trainer
    return None


def unmet(trainer: Trainer, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options with which the others of a trainer say nothing that is known, as `name=value`."""
    options = Options(given)
    found = ((name, options.text(name)) for name in trainer.needs)
    return tuple(f"{name}={text}" for name, text in found if text not in (None, *trainer.needs[name]))


def recipe_statements(
    trainer: Trainer, given: Mapping[str, Any], read: ReadConfig, script: str = ""
) -> list[Statement]:
    """Return what the options of a trainer say, one statement for each word; the first of two counts."""
    options = Options(given, script)
    found = list(stated(options, trainer.alone)) or _said(trainer, options, read)
    if trainer.framework:
        found += [Statement("framework", trainer.framework, trainer.title), Statement("training", True, trainer.title)]
    if trainer.trainer:
        found.append(Statement("trainer", trainer.trainer, trainer.title))
    by_word: dict[str, Statement] = {}
    for statement in found:
        by_word.setdefault(statement.word, statement)
    return list(by_word.values())


def _said(trainer: Trainer, options: Options, read: ReadConfig) -> list[Statement]:
    if unmet(trainer, options.given):
        return []
    found = list(stated(options, trainer.options))
    read_all(trainer.readings, options, read, found)
    return found


def fact_of(statement: Statement, source: str) -> Fact:
    """Return the fact that a statement makes, with the place of its option."""
    key = f"workload.{statement.word}"
    if statement.value is None:
        return Fact(key, None, source, problem="only the running job knows the value")
    made = fact(key, statement.value, source)
    return made._replace(source=f"assumed: {source}", assumed=True) if statement.assumed else made
