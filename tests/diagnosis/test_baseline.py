"""A baseline: what a report has already is not reported again, what is gone is reported as fixed, and nothing else."""

import json
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.diagnosis.baseline import compare, read_baseline
from doctor.errors import DoctorError
from doctor.model import Case, Evidence, Fact, Facts, Finding, Severity, Verdict
from doctor.report.fingerprint import fingerprint

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "models"
TORCH = Evidence("torch.version", "<2.7", ">=2.7", Fact("torch.version", "2.6.0", "a.txt:7"), True)
GPU = Evidence("gpu.sm", ">=10", "<10", Fact("gpu.sm", "10.0", "--gpu b200"), True)
FINDING = Finding("T001", "n", Severity.ERROR, Verdict.FIRES, "s", "found 2.6.0 among 3", "", (TORCH, GPU), ())


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text((ROOT / "examples" / "declared" / "b.txt").read_text())
    return tmp_path


def check(capsys, *options):
    code = cli.run(["check", "--requirements", "requirements.txt", "--no-run", *options])
    return code, capsys.readouterr()


JOB = ("--workload", str(ROOT / "examples" / "incidents" / "b" / "workload.yaml"))
LLAMA = ("--model", str(MODELS / "llama-3-8b.json"))


class TestOneCase:
    def test_what_is_known_is_not_reported_again_and_does_not_fail(self, project, capsys):
        assert check(capsys, "--gpu", "h100", *JOB, "--format", "json", "-o", "base.json")[0] == 1
        text = (project / "requirements.txt").read_text()
        (project / "requirements.txt").write_text("# a line more\n# and another\n" + text)  # every line moves
        code, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json")
        assert code == 0
        assert said.out.startswith("OK: no new findings (4 known findings in the baseline); ")
        assert "4 baseline findings suppressed (`base.json`): TE103, MC012, FA054, TE854" in " ".join(said.out.split())
        assert "error TE103" not in said.out and "FAIL" not in said.out

    @pytest.mark.parametrize("form", ["sarif", "junit", "github", "markdown"])
    def test_in_every_format(self, form, project, capsys):
        check(capsys, "--gpu", "h100", *JOB, "--format", "json", "-o", "base.json")
        code, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json", "--format", form)
        assert code == 0
        assert "<failure" not in said.out and "::error" not in said.out
        assert form != "sarif" or json.loads(said.out)["runs"][0]["results"] == []

    def test_what_is_new_is_reported(self, project, capsys):
        check(capsys, "--gpu", "h100", *LLAMA, "--format", "json", "-o", "base.json")
        code, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json", "--format", "json")
        report = json.loads(said.out)
        assert (code, [finding["id"] for finding in report["findings"]]) == (1, ["TE103"])
        assert "TE103" not in {finding["id"] for finding in report.get("known", ())}

    def test_what_is_gone_is_fixed(self, project, capsys):
        check(capsys, "--gpu", "h100", *JOB, "--format", "json", "-o", "base.json")
        (project / "requirements.txt").write_text("torch==2.8.0\ntransformer-engine[pytorch]==2.8.0\n")
        _, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json", "--format", "json")
        assert "fixed: TE103 of the baseline no longer occurs" in json.loads(said.out)["notes"]

    def test_what_can_no_longer_be_reported_is_not_called_fixed(self, project, capsys):
        check(capsys, "--gpu", "h100", *JOB, "--format", "json", "-o", "base.json")
        (project / "requirements.txt").write_text("transformer-engine[pytorch]==2.3.0\n")  # which cuDNN, no one knows
        _, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json", "--format", "json")
        notes = json.loads(said.out)["notes"]
        assert "TE103 of the baseline was skipped this time (missing information)" in notes
        assert not any(note.startswith("fixed") for note in notes)

    def test_no_fix_is_offered_for_what_is_known(self, project, capsys):
        check(capsys, "--gpu", "h100", *JOB, "--format", "json", "-o", "base.json")
        _, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json", "--format", "json")
        assert json.loads(said.out)["fixes"] == []


class TestSeveralCases:
    def test_a_finding_on_one_more_gpu_is_new_there(self, project, capsys):
        check(capsys, "--gpu", "a100,b200", *LLAMA, "--format", "json", "-o", "base.json")
        code, said = check(capsys, "--gpu", "a100,b200,rtx5090", *LLAMA, "--baseline", "base.json", "--format", "json")
        report = json.loads(said.out)
        (finding,) = [finding for finding in report["findings"] if finding["id"] == "TORCH005"]
        assert [report["cases"][number]["gpu"] for number in finding["cases"]] == ["rtx5090"]
        assert [known["id"] for known in report["known"]] == ["TORCH005", "MC012", "FA054", "TE854", "CUDNN670"]
        assert code == 1

    def test_a_case_that_was_fixed_is_reported_and_one_that_was_dropped_is_not(self, project, capsys):
        check(capsys, "--gpu", "a100,b200,rtx5090", *LLAMA, "--format", "json", "-o", "base.json")
        _, said = check(capsys, "--gpu", "a100,b200", *LLAMA, "--baseline", "base.json", "--format", "json")
        assert not any(note.startswith("fixed") for note in json.loads(said.out)["notes"])
        (project / "requirements.txt").write_text("torch==2.8.0\n")
        _, said = check(capsys, "--gpu", "a100,b200", *LLAMA, "--baseline", "base.json", "--format", "json")
        assert any(
            note.startswith("fixed: TORCH005 of the baseline no longer occurs (b200")
            for note in json.loads(said.out)["notes"]
        )

    def test_the_same_twice_has_nothing_new(self, project, capsys):
        options = ("--gpu", "a100,b200", *LLAMA, "--model", str(MODELS / "gemma-2-9b.json"))
        check(capsys, *options, "--format", "json", "-o", "base.json")
        code, said = check(capsys, *options, "--baseline", "base.json", "--format", "json")
        report = json.loads(said.out)
        assert (code, report["findings"]) == (0, [])
        assert report["known"]


