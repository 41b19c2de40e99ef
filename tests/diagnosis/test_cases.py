"""Many cases at once: every cell is what a check of it alone says, and the report says each thing once."""

import json
import random
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.cli.request import TargetOptions, project_request_of
from doctor.diagnosis.cases import common_facts, merge_findings
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import Fact, Facts
from doctor.report.formats import renderer
from doctor.report.style import Style
from doctor.sources.project.config import Defaults
from tests.helpers.rulebook import builtin_rulebook

ROOT = Path(__file__).parents[2]
MODELS = sorted(str(path) for path in (ROOT / "examples" / "models").glob("*.json"))
JOBS = sorted(str(path) for path in (ROOT / "examples" / "incidents").glob("*/workload.yaml"))
DECLARED = sorted(str(path) for path in (ROOT / "examples" / "declared").glob("*.txt"))
GPUS = ("v100", "t4", "a100", "l40s", "h100", "b200", "b300", "rtx5090", "sm90")


@pytest.fixture
def ranges(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch>=2.5,<2.8\ntransformer-engine[pytorch]>=2.1,<2.4\nflash-attn==2.7.4.post1\n")
    return str(path)


def same(case, alone):
    """The cell and the check of it alone, as programs see them."""

    def plain(found):
        report = renderer("json")(found, Style())
        return {key: json.loads(report)[key] for key in ("findings", "backends", "undetermined", "facts", "workload")}

    cell = alone._replace(
        facts=case.facts, findings=case.findings, predictions=case.predictions, undetermined=case.undetermined
    )
    return plain(cell) == plain(alone)


class TestACellIsTheCheckOfItAlone:
    """Drawn at random: what the cases share must not show in any of them."""

    @pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 6))])
    def test_with_pins(self, seed):
        draw = random.Random(seed)
        declared = (draw.choice(DECLARED),)
        gpus, models, jobs = (tuple(draw.sample(names, 3)) for names in (GPUS, MODELS, JOBS))
        framework = draw.choice(("transformers", "transformer_engine", "megatron", "torch_sdpa", "xformers"))
        settings = (f"workload.framework={framework}", "env.NVTE_FUSED_ATTN=0") if seed % 2 else ()
        which = {"models": models} if seed % 3 else {"workloads": jobs}
        report = diagnose(Request(declared=declared, gpus=gpus, settings=settings, run=False, fixes=False, **which))
        assert len(report.cases) == 9
        for case in draw.sample(report.cases, 5):
            named = {path: Path(path).stem if seed % 3 else path for path in (models if seed % 3 else jobs)}
            (path,) = [path for path, name in named.items() if case.workload in (name, path)]
            job = {"model": path} if seed % 3 else {"workload": path}
            alone = diagnose(Request(declared=declared, gpu=case.gpu, settings=settings, run=False, fixes=False, **job))
            assert same(case, alone), (case.gpu, case.workload)

    def test_with_ranges(self, ranges):
        report = diagnose(
            Request(declared=(ranges,), gpus=("a100", "h100"), models=tuple(MODELS[:2]), run=False, fixes=False,
                    settings=("workload.framework=transformer_engine",))
        )  # fmt: skip
        assert any("allows" in finding.message for case in report.cases for finding in case.findings)
        for case in (report.cases[0], report.cases[-1]):
            model = next(path for path in MODELS if Path(path).stem == case.workload)
            alone = diagnose(
                Request(declared=(ranges,), gpu=case.gpu, model=model, run=False, fixes=False,
                        settings=("workload.framework=transformer_engine",))
            )  # fmt: skip
            assert same(case, alone)

    def test_with_facts_that_speak_of_a_gpu_and_a_job_themselves(self):
        incident = ROOT / "examples" / "incidents" / "b"
        given = {"facts": (str(incident / "facts.yaml"),), "workload": str(incident / "workload.yaml"), "run": False}
        report = diagnose(Request(**given, gpus=("a100", "b200"), fixes=False))
        for case in report.cases:
            assert same(case, diagnose(Request(**given, gpu=case.gpu, fixes=False)))


