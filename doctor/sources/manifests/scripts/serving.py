"""Commands that start a server: the workload words that their options state.

Only what a command states becomes a fact. A value that the running job alone knows is unknown. Options that no rule
reads are passed over, as are values that are not of the option's kind: the server reports those itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from doctor.errors import DoctorError
from doctor.facts.libraries.frameworks import servers
from doctor.facts.libraries.record import OptionTable
from doctor.facts.libraries.servers import Server, speculates_with
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import Fact
from doctor.sources.attention_options import not_understood
from doctor.sources.variables import UNKNOWN
from doctor.util.yaml_text import parse_document

#: Returns (path, text) of a file that a command names.
Find = Callable[[str], "tuple[Path, str] | None"]
Given = tuple[int, str, "str | None"]  # line, option, value
_DEEPEST = 3  # tables inside tables
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")


def default_command(reference: str) -> tuple[str, ...]:
    """Return the command of a server's image, before the arguments that a user appends; empty for other images."""
    name = reference.partition("@")[0].rpartition(":")[0] or reference
    commands = {image: words for server in servers().values() for image, words in server.images.items()}
    return commands.get(name.removeprefix("docker.io/"), ())


def add_served(served: dict[str, Fact], facts: Iterable[Fact], *, certain: bool = True) -> None:
    """Add the facts of one command; what two commands state differently, or under a condition, is unknown."""
    for fact in facts:
        before = served.get(fact.key)
        if not certain:
            problem = f"{fact.source} states it under a condition"
        elif before is not None and before.value != fact.value:
            problem = f"{before.source} and {fact.source} differ"
        else:
            served.setdefault(fact.key, fact)
            continue
        served[fact.key] = Fact(fact.key, None, fact.source, problem=problem)


def add_job(served: dict[str, Fact], facts: Iterable[Fact], *, certain: bool = True) -> None:
    """Add the workload of one command; what only one of two commands states is unknown, as no job has it all.

    A command under a condition counts as well while it is the only one: it is the job, if the script starts any.
    """
    before, new = set(served), {fact.key: fact for fact in facts}
    add_served(served, new.values(), certain=certain or not before)
    if before and new:
        for key in before.symmetric_difference(new):
            fact = served[key]
            served[key] = Fact(key, None, fact.source, problem=f"{fact.source} states it, another command does not")


def serving_facts(words: Sequence[tuple[int, str]], file: object, find: Find | None = None) -> list[Fact]:
    """Return the facts of a command, as (line, word) pairs; empty unless it starts a server.

    find: opens the file of options that a command names; what the command gives itself counts before it.
    """
    found = _server(words)
    if found is None:
        return []
    framework, start = found
    place = f"{file}:{words[start - 1][0]}"
    facts = {
        "workload.framework": Fact("workload.framework", framework, place),
        "workload.training": Fact("workload.training", False, place),
    }
    server = servers()[framework]
    unread: dict[str, str] = {}
    given = list(_given(words[start:]))
    for line, name, value in (*_of_configs(given, server, find), *given):
        option = _normal(name)
        if not server.knows(option):
            unread[option] = "true" if value is None else value
        for key, text in _stated(option, value, server):
            kept = make_fact(f"workload.{key}", text, f"{file}:{line}")
            if UNKNOWN in str(text):
                kept = Fact(kept.key, None, kept.source, problem="only the running job knows the value")
            facts[kept.key] = kept
    return [*facts.values(), *not_understood(unread, (), place)]


def _normal(name: str) -> str:
    """Return an option as the tables of libraries name it; of a table in JSON the names of members stay."""
    first, dot, rest = name.partition(".")
    return f"--{first[2:].replace('_', '-')}{dot}{rest}" if name.startswith("--") else name


def _of_configs(given: Iterable[Given], server: Server, find: Find | None) -> Iterator[Given]:
    """Yield the options that the files have which a command names."""
    for line, name, value in given:
        found = find(value) if find and value and _normal(name) in server.config_options else None
        if found is None:
            continue
        try:
            content = parse_document(found[1], str(found[0]))[0]
        except DoctorError:
            continue
        for option, text in _flat(content, "--", 0):
            yield line, option, text


def _flat(content: object, start: str, depth: int) -> Iterator[tuple[str, str | None]]:
    """Yield the options of a file; of one that is switched off, nothing."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        name = f"{start}{str(key).lstrip('-')}"
        if isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _flat(value, f"{name}.", depth + 1)
        elif isinstance(value, str) and value.lower() != "false":
            yield name, None if value.lower() == "true" else value


def _server(words: Sequence[tuple[int, str]]) -> tuple[str, int] | None:
    """Return the framework and where its options begin."""
    known = servers()
    for at, ((_, first), (_, second)) in enumerate(pairwise(words)):
        name = first.rpartition("/")[2]
        by_module = first == "-m" and at and _PYTHON.fullmatch(words[at - 1][1].rpartition("/")[2])
        for framework, server in known.items():
            if (command := server.programs.get(name)) in ("*", second):
                return framework, at + (1 if command == "*" else 2)
            if by_module and any(re.fullmatch(pattern, second) for pattern in server.modules):
                return framework, at + 2
    return None


def _given(words: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, option and value of each option; None where the next word is an option too."""
    for at, (line, text) in enumerate(words):
        if text in ("&&", "||", ";", "|", "&"):
            return
        if text.startswith("-"):
            name, equals, value = text.partition("=")
            following = words[at + 1][1] if at + 1 < len(words) else None
            usable = following is not None and not following.startswith("--")
            yield line, name, value if equals else following if usable else None


def _stated(option: str, value: str | None, server: Server) -> Iterator[tuple[str, object]]:
    """Yield the workload keys that one option states."""
    if option in server.json_options and value:
        yield from _members(_json_object(value), server.json_options[option])
    elif option in server.options:
        key, kind = server.options[option]
        if not isinstance(kind, str):
            if value in kind:
                yield key, kind[str(value)]
        elif kind == "flag":
            yield key, True
        elif kind in ("switch", "off"):  # `--enable-x`, `--enable-x=False`, `--no-enable-x`
            yield key, kind == "switch" and (value or "").lower() not in ("false", "0")
        elif kind == "draft" and value is not None:
            yield key, speculates_with(value)
        elif value is not None and (kind == "text" or value.isdecimal() or UNKNOWN in value):
            yield key, value


def _members(content: Mapping[str, object], table: OptionTable) -> Iterator[tuple[str, object]]:
    """Yield what the members of an option's JSON state; of two that state the same, the first counts."""
    said: set[str] = set()
    for name, (key, kind) in table.items():
        value = content.get(name)
        if key in said or not value or not isinstance(value, int if kind == "integer" else (str, int)):
            continue
        said.add(key)
        yield key, speculates_with(str(value)) if kind == "draft" else value


def _json_object(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
