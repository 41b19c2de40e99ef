"""Read a training or serving program: the facts of its job, its environment variables, the modules that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.training.recipes import recipe_statements
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import Fact, Facts
from doctor.sources.attention_options import KEY, joined, not_understood
from doctor.sources.variables import is_read, variable
from doctor.sources.watch import Watch
from doctor.util.reading import read_text

from .calls import CallTable, named, plain, stated
from .collect import Call, Collector, parse
from .values import Dotted, Names, Value

_PARSER = "Parser"  # HfArgumentParser of transformers, TrlParser
_SETS = ("os.environ.setdefault", "os.putenv")
#: Facts that say who computes attention.
_CALLERS = ("workload.framework", "workload.attn_implementation")
_MOST_FACTS = 200  # of all modules of a program


@dataclass(frozen=True)
class Program:
    """What one program states."""

    facts: tuple[Fact, ...]
    imports: tuple[str, ...]  # top-level modules, without its own package


class _Said(NamedTuple):
    """One statement of one call."""

    key: str
    value: Any
    assumed: bool
    line: int
    rank: int
    words: str


def read_script(path: Path, watch: Watch) -> Facts:
    """Return what a program states by itself; DoctorError names file and line."""
    return Facts(read_program(path, read_text(path, "program", named=True), watch).facts)


def read_program(
    path: Path, text: str, watch: Watch, given: Mapping[str, Any] | None = None, *, follows: bool = True
) -> Program:
    """Return what a program states; `given` are the options of the command that starts it.

    Nothing of it is run. What differs between two places is unknown; what the command line can replace is assumed.
    follows: where the program does not say who computes attention, its own modules next to it are read.
    """
    tree = parse(path, text)
    names = Names(given or {})
    found = Collector(names)
    try:
        found.module(tree)
        table = CallTable(watch.script_calls, watch.trainers)
        calls = [call for call in found.calls if not _is_left_out(call, names)]
        said = [item for call in calls for item in _of_call(call, names, table)]
        variables = list(_variables(found, path, watch))
        unread = [fact for call in calls for fact in _unread(call, names, table, path)]
    except RecursionError:
        raise DoctorError(f"{path}: nested too deeply") from None
    groups: dict[str, list[_Said]] = {}
    for item in said:
        groups.setdefault(item.key, []).append(item)
    decided = (fact for key, items in groups.items() if (fact := _decided(key, items, path)) is not None)
    facts = {fact.key: fact for fact in decided}
    facts.update((fact.key, fact) for fact in joined((*([facts[KEY]] if KEY in facts else ()), *unread)))
    if not any(key in facts for key in _CALLERS):
        facts.update(_of_named(found, names, table, path))
    if follows and not any(key in facts for key in _CALLERS):
        facts = {**{fact.key: fact for fact in _of_modules(path, names, watch)}, **facts}
    modules = {name.partition(".")[0] for name in names.imported.values() if not name.startswith(".")}
    return Program((*facts.values(), *variables), tuple(sorted(modules)))


def _of_named(found: Collector, names: Names, table: CallTable, path: Path) -> Iterator[tuple[str, Fact]]:
    """Yield who computes attention by classes that are named, and called elsewhere: `{"layer": TransformerLayer}`."""
    said = [item for call in found.named for item in _of_call(call, names, table) if item.key in _CALLERS]
    best = max((item.rank for item in said), default=0)
    assumed = [item._replace(assumed=True) for item in said if item.rank == best and best >= 0]
    for key in _CALLERS:
        items = [item for item in assumed if item.key == key]
        if items and (fact := _decided(key, items, path)) is not None:
            yield key, fact


def _of_modules(path: Path, names: Names, watch: Watch) -> Iterator[Fact]:
    """Yield what the program's own modules state, as assumptions: not each of their calls is on its way."""
    found: dict[str, Fact] = {}
    for module in dict.fromkeys(name.lstrip(".").partition(".")[0] for name in names.imported.values()):
        file = path.parent / f"{module}.py"
        if not (module and _is_file(file)) or len(found) > _MOST_FACTS:
            continue
        try:
            stated = read_program(file, read_text(file, "module"), watch, follows=False).facts
        except DoctorError:
            continue
        for fact in stated:
            before = found.setdefault(fact.key, fact)
            if before.value != fact.value:
                found[fact.key] = Fact(fact.key, None, fact.source, problem=f"{before.source} and {fact.source} differ")
    for fact in found.values():
        if fact.key.startswith("workload.") and fact.known:
            source = fact.source if fact.assumed else f"assumed: {fact.source}"
            yield fact if fact.key == KEY else fact._replace(source=source, assumed=True)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_left_out(call: Call, names: Names) -> bool:
    """Return whether a call is in a branch that the options of the program, as given or by default, do not take."""
    values = ((test.holds, names.value(test.node, test.scope).value) for test in call.tests)
    return any(bool(value) != holds for holds, value in values if value is None or isinstance(value, (bool, int, str)))


