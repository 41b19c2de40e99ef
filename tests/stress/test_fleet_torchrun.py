"""The commands for torchrun, as the documents print them: it must take none of our options for its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = ("--device", "cpu", "--set", "workload.framework=sdpa", "--set", "workload.head_dim_qk=64")
RANKS = "2"


def printed() -> list[list[str]]:
    """Every torchrun command for our program in the documents and in what the program prints."""
    texts = [path.read_text("utf-8") for path in (*ROOT.glob("docs/*.md"), ROOT / "README.md")]
    texts += [path.read_text("utf-8") for path in (ROOT / "doctor").rglob("*.py")]
    return [shlex.split(found) for text in texts for found in re.findall(r"torchrun [^`\n\"]*fleet[^`\n\"]*", text)]


def test_every_printed_command_ends_the_options_of_torchrun():
    commands = printed()
    assert len(commands) >= 3
    assert not [command for command in commands if "--" not in command[: command.index("fleet")]]


@pytest.mark.slow
@pytest.mark.parametrize("command", [found for found in printed() if "--run" in found], ids=" ".join)
def test_a_printed_command_runs(command, torch_python, tmp_path):
    program = [sys.executable, "-m", "doctor"] if "attn-doctor" in command else None
    given: list[str] = []
    for word in command[1:]:
        given += program if program and word == "attn-doctor" else [word]
    given = [str(tmp_path) if word == "/shared/ranks" else word for word in given]
    given[given.index("--nproc-per-node") + 1] = RANKS
    if program is None:  # the ranks run in torchrun's own interpreter, which has torch and not what we import
        given += ["--cases", "4", "--folder", str(tmp_path / "ranks")]
    extra = ["--format", f"json={tmp_path / 'report.json'}", "--fail-on", "never"]
    site = next(path for path in map(Path, sys.path) if (path / "typer").is_dir())
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(site)))}
    done = subprocess.run(
        [torch_python, "-m", "torch.distributed.run", *given, *JOB, *extra],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert len(report["nodes"]) == int(RANKS) and {node["state"] for node in report["nodes"]} == {"checked"}
