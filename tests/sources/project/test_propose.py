"""`init`: the project's section after a look at its files; whatever else is in pyproject.toml stays as it is."""

import json
from pathlib import Path

import pytest

from doctor.cli import main as cli
from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError
from doctor.sources.project.config import project_defaults
from doctor.sources.project.propose import insert_section, inspect_project, section
from tests.helpers.rulebook import builtin_rulebook

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
LLAMA = ROOT / "examples" / "models" / "llama-3-8b.json"
OTHERS = "# mine\r\n[project]\r\nname = 'x'  # ü\r\nversion = \"1\"\r\n\r\n[tool.ruff]\r\nline-length = 100"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\nflash-attn==2.7.4.post1\n")
    (tmp_path / "configs" / "llama").mkdir(parents=True)
    (tmp_path / "configs" / "llama" / "config.json").write_text(LLAMA.read_text())
    (tmp_path / "configs" / "other.json").write_text('{"model_type": "no model"}')
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --gres=gpu:a100:8\nexport NVTE_FLASH_ATTN=1\n")
    return tmp_path


def init(capsys, *options):
    code = cli.run(["init", *options])
    return code, capsys.readouterr()


def test_what_was_found_is_what_check_then_judges(project, capsys):
    code, said = init(capsys)
    assert (code, said.err) == (0, "")
    found = project_defaults()
    assert found.requirements == ("requirements.txt", "train.sbatch")
    assert found.models == ("configs/llama/config.json",)
    assert found.gpus == ("a100",)
    assert "requirements.txt: the packages to install" in said.out
    assert cli.run(["check", "--format", "json"]) in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["facts"]["torch.version"]["source"] == "requirements.txt:1"
    assert report["facts"]["env.NVTE_FLASH_ATTN"]["source"] == "train.sbatch:3"
    assert report["facts"]["gpu.sm"]["value"] == "8.0"
    assert report["workload"]["num_heads"]["value"] == 32


def test_every_other_byte_stays(project, capsys):
    path = project / "pyproject.toml"
    path.write_bytes(OTHERS.encode())
    path.chmod(0o640)
    assert init(capsys)[0] == 0
    after = path.read_bytes().decode()
    assert after.startswith(OTHERS + "\r\n")
    assert "\n" not in after.replace("\r\n", "")
    assert path.stat().st_mode & 0o777 == 0o640
    assert tomllib.loads(after)["tool"]["ruff"] == {"line-length": 100}


def test_a_section_is_not_overwritten_unasked(project, capsys):
    path = project / "pyproject.toml"
    path.write_text("[tool.attn-doctor]\nfail-on = 'never'\n")
    before = path.read_bytes()
    code, said = init(capsys)
    assert code == 2
    assert "pyproject.toml:1: `[tool.attn-doctor]` exists already" in said.err
    assert "hint: `--force` replaces it" in said.err
    assert path.read_bytes() == before


def test_force_replaces_the_section_alone_and_settles(project, capsys):
    path = project / "pyproject.toml"
    head, tail = "[project]\nname = 'x'\nversion = '1'\n\n", "# of ruff\n[tool.ruff]\nline-length = 100\n"
    path.write_text(
        head + "[tool.attn-doctor]\nfail-on = 'never'\n[[tool.attn-doctor.ignore]]\nrule = 'A'\nreason = 'b'\n"
        "until = 2999-01-01\n\n" + tail + "[tool.attn-doctor.workload]\ndtype = 'float16'\n"
    )
    assert init(capsys, "--force")[0] == 0
    once = path.read_text()
    assert once.startswith(head + "[tool.attn-doctor]\n")
    assert once.endswith(tail)
    assert (project_defaults().fail_on, project_defaults().ignored) == ("error", {})
    assert init(capsys, "--force")[0] == 0
    assert path.read_text() == once


@pytest.mark.parametrize("text", ["tool.attn-doctor.gpu = 'h100'\n", "[tool]\nattn-doctor = {gpu = 'h100'}\n"])
def test_a_section_written_otherwise_is_left_alone(text, project, capsys):
    path = project / "pyproject.toml"
    path.write_text(text)
    code, said = init(capsys, "--force")
    assert code == 2 and "cannot be replaced" in said.err
    assert path.read_text() == text


def test_dry_run_and_dash_write_nothing(project, capsys):
    for options in (("--dry-run",), ("-o", "-")):
        code, said = init(capsys, *options)
        assert code == 0 and "[tool.attn-doctor]" in said.out
        assert not (project / "pyproject.toml").exists()
    tomllib.loads(said.out)  # `-` gives the section and nothing else


def test_a_faulty_pyproject_is_reported_and_kept(project, capsys):
    path = project / "pyproject.toml"
    path.write_text("[project\n")
    code, said = init(capsys)
    assert code == 2 and "pyproject.toml:1: not TOML" in said.err
    assert path.read_text() == "[project\n"


def test_an_empty_project_gets_a_section_to_fill_in(tmp_path, capsys):
    code, said = init(capsys, str(tmp_path))
    assert code == 0 and "no file declares attention libraries" in said.out
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text()) == {"tool": {"attn-doctor": {"fail-on": "error"}}}


def test_no_folder_is_one_line(tmp_path, capsys):
    code, said = init(capsys, str(tmp_path / "none"))
    assert code == 2 and len(said.err.splitlines()) <= 2


def test_names_that_toml_would_misread_are_quoted(project):
    odd = project / 'a "b" \\ ü'
    odd.mkdir()
    (odd / "config.json").write_text(LLAMA.read_text())
    made = section(inspect_project(project, watch_of(builtin_rulebook())))
    assert 'a "b" \\ ü/config.json' in tomllib.loads(made)["tool"]["attn-doctor"]["model"]


def test_many_models_are_counted_and_the_rest_named_by_number(project):
    for number in range(20):
        (project / f"m{number:02}.json").write_text(LLAMA.read_text())
    found = inspect_project(project, watch_of(builtin_rulebook()))
    assert (len(found.models), found.more_models) == (12, 9)
    assert "# and 9 more" in section(found)


def test_what_cannot_be_read_back_is_not_written(tmp_path):
    with pytest.raises(DoctorError, match="no key `gpus`"):
        insert_section(tmp_path / "pyproject.toml", "", "[tool.attn-doctor]\ngpus = 'a'\n", force=False)


@pytest.mark.parametrize(
    ("name", "text", "gpus"),
    [
        ("train.sbatch", "#!/bin/bash\n#SBATCH --gres=gpu:h100:8\nsrun python train.py\n", ("h100",)),
        ("train.sh", "srun --gpus-per-node=a100:4 python train.py\n", ("a100",)),
        ("train.sh", "sbatch -G l40s:2 job\n", ("l40s",)),
        ("train.slurm", '#SBATCH --constraint="h100|h200"\n', ("h100", "h200")),
        ("train.pbs", "#PBS -l select=1:ngpus=4:gpu_type=A100\n", ("a100",)),
        (
            "k8s/job.yaml",
            "nodeSelector:\n  nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB\n",
            ("nvidia-a100-sxm4-80gb",),
        ),
        ("gke.yml", "  cloud.google.com/gke-accelerator: nvidia-l4\n", ("nvidia-l4",)),
        ("train.sbatch", "#SBATCH --gres=gpu:8\n#SBATCH --gres=gpu:mi300x:8\n#SBATCH --partition=h100\n", ()),
    ],
)
def test_the_gpus_of_job_scripts_and_manifests_are_found(tmp_path, name, text, gpus):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    found = inspect_project(tmp_path, watch_of(builtin_rulebook()))
    assert found.gpus == tuple((gpu, name) for gpu in gpus)
