"""The ways into other people's pipelines: the action's own script, the hook, the job scripts, all run for real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
GATE = EXAMPLES / "gate"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def doctor(tmp_path: Path) -> Path:
    """An `attn-doctor` where the action installs it; it counts how often it is started."""
    return program(
        tmp_path / "runner" / "attn-doctor" / "bin" / "attn-doctor",
        f'#!/bin/sh\necho started >> "{tmp_path}/runner/starts"\n'
        f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m doctor "$@"\n',
    )


def starts(doctor: Path) -> int:
    return len((doctor.parents[2] / "starts").read_text().splitlines())


def run_action(doctor: Path, folder: Path, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    action = read(ROOT / "action.yml")
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "check")
    values = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | inputs
    environment = {}
    for variable, expression in step["env"].items():
        name = expression.removeprefix("${{ inputs.").removesuffix(" }}")
        environment[variable] = values[name]
    out, summary = folder / "output", folder / "summary.md"
    environment |= {
        "RUNNER_TEMP": str(doctor.parents[2]), "GITHUB_OUTPUT": str(out), "GITHUB_STEP_SUMMARY": str(summary),
        "PATH": os.environ["PATH"], "HOME": str(folder),
    }  # fmt: skip
    done = subprocess.run(
        # as the runner starts `shell: bash`
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    files = {path.name: path.read_text("utf-8") for path in folder.iterdir() if path.is_file()}
    return done, files


def test_the_action_judges_annotates_sums_up_and_writes_sarif(doctor: Path, tmp_path: Path):
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "requirements file.txt").write_text((EXAMPLES / "declared" / "b.txt").read_text())
    done, files = run_action(
        doctor, folder, requirements="requirements file.txt", gpu="h100",
        workload=str(EXAMPLES / "incidents" / "b" / "workload.yaml"), args="--set\nworkload.dtype=bfloat16",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "::error" in done.stdout and "file=requirements file.txt" in done.stdout
    assert files["output"] == "exit-code=1\nwritten=true\n"
    assert "TE103" in files["summary.md"]
    assert json.loads(files["attn-doctor.sarif"])["runs"][0]["results"]
    assert starts(doctor) == 1, "one run writes every output"


def test_the_job_for_gitlab_writes_every_report_in_one_run(doctor: Path, tmp_path: Path):
    job = read(GATE / "gitlab-ci.yml")["attn-doctor"]
    lines = [
        line.replace("/tmp/doctor/bin/attn-doctor", str(doctor)) for line in job["script"] if " -m venv " not in line
    ]
    (tmp_path / "requirements.txt").write_text((EXAMPLES / "declared" / "b.txt").read_text())
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **job["variables"]}
    script = "\n".join(["set -eo pipefail", *lines])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    reports = job["artifacts"]["reports"]
    assert isinstance(json.loads((tmp_path / reports["codequality"]).read_text()), list), done.stderr
    assert "<testsuite" in (tmp_path / reports["junit"]).read_text()
    assert done.stdout and starts(doctor) == 1


def test_no_template_runs_a_check_twice():
    """One run writes several outputs; a second one costs as much as the first."""
    texts = [ROOT / "action.yml", ROOT / ".pre-commit-hooks.yaml", *sorted(GATE.iterdir())]
    for path in texts:
        calls = [
            re.sub(r"`[^`]*`", "", line)
            for line in path.read_text("utf-8").splitlines()
            if not line.lstrip().startswith("#")
        ]
        counted = sum(len(re.findall(r'(?:attn-doctor|"\$doctor"|"\$DOCTOR") check\b', line)) for line in calls)
        assert counted <= 1, path.name


def test_the_action_passes_what_is_healthy_and_obeys_fail_on(doctor: Path, tmp_path: Path):
    (tmp_path / "r.txt").write_text("torch==2.7.1\n")
    done, files = run_action(doctor, tmp_path, requirements="r.txt", gpu="h100", **{"fail-on": "never"})
    assert done.returncode == 0, done.stderr
    assert files["output"] == "exit-code=0\nwritten=true\n"


def test_a_file_that_cannot_be_read_hides_nothing_that_can(doctor: Path, tmp_path: Path):
    (tmp_path / "good.txt").write_text("torch==2.6.0\ntorchvision==0.19.0\n")
    (tmp_path / "uv.lock").write_text("version = [")
    done, files = run_action(doctor, tmp_path, requirements="good.txt\nuv.lock", gpu="h100")
    assert done.returncode == 2 and done.stderr.count("uv.lock:1") == 1
    assert "TV001" in files["summary.md"] and "TV001" in files["attn-doctor.sarif"]


def test_without_an_answer_there_is_no_old_one_either(doctor: Path, tmp_path: Path):
    (tmp_path / "attn-doctor.sarif").write_text("{}")
    done, files = run_action(doctor, tmp_path, requirements="none.txt")
    assert done.returncode == 2
    assert "attn-doctor.sarif" not in files and files["output"] == "exit-code=2\n" and files["summary.md"] == ""


def test_the_action_judges_the_matrix_that_the_project_itself_names(doctor: Path, tmp_path: Path):
    (tmp_path / "serve.txt").write_text("torch==2.6.0\ntorchvision==0.19.0\n")
    (tmp_path / "train.txt").write_text("torch==2.7.1\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.attn-doctor]\ngpu = "h100"\n[tool.attn-doctor.environments]\ntrain = "train.txt"\nserve = "serve.txt"\n'
    )
    done, files = run_action(doctor, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "train" in files["summary.md"] and "serve" in files["summary.md"]


def test_an_input_of_the_action_is_never_a_command(doctor: Path, tmp_path: Path):
    done, files = run_action(
        doctor, tmp_path, requirements="$(touch owned); `touch owned`", gpu='h100"; touch owned; "'
    )
    assert done.returncode == 2
    assert "owned" not in files
    step = next(step for step in read(ROOT / "action.yml")["runs"]["steps"] if step.get("id") == "check")
    assert "${{" not in step["run"]


def test_every_file_for_another_tool_is_what_that_tool_reads():
    workflow = read(GATE / "github-workflow.yml")
    uses = [step for step in workflow["jobs"]["attn-doctor"]["steps"] if "attn-doctor" in step.get("uses", "")]
    assert set(uses[0]["with"]) <= set(read(ROOT / "action.yml")["inputs"])
    job = read(GATE / "gitlab-ci.yml")["attn-doctor"]
    assert set(job["artifacts"]["reports"]) == {"codequality", "junit"}
    pod = read(GATE / "kubernetes.yaml")["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["args"][0] == "check"


def commands() -> list[tuple[str, list[str]]]:
    """Each command line of attn-doctor in the files for other tools."""
    job = read(GATE / "gitlab-ci.yml")["attn-doctor"]
    options = [line.split("=", 1)[1].strip('"') for line in job["script"] if line.startswith("options=")]
    assert any(line.endswith("attn-doctor check $options") for line in job["script"])
    found = [("gitlab", [word for text in options for word in text.split()])]
    hook = read(ROOT / ".pre-commit-hooks.yaml")[0]
    found.append(("pre-commit", [*hook["entry"].split()[2:], *hook["args"]]))
    container = read(GATE / "kubernetes.yaml")["spec"]["template"]["spec"]["initContainers"][0]
    found.append(("kubernetes", container["args"][1:]))
    return found


@pytest.mark.parametrize(("where", "arguments"), commands())
def test_every_option_named_there_exists(where: str, arguments: list[str]):
    from doctor.cli.main import run

    known = set(_help(run))
    assert {word for word in arguments if word.startswith("--")} <= known, where


def _help(run: Any) -> list[str]:
    import contextlib
    import io
    import re

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        run(["check", "--help"])
    return re.findall(r"--[a-z][a-z-]+", text.getvalue())


@pytest.mark.parametrize(("verdict", "code"), [(0, 0), (1, 1)])
def test_the_slurm_prolog_ends_the_job_if_a_node_fails(tmp_path: Path, verdict: int, code: int):
    asked = tmp_path / "asked"
    program(tmp_path / "doctor", f'#!/bin/sh\necho "$@" >> "{asked}"\necho "TE103 here"\nexit {verdict}\n')
    program(  # one node; `--output` is where it writes
        tmp_path / "bin" / "srun",
        '#!/bin/bash\nwhile [[ $1 == --* ]]; do [[ $1 == --output ]] && { out=${2//%N/node1}; shift; }; shift; done\n'
        '"$@" > "$out" 2>&1\n',
    )  # fmt: skip
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ATTN_DOCTOR": str(tmp_path / "doctor"),
        "TMPDIR": str(tmp_path),
    }  # fmt: skip
    script = f'source "{GATE / "slurm-prolog.sh"}" /envs/train/bin/python "my model.json"; echo trains'
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert ("trains" in done.stdout) is (code == 0)
    assert ("--- node1" in done.stderr and "TE103 here" in done.stderr) is (code == 1)
    assert asked.read_text().split() == [
        "check", "--python", "/envs/train/bin/python", "--model", "my", "model.json", "--timeout", "60",
    ]  # fmt: skip
