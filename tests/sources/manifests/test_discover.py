"""A project's folder: which files count together, which do not, and why."""

# ruff: noqa: E501 - files to read, each on one line

import pytest

from doctor.cli import main as cli
from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError
from doctor.sources.manifests.base import FileRole
from doctor.sources.manifests.discover import discover
from tests.helpers.rulebook import builtin_rulebook

UV = '[[package]]\nname = "torch"\nversion = "2.6.0"\n'
PROJECT = '[project]\nname = "x"\ndependencies = ["torch>=2.4"]\n'


@pytest.fixture
def found(write, tmp_path):
    """{name: role} of a folder with these files."""

    def found(files):
        for name, text in files.items():
            write(name, text)
        return {str(item.path.relative_to(tmp_path)): item for item in discover(tmp_path, watch_of(builtin_rulebook()))}

    return found


def roles(found, role):
    return {name for name, item in found.items() if item.role == role}


@pytest.mark.parametrize(
    ("files", "counts"),
    [
        ({"uv.lock": UV, "pyproject.toml": PROJECT, "requirements.txt": "torch==2.5.1\n"}, {"uv.lock"}),
        ({"uv.lock": UV, "poetry.lock": UV, "pyproject.toml": PROJECT}, {"uv.lock"}),
        ({"uv.lock": "[[package]]\nname = 'six'\nversion = '1'\n", "requirements.txt": "torch==2.6.0\n"}, {"requirements.txt"}),
        ({"pyproject.toml": PROJECT, "requirements.txt": "flash-attn==2.7.3\n"}, {"pyproject.toml", "requirements.txt"}),
        ({"pyproject.toml": "[tool.ruff]\nx = 'torch'\n", "requirements.txt": "torch\n"}, {"requirements.txt"}),
        ({"requirements-cpu.txt": "torch\n", "requirements-gpu.txt": "torch==2.6.0\n"}, {"requirements-gpu.txt"}),
        ({"requirements.txt": "torch\n", "requirements-rocm.txt": "torch\n", "requirements_dev.txt": "torch\n"}, {"requirements.txt"}),
        ({"requirements.txt": "-r requirements/base.txt\ntorch\n", "requirements/base.txt": "transformers\n"}, {"requirements.txt"}),
        ({"requirements/train.txt": "torch\n", "requirements/docs.txt": "torch\n"}, {"requirements/train.txt"}),
        ({"requirements.in": "torch\n", "requirements.txt": "torch==2.6.0\n"}, {"requirements.txt"}),
        ({"environment.yml": "dependencies: [pytorch]\n", "requirements.txt": "torch\n"}, {"requirements.txt"}),
        ({"environment.yml": "dependencies: [pytorch]\n"}, {"environment.yml"}),
        ({"Dockerfile": "FROM nvcr.io/nvidia/pytorch:24.10-py3\n"}, {"Dockerfile"}),
        ({"setup.py": "setup(install_requires=['torch==2.6.0'])\n"}, {"setup.py"}),
        ({"setup.py": "setup(install_requires=['torch'])\n", "requirements.txt": "torch==2.6.0\n"}, {"requirements.txt"}),
        ({"setup.py": "setup(install_requires=['torch'])\n", "setup.cfg": "[flake8]\nx = torch\n"}, {"setup.py"}),
        ({"pyproject.toml": "[project]\nname='x'\ndynamic=['dependencies']\n# torch\n", "setup.py": "setup(install_requires=['torch'])\n"},
         {"setup.py"}),
        ({"setup.py": "setup(install_requires=torch_of_this_machine())\n"}, set()),
        ({"Dockerfile": "FROM nvidia/cuda:12.4.1-devel\nRUN pip install -e .\n", "setup.py": "setup(install_requires=['torch'])\n"},
         {"setup.py", "Dockerfile"}),
        ({"Dockerfile": "FROM python:3.11\nRUN pip install -r requirements.txt\n", "requirements.txt": "torch\n"},
         {"requirements.txt"}),
        ({"Dockerfile": "FROM nvidia/cuda:12.4.1-devel\nRUN pip install -r requirements.txt\n", "requirements.txt": "torch\n"},
         {"requirements.txt", "Dockerfile"}),
        ({"docker/Dockerfile.rocm": "FROM pytorch/pytorch\n", "docker/Dockerfile": "FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel\n"},
         {"docker/Dockerfile"}),
        ({"Dockerfile": "FROM pytorch/pytorch:2.4.0-cuda12.1-cudnn9-devel\n", "requirements.txt": "torch==2.6.0\n"},
         {"requirements.txt"}),
    ],
)  # fmt: skip
def test_what_counts(files, counts, found):
    result = found(files)
    assert roles(result, FileRole.ENVIRONMENT) == counts
    assert all(item.why for item in result.values())
    assert roles(result, FileRole.LEFT_OUT) <= set(files) - counts