def _of_call(call: Call, names: Names, table: CallTable) -> Iterator[_Said]:
    path = names.path(call.node.func, call.scope)
    if path is None:
        return
    if path.endswith(_PARSER):
        yield from _parsed(call, names, table)
    for row in table.rows(path):
        positional = [names.value(item, call.scope) for item in call.node.args]
        given = named(row, positional, names.arguments(call.node, call.scope))
        line, short = call.node.lineno, path.removeprefix("?.")
        for key, value, assumed, argument in stated(row, given):
            yield _Said(key, value, assumed, line, row.rank, f"{short}({argument})" if argument else short)
        if row.options is not None:
            assigned = names.set_attributes() if row.assigned else {}
            yield from _of_options(row.options, {**assigned, **given}, line, row.rank, short, table)


def _parsed(call: Call, names: Names, table: CallTable) -> Iterator[_Said]:
    """Yield what the classes of arguments say that a parser takes: `HfArgumentParser((TrainingArguments, …))`."""
    values = (names.value(item, call.scope).value for item in call.node.args)
    classes = [one for value in values for one in (value if isinstance(value, list) else [value])]
    given = {name: Value(value) for name, value in names.given.items()}
    for name in classes:
        rows = table.rows(name) if isinstance(name, Dotted) else ()
        for row in rows:
            if row.options is not None:
                yield from _of_options(row.options, given, call.node.lineno, row.rank, str(name), table)


def _unread(call: Call, names: Names, table: CallTable, path: Path) -> Iterator[Fact]:
    """Yield the arguments of a call that states the job, where they bear on attention and nothing was read of them."""
    called = names.path(call.node.func, call.scope)
    rows = [row for row in table.rows(called) if row.options or row.facts] if called else []
    if rows:
        given = {
            name: plain(value.value) for name, value in names.arguments(call.node, call.scope).items() if value.known
        }
        said = (item.words.rpartition("(")[2].rstrip(")") for item in _of_call(call, names, table))
        known = (*said, *(name for row in rows for name in (*row.arguments, *row.values, *row.positional)))
        yield from not_understood(given, known, f"{path}:{call.node.lineno}")


def _of_options(
    trainer: str, given: Mapping[str, Value], line: int, rank: int, call: str, table: CallTable
) -> Iterator[_Said]:
    """Yield what the arguments say that are options of a trainer: `SFTConfig(packing=True)`."""
    kind = table.trainers.get(trainer)
    if kind is None:
        return
    options = {name: plain(value.value) for name, value in given.items() if value.known}
    for item in recipe_statements(kind, options, lambda name: None):
        value = given.get(item.option)
        assumed = item.assumed or (value is not None and value.assumed)
        words = f"{call}({item.option})" if item.option in given else call
        yield _Said(f"workload.{item.word}", item.value, assumed, line, rank, words)


def _decided(key: str, items: Iterable[_Said], path: Path) -> Fact | None:
    """Return the fact of several statements: of the highest rank, and a literal before an option's default."""
    ranked = sorted(items, key=lambda item: (-item.rank, item.assumed))
    first = ranked[0]
    equals = [item for item in ranked if (item.rank, item.assumed) == (first.rank, first.assumed)]
    source = f"{path}:{first.line}: {first.words}"
    try:
        facts = [None if item.value is None else make_fact(key, item.value, source) for item in equals]
    except DoctorError:
        return Fact(key, None, source, problem="a value that this attn-doctor does not know")
    other = next((item for item, made in zip(equals, facts, strict=True) if _value(made) != _value(facts[0])), None)
    if other is not None:
        problem = f"{path}:{first.line} and line {other.line} differ"
        return Fact(key, None, source, problem=problem)
    if facts[0] is None:
        return Fact(key, None, source, problem="only the running program knows the value")
    return facts[0]._replace(source=f"assumed: {source}", assumed=True) if first.assumed else facts[0]


def _value(made: Fact | None) -> Any:
    return None if made is None else made.value


def _variables(found: Collector, path: Path, watch: Watch) -> Iterator[Fact]:
    pairs: list[tuple[ast.expr, ast.expr, int, int]] = [(key, value, line, 0) for key, value, line in found.set]
    for call in found.calls:
        if found.names.path(call.node.func, call.scope) in _SETS and len(call.node.args) == 2:
            pairs.append((call.node.args[0], call.node.args[1], call.node.lineno, call.scope))
    for key, value, line, scope in pairs:
        name, text = found.names.value(key, scope).value, found.names.value(value, scope)
        if isinstance(name, str) and is_read(name, watch):
            certain = text.known and not text.assumed
            yield variable(name, str(text.value) if text.known else "", f"{path}:{line}", certain=certain)
