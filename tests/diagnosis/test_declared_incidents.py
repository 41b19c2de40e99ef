"""Each incident as a requirements file, a GPU and a job: found on a machine that has none of them, in every format."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.report.formats import FORMATS

ROOT = Path(__file__).parents[2]
DECLARED = ROOT / "examples" / "declared"
NVTE = ("--set", "env.NVTE_FLASH_ATTN=0", "--set", "env.NVTE_UNFUSED_ATTN=0")
QWEN = ("--set", "workload.framework=xtuner", "--set", "workload.attn_implementation=flash_attention_2",
        "--set", "workload.pack_to_max_length=false", "--set", "workload.use_varlen_attn=false")  # fmt: skip

#: Formats of a diagnosis; the others write out a fix alone.
DIAGNOSES = [name for name, module in FORMATS.items() if hasattr(import_module(f"doctor.report.{module}"), "diagnosis")]
#: incident: GPU, the job in options, the rule that is its cause, the line that is to be changed
INCIDENTS = {
    "a": ("a100", ("--workload", "a"), "TE101", "transformer-engine"),
    "b": ("h100", ("--workload", "b"), "TE103", "torch"),
    "c": ("a100", ("--model", "qwen2-7b.json", *QWEN), "XT001", "transformers"),
    "d": ("a100", ("--workload", "d", *NVTE), "TE111", None),
    "e": ("h100", ("--workload", "e"), "TE120", "transformer-engine"),
}


def options(incident: str) -> list[str]:
    gpu, job, _, _ = INCIDENTS[incident]
    given = list(job)
    if given[0] == "--workload":
        given[1] = str(ROOT / "examples" / "incidents" / given[1] / "workload.yaml")
    else:
        given[1] = str(ROOT / "examples" / "models" / given[1])
    return ["--requirements", f"examples/declared/{incident}.txt", "--gpu", gpu, *given]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("incident", sorted(INCIDENTS))
@pytest.mark.parametrize("name", DIAGNOSES)
def test_an_incident_is_found_in_every_format(incident: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["check", *options(incident), "--format", name])
    out, err = capsys.readouterr()
    assert (code, err) == (1, "")
    rule = INCIDENTS[incident][2]
    if name == "sarif":
        result = json.loads(out)["runs"][0]["results"][0]
        assert (result["ruleId"], result["level"]) == (rule, "error")
    elif name == "json":
        assert json.loads(out)["findings"][0]["id"] == rule
    elif name == "junit":
        failed = next(case for case in ElementTree.fromstring(out).iter("testcase") if case.find("failure") is not None)
        assert failed.get("classname") == f"attn-doctor.{rule}"
    elif name == "github":
        assert out.startswith("::error file=examples/declared/") and f"title={rule}%3A" in out.splitlines()[0]
    elif name == "cyclonedx":  # a list of parts: what was examined, without findings
        assert '"bomFormat": "CycloneDX"' in out
    else:
        assert rule in out


@pytest.mark.parametrize("incident", sorted(INCIDENTS))
def test_the_annotation_is_at_the_pin_to_change(incident: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["check", *options(incident), "--format", "sarif"])
    result = json.loads(capsys.readouterr().out)["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == f"examples/declared/{incident}.txt"
    line = (DECLARED / f"{incident}.txt").read_text().splitlines()[place["region"]["startLine"] - 1]
    package = INCIDENTS[incident][3]
    assert "==" in line if package is None else line.startswith(package)


def test_the_formats_of_a_gate_are_among_those_tried() -> None:
    assert {"text", "json", "sarif", "junit", "github", "markdown"} <= set(DIAGNOSES)


def test_the_declared_examples_are_the_incidents() -> None:
    assert {path.stem for path in DECLARED.glob("*.txt")} == set(INCIDENTS)


def test_a_fixed_file_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Incident B with the torch of its fix."""
    cured = (DECLARED / "b.txt").read_text().replace("torch==2.6.0", "torch==2.7.1")
    path = tmp_path / "requirements.txt"
    path.write_text(cured)
    code = cli.run(["check", "--requirements", str(path), *options("b")[2:]])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "backends", "fix", "snapshot", "matrix"])
def test_every_command_takes_a_declared_environment(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run([command, *options("b")])
    out, err = capsys.readouterr()
    assert code in (0, 1) and not err and out


def test_a_snapshot_of_a_declared_environment_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "facts.json"
    assert cli.run(["snapshot", *options("b"), "--output", str(path)]) == 0
    assert cli.run(["check", "--facts", str(path), "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=examples/declared/b.txt,line=2,title=TE103")


def test_a_bad_file_is_reported_last_and_the_others_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "more.txt"
    bad.write_text("\n???\n")
    code = cli.run(["check", *options("b"), "--requirements", str(bad), "--format", "github"])
    out, err = capsys.readouterr()
    assert code == 2
    assert "TE103" in out and "more.txt:2" in out
    assert err.startswith(f"error: {bad}:2: ")


def test_files_that_declare_nothing_of_the_stack_are_no_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("six==1.16.0\n")
    assert cli.run(["check", "--requirements", str(path)]) == 3


def test_a_folder_is_an_environment_with_its_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Incident B as an image and a job script: the pin is in the file that the image installs."""
    job = str(ROOT / "examples" / "incidents" / "b" / "workload.yaml")
    code = cli.run(["check", "--requirements", "examples/declared/project", "--workload", job, "--format", "github"])
    out, err = capsys.readouterr()
    assert (code, err) == (1, "")
    assert out.startswith("::error file=examples/declared/project/requirements.txt,line=2,title=TE103")
