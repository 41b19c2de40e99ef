"""Options in any table of a config: what a program that is not known by name calls its settings.

Such configs nest: `actor_train: {model_args: {attn_implementation: …}}`. An option counts by its last name. Left out
are tables about another part than the trained model (rollouts, a reference model, rewards, data), and tables that are
switched off. What two tables state differently only the running job knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from doctor.facts.libraries.record import Trainer

from .options import LATER, Options, Statement, stated

#: Words in the name of a table about another part than the model that is trained.
_ELSEWHERE = re.compile(
    r"(?i)(?:^|_)(?:infer\w*|rollout\w*|generat\w*|sampl\w*|ref|reference|rewards?|critic|teacher|eval\w*|valid\w*|test"
    r"|judge\w*|vllm\w*|sglang\w*|trtllm\w*|data|dataset|datasets|dataloader|logger|logging|wandb|swanlab|env|envs)(?:_|$)"
)
_SWITCHES = ("enabled", "enable")
_DEEPEST = 8


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the trained part by their last name, and each table that is not switched off as true."""
    found: dict[str, Any] = {}
    for path, value in _leaves(config, (), 0):
        name = path[-1]
        before = found.get(name)
        found[name] = value if before is None or str(before) == str(value) else LATER
    return found


def places(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the option of the trained part -> where the config has it."""
    return {path[-1]: path for path, _ in _leaves(config, (), 0)}


def read_names(trainer: Trainer, config: Mapping[str, Any], found: Iterable[Statement]) -> Iterator[str]:
    """Yield the full names of the options of which `found` has what they say, in every part of a config."""
    statements = tuple(found)
    names = {statement.option for statement in statements}
    said = {(statement.word, statement.value) for statement in statements if isinstance(statement.value, (str, bool))}
    trained = {path for path, _ in _leaves(config, (), 0)}
    for path, value in _every_leaf(config, ()):
        own = stated(Options({path[-1]: value}), trainer.options) if path[-1] in trainer.options else ()
        if (path in trained and path[-1] in names) or any((one.word, one.value) in said for one in own):
            yield ".".join(path)


def is_job(trainer: Trainer, options: Mapping[str, Any]) -> bool:
    """Return whether options have the signs of a trainer: one name of each group."""
    return bool(trainer.signs) and all(any(name in options for name in group) for group in trainer.signs)


def _leaves(table: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        name = str(key).lstrip("-").replace("-", "_")
        if isinstance(value, Mapping):
            if depth < _DEEPEST and not (_ELSEWHERE.search(name) or _is_off(value)):
                yield (*path, name), True
                yield from _leaves(value, (*path, name), depth + 1)
        elif value is not None:
            yield (*path, name), value


def _is_off(table: Mapping[str, Any]) -> bool:
    options = Options(table)
    return any(options.flag(name) is False for name in _SWITCHES)


def _every_leaf(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        here = (*path, str(key).lstrip("-").replace("-", "_"))
        if isinstance(value, Mapping):
            yield from _every_leaf(value, here)
        else:
            yield here, value
