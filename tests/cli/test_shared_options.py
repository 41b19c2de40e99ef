"""Every command that writes a report takes the same options for it; a new command cannot leave one out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli
from doctor.cli.main import COMMANDS, command_of
from doctor.stress.discovery import SweepOptions

ROOT = Path(__file__).parents[2]
B = ROOT / "examples" / "incidents" / "b"
#: Option -> whether it is a switch. Each report takes all of them.
SHARED = {"--format": False, "--output": False, "--verbose": True, "--quiet": True, "--color": False}
#: Command -> why it writes no report in a choice of formats.
NO_REPORT = {
    "snapshot": "writes facts, which have one form",
    "schema": "writes a JSON Schema",
    "init": "writes a section of pyproject.toml",
    "mcp": "serves a protocol on stdout",
    "fleet probe": "writes JSON Lines for another attn-doctor",
    "fleet work": "writes JSON Lines for another attn-doctor",
    "fleet manifest": "writes a Kubernetes manifest",
    "fleet prolog": "writes one line for Slurm's log",
    "rules": "only leads to its actions",
    "rules test": "writes the log of a test run",
    "rules verify": "writes the log of a check",
    "rules format": "writes names of files",
    "rules new": "writes the name of a file",
}


def every_command() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = command_of(name)
        yield name, command
        for action, own in getattr(command, "commands", {}).items():
            yield f"{name} {action}", own


REPORTS = {name: command for name, command in every_command() if name not in NO_REPORT}


def test_each_command_without_a_report_exists() -> None:
    assert set(NO_REPORT) <= {name for name, _ in every_command()}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("option", SHARED)
def test_a_command_with_a_report_takes_the_shared_options(name: str, option: str) -> None:
    found = [item for item in REPORTS[name].params if option in item.opts]
    assert found, f"`{name}` lacks {option}"
    assert getattr(found[0], "is_flag", False) is SHARED[option]
    assert found[0].multiple is (option == "--format"), f"`{name} {option}` differs from the others"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site" / "torch-2.6.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "torch-2.6.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.6.0\n")
    (tmp_path / "log.txt").write_text("Invalid combination of data type and sequence length for fused attention\n")
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "node.json").write_text('{"facts": {"torch.version": "2.6.0"}}')
    return tmp_path


DESCRIBED = ("--facts", str(B / "facts.yaml"), "--workload", str(B / "workload.yaml"))
#: What each command needs to write a report here. The sweeps need torch, and tests/stress runs them.
ARGUMENTS = {
    "check": ("check", "--no-run", *DESCRIBED),
    "backends": ("backends", *DESCRIBED),
    "fix": ("fix", *DESCRIBED),
    "matrix": ("matrix", *DESCRIBED),
    "wheels": ("wheels", "flash-attn", "--facts", str(B / "facts.yaml")),
    "explain": ("explain", "log.txt"),
    "run": ("run", "FORMATS", "--", "sh", "-c", "cat log.txt; exit 1"),
    "diff": ("diff", str(B / "facts.yaml"), str(ROOT / "examples" / "incidents" / "a" / "facts.yaml")),
    "fleet": ("fleet", "--snapshots", "snapshots"),
    "drift": ("drift", "--site-packages", "site"),
    "keys": ("keys", "window"),
    "rules list": ("rules", "list", "TE103"),
    "rules show": ("rules", "show", "TE103"),
}
SWEEPS = ("stress", "fleet stress")


def test_each_report_is_written_here_or_in_the_tests_of_sweeps() -> None:
    assert set(ARGUMENTS) | set(SWEEPS) == set(REPORTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_two_formats_go_to_two_files(name: str, environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--format", "json=report.json", "--format=text", "--output", "report.txt", "--quiet", "--color=never")
    words = ARGUMENTS[name]
    at = words.index("FORMATS") if "FORMATS" in words else len(words)
    if name != "run":
        assert cli.run([*words[:at], *options, *words[at + 1 :]]) in (0, 1)
        out, err = capsys.readouterr()
        assert (out, err) == ("", "")
    else:  # it ends like the command, in a process of its own
        call = [sys.executable, "-m", "doctor", *words[:at], *options, *words[at + 1 :]]
        own = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(call, capture_output=True, text=True, timeout=60, env=own)
        assert (done.returncode, done.stderr) == (1, "")
    assert json.loads((environment / "report.json").read_text())
    assert (environment / "report.txt").read_text().strip()


@pytest.mark.parametrize("name", [*ARGUMENTS, "stress"])
def test_an_unknown_format_is_one_line_before_any_work(
    name: str, environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in ARGUMENTS.get(name, ("stress",)) if word != "FORMATS"]
    at = words.index("--") if "--" in words else len(words)
    assert cli.run([*words[:at], "--format", "nonsense", *words[at:]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "nonsense" in err and "formats" in err


class Reached(Exception):
    """The sweep would start now."""


@pytest.mark.parametrize(("shrink", "seconds"), [((), 120.0), (("--shrink", "0"), 0.0), (("--shrink", "2.5"), 2.5)])
def test_a_sweep_may_leave_failing_cases_as_they_are(
    shrink: tuple[str, ...], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(options: SweepOptions, *_: object) -> None:
        assert options.shrink == seconds
        raise Reached

    monkeypatch.setattr("doctor.cli.stress.sweep", reached)
    monkeypatch.setenv("ATTN_DOCTOR_DEBUG", "1")
    with pytest.raises(Reached):
        cli.run(["stress", *shrink, "--format", "json=sweep.json", "--format", "html=sweep.html"])
