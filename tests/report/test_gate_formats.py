"""The formats that a CI job hands on: SARIF, JUnit, GitHub annotations, a pull-request comment."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.model import Evidence, Fact, Facts, Fix
from doctor.report.formats import renderer
from doctor.report.locations import place_of
from doctor.report.style import Style

GATE = ("sarif", "junit", "github", "markdown", "gitlab")
TELLS_ALL = GATE[:-1]  # GitLab shows findings, and has no place for what is unknown
EVIL = (
    "x\x1b[2J\u202e%0A::error::owned ::set-output name=a::b\n::error::owned </failure><script> ![p](http://e) @team | `"
)


def show(name, report):
    return renderer(name)(report, Style())


def declared(report, **changes):
    """The sample with its torch pinned in a requirements file, and a finding that goes back to it."""
    torch = Fact("torch.version", "2.6.0", "ci/requirements.txt:7", raw="torch==2.6.0  # the trainer's")
    first = report.findings[0]
    fix = report.fixes[0]._replace(changes=report.fixes[0].changes[:1])
    return report._replace(
        facts=report.facts.with_(torch),
        findings=(first, *report.findings[1:]),
        fixes=(fix,),
        **changes,
    )


@pytest.mark.parametrize("name", TELLS_ALL)
def test_every_finding_with_what_was_found_and_its_fix(name, report):
    text = show(name, report)
    for part in ("TE900", "FA900", "found 9.1.0", "2.7.1", "Two wheels share a folder", "no driver"):
        assert part in text.replace("&gt;", ">"), part


@pytest.mark.parametrize("name", ["sarif", "junit", "github"])
@pytest.mark.parametrize("view", ["backends", "fixes"])
def test_a_format_for_findings_says_so_when_requested_more(name, view):
    with pytest.raises(DoctorError, match=f"cannot show {view}") as caught:
        renderer(name, view)
    assert "text, json, markdown" in caught.value.hint


def test_a_finding_is_at_home_where_its_cause_is_pinned(report):
    """cuDNN 9.1.0 is what torch 2.6.0 brings, and torch is in line 7."""
    place = place_of(declared(report), report.findings[0])
    assert (place.file, place.line, place.fact.key) == ("ci/requirements.txt", 7, "torch.version")
    assert place_of(report, report.findings[0]) is None  # a folder of metadata is no line of a file


def test_what_can_be_changed_is_shown_before_what_is_only_mentioned(report):
    job = Evidence("workload.mask", "causal", "", Fact("workload.mask", "causal", "job.yaml:3"), True)
    pin = Evidence("torch.version", "<2.7", ">=2.7", Fact("torch.version", "2.6.0", "a.txt:9"), True)
    finding = report.findings[0]._replace(evidence=(job, pin))
    assert place_of(report, finding).file == "a.txt"


def test_a_source_that_leads_in_circles_ends(report):
    one = Fact("torch.cuda", "12.4", "derived from torch.cuda_major")
    two = Fact("torch.cuda_major", "12", "derived from torch.cuda")
    finding = report.findings[0]._replace(evidence=(Evidence("torch.cuda", "", "", one, True),))
    assert place_of(report._replace(facts=Facts([one, two])), finding) is None


class TestSarif:
    def load(self, report):
        return json.loads(show("sarif", report))["runs"][0]

    def test_result_is_at_the_line_of_the_pin(self, report):
        result = self.load(declared(report))["results"][0]
        place = result["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": "ci/requirements.txt"}, "region": {"startLine": 7}}
        assert (result["ruleId"], result["level"]) == ("TE900", "error")

    def test_rules_are_listed_once_and_results_point_at_them(self, report):
        twice = report._replace(findings=(*report.findings, report.findings[0]))
        run = self.load(twice)
        rules = run["tool"]["driver"]["rules"]
        assert [rule["id"] for rule in rules] == ["TE900", "FA900"]
        assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == ["TE900", "FA900", "TE900"]
        assert "<https://example.org/pull/1>" in rules[0]["help"]["markdown"]
        assert rules[0]["helpUri"] == "https://example.org/pull/1"

    def test_fingerprint_outlives_a_moved_line_and_not_another_version(self, report):
        def fingerprint(version, source):
            fact = Fact("torch.version", version, source)
            finding = report.findings[0]._replace(evidence=(Evidence("torch.version", "<2.7", ">=2.7", fact, True),))
            return self.load(report._replace(findings=(finding,)))["results"][0]["partialFingerprints"]

        assert fingerprint("2.6.0", "a.txt:7") == fingerprint("2.6.0", "b.txt:70")
        assert fingerprint("2.6.0", "a.txt:7") != fingerprint("2.5.1", "a.txt:7")

    def test_a_fix_edits_the_version_in_its_line(self, report):
        fix = self.load(declared(report))["results"][0]["fixes"][0]
        (change,) = fix["artifactChanges"]
        region = change["replacements"][0]["deletedRegion"]
        line = "torch==2.6.0  # the trainer's"
        assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "2.6.0"
        assert change["replacements"][0]["insertedContent"] == {"text": "2.7.1"}
        assert region["startLine"] == 7

    @pytest.mark.parametrize(
        "raw", ["torch==2.6.0 --hash=sha256:ab", "torch==2.6.0 \\", "torch", "torch>=2.6.0,!=2.6.0"]
    )
    def test_a_line_that_a_version_alone_would_break_is_not_edited(self, raw, report):
        whole = declared(report)
        whole = whole._replace(facts=whole.facts.with_(Fact("torch.version", "2.6.0", "a.txt:7", raw=raw)))
        assert "fixes" not in self.load(whole)["results"][0]

    def test_half_a_fix_is_none(self, report):
        """The sample's fix also sets a variable, which no line of the file can carry."""
        whole = declared(report)._replace(fixes=report.fixes)
        assert isinstance(whole.fixes[0], Fix)
        assert "fixes" not in self.load(whole)["results"][0]

    def test_what_could_not_be_reported_is_a_notification(self, report):
        told = self.load(report)["invocations"][0]["toolExecutionNotifications"]
        assert any("CUDA900" in item["message"]["text"] for item in told)

    @pytest.mark.parametrize("file", ["a b.txt", "ü#?.txt", "/srv/x.txt"])
    def test_file_names_become_uris(self, file, report):
        fact = Fact("torch.version", "2.6.0", f"{file}:1")
        finding = report.findings[0]._replace(evidence=(Evidence("torch.version", "", "", fact, True),))
        place = self.load(report._replace(findings=(finding,)))["results"][0]["locations"][0]["physicalLocation"]
        uri = place["artifactLocation"]["uri"]
        assert re.fullmatch(r"(file:///)?[A-Za-z0-9._/%-]+", uri)

    @pytest.mark.skipif("SARIF_SCHEMA" not in os.environ, reason="SARIF_SCHEMA names no copy of the OASIS schema")
    @pytest.mark.parametrize("build", ["whole", "bare", "declared"])
    def test_valid_by_the_official_schema(self, build, report, make_report):
        jsonschema = pytest.importorskip("jsonschema")
        schema = json.loads(Path(os.environ["SARIF_SCHEMA"]).read_text("utf-8"))
        made = {
            "whole": report,
            "bare": make_report(findings=(), predictions=(), fixes=(), undetermined=(), runs=(), notes=()),
            "declared": declared(report),
        }[build]
        jsonschema.validators.validator_for(schema)(schema).validate(json.loads(show("sarif", made)))