def test_a_baseline_written_with_a_baseline_has_what_that_one_had(project, capsys):
    check(capsys, "--gpu", "h100", *JOB, "--format", "json", "--output", "base.json")
    check(capsys, "--gpu", "h100", *JOB, "--baseline", "base.json", "--format", "json", "--output", "next.json")
    code, said = check(capsys, "--gpu", "h100", *JOB, "--baseline", "next.json")
    assert code == 0 and said.out.startswith("OK: no new findings")


def test_a_fingerprint_outlives_wording_and_line_but_not_another_version():
    def of(**changes):
        return fingerprint(FINDING._replace(**changes))

    moved = TORCH._replace(fact=Fact("torch.version", "2.6.0", "b.txt:70"))
    other = TORCH._replace(fact=Fact("torch.version", "2.5.1", "a.txt:7"))
    assert of() == of(message="found 2.6.0 among 4", evidence=(moved, GPU))
    assert of() != of(evidence=(other, GPU))
    assert of() != of(rule="T002")
    assert of(cases=(0,)) == of(cases=(1, 2), evidence=(TORCH, GPU._replace(fact=Fact("gpu.sm", "12.0", "x"))))


def test_worse_than_before_is_new(tmp_path):
    path = tmp_path / "base.json"
    path.write_text(json.dumps(report_of(FINDING._replace(severity=Severity.WARNING))))
    baseline = read_baseline(path)
    none = frozenset()
    assert compare(baseline, [FINDING], (), none, none).new == (FINDING,)
    path.write_text(json.dumps(report_of(FINDING)))
    milder = FINDING._replace(severity=Severity.WARNING)
    assert compare(read_baseline(path), [milder], (), none, none).known == (milder,)


def test_what_is_ignored_now_is_not_fixed(tmp_path):
    path = tmp_path / "base.json"
    path.write_text(json.dumps(report_of(FINDING)))
    assert compare(read_baseline(path), [], (), frozenset({"T001"}), frozenset()).notes == ()
    assert compare(read_baseline(path), [], (), frozenset(), frozenset()).notes == (
        "fixed: T001 of the baseline no longer occurs",
    )


def test_a_baseline_of_one_case_covers_that_finding_in_several(tmp_path):
    path = tmp_path / "base.json"
    path.write_text(json.dumps(report_of(FINDING)))
    cases = tuple(Case("e", gpu, None, Facts(), (FINDING,), (), ()) for gpu in ("a", "b"))
    found = compare(read_baseline(path), [FINDING._replace(cases=(0, 1))], cases, frozenset(), frozenset())
    assert (found.new, len(found.known)) == ((), 1)


def report_of(finding):
    evidence = [{"fact": item.key, "found": item.fact.value, "wanted": item.needs} for item in finding.evidence]
    return {"schema": 1, "findings": [{"id": finding.rule, "severity": finding.severity, "evidence": evidence}]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"), ("{", "base.json:1: not JSON"), ("[]", "no `findings`"), ("{}", "no `findings`"),
        ('{"schema": 2, "findings": []}', "`schema` needs to be 1, found `2`"),
        ('{"findings": []}', "`schema` needs to be 1, found `None`"),
        ('{"schema": 1, "findings": [5]}', "not those of a report"),
        ('{"schema": 1, "findings": [{"id": "A"}]}', "not those of a report"),
        ('{"schema": 1, "findings": [{"id": "A", "severity": "fatal", "evidence": []}]}', "not those of a report"),
        ('{"schema": 1, "findings": [{"id": "A", "severity": "error", "evidence": [], "cases": [7]}]}', "not those of"),
        ('{"schema": 1, "findings": {"a": 1}}', "no `findings`"),
        ("[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
def test_a_bad_baseline_is_one_line(text, message, tmp_path):
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(DoctorError) as caught:
        read_baseline(path)
    assert message in caught.value.message


@pytest.mark.parametrize("gpus", ["h100", "h100,a100"])
def test_a_bad_baseline_ends_with_2(gpus, project, capsys):
    code, said = check(capsys, "--gpu", gpus, "--baseline", "none.json")
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1)
