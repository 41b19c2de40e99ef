"""Run the tests inside rule files: facts in, the verdict of that one rule out.

Only the rule itself is judged. What a release brings along (`library.yaml`) is available, other rules and the
prediction of backends are not: a test that needs `te.selected` gives it. A key given as `null` is unknown, and
wins over what a release would imply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse
from doctor.model import Fact, Facts
from doctor.rulebook.cache import rule_files
from doctor.rulebook.compiled_facts import compiled_answer
from doctor.rulebook.conditions import All, AnyOf, Condition, Leaf, Not
from doctor.rulebook.evaluate import rule_holds
from doctor.rulebook.messages import message_of, missing_keys
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library, Rule, as_tuple
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.schema import LIBRARY, Source, declare_words, read_sources
from doctor.rulebook.shape import Shape
from doctor.rulebook.signatures import parse_signatures
from doctor.rulebook.tables import TABLES, TableFault, is_table, libraries_in
from doctor.util.reading import read_text
from doctor.util.redact import shortened
from doctor.util.resources import rules_dir
from doctor.util.yaml_text import parse_yaml

MATCHES = "matches"  # the expectation that a signature shows a log
VERDICTS: Mapping[str, bool | None] = {"fires": True, "silent": False, "undetermined": None}


@dataclass(frozen=True)
class RuleTest:
    """One entry below `tests:` of a rule file."""

    rule: Rule
    name: str
    given: Mapping[str, Any]
    expect: str
    missing: tuple[str, ...] | None
    message: str | None
    line: int

    @property
    def id(self) -> str:
        """The name of the test: `TE103::fires with 9.1`."""
        return f"{self.rule.id}::{self.name}"


@dataclass(frozen=True)
class RuleTestResult:
    """What became of one in-file test; `problem` is None when it passed."""

    id: str
    path: str
    line: int
    problem: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the rule said what the test expects."""
        return self.problem is None


def rulebook_paths(paths: Iterable[Path] | None = None) -> list[Path]:
    """The YAML files among files and folders, libraries included; None means the built-in rulebook."""

    files: dict[Path, None] = {}
    for path in [rules_dir()] if paths is None else paths:
        files.update(dict.fromkeys([path] if path.is_file() else rule_files((path,))))
    return list(files)


def load_libraries(extra: Iterable[Path] = ()) -> Rulebook:
    """The built-in libraries and those of further folders, without rules.

    They are not checked here: a slip in one `library.yaml` is reported where that file is checked, and must not hide
    the tests of every rule.
    """

    found: dict[str, Library] = {}
    for path in rulebook_paths((rules_dir(), *(path for path in extra if path.is_dir()))):
        if path.name == LIBRARY or path.parent.name == TABLES:
            content, lines = parse_yaml(read_text(path, "rule file"), str(path))
            found.update((body["name"], Library(body["name"], body)) for body in _libraries(content))
            with suppress(DoctorError):
                declare_words(Shape(str(path), lines), content)
    return Rulebook({}, found)


def _libraries(content: Any) -> list[dict[str, Any]]:
    """Return the libraries that a file describes."""
    if is_table(content):
        try:
            return list(libraries_in(content))
        except TableFault:
            return []
    return [content] if isinstance(content, dict) and isinstance(content.get("name"), str) else []


def in_file_tests(source: Source) -> Iterator[RuleTest]:
    """The tests inside one rule file."""
    rule = Rule(source.content["id"], source.library, source.content, source.path)
    for name, body in (source.content.get("tests") or {}).items():
        if "log" in body:
            continue
        missing = body.get("missing")
        yield RuleTest(
            rule=rule,
            name=name,
            given=body["given"] or {},
            expect=body["expect"],
            missing=None if missing is None else tuple(missing),
            message=body.get("message"),
            line=source.line("tests", name),
        )


def run_log_tests(source: Source) -> Iterator[RuleTestResult]:
    """Run the tests of a rule file that give a log: some signature matches each, or none does."""
    signatures = parse_signatures(source.content.get("signatures"))
    for name, body in (source.content.get("tests") or {}).items():
        for log in as_tuple(body.get("log")):
            shown = any(signature.explains(log) for signature in signatures)
            problem = None
            if shown != (body["expect"] == MATCHES):
                problem = f"expected {body['expect']} for `{shortened(' '.join(log.split()), 120)}`"
            yield RuleTestResult(f"{source.content['id']}::{name}", source.path, source.line("tests", name), problem)


def unshown_signatures(source: Source) -> Iterator[int]:
    """Yield the positions of signatures that no log of the tests shows."""
    tests = (source.content.get("tests") or {}).values()
    logs = [log for body in tests if body.get("expect") == MATCHES for log in as_tuple(body.get("log"))]
    for index, signature in enumerate(parse_signatures(source.content.get("signatures"))):
        if not any(signature.explains(log) for log in logs):
            yield index


