"""What a project suppresses: ignores with a day and an owner."""

import json
from pathlib import Path

import pytest

from doctor import render
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.report.locations import place_of
from doctor.report.summary import verdict
from doctor.sources.project.config import read_defaults

INCIDENT = Path(__file__).parents[2] / "examples" / "incidents" / "b"
ENTRY = "[[tool.attn-doctor.ignore]]\nrule = '{}'\nreason = 'known'\nowner = '@platform'\nuntil = {}\n"
PAST, FUTURE = "2001-01-01", "2999-01-01"


def check(tmp_path, *entries, **more):
    text = "[tool.attn-doctor]\n" + "".join(ENTRY.format(*entry) for entry in entries)
    defaults = read_defaults(tmp_path / "pyproject.toml", text)
    facts, job = str(INCIDENT / "facts.yaml"), str(INCIDENT / "workload.yaml")
    return diagnose(Request(facts=(facts,), workload=job, run=False, defaults=defaults, **more))


def test_an_ignored_rule_is_noted_with_its_owner_and_day(tmp_path):
    report = check(tmp_path, ("TE103", FUTURE))
    assert "TE103" not in {finding.rule for finding in report.findings}
    assert "TE103 is ignored by this project: known (@platform, until 2999-01-01)" in report.notes


def test_an_expired_ignore_is_a_finding_at_its_line_and_its_rule_counts(tmp_path):
    report = check(tmp_path, ("TE103", PAST))
    found = {finding.rule: finding for finding in report.findings}
    assert found["TE103"].severity == "error"
    expired = found["IGNORE_EXPIRED"]
    assert (expired.severity, place_of(report, expired).line) == ("warning", 2)
    assert expired.summary == "Ignore entry for TE103 expired on 2001-01-01"
    assert expired.message == ("TE103 was ignored by @platform until 2001-01-01 (known); it triggers and counts again")


def test_an_expired_ignore_of_what_no_longer_fires_can_go(tmp_path):
    report = check(tmp_path, ("FA001", PAST))
    (expired,) = [finding for finding in report.findings if finding.rule == "IGNORE_EXPIRED"]
    assert expired.message.endswith("it does not trigger here: remove the entry")


def test_two_expired_ignores_are_two_findings(tmp_path):
    report = check(tmp_path, ("FA001", PAST), ("FA002", PAST))
    expired = [finding for finding in report.findings if finding.rule == "IGNORE_EXPIRED"]
    assert [place_of(report, finding).line for finding in expired] == [2, 7]


@pytest.mark.parametrize(
    ("written", "meant"), [("TE1033", "TE103"), ("FAO03", "FA003"), ("te103", "TE103"), ("FA0l0", "FA010")]
)
def test_an_ignored_rule_that_does_not_exist_is_a_warning_at_its_line(written, meant, tmp_path):
    report = check(tmp_path, (written, FUTURE))
    (found,) = [finding for finding in report.findings if finding.rule == "IGNORE_UNKNOWN"]
    assert (found.severity, place_of(report, found).line) == ("warning", 2)
    assert found.message.startswith(f"the project ignores {written}, but there is no such rule: did you mean `TE") or (
        found.message.endswith(f"did you mean `{meant}`?")
    )
    assert f"Ignored rule {written} does not exist" in render(report, "text")


#: A torch without code for the GPU, and a transformers that is too old for TRL: two errors with separate fixes.
TWO_ERRORS = """facts: {python.version: "3.11.7", torch.version: "2.11.0", torch.cuda: "12.8", gpu.sm: "7.0",
  gpu.name: V100, driver.version: "580.86.10", trl.version: "1.16.0", transformers.version: "4.46.3",
  accelerate.version: "0.33.0"}
"""


@pytest.mark.parametrize("gpus", [(), ("v100", "sm70")])
def test_no_fix_acts_on_an_ignored_finding(gpus, tmp_path):
    facts = tmp_path / "facts.yaml"
    facts.write_text(TWO_ERRORS, encoding="utf-8")

    def packages(*entries):
        text = "[tool.attn-doctor]\n" + "".join(ENTRY.format(*entry) for entry in entries)
        defaults = read_defaults(tmp_path / "pyproject.toml", text)
        report = diagnose(Request(facts=(str(facts),), run=False, defaults=defaults, gpus=gpus))
        return {change.name for fix in report.fixes for change in fix.changes}

    assert {"torch", "transformers"} <= packages(), "both errors have a fix"
    assert packages(("TORCH002", FUTURE)) == {"transformers"}


def test_the_summary_counts_ignored_findings_and_sarif_suppresses_them(tmp_path):
    report = check(tmp_path, ("TE103", FUTURE))
    assert "1 ignored by the project" in render(report, "text")
    run = json.loads(render(report, "sarif"))["runs"][0]
    (result,) = [item for item in run["results"] if "suppressions" in item]
    assert result["ruleId"] == "TE103" and run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "TE103"
    reason = "known (@platform, until 2999-01-01)"
    assert result["suppressions"] == [{"kind": "external", "justification": reason}]
    assert run["automationDetails"]["id"] == "attn-doctor/"


@pytest.mark.parametrize("gpus", [(), ("h100", "a100")])
def test_of_one_case_and_of_several(gpus, tmp_path):
    report = check(tmp_path, ("TE103", FUTURE), ("FA001", PAST), gpus=gpus)
    assert [finding.rule for finding in report.findings if finding.severity != "note"][-1:] == ["IGNORE_EXPIRED"]
    assert not any(finding.rule == "TE103" for case in report.cases for finding in case.findings)
    assert sum("TE103 is ignored" in note for note in report.notes) == 1
    assert not any("TE103" in fix.resolves for fix in report.fixes)


@pytest.mark.parametrize("gpus", [(), ("h100", "h200")])
def test_what_is_ignored_fails_in_no_format(tmp_path, gpus):
    """An error that does not count must not turn a test red: the exit code is that of a pass."""
    report = check(tmp_path, *((rule, FUTURE) for rule in ("TE103", "MC012", "TE805")), gpus=gpus)
    assert not [finding for finding in report.findings if finding.severity == "error"]
    assert "TE103" in {finding.rule for finding in report.ignored}
    look, word, sentence = verdict(report)
    assert (look, word) == ("ok", "OK") and "ignored by the project: TE103, MC012, TE805" in sentence
    assert "<failure" not in render(report, "junit") and "::error" not in render(report, "github")
    assert json.loads(render(report, "json"))["ignored"][0]["id"] == "TE103"


def test_a_former_id_ignores_the_rule_that_replaces_it(tmp_path):
    facts = tmp_path / "facts.yaml"
    facts.write_text(
        "facts: {torch.version: 2.2.0a0+81ea7a4, flash-attn.version: 2.5.2, flash-attn.wheel_torch: absent}\n"
    )
    text = "[tool.attn-doctor]\n" + ENTRY.format("FA690", FUTURE)
    defaults = read_defaults(tmp_path / "pyproject.toml", text)
    report = diagnose(Request(facts=(str(facts),), run=False, defaults=defaults))
    assert [finding.rule for finding in report.ignored] == ["FA320"]
    assert not any(finding.rule == "IGNORE_UNKNOWN" for finding in report.findings)
