"""The one style of rule files: what changes, what stays, and that a change of content is refused."""

# ruff: noqa: E501 - files to read, each line as it is

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from doctor.cli.rules import app
from doctor.errors import DoctorError
from doctor.rulebook.authoring.format import format_file, formatted, rule_files
from doctor.util.yaml_text import parse_yaml

LOOSE = """tests:
    fires: {given: *base, expect: fires}
    'silent with 2.7':
        given: {<<: *base, torch.version: '2.10'}
        expect: silent
x-base: &base {torch.version: "2.6.0", workload.mask: 'causal'}
# the cause
id: 'OWN001'
severity: error   # always
when: {torch.version: '<2.7', workload.mask: [causal, padding_causal], not: {gpu.sm: '>=9.0'}}
references: [docs/rule-format.md, 'https://example.org/a#b']
name: own-rule
summary: "It's a rule: of this test"
why: |
  First line.

  Second one.
fix:
- {require: {torch: '>=2.7'}, note: it is fixed there}
- call: print("hello")
signatures: ['cannot import name ''x'' from [\\w.]{1,8}']
message: a message that is longer than the width of a line, which is why it is folded onto as many lines as it needs to be read
"""

STRICT = """# the cause
id: OWN001
name: own-rule
severity: error # always
summary: "It's a rule: of this test"
why: |
  First line.

  Second one.
references:
  - docs/rule-format.md
  - https://example.org/a#b
when:
  torch.version: "<2.7"
  workload.mask: [causal, padding_causal]
  not: {gpu.sm: ">=9.0"}
message: >-
  a message that is longer than the width of a line, which is why it is folded onto as many lines as it needs to be read
signatures:
  - cannot import name 'x' from [\\w.]{1,8}
fix:
  - require: {torch: ">=2.7"}
    note: it is fixed there
  - call: print("hello")
x-base: &base {torch.version: 2.6.0, workload.mask: causal}
tests:
  fires: {given: *base, expect: fires}
  silent with 2.7: {given: {<<: *base, torch.version: "2.10"}, expect: silent}
"""


def reordered(text: str) -> str:
    """The loose rule with its anchor before its use, as YAML wants it."""
    tests, rest = text.split("x-base", 1)
    return f"x-base{rest}{tests}"


def test_a_rule_is_brought_into_the_style_with_its_comments_and_anchors():
    assert formatted(reordered(LOOSE)) == STRICT


def test_the_style_is_its_own_style():
    assert formatted(STRICT) == STRICT


def test_the_content_stays():
    assert parse_yaml(formatted(reordered(LOOSE)), "a")[0] == parse_yaml(reordered(LOOSE), "a")[0]


@pytest.mark.parametrize(
    "value",
    ["null", "~", '"null"', "''", "'# no comment'", "'a: b'", "'- a'", '"a\\tb"', "'it''s \"both\"'", "'a,b'", "2.10"],
)
def test_every_kind_of_scalar_stays_what_it_is(value):
    for text in (f"id: A\nmessage: {value}\n", f"id: A\nneeds: {{key: {value}, other: [{value}]}}\n"):
        assert parse_yaml(formatted(text), "a")[0] == parse_yaml(text, "a")[0]


@pytest.mark.parametrize("text", ["123", "0775", "2.10", "1e3", "12:30", "2026-01-31", "true", "no", "1_000", "0x1f"])
def test_a_quoted_text_stays_a_text_for_every_reader(text):
    written = formatted(f"id: OWN001\ngiven: {{a: '{text}', b: ['{text}']}}\nname: '{text}'\n")
    assert yaml.safe_load(written) == {"id": "OWN001", "given": {"a": text, "b": [text]}, "name": text}
    assert formatted(written) == written


@pytest.mark.parametrize(
    ("text", "style"),
    [("2.10", '"2.10"'), ("no", '"no"'), ("OFF", '"OFF"'), ("8.0", "8.0"), ("7", "7"), ("true", "true")],
)
def test_a_text_that_another_reader_changes_gets_quotes(text, style):
    assert formatted(f"id: OWN001\nsince: {text}\n") == f"id: OWN001\nsince: {style}\n"


def test_a_comment_inside_a_collection_keeps_it_open():
    text = "id: A\nwhen:\n  any:\n    - {torch.version: 2.6.0} # the first\n    # and\n    - {torch.version: 2.7.0}\n"
    assert formatted(text) == text


def test_what_is_no_rule_is_refused():
    with pytest.raises(DoctorError, match="needs a mapping"):
        formatted("- a\n")
    with pytest.raises(DoctorError, match="does not exist"):
        rule_files([Path("/nowhere/at/all")])


def test_check_changes_nothing_and_a_second_run_finds_nothing(tmp_path):
    path = tmp_path / "own" / "OWN001.yaml"
    path.parent.mkdir()
    path.write_text(reordered(LOOSE))
    (path.parent / "library.yaml").write_text("name:   own\n")
    checked = CliRunner().invoke(app, ["format", "--check", str(tmp_path)], standalone_mode=False)
    assert checked.return_value == 1 and "1 rule files, 1 would be formatted" in checked.output
    assert path.read_text() == reordered(LOOSE)
    assert CliRunner().invoke(app, ["format", str(tmp_path)], standalone_mode=False).return_value == 0
    assert path.read_text() == STRICT and (path.parent / "library.yaml").read_text() == "name:   own\n"
    assert format_file(path, write=True) is False


@pytest.mark.slow  # CI checks the same in a step of its own, `rules format --check`
def test_the_built_in_rules_are_in_the_style():
    files = rule_files([Path(__file__).parents[3] / "rules"])
    assert len(files) > 900
    assert [path.name for path in files if format_file(path, write=False)] == []