def known_of(test: RuleTest, libraries: Rulebook | None = None) -> FactResolver:
    """The facts of a test, with what the releases of `libraries` bring along."""
    facts = (
        Fact(key, None, "the test", None, "unknown in this test")
        if value is None
        else Fact(key, parse(key, value), "the test")
        for key, value in test.given.items()
    )
    if libraries is None:
        return FactResolver(Facts(facts))
    packages = libraries.packages
    return FactResolver(Facts(facts), libraries.implications, lambda known, key: compiled_answer(key, known, packages))


def judge(test: RuleTest, known: FactResolver) -> bool | None:
    """The rule's verdict on the facts of a test; a run-time rule also looks at `<library>.selected` if it is given."""
    rule = test.rule
    selected = f"{rule.fails_at_run[0].split('.')[0]}.selected" if rule.fails_at_run else None
    if selected in test.given:
        return rule_holds(Rulebook({}, {}), rule, known)
    return rule.when.holds(known)


def run_test(test: RuleTest, libraries: Rulebook | None = None) -> RuleTestResult:
    """Run one test; the outcome's problem says which condition judged what."""
    try:
        known = known_of(test, libraries)
        problem = _problem(test, known)
    except DoctorError as error:
        problem = error.message
    return RuleTestResult(test.id, test.rule.path, test.line, problem)


def run_rule_tests(paths: Sequence[Path] | None = None, libraries: Rulebook | None = None) -> list[RuleTestResult]:
    """Run the tests of all rule files below `paths`; an unreadable file is one failed outcome."""
    libraries = load_libraries(paths or ()) if libraries is None else libraries
    outcomes: list[RuleTestResult] = []
    for path in rulebook_paths(paths):
        try:
            sources = read_sources(path)
        except DoctorError as error:
            hint = f" ({error.hint})" if error.hint else ""
            outcomes.append(RuleTestResult(f"{path.stem}::(file)", str(path), 1, error.message + hint))
            continue
        for source in sources:
            if source.kind == "rule":
                outcomes.extend(run_test(test, libraries) for test in in_file_tests(source))
                outcomes.extend(run_log_tests(source))
    return outcomes


def failure_text(outcome: RuleTestResult) -> str:
    """A failed outcome for the rule's author: which test, where, and what each condition said."""
    return f"{outcome.path}:{outcome.line}: {outcome.id}: {outcome.problem}"


def _problem(test: RuleTest, known: FactResolver) -> str | None:
    if test.expect not in VERDICTS:
        return f"`expect` needs one of {', '.join(VERDICTS)}, found `{test.expect}`"
    holds = judge(test, known)
    if holds is not VERDICTS[test.expect]:
        verdict = next(name for name, value in VERDICTS.items() if value is holds)
        return "\n".join([f"expected {test.expect}, but the rule is {_SAID[verdict]}", *_judged(test, known)])
    if test.missing is not None:
        missing = missing_keys(test.rule, known)
        if set(missing) != set(test.missing):
            return f"expected {_list(test.missing)} to be missing, found {_list(missing)}"
    if test.message is not None:
        message = message_of(test.rule, known)
        if test.message not in message:
            return f"expected the message to contain `{test.message}`, found `{message}`"
    return None


_SAID = {"fires": "firing", "silent": "silent", "undetermined": "undetermined"}


def _list(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys)) or "nothing"


def _judged(test: RuleTest, known: FactResolver) -> Iterator[str]:
    yield from _tree(test.rule.when, known, 1)
    for backend in test.rule.fails_at_run[:1]:
        key = f"{backend.split('.')[0]}.selected"
        if key in test.given:
            yield f"  `{key}` is {known.value(key)}, the rule is about {', '.join(test.rule.fails_at_run)}"


def _tree(node: Condition, known: FactResolver, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(node, Leaf):
        found = known.look_up(node.key)
        shown = f"unknown, {found.problem}" if found.value is None else f"{found.value} from {found.source}"
        yield f"{pad}{_WORD[node.holds(known)]}: `{node.key}: {node.text}` ({shown})"
        return
    parts = node.parts if isinstance(node, (All, AnyOf)) else (node.part,) if isinstance(node, Not) else ()
    if depth > 1 or not isinstance(node, All):
        name = "all" if isinstance(node, All) else "any" if isinstance(node, AnyOf) else "not"
        yield f"{pad}{_WORD[node.holds(known)]}: {name}"
        depth += 1
    for part in parts:
        yield from _tree(part, known, depth)


_WORD: Mapping[bool | None, str] = {True: "holds", False: "does not hold", None: "unknown"}