def test_workflows_and_job_scripts_bring_variables_alone(found):
    result = found(
        {
            "requirements.txt": "torch==2.6.0\n",
            ".github/workflows/gpu.yml": "jobs:\n  a:\n    env: {NVTE_FLASH_ATTN: 0}\n",
            ".github/workflows/lint.yml": "jobs:\n  a:\n    steps: [{run: pip install torch}]\n",
            "scripts/train.sbatch": "#!/bin/bash\nexport NVTE_FUSED_ATTN=1\n",
            "scripts/clean.sh": "rm -r x\n",
        }
    )
    assert roles(result, FileRole.VARIABLES) == {".github/workflows/gpu.yml", "scripts/train.sbatch"}
    assert roles(result, FileRole.LEFT_OUT) == {".github/workflows/lint.yml"}


def test_why_says_what_was_preferred(found):
    result = found({"uv.lock": UV, "pyproject.toml": PROJECT, "requirements-cpu.txt": "torch\n"})
    assert result["pyproject.toml"].why == "`uv.lock` is preferred; name this file to check it"
    assert result["requirements-cpu.txt"].why == "`uv.lock` is preferred; name this file to check it"


def test_the_lock_of_the_project_that_is_there(found):
    result = found(
        {"Pipfile": "[packages]\ntorch = '*'\n", "Pipfile.lock": '{"default": {"torch": {}}}', "poetry.lock": UV}
    )
    assert roles(result, FileRole.ENVIRONMENT) == {"Pipfile.lock"}


def test_a_folder_is_judged_by_what_is_found_in_it(read, tmp_path, values):
    files = {
        "uv.lock": UV, "requirements-cpu.txt": "torch==2.6.0+cpu\n", "run.sbatch": "export NVTE_FLASH_ATTN=0\npip install torch==1.0\n",
    }  # fmt: skip
    declaration = read(files, only=["."])
    found = values(declaration)
    assert found["torch.version"] == "2.6.0" and found["env.NVTE_FLASH_ATTN"] == "0"
    assert declaration.notes[0].startswith("read: ") and "uv.lock" in declaration.notes[0]
    assert any("requirements-cpu.txt`: `uv.lock` is preferred" in note for note in declaration.notes)


def test_one_bad_file_of_a_folder_does_not_hide_the_others(read):
    declaration = read(
        {"requirements.txt": "torch==2.6.0\n", "pyproject.toml": "[project]\ndependencies = ['torch\n"}, only=["."]
    )
    assert declaration.facts.value("torch.version") == "2.6.0"
    assert "pyproject.toml:2: not TOML" in declaration.faults[0].message


def test_a_folder_that_declares_nothing(read, tmp_path):
    with pytest.raises(DoctorError, match="declares attention libraries"):
        read({"README.md": "torch"}, only=["."])
    with pytest.raises(DoctorError, match="is not a folder"):
        discover(tmp_path / "gone", watch_of(builtin_rulebook()))


def test_the_command_line_takes_a_folder(write, tmp_path, capsys):
    write("requirements.txt", "torch==2.6.0\ntransformer-engine[pytorch]==2.3.0\nflash-attn==2.7.4.post1\n")
    workload = "examples/incidents/b/workload.yaml"
    code = cli.run(
        ["check", "--requirements", str(tmp_path), "--gpu", "h100", "--workload", workload, "--format", "sarif"]
    )
    out = capsys.readouterr().out
    assert code == 1 and "TE103" in out and "requirements.txt" in out


def test_what_an_image_installs_is_read_in_its_order(read, values):
    image = "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\nRUN pip install torch==2.6.0\n"
    declaration = read({"Dockerfile": image, "requirements.txt": "torch==2.5.1\nflash-attn==2.7.3\n"}, only=["."])
    found = values(declaration)
    assert (found["torch.version"], found["flash-attn.version"]) == ("2.6.0", "2.7.3")
    assert not declaration.faults