def test_ranges_that_are_too_many_are_bounded_and_it_is_reported(ranges, monkeypatch):
    from doctor.diagnosis import cases as gate

    monkeypatch.setattr(gate, "MOST_JUDGED", 1)
    report = diagnose(Request(declared=(ranges,), gpus=("a100", "h100"), models=tuple(MODELS[:2]), run=False))
    assert any("judged in 1 of 4 cases" in note for note in report.notes)
    told = [finding.message for case in report.cases[1:] for finding in case.findings]
    assert not any("every release that" in message or " allows " in message for message in told)


def test_the_same_trouble_is_one_finding_that_says_where():
    report = diagnose(
        Request(declared=(DECLARED[1],), gpus=("h100", "b200"), models=tuple(MODELS[:3]), run=False, fixes=False)
    )
    found = {finding.rule: finding for finding in report.findings}
    assert [report.cases[number].gpu for number in found["TORCH005"].cases] == ["b200"] * 3
    assert len({(finding.rule, finding.severity, finding.cases) for finding in report.findings}) == len(report.findings)
    for number, case in enumerate(report.cases):  # nothing is lost and nothing is added
        assert {finding.rule for finding in case.findings} == {
            finding.rule for finding in report.findings if number in finding.cases
        }


def test_what_all_cases_share_is_once():
    report = diagnose(Request(declared=(DECLARED[1],), gpus=("h100", "b200"), model=MODELS[0], run=False, fixes=False))
    assert report.facts.value("torch.version") == "2.6.0"
    assert "gpu.sm" not in report.facts
    assert common_facts(report.cases[:1]) == report.cases[0].facts
    assert merge_findings([]) == ()


def test_a_fix_is_checked_in_every_case():
    """torch 2.6.0 has no cuDNN for the job and no code for a B200: what clears both is reported, and what it leaves."""
    job = str(ROOT / "examples" / "incidents" / "b" / "workload.yaml")
    request = Request(declared=(DECLARED[1],), gpus=("h100", "b200"), workload=job, run=False)
    report = diagnose(request)
    fix = report.fixes[0]
    assert {"TE103", "TORCH005"} <= set(fix.resolves)
    assert fix.leaves == ()
    pins = [f"{change.name}.version={change.after}" for change in fix.changes if change.kind == "package"]
    for gpu in ("h100", "b200"):  # checked again, each alone, with the changes of the fix
        after = diagnose(Request(declared=(DECLARED[1],), gpu=gpu, workload=job, run=False, settings=tuple(pins)))
        assert not {"TE103", "TORCH005"} & {finding.rule for finding in after.findings}


def test_no_kernel_is_run_and_it_is_reported(tmp_path):
    job = str(ROOT / "examples" / "incidents" / "b" / "workload.yaml")
    report = diagnose(Request(declared=(DECLARED[1],), gpus=("h100", "b200"), workload=job, fixes=False))
    assert any(note.startswith("no kernel was run") for note in report.notes)


