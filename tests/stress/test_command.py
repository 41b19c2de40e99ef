"""`attn-doctor stress` as a user meets it."""

from __future__ import annotations

import io
import json

import pytest

from doctor import cli


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
        (["--buget", "5"], "--budget"),
    ],
)
def test_one_clear_sentence_for_a_mistake(run, arguments, word):
    code, out, err = run(*arguments)
    assert code == 2 and not out and word in err and "Traceback" not in err


def test_no_torch_is_no_diagnosis(run, tmp_path):
    import sys

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
