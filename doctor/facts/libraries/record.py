"""Typed records of what libraries say about jobs: how a trainer is started, and what its options mean."""

# No postponed annotations: a named tuple would compile each of them again, at every start.

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple


class OtherWord(NamedTuple):
    """A value of an option that states another word than the option's own."""

    word: str
    value: Any


class Row(NamedTuple):
    """How one option reads: the word, and its kind or the words for its values."""

    word: str
    kind: str | Mapping[str, Any]  # `text`, `integer`, `flag`, `dtype`; a value may be an OtherWord


OptionTable = Mapping[str, Row]


class Reading(NamedTuple):
    """One way in which options together state a word; `facts.training.readings` has the kinds."""

    kind: str
    word: str = ""
    options: tuple[str, ...] = ()
    value: Any = None  # what is stated
    named: str = ""  # the option that a report names
    given: tuple[str, ...] = ()  # only where one of these options is given
    without: tuple[str, ...] = ()  # only where none of these options is given
    four_bit: tuple[str, ...] = ()  # options that say that an adapter is trained on four bits
    words: str | Mapping[str, Any] = "text"
    pattern: str = ""
    assumed: bool = False  # the usual case, not a certain one


class Trainer(NamedTuple):
    """A program that trains, or a launcher whose config says nothing about the model."""

    id: str
    title: str
    framework: str = ""  # the word of who calls attention in its jobs
    trainer: str = ""  # its name in `calls`
    is_general: bool = False  # others build on its options: their signs come first
    config_all: tuple[str, ...] = ()  # keys that its configs have: all of these,
    config_any: tuple[str, ...] = ()  # and one of these
    config_option: str = ""  # the option that names its config
    programs: Mapping[str, tuple[str, ...]] = {}  # program -> its commands that train
    modules: tuple[str, ...] = ()  # patterns of modules after `-m`
    scripts: tuple[str, ...] = ()  # patterns of paths of its own scripts
    launchers: tuple[str, ...] = ()  # programs that start another trainer's script
    launcher_option: str = ""  # the option of a launcher that names its config
    script: str = ""  # pattern of the name of a script of the user's
    script_options: tuple[tuple[str, ...], ...] = ()  # by which such a script is recognized: all of one group
    reads_config_of_scripts: bool = False  # a script of the user's may take its config
    takes_assignments: bool = False  # `key=value` is an option too
    signs: tuple[tuple[str, ...], ...] = ()  # any table of a config with one name of each group has its options
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {}
    )  # option -> its values with which the options say something
    alone: OptionTable = MappingProxyType({})  # options after which no other says anything
    options: OptionTable = MappingProxyType({})
    readings: tuple[Reading, ...] = ()


class Trainers(Mapping[str, Trainer]):
    """The trainers of some libraries by id, general ones last; made when one of them is looked up."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = rows

    @cached_property
    def _made(self) -> Mapping[str, Trainer]:
        made = sorted(map(_trainer, self._rows), key=lambda trainer: (trainer.is_general, trainer.id))
        return {trainer.id: trainer for trainer in made}

    def __getitem__(self, trainer: str) -> Trainer:
        return self._made[trainer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


OPTION_KINDS = ("text", "integer", "flag", "dtype")
#: Kinds of readings; each has a reader in `facts.training.readings`.
READING_KINDS = (
    "default", "named", "unless_off", "switch", "opposite", "first_switch", "holds", "dtype", "tuner", "length",
    "split", "sharding", "stage_of", "own_stage", "launch", "attention",
)  # fmt: skip


def _trainer(body: Mapping[str, Any]) -> Trainer:
    config = body.get("config", {})
    own: dict[str, Any] = {key: body[key] for key in ("id", "title", "framework", "trainer", "config_option",
                                                      "launcher_option", "script") if key in body}  # fmt: skip
    return Trainer(
        **own, is_general=flag(body, "general"),
        config_all=tuple(config.get("all", ())), config_any=tuple(config.get("any", ())),
        programs=_lists(body.get("programs")), modules=tuple(body.get("modules", ())),
        scripts=tuple(body.get("scripts", ())), launchers=tuple(body.get("launchers", ())),
        script_options=tuple(map(tuple, body.get("script_options", ()))),
        signs=tuple(map(tuple, body.get("signs", ()))),
        reads_config_of_scripts=flag(body, "reads_config_of_scripts"),
        takes_assignments=flag(body, "takes_assignments"), needs=_lists(body.get("needs")),
        alone=option_table(body.get("alone")), options=option_table(body.get("options")),
        readings=tuple(map(_reading, body.get("readings", ()))),
    )  # fmt: skip


def _reading(body: Mapping[str, Any]) -> Reading:
    made: dict[str, Any] = {
        key: tuple(value) if key in ("options", "given", "without", "four_bit") else value
        for key, value in body.items()
        if key not in ("value", "assumed")
    }
    if isinstance(body.get("words"), Mapping):
        made["words"] = {text: plain(item) for text, item in body["words"].items()}
    return Reading(**made, value=plain(body.get("value")), assumed=flag(body, "assumed"))


def option_table(body: Mapping[str, Any] | None) -> dict[str, Row]:
    """Return option -> its row, from `option: {word: kind}`."""
    table = {}
    for option, row in (body or {}).items():
        ((word, kind),) = row.items()
        table[option] = Row(word, kind if isinstance(kind, str) else {text: plain(item) for text, item in kind.items()})
    return table


def plain(value: Any) -> Any:
    """Return true and false as such, a table of one word as that word, any other value as it is."""
    if isinstance(value, Mapping):
        ((word, stated),) = value.items()
        return OtherWord(word, plain(stated))
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def flag(body: Mapping[str, Any], key: str) -> bool:
    """Return a switch of a library file; false where it is not given."""
    return str(body.get(key)).lower() == "true"


def _lists(body: Mapping[str, Iterable[str]] | None) -> dict[str, tuple[str, ...]]:
    return {name: tuple(texts) for name, texts in (body or {}).items()}
