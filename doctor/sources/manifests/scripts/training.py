"""Commands that start a training: the workload that their options and config files state.

Which programs, modules and scripts train, and what their options mean, is in `trainers` of each `library.yaml`. Options
that none of them reads are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.libraries.record import Trainer
from doctor.facts.training.config_bases import reader_next_to, with_bases
from doctor.facts.training.options import LATER, ReadConfig, Statement
from doctor.facts.training.recipes import (
    by_names_of,
    fact_of,
    options_in,
    recipe_statements,
    trainer_by_options,
    trainer_of,
    unmet,
)
from doctor.model import Fact
from doctor.sources.attention_options import joined, not_understood, unread
from doctor.sources.variables import UNKNOWN
from doctor.util.yaml_text import parse_document

#: Commands that name how they train.
_METHODS = ("sft", "dpo", "grpo", "kto", "reward", "rloo", "orpo")
_CONFIG = re.compile(r"[^=]+\.(?:ya?ml|json)")
SCRIPT = re.compile(r"(?:.*/)?([\w.-]+\.py)")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_ENDS = ("&&", "||", ";", "|", "&")
#: Programs and modules that start a Python file.
_STARTS_FILE = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|torch\.distributed\.(?:run|launch)")
#: Modules after `-m` that start another program.
_LAUNCHERS = re.compile(r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+")

LineWord = tuple[int, str]
Trainers = Mapping[str, Trainer]
#: Returns (path, text) of a file that a command names.
Find = Callable[[str], "tuple[Path, str] | None"]


class _Start(NamedTuple):
    """Where the options of a trainer begin; `trainer` is None for a script of unknown kind."""

    trainer: Trainer | None
    name: str
    at: int


def training_facts(words: Sequence[LineWord], file: object, find: Find, trainers: Trainers) -> list[Fact]:
    """Return the workload that a command states; empty unless it starts a training that is known here."""
    start = _start(words, trainers)
    if start is None:
        return listed_facts(words, file, find, trainers) if _starts_unknown(words) else []
    given, lines, config = options_of(
        words[start.at :], assigned=start.trainer is not None and start.trainer.takes_assignments
    )
    place = f"{file}:{words[start.at - 1][0]}"

    def read(name: str) -> Mapping[str, Any] | None:
        return _parsed(find(name))

    naming = (one.config_option for one in ((start.trainer,) if start.trainer else trainers.values()))
    named = next((given[name] for name in naming if name and isinstance(given.get(name), str)), config)
    base = _config(named, read) if isinstance(named, str) and UNKNOWN not in named else None
    trainer = start.trainer or _trainer(start.name, given, base, trainers)
    if trainer is None:
        return []
    options = {**(options_in(trainer, base) if base else {}), **by_names_of(trainer, given)}
    statements = recipe_statements(trainer, options, read, start.name)
    if start.name in _METHODS:
        statements.append(Statement("training_method", start.name, start.name))
    stated = {statement.word for statement in statements if not statement.assumed}
    launcher = [found for found in _launcher(words[: start.at], read, trainers) if found.word not in stated]
    statements = [found for found in statements if found.word not in {other.word for other in launcher}]
    both = (*statements, *launcher)
    left = not_understood(options, (found.option for found in both), place, _values(both))
    left = joined((*left, *unread(unmet(trainer, options), place)))
    return [*(_fact(found, lines, place, str(named or "")) for found in both), *left]


def listed_facts(words: Sequence[LineWord], file: object, find: Find, trainers: Trainers) -> list[Fact]:
    """Return the workload that options state, where the program that takes them is unknown; empty for other options."""
    given, lines, _ = options_of(words, assigned=False)
    trainer = trainer_by_options(given, trainers)
    if trainer is None:
        return []
    place = f"{file}:{words[0][0]}"
    found = recipe_statements(trainer, given, lambda name: _parsed(find(name)))
    left = not_understood(given, (one.option for one in found), place, _values(found))
    left = joined((*left, *unread(unmet(trainer, given), place)))
    return [*(_fact(one, lines, place, "") for one in found), *left]


def _starts_unknown(words: Sequence[LineWord]) -> bool:
    """Return whether only the running shell knows which program a command starts."""
    before = (text for _, text in words[: next((at for at, (_, text) in enumerate(words) if text[:2] == "--"), 0)])
    return any(UNKNOWN in text for text in before)


def _values(statements: Iterable[Statement]) -> Iterator[Any]:
    return (statement.value for statement in statements)


def _start(words: Sequence[LineWord], known: Trainers) -> _Start | None:
    texts = [text for _, text in words]
    trainers = known.values()
    for at, text in enumerate(texts):
        name = text.rpartition("/")[2]
        following = texts[at + 1] if at + 1 < len(texts) else ""
        if trainer := next((one for one in trainers if following in one.programs.get(name, ())), None):
            return _Start(trainer, following, at + 2)
        if text in ("-m", "--module") and not _LAUNCHERS.fullmatch(following):
            trainer = next((one for one in trainers if _is_any(one.modules, following)), None)
            return _Start(trainer, following, at + 2) if trainer else None
        if at and (trainer := next((one for one in trainers if _is_any(one.scripts, text)), None)):
            return _Start(trainer, name, at + 1)
        if (script := SCRIPT.fullmatch(text)) and at and not is_value(texts, at):
            return _Start(None, script[1], at + 1)
    return None


def is_value(texts: Sequence[str], at: int) -> bool:
    """Return whether a word may be the value of the option before it: `--config train.py`.

    The first Python file after a launcher is its program: no option of a launcher takes one.
    """
    before = texts[at - 1]
    if not before.startswith("--") or "=" in before:
        return False
    earlier = texts[:at]
    return not any(_STARTS_FILE.fullmatch(text.rpartition("/")[2]) for text in earlier) or any(
        SCRIPT.fullmatch(text) for text in earlier
    )


def _is_any(patterns: Iterable[str], text: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in patterns)


def options_of(words: Sequence[LineWord], *, assigned: bool) -> tuple[dict[str, Any], dict[str, int], str | None]:
    """Return the options of a command, the line of each, and the config file that it names first.

    `assigned`: the trainer takes `key=value` too.
    """
    given: dict[str, Any] = {}
    lines: dict[str, int] = {}
    config = None
    expects = False
    for at, (line, text) in enumerate(words):
        if text in _ENDS:
            break
        if text.startswith("--") and len(text) > 2:
            name, equals, value = text[2:].partition("=")
            following = words[at + 1][1] if at + 1 < len(words) else "--"
            bare = not equals and (following.startswith("--") or following in _ENDS)
            expects = not equals and not bare
            key = name.replace("-", "_")
            given[key], lines[key] = True if bare else _value(value if equals else following), line
        elif assigned and (match := _OVERRIDE.fullmatch(text)):
            given[match[1]], lines[match[1]] = _value(match[2]), line
        else:
            if config is None and not expects and _CONFIG.fullmatch(text):
                config = text
            expects = False
    return given, lines, config


def _value(text: str) -> Any:
    return LATER if UNKNOWN in text else text


def _trainer(
    script: str, given: Mapping[str, Any], config: Mapping[str, Any] | None, trainers: Trainers
) -> Trainer | None:
    """Return the trainer of a script, by its options or by the config that it is given."""
    for trainer in trainers.values():
        named = any(all(name in given for name in group) for group in trainer.script_options)
        if named and re.fullmatch(trainer.script, script):
            return trainer
    found = trainer_of(config, trainers) if config is not None else None
    return found if found is not None and found.reads_config_of_scripts else None


def _launcher(words: Sequence[LineWord], read: ReadConfig, trainers: Trainers) -> Iterator[Statement]:
    """Yield what the config of a launcher says, as of `accelerate launch`."""
    programs = {text.rpartition("/")[2] for _, text in words}
    for trainer in trainers.values():
        if programs.isdisjoint(trainer.launchers):
            continue
        named = options_of(words, assigned=False)[0].get(trainer.launcher_option)
        config = read(named) if isinstance(named, str) else None
        if config is not None:
            yield from recipe_statements(trainer, config, read)


def _config(name: str, read: ReadConfig) -> Mapping[str, Any] | None:
    """Return a config that a command names, on top of the files that it builds on."""
    own = read(name)
    return None if own is None else with_bases(own, reader_next_to(name, read))


def _parsed(found: tuple[Path, str] | None) -> Mapping[str, Any] | None:
    if found is None:
        return None
    try:
        content = parse_document(found[1], str(found[0]))[0]
    except DoctorError:
        return None
    return content if isinstance(content, dict) else None


def _fact(found: Statement, lines: Mapping[str, int], place: str, config: str) -> Fact:
    file, _, _ = place.rpartition(":")
    line = lines.get(found.option)
    source = f"{file}:{line}" if line else f"{config}: {found.option}" if config else place
    return fact_of(found, source)
