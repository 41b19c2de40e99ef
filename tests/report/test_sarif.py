"""SARIF within the constraints that GitHub code scanning documents: it refuses the whole file otherwise."""

from __future__ import annotations

import json
import re
from email.message import Message
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.diagnosis.input_files import input_files
from doctor.diagnosis.request import Request
from doctor.model import Evidence, Fact, Facts, InputFile
from doctor.report import sarif
from doctor.report.formats import renderer
from doctor.report.locations import home_of
from doctor.report.sarif import no_diagnosis
from doctor.report.style import Style
from doctor.sources.project.config import Defaults

INCIDENTS = Path(__file__).parents[2] / "examples" / "incidents"
LEVELS = {"none", "note", "warning", "error"}


def accepted_by_code_scanning(text: str) -> dict:
    """Check what GitHub's documentation of SARIF support demands; return the run."""
    assert len(text.encode()) < 10_000_000
    log = json.loads(text)
    assert log["version"] == "2.1.0" and log["$schema"].startswith("https://")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] and re.match(r"https://\S+$", driver.get("informationUri", "https://none"))
    assert len(driver["rules"]) <= 25_000 and len(run["results"]) <= 25_000
    for rule in driver["rules"]:
        assert rule["id"] and len(rule["name"]) <= 255
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in LEVELS
        assert len(rule["properties"]["tags"]) <= 20
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS and result["message"]["text"]
        assert all(result["partialFingerprints"].values())
        assert 1 <= len(result["locations"]) <= 10
        for location in [*result["locations"], *result.get("relatedLocations", ())]:
            physical = location["physicalLocation"]
            uri = physical["artifactLocation"]["uri"]
            assert uri and not uri.startswith("./") and " " not in uri
            assert physical["region"]["startLine"] >= 1
    return run


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*arguments: object) -> int:
    return cli.run(["check", "--no-run", *map(str, arguments)])


@pytest.mark.parametrize("letter", "abcdef")
def test_every_incident_is_accepted_and_shown_at_a_file(letter, at_home):
    for name in ("facts.yaml", "workload.yaml"):
        (at_home / name).write_text((INCIDENTS / letter / name).read_text())
    assert check("--facts", "facts.yaml", "--workload", "workload.yaml", "--format", "sarif=out.sarif") == 1
    run = accepted_by_code_scanning((at_home / "out.sarif").read_text())
    files = {
        item["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"] for item in result["locations"]
    }
    assert files <= {"facts.yaml", "workload.yaml"} and files
    assert run["invocations"][0]["executionSuccessful"] is True


def test_several_cases_are_accepted(at_home):
    (at_home / "requirements.txt").write_text("torch==2.6.0\ntransformer-engine[pytorch]==2.3.0\n")
    job = INCIDENTS / "b" / "workload.yaml"
    code = check("--requirements", "requirements.txt", "--gpu", "a100,h100", "--workload", job, "--format", "sarif=o")
    assert code == 1
    assert accepted_by_code_scanning((at_home / "o").read_text())["results"]


def test_a_long_description_is_cut(report):
    finding = report.findings[0]._replace(why="word " * 400, backends=tuple(f"te.b{n}" for n in range(40)))
    run = accepted_by_code_scanning(renderer("sarif")(report._replace(findings=(finding,)), Style()))
    assert run["tool"]["driver"]["rules"][0]["fullDescription"]["text"].endswith("…")