class TestJunit:
    def test_errors_fail_and_what_could_not_be_reported_is_skipped(self, report):
        root = ElementTree.fromstring(show("junit", report))
        suite = root.find("testsuite")
        cases = suite.findall("testcase")
        assert [case.get("classname") for case in cases if case.find("failure") is not None] == ["attn-doctor.TE900"]
        assert [case.get("classname") for case in cases if case.find("skipped") is not None] == [
            "attn-doctor.CUDA900", "attn-doctor.SDPA900", "attn-doctor.SDPA901",
        ]  # fmt: skip
        assert int(suite.get("tests")) == len(cases)
        assert (suite.get("failures"), suite.get("skipped")) == ("1", "3")
        assert "needs >=9.3" in suite.find("testcase/failure").text

    def test_a_job_without_a_backend_fails_although_no_rule_does(self, make_report):
        root = ElementTree.fromstring(show("junit", make_report(findings=())))
        assert root.find("testsuite").get("failures") == "1"
        assert root.find("testsuite/testcase/failure").get("message").startswith("FAIL: ")

    def test_a_healthy_report_is_one_passed_case(self, make_report):
        healthy = make_report(findings=(), predictions=(), undetermined=())
        (case,) = ElementTree.fromstring(show("junit", healthy)).iter("testcase")
        assert len(case) == 0 and case.get("name").startswith("OK: ")

    def test_the_line_of_the_pin_is_reported(self, report):
        root = ElementTree.fromstring(show("junit", declared(report)))
        assert root.find("testsuite/testcase/failure").get("message").startswith("ci/requirements.txt:7: ")


