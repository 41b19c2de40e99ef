"""`attn-doctor stress` as a user meets it."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from doctor.cli import main as cli
from doctor.cli.stress import _journal


@pytest.fixture
def run(monkeypatch):
    def call(*arguments):
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return cli.run(["stress", *arguments]), out.getvalue(), err.getvalue()

    return call


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--cases", "none"], "needs a positive number"),
        (["--memory", "lots"], "an amount of memory"),
        (["--budget", "0"], "positive number of seconds"),
        (["--budget", "-5"], "positive number of seconds"),
        (["--budget", "inf"], "positive number of seconds"),
        (["--cases", "0"], "needs a positive number"),
        (["--cases", "²"], "needs a positive number"),
        (["--processes", "0"], "from 1 to 64"),
        (["--processes", "9999999"], "from 1 to 64"),
        (["--seed", "99999999999999999999"], "from 0 to"),
        (["--seed", "-1"], "from 0 to"),
        (["--memory", "nan"], "an amount of memory"),
        (["--backend", "file:"], "names no function"),
        (["--backend", "file:/no/where.py:f"], "there is no file"),
        (["--python", "/no/where"], "does not exist"),
        (["-o", "/no/where/report"], "there is no folder"),
        (["-o", "/"], "is a directory"),
        (["--buget", "5"], "--budget"),
    ],
)
def test_one_clear_sentence_for_a_mistake(run, arguments, word):
    code, out, err = run(*arguments)
    assert code == 2 and not out and word in err and "Traceback" not in err


def test_no_torch_is_no_diagnosis(run, tmp_path):
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    fake.chmod(0o755)
    code, _, err = run("--python", str(fake), "--journal", str(tmp_path / "j"))
    assert code == 3 and "torch" in err and "Traceback" not in err


def test_json(run, torch_python, tmp_path):
    report = tmp_path / "sweep.json"
    code, out, _ = run(
        "--python", torch_python, "--device", "cpu", "--backend", "sdpa.math", "--cases", "10",
        "--journal", str(tmp_path / "j"), "--format", "json", "-o", str(report),
    )  # fmt: skip
    assert code == 0 and not out
    told = json.loads(report.read_text())
    assert told["verdict"] == "good" and told["complete"] and told["backends"]["sdpa.math"]["right"] >= 8


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(tmp_path, closed):
    """A pipe of ours must not take the number of one that is missing, nor anybody trip over it."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    interpreter.chmod(0o755)
    errors = tmp_path / "errors"
    command = f"{sys.executable} -m doctor stress --python {interpreter} --journal {tmp_path / 'j'}"
    redirected = closed if "2>" in closed else f"{closed} 2>{errors}"
    done = subprocess.run(["/bin/sh", "-c", f"{command} {redirected}"], timeout=60)
    assert done.returncode == 3
    if errors.exists():
        assert "torch in" in errors.read_text() and "fault of attn-doctor" not in errors.read_text()


def test_each_sweep_has_its_own_journal(monkeypatch):
    """A short sweep must not discard the results of a long one."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    options = {"device": None, "backends": [], "seed": 0, "cases": None}
    plain = _journal("/usr/bin/python3", **options)
    assert plain == _journal("/usr/bin/python3", **options) and str(plain).startswith("/home/somebody/.cache/")
    for name, value in (("device", "cpu"), ("backends", ["sdpa.math"]), ("seed", 1), ("cases", 9)):
        assert _journal("/usr/bin/python3", **{**options, name: value}) != plain

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert _journal("/usr/bin/python3", **options) is None
