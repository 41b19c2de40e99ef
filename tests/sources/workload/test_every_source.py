"""A workload means the same wherever it is written: files, settings, the Python API, a batch line, a coding agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from doctor.api import _request
from doctor.cli.mcp import Target
from doctor.diagnosis.batch import read_case
from doctor.facts.vocabulary import NONE_VALUES, TERMS
from doctor.facts.workload import ALIASES, workload_facts
from doctor.model import ABSENT, Fact, Facts
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.sources.snapshot import parse_facts, read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.files import parse_settings
from doctor.sources.workload.recipes import read_job
from doctor.util.yaml_text import parse_document
from tests.helpers.rulebook import builtin_rulebook
from tests.helpers.watches import built_in_watch

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = sorted(path.parent.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*/workload.yaml"))
Read = Callable[[Mapping[str, Any], Path], Facts]


def workload_file(words: Mapping[str, Any], folder: Path) -> Facts:
    path = folder / "job.yaml"
    path.write_text(json.dumps(dict(words)), "utf-8")
    return read_job(path, built_in_watch())


def wrapped_file(words: Mapping[str, Any], folder: Path) -> Facts:
    return workload_file({"workload": words}, folder)


def facts_file(words: Mapping[str, Any], folder: Path) -> Facts:
    path = folder / "facts.json"
    path.write_text(json.dumps({"facts": {}, "workload": words}), "utf-8")
    return read_facts(path)


def flat_facts_file(words: Mapping[str, Any], folder: Path) -> Facts:
    return parse_facts(json.dumps({f"workload.{key}": value for key, value in words.items()}), "facts.yaml")


def option(words: Mapping[str, Any], folder: Path) -> Facts:
    return parse_settings(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in words.items())


def prefixed_option(words: Mapping[str, Any], folder: Path) -> Facts:
    return option({f"workload.{key}": value for key, value in words.items()}, folder)


def api_workload(words: Mapping[str, Any], folder: Path) -> Facts:
    request = _request(workload=dict(words))
    return request.held["workload", str(request.workload)]


def api_settings(words: Mapping[str, Any], folder: Path) -> Facts:
    return _request(settings=dict(words)).given


def batch_line(words: Mapping[str, Any], folder: Path) -> Facts:
    return read_case({"workload": words})


def agent(words: Mapping[str, Any], folder: Path) -> Facts:
    """The options that a tool of the MCP server passes to the program."""
    options = Target(folder, {"settings": dict(words)}).options
    return parse_settings(text.removeprefix("--set=") for text in options)


def project_table(words: Mapping[str, Any], folder: Path) -> Facts:
    """`[tool.attn-doctor.workload]`; TOML has no null."""
    return workload_facts(words)


SOURCES: tuple[Read, ...] = (
    workload_file, wrapped_file, facts_file, flat_facts_file, option, prefixed_option, api_workload, api_settings,
    batch_line, agent, project_table,
)  # fmt: skip
every_source = pytest.mark.parametrize("read", SOURCES, ids=lambda read: read.__name__)


def values(facts: Facts) -> dict[str, Any]:
    return {key.removeprefix("workload."): fact.value for key, fact in facts.items()}


@every_source
def test_a_null_means_none_given(read: Read, tmp_path: Path) -> None:
    nulls = {key.removeprefix("workload."): None for key, term in TERMS.items() if not term.derived}
    words = {name: value for name, value in nulls.items() if f"workload.{name}" in TERMS}
    assert values(read(words, tmp_path)) == {key.removeprefix("workload."): none for key, none in NONE_VALUES.items()}


@every_source
def test_a_null_wins_over_nothing_that_is_given(read: Read, tmp_path: Path) -> None:
    words = {"window": [255, 0], "window_size": None, "head_dim_qk": None, "head_dim": 64}
    if read in (option, prefixed_option, agent, api_settings):  # of settings the last one counts
        words = dict(reversed(words.items()))
    assert values(read(words, tmp_path)) == {"window": (255, 0), "head_dim_qk": 64, "head_dim_v": 64}


@every_source
def test_aliases_are_accepted(read: Read, tmp_path: Path) -> None:
    for alias, names in ALIASES.items():
        assert names
        term = TERMS[f"workload.{names[0]}"]
        plain = {"window": [255, 0], "boolean": True, "integer": 64, "number": 0.1}.get(str(term.kind))
        value = plain if plain is not None else term.values[0] if term.values else "bshd_bshd_bshd"
        assert set(values(read({alias: value}, tmp_path))) == set(names), alias


@pytest.mark.parametrize(
    "read", [workload_file, facts_file, flat_facts_file, api_workload, batch_line], ids=lambda read: read.__name__
)
def test_only_the_long_form_states_an_unknown(read: Read, tmp_path: Path) -> None:
    found = read({"window": {"value": None, "source": "config.json", "problem": "cut off"}}, tmp_path)
    assert found["workload.window"] == Fact("workload.window", None, "config.json", None, "cut off")


@cache
def job(folder: str) -> Facts:
    return read_facts(EXAMPLES / folder / "facts.yaml").with_(*read_job(EXAMPLES / folder / "workload.yaml").values())


def said(assessment: Assessment) -> tuple[Any, ...]:
    findings = [(item.rule, item.severity, item.message) for item in assessment.findings]
    backends = [(item.library, item.selected, item.fails_at_run) for item in assessment.predictions]
    return findings, backends, [(item.missing, item.rules) for item in assessment.undetermined]


@pytest.mark.parametrize("folder", JOBS)
def test_an_example_is_judged_alike_with_every_other_key_as_null(folder: str, tmp_path: Path) -> None:
    content, _ = parse_document((EXAMPLES / folder / "workload.yaml").read_text("utf-8"), folder)
    plain = job(folder)
    words = {**{key.removeprefix("workload."): None for key, term in TERMS.items()
                if key.startswith("workload.") and not term.derived and key not in plain}, **content}  # fmt: skip
    assert len(words) > len(content) + 50
    with_nulls = plain.with_(*workload_file(words, tmp_path).values())
    rulebook = builtin_rulebook()
    expected = said(evaluate(rulebook, complete_workload(plain)))
    assert said(evaluate(rulebook, complete_workload(with_nulls))) == expected


def test_a_null_window_replaces_the_window_of_a_model() -> None:
    model = Facts([Fact("workload.window", (4095, 0), "config.json")])
    assert model.with_(*workload_facts({"window": None}).values()).value("workload.window") == ABSENT