class TestTheMatrixOfAProject:
    def run(self, monkeypatch, capsys, folder, *options):
        monkeypatch.chdir(folder)
        code = cli.run(["check", "--no-run", "--format", "json", *options])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else err

    @pytest.fixture
    def project(self, tmp_path):
        (tmp_path / "pyproject.toml").write_text(
            "[tool.attn-doctor]\ngpu = ['a100', 'h100']\nmodel = ['a/config.json', 'b/config.json']\n"
            "requirements = 'requirements.txt'\nfail-on = 'warning'\n"
        )
        (tmp_path / "requirements.txt").write_text(Path(DECLARED[1]).read_text())
        for name, source in (("a", MODELS[0]), ("b", MODELS[1])):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(Path(source).read_text())
        return tmp_path

    def test_is_what_check_judges(self, project, monkeypatch, capsys):
        _, report = self.run(monkeypatch, capsys, project)
        cells = [(case["environment"], case["gpu"], case["workload"]) for case in report["cases"]]
        assert cells == [("requirements.txt", gpu, job) for gpu in ("a100", "h100") for job in ("a", "b")]

    def test_yields_to_the_command_line_axis_by_axis(self, project, monkeypatch, capsys):
        _, report = self.run(monkeypatch, capsys, project, "--gpu", "b200")
        assert [(case["gpu"], case["workload"]) for case in report["cases"]] == [("b200", "a"), ("b200", "b")]
        _, one = self.run(monkeypatch, capsys, project, "--gpu", "b200", "--model", "a/config.json")
        assert "cases" not in one
        assert one["facts"]["torch.version"]["source"].startswith("requirements.txt:")

    def test_of_the_examples(self, monkeypatch, capsys):
        code, report = self.run(monkeypatch, capsys, ROOT / "examples" / "project")
        assert (code, len(report["cases"])) == (1, 9)
        assert report["facts"]["torch.version"]["source"] == "../declared/b.txt:2"
        assert any(note.startswith("TE142 is ignored") for note in report["notes"])

    def test_has_several_environments_by_name(self, project, monkeypatch, capsys):
        (project / "pyproject.toml").write_text(
            "[tool.attn-doctor]\ngpu = 'h100'\n[tool.attn-doctor.environments]\n"
            "train = 'requirements.txt'\nold = ['old.txt']\n"
        )
        (project / "old.txt").write_text("torch==1.13.1\n")
        _, report = self.run(monkeypatch, capsys, project)
        assert [case["environment"] for case in report["cases"]] == ["train", "old"]
        assert "torch.version" not in report["facts"]
        assert {case["facts"]["torch.version"]["value"] for case in report["cases"]} == {"2.6.0", "1.13.1"}

    def test_does_not_reach_commands_that_answer_for_one(self, project, monkeypatch, capsys):
        monkeypatch.chdir(project)
        assert cli.run(["backends", "--requirements", "requirements.txt", "--gpu", "a100,h100"]) == 2
        assert "`--gpu` takes one value here, found a100, h100" in capsys.readouterr().err