class TestHome:
    """The file at which a finding is shown."""

    @pytest.fixture
    def finding(self, report):
        def of(*facts):
            evidence = tuple(Evidence(fact.key, "x", "y", fact, True) for fact in facts)
            return report.findings[0]._replace(evidence=evidence, alternatives=())

        return of

    def test_the_line_of_the_pin_comes_first(self, report, finding):
        pin, job = Fact("torch.version", "2.6.0", "a.txt:7"), Fact("workload.mask", "causal", "job.yaml: mask")
        inputs = (InputFile("workload", "jobs/job.yaml"), InputFile("project", "pyproject.toml"))
        assert home_of(report._replace(inputs=inputs), finding(job, pin)).file == "a.txt"

    @pytest.mark.parametrize(("source", "kind", "path"), [
        ("job.yaml: mask", "workload", "jobs/job.yaml"), ("config.json: head_dim", "model", "m/config.json"),
        ("facts file f/facts.yaml", "facts", "f/facts.yaml"),
    ])  # fmt: skip
    def test_then_the_file_that_the_evidence_names(self, source, kind, path, report, finding):
        inputs = (InputFile("project", "pyproject.toml"), InputFile(kind, path))
        place = home_of(report._replace(inputs=inputs), finding(Fact("workload.mask", "causal", source)))
        assert (place.file, place.line) == (path, 1)

    def test_then_the_first_declared_line_then_file_then_the_project_then_the_facts(self, report, finding):
        derived = finding(Fact("gpu.sm", "9.0", "--gpu h100"))
        every = (InputFile("declared", "conda.lock"), InputFile("project", "p/pyproject.toml"), InputFile("facts", "f"))
        pinned = Facts([Fact("torch.version", "2.6.0", "a.txt:7")])
        assert home_of(report._replace(facts=pinned, inputs=every), derived).file == "a.txt"
        for number, file in enumerate(("conda.lock", "p/pyproject.toml", "f", "pyproject.toml")):
            assert home_of(report._replace(inputs=every[number:]), derived).file == file


def test_the_files_of_a_request_are_those_that_exist(at_home):
    for name in ("req.txt", "f.yaml", "job.yaml", "pyproject.toml"):
        (at_home / name).write_text("")
    (at_home / "model").mkdir()
    (at_home / "model" / "config.json").write_text("{}")
    defaults = Defaults(requirements=("req.txt", "gone.txt"), models=("other.json",), folder=at_home)
    project = InputFile("project", str(at_home / "pyproject.toml"))
    assert input_files(Request(defaults=defaults)) == (InputFile("declared", "req.txt"), project)
    request = Request(facts=("f.yaml",), model="model", workload="job.yaml", defaults=defaults)
    assert input_files(request) == (
        InputFile("model", "model/config.json"),
        InputFile("workload", "job.yaml"),
        project,
        InputFile("facts", "f.yaml"),
    )


class TestNoDiagnosis:
    def test_the_file_is_valid_and_says_so(self, at_home):
        (at_home / "env").mkdir()  # a tree without any package
        code = check("--site-packages", "env", "--format", "sarif=out.sarif")
        assert code == 3
        run = accepted_by_code_scanning((at_home / "out.sarif").read_text())
        (invocation,) = run["invocations"]
        assert (invocation["executionSuccessful"], invocation["exitCode"], run["results"]) == (False, 3, [])
        assert invocation["toolExecutionNotifications"][0]["level"] == "error"

    def test_also_for_a_fault_of_the_program(self, at_home, monkeypatch):
        from doctor.diagnosis import judge

        def broken(*arguments):
            raise ZeroDivisionError("division by zero")

        monkeypatch.setattr(judge, "evaluate", broken)
        assert check("--facts", INCIDENTS / "b" / "facts.yaml", "--format", "sarif=out.sarif") == 3
        run = accepted_by_code_scanning((at_home / "out.sarif").read_text())
        assert "ZeroDivisionError" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]

    def test_bad_input_writes_no_file(self, at_home):
        assert check("--facts", "gone.yaml", "--format", "sarif=out.sarif") == 2
        assert not (at_home / "out.sarif").exists()

    def test_the_hint_is_a_note(self):
        run = accepted_by_code_scanning(no_diagnosis("attn-doctor 1", "nothing there", "look elsewhere"))
        notes = run["invocations"][0]["toolExecutionNotifications"]
        assert [(item["level"], item["message"]["text"]) for item in notes] == [
            ("error", "nothing there"), ("note", "look elsewhere"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (["Homepage, https://a.example/x", "Changelog, https://a.example/c"], "https://a.example/x"),
        (["Repository, https://a.example/r"], "https://a.example/r"),
        ([], None),
    ],
)
def test_the_home_page_is_that_of_the_package_metadata(monkeypatch, urls, expected):
    message = Message()
    for url in urls:
        message["Project-URL"] = url
    monkeypatch.setattr(sarif, "metadata", lambda name: message)
    run = json.loads(sarif.no_diagnosis("attn-doctor 1.0", "nothing", None))["runs"][0]
    assert run["tool"]["driver"].get("informationUri") == expected


def test_a_copied_tree_has_no_home_page(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sarif, "metadata", missing)
    assert "informationUri" not in sarif.no_diagnosis("attn-doctor 1.0", "nothing", None)
