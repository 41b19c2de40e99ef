"""Tests of `examined_to`, which separates "fixed in" from "not examined", and of `replaces`, which keeps former ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Severity
from doctor.rulebook.authoring.lint import lint
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import load_rulebook

RULE = """\
id: TE999
name: something-fails
severity: error
summary: Something fails
why: It fails.
references: [https://example.com/source]
when: {transformer-engine.version: ">=2.0"}
examined_to: {transformer-engine: 2.18.0}
no_pin: Nothing fixes it.
tests:
  fires: {given: {transformer-engine.version: 2.1.0}, expect: fires}
  silent: {given: {transformer-engine.version: 1.9.0}, expect: silent}
"""


def folder_with(tmp_path: Path, text: str) -> Path:
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "TE999.yaml").write_text(text)
    return tmp_path / "team"


def findings_of(folder: Path, version: str):
    facts = Facts([fact("transformer-engine.version", version, "the test")])
    found = evaluate(load_rulebook([str(folder)]), facts).findings
    return [finding for finding in found if finding.rule == "TE999"]


@pytest.mark.parametrize("version", ["2.18.0", "2.18.0+cu129", "2.0"])
def test_an_error_in_an_examined_release_stays_one(tmp_path: Path, version: str):
    (finding,) = findings_of(folder_with(tmp_path, RULE), version)
    assert finding.severity == Severity.ERROR
    assert "not examined" not in finding.message


@pytest.mark.parametrize("version", ["2.18.0.post1", "2.19.0", "3.0"])
def test_a_later_release_gets_a_warning_that_names_the_last_one_examined(tmp_path: Path, version: str):
    (finding,) = findings_of(folder_with(tmp_path, RULE), version)
    assert finding.severity == Severity.WARNING
    assert "not examined after transformer-engine 2.18.0" in finding.message
    assert finding.assumption == "not examined after transformer-engine 2.18.0"


def test_the_lint_rejects_an_examined_release_behind_a_bound(tmp_path: Path):
    folder = folder_with(tmp_path, RULE.replace('">=2.0"', '">=2.0,<2.19"'))
    assert any("is without an end" in str(fault) for fault in lint([folder]))


def test_the_lint_rejects_a_former_id_that_a_rule_has(tmp_path: Path):
    folder = folder_with(tmp_path, RULE.replace("severity:", "replaces: [TE998]\nseverity:"))
    (folder / "TE998.yaml").write_text(RULE.replace("TE999", "TE998").replace("something-", "another-"))
    assert any("`replaces: TE998` is a rule" in str(fault) for fault in lint([folder]))


def test_a_former_id_leads_to_the_rule_that_replaces_it(tmp_path: Path):
    folder = folder_with(tmp_path, RULE.replace("severity:", "replaces: [TE997]\nseverity:"))
    assert load_rulebook([str(folder)]).replaced["TE997"] == "TE999"