# --- files that contradict one another ----------------------------------------------------------------------------

FROZEN = "torch==2.1.2\nflash-attn==2.5.7\ndeepspeed==0.12.2\nurllib3==2.2.1\npip==23.3.1\npip==24.0\n"
WITH_EXTRA = """[project]
name = "x"
dependencies = []
[project.optional-dependencies]
train = ["torch==2.1.2", "deepspeed==0.14.4", "urllib3<=2.0.0"]
"""
PINNED = '[project]\nname = "x"\ndependencies = ["torch==2.3.0", "transformers==4.46.0"]\n'


def test_a_list_that_was_frozen_long_ago_is_another_environment(read, found, values):
    result = found({"pyproject.toml": WITH_EXTRA, "requirements.txt": FROZEN})
    assert roles(result, FileRole.ENVIRONMENT) == {"pyproject.toml"}
    why = result["requirements.txt"].why
    assert "deepspeed==0.12.2" in why and "deepspeed==0.14.4" in why and why.endswith("name it to check it")
    declaration = read({}, only=["."])
    assert values(declaration)["deepspeed.version"] == "0.14.4" and not declaration.faults


def test_a_frozen_list_that_satisfies_the_ranges_is_the_environment(read, values):
    ranges = '[project]\nname = "x"\ndependencies = ["torch>=2.1,<2.3", "deepspeed>=0.12"]\n'
    declaration = read({"pyproject.toml": ranges, "requirements.txt": FROZEN.replace("pip==24.0\n", "")}, only=["."])
    told = values(declaration)
    assert (told["torch.version"], told["deepspeed.version"]) == ("2.1.2", "0.12.2")
    assert not declaration.faults and not declaration.open


def test_an_image_whose_own_torch_the_project_does_not_use(read, found, values):
    """How it installs the project is in a script that was not read."""
    image = "FROM nvcr.io/nvidia/pytorch:24.06-py3\nCOPY pyproject.toml pyproject.toml\nRUN bash setup.sh\n"
    result = found({"Dockerfile": image, "pyproject.toml": PINNED})
    assert roles(result, FileRole.ENVIRONMENT) == {"pyproject.toml"}
    assert "torch==2.3.0" in result["Dockerfile"].why and "its earlier pins are ignored" in result["Dockerfile"].why
    declaration = read({}, only=["."])
    assert values(declaration)["torch.version"] == "2.3.0" and not declaration.faults


@pytest.mark.parametrize("command", ["pip install -e .", "pip install .", "pip install '.[train]'"])
def test_what_an_image_held_is_displaced_by_an_install_that_is_seen(read, found, values, command):
    image = f"FROM pytorch/pytorch:2.4.0-cuda12.1-cudnn9-devel\nENV NVTE_FLASH_ATTN=0\nCOPY . .\nRUN {command}\n"
    project = f'{PINNED}[project.optional-dependencies]\ntrain = ["deepspeed==0.14.4"]\n'
    result = found({"Dockerfile": image, "pyproject.toml": project})
    assert roles(result, FileRole.ENVIRONMENT) == {"Dockerfile", "pyproject.toml"}
    declaration = read({}, only=["."])
    told = values(declaration)
    assert told["torch.version"] == "2.3.0" and told["env.NVTE_FLASH_ATTN"] == "0" and not declaration.faults


def test_a_project_that_the_image_does_not_install(found):
    image = "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n"
    result = found({"Dockerfile": image, "requirements.txt": "torch==2.5.1\n", "pyproject.toml": PINNED})
    assert len(roles(result, FileRole.ENVIRONMENT)) == 2 and "Dockerfile" in roles(result, FileRole.ENVIRONMENT)
    assert "`Dockerfile` does not install it" in result["pyproject.toml"].why


def test_a_project_of_files_that_contradict_one_another_has_its_verdict(write, tmp_path, capsys):
    write("pyproject.toml", WITH_EXTRA)
    write("requirements.txt", FROZEN)
    assert cli.run(["check", "--requirements", str(tmp_path), "--gpu", "a100", "--no-run"]) == 0
    assert "requirements.txt`: it contradicts `pyproject.toml`" in " ".join(capsys.readouterr().out.split())
