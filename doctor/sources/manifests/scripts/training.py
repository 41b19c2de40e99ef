"""Commands that start a training: the workload that their options and config files state.

Read: Megatron-LM's pretraining scripts, `axolotl train`, `llamafactory-cli train`, `swift sft`, `trl sft`, and scripts
that take the options of transformers' TrainingArguments. Options that no rule reads are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.training.megatron import megatron_statements
from doctor.facts.training.options import LATER, ReadConfig, Statement
from doctor.facts.training.recipes import fact_of, recipe_statements, trainer_of
from doctor.model import Fact
from doctor.sources.attention_options import not_understood
from doctor.sources.variables import UNKNOWN
from doctor.util.yaml_text import parse_document

#: program -> (its commands that train, trainer)
_PROGRAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "axolotl": (("train",), "axolotl"),
    "llamafactory-cli": (("train",), "llamafactory"),
    "lmf": (("train",), "llamafactory"),
    "swift": (("sft", "pt", "rlhf"), "swift"),
    "megatron": (("sft", "pt", "rlhf"), "swift_megatron"),
    "trl": (("sft", "dpo", "grpo", "kto", "reward", "rloo", "orpo"), "trl"),
}
#: pattern of a module after `-m` -> trainer
_MODULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"axolotl\.cli\.train"), "axolotl"),
    (re.compile(r"llamafactory\.cli"), "llamafactory"),
    (re.compile(r"swift\.cli\.(?:sft|pt|rlhf)"), "swift"),
    (re.compile(r"openrlhf\.cli\.train_\w+"), "openrlhf"),
    (re.compile(r"verl\.trainer\.(?:main_ppo|sft_trainer|fsdp_sft_trainer)"), "verl"),
)
#: pattern of a trainer's own script -> trainer
_OWN_SCRIPTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?:.*/)?swift/cli/(?:sft|pt|rlhf)\.py"), "swift"),
    (re.compile(r"(?:.*/)?swift/cli/_megatron/(?:sft|pt|rlhf)\.py"), "swift_megatron"),
)
_ASSIGNED = ("llamafactory", "verl")  # trainers that take `key=value`
_METHODS = ("sft", "dpo", "grpo", "kto", "reward", "rloo", "orpo")
#: Options by which a script of another name is recognized: all of one group.
_MEGATRON_SIGNS = (("num_attention_heads", "hidden_size", "num_layers"), ("num_attention_heads", "seq_length"))
_MEGATRON_SCRIPT = re.compile(r"(?:pretrain|train|finetune|sft)\w*\.py")
_ARGUMENT_SIGNS = (("per_device_train_batch_size",), ("attn_implementation",), ("model_name_or_path", "output_dir"))
_CONFIG = re.compile(r"[^=]+\.(?:ya?ml|json)")
SCRIPT = re.compile(r"(?:.*/)?([\w.-]+\.py)")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_ENDS = ("&&", "||", ";", "|", "&")

LineWord = tuple[int, str]
#: Returns (path, text) of a file that a command names.
Find = Callable[[str], "tuple[Path, str] | None"]


class _Start(NamedTuple):
    """Where the options of a trainer begin; `trainer` is None for a script of unknown kind."""

    trainer: str | None
    name: str
    at: int


def training_facts(words: Sequence[LineWord], file: object, find: Find) -> list[Fact]:
    """Return the workload that a command states; empty unless it starts a training that is known here."""
    start = _start(words)
    if start is None:
        return []
    given, lines, config = options_of(words[start.at :], assigned=start.trainer in _ASSIGNED)
    place = f"{file}:{words[start.at - 1][0]}"

    def read(name: str) -> Mapping[str, Any] | None:
        return _parsed(find(name))

    named = given.get("config") if start.trainer in ("trl", None) and isinstance(given.get("config"), str) else config
    base = _parsed(find(named)) if isinstance(named, str) and UNKNOWN not in named else None
    trainer = start.trainer or _trainer(start.name, given, base)
    if trainer is None:
        return []
    if trainer == "megatron":
        statements = megatron_statements(given, start.name)
    else:
        options = {**(base or {}), **given}
        statements = recipe_statements(trainer, options, read)
        if start.name in _METHODS:
            statements.append(Statement("training_method", start.name, start.name))
    stated = {statement.word for statement in statements if not statement.assumed}
    launcher = [found for found in _launcher(words[: start.at], read) if found.word not in stated]
    statements = [found for found in statements if found.word not in {other.word for other in launcher}]
    both = (*statements, *launcher)
    unread = not_understood({**(base or {}), **given}, (found.option for found in both), place, _values(both))
    return [*(_fact(found, lines, place, str(named or "")) for found in both), *unread]


def _values(statements: Iterable[Statement]) -> Iterator[Any]:
    return (statement.value for statement in statements)


def _start(words: Sequence[LineWord]) -> _Start | None:
    texts = [text for _, text in words]
    for at, text in enumerate(texts):
        name = text.rpartition("/")[2]
        following = texts[at + 1] if at + 1 < len(texts) else ""
        if name in _PROGRAMS and following in _PROGRAMS[name][0]:
            return _Start(_PROGRAMS[name][1], following, at + 2)
        if text in ("-m", "--module"):
            trainer = next((name for pattern, name in _MODULES if pattern.fullmatch(following)), None)
            return _Start(trainer, following, at + 2) if trainer else None
        if at and (trainer := next((name for pattern, name in _OWN_SCRIPTS if pattern.fullmatch(text)), None)):
            return _Start(trainer, name, at + 1)
        if (script := SCRIPT.fullmatch(text)) and at and not texts[at - 1].startswith("--"):
            return _Start(None, script[1], at + 1)
    return None


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


def _trainer(script: str, given: Mapping[str, Any], config: Mapping[str, Any] | None) -> str | None:
    """Return the trainer of a script, by its options or by the config that it is given."""
    megatron = any(all(name in given for name in group) for group in _MEGATRON_SIGNS)
    if megatron and _MEGATRON_SCRIPT.fullmatch(script):
        return "megatron"
    if any(all(name in given for name in group) for group in _ARGUMENT_SIGNS):
        return "trl"
    found = trainer_of(config) if config is not None else None
    return found if found in ("trl", "llamafactory", "axolotl") else None


def _launcher(words: Sequence[LineWord], read: ReadConfig) -> Iterator[Statement]:
    """Yield what the config of `accelerate launch` says."""
    if not any(text.rpartition("/")[2] == "accelerate" for _, text in words):
        return
    named = options_of(words, assigned=False)[0].get("config_file")
    config = read(named) if isinstance(named, str) else None
    if config is not None:
        yield from recipe_statements("accelerate", config, read)


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
