"""Programs that serve a model: how they are started, and what their options mean, as their libraries describe them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from doctor.errors import DoctorError

from .record import OptionTable, option_table

#: Kinds of options; `switch` and `off`: one that has a `--no-` form; `draft`: the model that speculates.
SERVER_OPTION_KINDS = ("text", "integer", "flag", "switch", "off", "draft")
_NGRAM, _DRAFT = "NGRAM", "DRAFT_MODEL"


class Server(NamedTuple):
    """One server."""

    title: str
    package: str
    programs: Mapping[str, str] = {}  # program -> its command that serves, `*` where it does nothing else
    modules: tuple[str, ...] = ()  # patterns of modules after `-m`
    images: Mapping[str, tuple[str, ...]] = {}  # container image -> the command that it runs
    options: OptionTable = MappingProxyType({})
    config_options: tuple[str, ...] = ()  # options that name a file with other options
    json_options: Mapping[str, OptionTable] = {}  # option that takes JSON -> what its members say
    prints: str = ""  # pattern of what it writes before each line of its log

    def knows(self, option: str) -> bool:
        """Return whether something is known of an option."""
        return option in self.options or option in self.json_options


def server_of(row: Mapping[str, Any]) -> Server:
    """Return the record of a server."""
    return Server(
        row["title"],
        row["package"],
        row.get("programs", {}),
        tuple(row.get("modules", ())),
        {image: tuple(words) for image, words in row.get("images", {}).items()},
        option_table(row.get("options")),
        tuple(row.get("config_options", ())),
        {option: option_table(members) for option, members in row.get("json_options", {}).items()},
        row.get("prints", ""),
    )


def speculates_with(model: str) -> str:
    """Return the algorithm of speculative decoding with a draft model."""
    return _NGRAM if model == "[ngram]" else _DRAFT


def read_options(arguments: Sequence[Any], server: Server) -> dict[str, Any]:
    """Return the workload words of a command line, unprefixed; DoctorError for an option without its value."""
    words: dict[str, Any] = {}
    given = iter(map(str, arguments))
    for written in given:
        option, equals, value = written.partition("=")
        row = server.options.get(option)
        if row is None:
            continue
        if row.kind in ("flag", "switch", "off"):
            words[row.word] = row.kind != "off"
            continue
        if not equals:
            value = _value(option, given)
        if not isinstance(row.kind, str):
            words.update({row.word: row.kind[value]} if value in row.kind else {})
        elif row.kind == "draft":
            words[row.word] = speculates_with(value)
        else:
            words[row.word] = _integer(option, value) if row.kind == "integer" else value
    return words


def _value(option: str, given: Iterator[str]) -> str:
    value = next(given, "--")
    if value.startswith("--"):
        raise DoctorError(f"`{option}` needs a value")
    return value


def _integer(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise DoctorError(f"`{option}` needs an integer, found `{value}`") from None