class TestGitlab:
    def test_an_entry_has_what_a_merge_request_needs(self, report):
        entries = json.loads(show("gitlab", declared(report)))
        assert len(entries) == len(report.findings)
        first = entries[0]
        assert set(first) == {"description", "check_name", "fingerprint", "severity", "location", "content"}
        assert (first["check_name"], first["severity"]) == ("TE900", "critical")
        assert first["location"] == {"path": "ci/requirements.txt", "lines": {"begin": 7}}
        assert {item["severity"] for item in entries} <= {"info", "minor", "major", "critical", "blocker"}

    def test_the_fingerprint_outlives_another_line(self, report):
        here, there = json.loads(show("gitlab", report)), json.loads(show("gitlab", declared(report)))
        assert here[0]["fingerprint"] == there[0]["fingerprint"]
        assert here[0]["location"] == {"path": "pyproject.toml", "lines": {"begin": 1}}

    def test_nothing_found_is_an_empty_list(self, make_report):
        assert json.loads(show("gitlab", make_report(findings=()))) == []


class TestGithub:
    def test_an_annotation_names_file_and_line(self, report):
        first = show("github", declared(report)).splitlines()[0]
        assert first.startswith("::error file=ci/requirements.txt,line=7,title=TE900%3A FusedAttention lacks a mask::")
        assert "%0A" in first

    def test_grades_map_to_commands(self, report):
        lines = show("github", report).splitlines()
        assert [line.split()[0] for line in lines[:2]] == ["::error", "::warning"]
        assert lines[-1] == "::notice title=attn-doctor%3A FAIL::FusedAttention lacks a mask"

    def test_commas_and_colons_do_not_end_a_property(self, report):
        fact = Fact("torch.version", "2.6.0", "a,b:c.txt:4")
        finding = report.findings[0]._replace(evidence=(Evidence("torch.version", "", "", fact, True),))
        assert show("github", report._replace(findings=(finding,))).startswith("::error file=a%2Cb%3Ac.txt,line=4,")


class TestMarkdown:
    def test_the_pin_and_the_evidence_are_reported(self, report):
        text = show("markdown", declared(report))
        assert "(`ci/requirements.txt:7`)" in text
        assert "| `cudnn.version` | `9.1.0` | `>=9.3` | what torch 2.6.0 brings |" in text

    def test_a_command_with_backticks_stays_in_its_block(self, report):
        from doctor.model import Remedy

        finding = report.findings[0]._replace(alternatives=(Remedy(call="x = '```'"),))
        text = show("markdown", report._replace(findings=(finding,)))
        assert "````sh\nx = '```'\n````" in text


@pytest.mark.parametrize("name", GATE)
def test_a_hostile_fact_stays_text(name, report):
    evil = Fact("torch.version", EVIL, "a.txt:1")
    finding = report.findings[0]._replace(
        message=EVIL, summary=EVIL, why=EVIL, evidence=(Evidence(EVIL, "", EVIL, evil, True),)
    )
    text = show(name, report._replace(findings=(finding,), notes=(EVIL,), facts=report.facts.with_(evil)))
    assert "\x1b" not in text
    if name == "sarif":
        json.loads(text)
    if name == "junit":
        assert {item.tag for item in ElementTree.fromstring(text).iter()} <= {
            "testsuites", "testsuite", "testcase", "failure", "skipped", "system-out", "system-err", "properties",
            "property",
        }  # fmt: skip
    if name == "github":
        lines = text.splitlines()
        assert not any(line.startswith("::error::owned") for line in lines)
        assert all(re.match(r"::(error|warning|notice) ", line) for line in lines)
    if name == "markdown":
        plain = re.sub(r"`[^`]*`", "", text)
        assert "<script" not in plain and "](http" not in plain.replace(r"\]", "") and "@team" not in plain


def test_an_annotation_says_its_headline_and_its_message_once(report):
    first = show("github", report).splitlines()[0]
    finding = report.findings[0]
    assert first.count(finding.message) == 1 and first.count(finding.summary) == 1
    assert "found 9.1.0" in first and not first.endswith("%0A")


def test_a_line_of_code_to_write_is_no_change_from_nothing_in_a_comment(report):
    change = report.fixes[0].changes[0]._replace(kind="call", name="x = pad(x)", before=None, after="x = pad(x)")
    text = show("markdown", report._replace(fixes=(report.fixes[0]._replace(changes=(change,), resolves=()),)))
    assert "→" not in text.split("### Fix")[1] and "Fixes ." not in text