def test_exit_code_counts_every_case(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = ["check", "--requirements", DECLARED[1], "--model", MODELS[-1], "--gpu"]
    assert cli.run([*options, "h100"]) == 0
    assert cli.run([*options, "h100,b200"]) == 1
    assert cli.run([*options, "h100,b200", "--fail-on", "never"]) == 0


def test_an_unknown_gpu_among_several_is_one_line(capsys):
    assert cli.run(["check", "--requirements", DECLARED[1], "--gpu", "a100,h1000"]) == 2
    assert "unknown GPU `h1000`" in capsys.readouterr().err


def test_jobs_are_distinguished_by_the_shortest_names(tmp_path):
    from doctor.diagnosis.cases import _job_names

    assert _job_names([("m/a.json", None), ("m/b/config.json", None)]) == ["a", "b"]
    assert _job_names([("x/a.json", None), ("y/a.json", None)]) == ["x/a.json", "y/a.json"]
    assert _job_names([("a.json", "j.yaml"), ("a.json", "k.yaml")]) == ["j", "k"]
    assert _job_names([("a.json", "j.yaml"), ("b.json", "j.yaml")]) == ["a", "b"]
    assert _job_names([("a.json", "j.yaml"), ("b.json", "k.yaml")]) == ["a + j", "b + k"]
    assert _job_names([(None, None)]) == [None]


def test_more_cases_than_anybody_reads_are_refused(monkeypatch):
    from doctor.diagnosis import cases as gate

    monkeypatch.setattr(gate, "MOST_CASES", 3)
    with pytest.raises(DoctorError, match="4 cases are too many"):
        diagnose(Request(declared=(DECLARED[1],), gpus=("a100", "h100"), models=tuple(MODELS[:2]), run=False))


class TestGround:
    def test_a_rule_that_no_gpu_and_no_job_can_make_fire_is_not_checked(self):
        from doctor.rulebook.shared import share_evaluation

        rulebook = builtin_rulebook()
        facts = Facts([Fact("torch.version", "2.6.0", "x"), Fact("flash-attn.version", "absent", "x")])
        ground = share_evaluation(rulebook, facts)
        assert 0 < len(ground.rulebook.rules) < len(rulebook.rules) / 2

    def test_another_environment_is_not_stood_on(self):
        from doctor.rulebook.shared import share_evaluation

        ground = share_evaluation(builtin_rulebook(), Facts([Fact("torch.version", "2.6.0", "x")]))
        assert ground.carries(Facts([Fact("torch.version", "2.6.0", "x"), Fact("gpu.sm", "9.0", "y")]))
        assert not ground.carries(Facts([Fact("torch.version", "2.6.1", "x")]))
        assert not ground.carries(Facts([Fact("torch.version", "2.6.0", "x"), Fact("env.A", "1", "x")]))


def test_a_matrix_of_gpus_is_for_a_machine_that_has_none(tmp_path):
    """Where there is one, the project's shrink to it, and the check is that of one case: kernels would be run."""
    facts = tmp_path / "facts.yaml"
    facts.write_text("{facts: {torch.version: '2.6.0', gpu.sm: '9.0'}}")
    request = Request(facts=(str(facts),), defaults=Defaults(gpus=("a100", "b200")), project=True)
    report = diagnose(request)
    assert (report.cases, report.facts.value("gpu.sm")) == ((), "9.0")
    facts.write_text("{facts: {torch.version: '2.6.0'}}")
    assert [case.gpu for case in diagnose(request).cases] == ["a100", "b200"]


def test_a_request_for_one_case_stays_one():
    assert not Request(gpu="h100", model="m", workload="w").several
    assert not Request(defaults=Defaults(gpus=("a", "b"))).several  # another command than `check`
    assert Request(defaults=Defaults(gpus=("a", "b")), project=True).several


def test_the_projects_own_folder_is_what_the_project_says_it_is(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\n")
    (tmp_path / "serve.txt").write_text("torch==2.5.1\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "requirements.txt").write_text("torch==2.4.1\n")

    def torch(folder):
        request = project_request_of(TargetOptions(requirements=(folder,)), whole=True)
        return diagnose(request._replace(fixes=False)).facts.value("torch.version")

    monkeypatch.chdir(tmp_path / "sub")
    (tmp_path / "pyproject.toml").write_text('[tool.attn-doctor]\ngpu = "h100"\n')
    assert torch("..") == "2.6.0"  # nothing is said of files: what is found
    (tmp_path / "pyproject.toml").write_text('[tool.attn-doctor]\nrequirements = "serve.txt"\n')
    assert (torch(".."), torch("../other"), torch("../requirements.txt")) == ("2.5.1", "2.4.1", "2.6.0")


def test_the_projects_gpus_count_although_a_declared_script_requests_one(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --gres=gpu:h100:8\nexport NVTE_FLASH_ATTN=0\n")
    files = tuple(str(tmp_path / name) for name in ("requirements.txt", "job.sbatch"))
    several = Defaults(gpus=("a100", "b200"))

    def names(**request):
        report = diagnose(Request(declared=files, run=False, fixes=False, project=True, **request))
        return [case.facts.value("gpu.name") for case in report.cases] or report.facts.value("gpu.name")

    assert names() == "H100"
    assert names(defaults=several) == ["A100", "B200"]
    assert names(defaults=Defaults(gpus=("a100",))) == "A100"
    assert names(defaults=several, gpu="l40s") == "L40S"
    assert names(defaults=several, settings=("gpu.name=MINE", "gpu.sm=9.0")) == "MINE"
