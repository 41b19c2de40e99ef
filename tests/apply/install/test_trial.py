"""`fix --dry-run` and `--verify`: what is proven, what is not and why, and that nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.cli.main import run

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tmpdir_of_its_own(tmp_path, monkeypatch):
    import tempfile

    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def steps(capsys) -> dict[str, dict[str, str]]:
    return {step["name"]: step for step in json.loads(capsys.readouterr().out)["proof"]["steps"]}


def test_a_dry_run_checks_and_changes_nothing(uv, old, fix, capsys):
    before = old.versions
    assert run(fix("--dry-run", "--format", "json")) == 1  # the finding remains
    said = steps(capsys)
    assert list(said) == ["resolves"] and said["resolves"]["outcome"] == "yes"
    assert said["resolves"]["command"].startswith("uv pip compile pins.txt")
    asked = (uv.folder / "asked.txt").read_text().splitlines()
    assert set(asked) == {"six==1.16.0", "iniconfig==2.0.0", "attrs==23.1.0"}
    assert old.versions == before and not uv.calls("install") and not uv.calls("venv")


def test_without_an_installer_the_fix_is_reported_all_the_same(uv, old, fix, monkeypatch, capsys):
    uv.plan(version=[{"code": 1}])
    monkeypatch.setattr("doctor.apply.install.installers.sys.executable", "/nowhere/bin/python")
    assert run(fix("--dry-run")) == 1
    out = capsys.readouterr().out
    assert "Upgrade `iniconfig` to 2.0.0" in out
    assert "unknown: resolves: not checked: neither uv nor pip is available" in out


def test_a_trial_proves_what_it_can_and_leaves_nothing(uv, old, fix, capsys, tmpdir_of_its_own):
    assert run(fix("--verify", "--format", "json")) == 1
    said = steps(capsys)
    assert {name: step["outcome"] for name, step in said.items()} == {
        "resolves": "yes", "installs": "yes", "check": "yes", "kernels": "unknown",
    }  # fmt: skip
    assert "fixed: SM001" in said["check"]["reason"] and "no GPU here" in said["kernels"]["reason"]
    assert not list(tmpdir_of_its_own.iterdir())
    words = uv.calls("install")[0]
    assert "six==1.16.0" in words and old.python not in words


def test_a_trial_in_which_the_finding_stays_says_so(uv, old, fix, capsys):
    """An installer that claims success and brings another release is found out by the check."""
    uv.plan(install=[{"only": 1}])  # six stays away: only iniconfig comes
    run(fix("--verify", "--format", "json"))
    said = steps(capsys)
    assert said["check"]["outcome"] == "no" and "still fires: SM001" in said["check"]["reason"]


@pytest.mark.parametrize(
    ("plan", "step", "outcome", "words"),
    [
        ({"venv": [{"code": 2, "err": "error: No interpreter found\n"}]}, "installs", "unknown", "cannot create"),
        ({"install": [{"code": 1, "only": 0, "err": "error: bad wheel\n"}]}, "installs", "no", "bad wheel"),
        ({"install": [{"code": 2, "only": 0, "err": "error: x\n  cause: dns error\n"}]}, "installs", "unknown",
         "could not be reached"),
        ({"install": [{"code": 2, "only": 0, "err": "No space left on device\n"}]}, "installs", "unknown", "disk"),
    ],
)  # fmt: skip
def test_a_trial_that_fails(uv, old, fix, capsys, tmpdir_of_its_own, plan, step, outcome, words):
    uv.plan(**plan)
    assert run(fix("--verify", "--format", "json")) == 1
    said = steps(capsys)
    assert said[step]["outcome"] == outcome and words in said[step]["reason"]
    assert said["check"]["outcome"] == said["kernels"]["outcome"] == "unknown"
    assert not list(tmpdir_of_its_own.iterdir())


def test_too_little_room_is_reported_before_anything_is_installed(uv, old, fix, capsys, monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("doctor.apply.install.trial.shutil.disk_usage", lambda path: usage(9, 8, 1 << 20))
    run(fix("--verify", "--format", "json"))
    said = steps(capsys)
    assert said["installs"]["outcome"] == "unknown" and "GiB are free" in said["installs"]["reason"]
    assert not uv.calls("venv")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(uv, old, fix, tmpdir_of_its_own, number):
    uv.plan(install=[{"sleep": 60}])
    process = subprocess.Popen([sys.executable, "-m", "doctor", *fix("--verify")], cwd=ROOT, text=True,
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    deadline = time.monotonic() + 60
    while not (uv.folder / "in-install").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    assert list(tmpdir_of_its_own.glob("attn-doctor-verify-*"))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert not list(tmpdir_of_its_own.iterdir())


def test_a_refusal_ends_the_proof(uv, old, fix, capsys):
    uv.plan(compile=[{"code": 1, "err": "error: No solution found\n  cause: Because six==1.16.0 is not wanted.\n"}])
    assert run(fix("--verify")) == 1
    out = capsys.readouterr().out
    assert "no: resolves: Because six==1.16.0 is not wanted" in out
    assert "unknown: installs: skipped" in out and not uv.calls("venv")


def test_pins_on_stdout_stay_pins(uv, old, fix, capsys):
    run(fix("--dry-run", "--pin"))
    captured = capsys.readouterr()
    assert "six==1.16.0" in captured.out and "proof" not in captured.out and "yes: resolves" in captured.err


def test_a_package_that_has_to_be_built_is_reported_and_taken_as_installed(uv, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("doctor.apply.install.commands.nvcc", lambda: None)
    path = tmp_path / "facts.yaml"
    path.write_text(
        "facts: {python.version: '" + ".".join(map(str, sys.version_info[:3])) + "', platform.system: Linux, "
        "platform.machine: x86_64, flash-attn.version: 2.7.4.post1}\n"
    )
    rules = tmp_path / "built" / "made"
    rules.mkdir(parents=True)
    (rules / "library.yaml").write_text(
        "name: made\ntitle: made up\ndistributions: []\nimport_name: made\nreferences: [made up]\n"
    )
    (rules / "MADE001.yaml").write_text(
        "id: MADE001\nname: flash-attn-is-old\nseverity: error\nsummary: flash-attn is too old\nwhy: Made up.\n"
        "references: [made up]\nwhen: {flash-attn.version: '<2.8'}\nmessage: too old\n"
        "fix: [{require: {flash-attn: '==2.8.3'}}]\n"
    )
    nothing = {"code": 1, "only": 0, "err": "error: No solution found\n  cause: Because there is no wheel.\n"}
    uv.plan(install=[nothing])
    run(["fix", "--facts", str(path), "--rules", str(tmp_path / "built"), "--verify", "--format", "json"])
    said = steps(capsys)
    built = said["installs flash-attn"]
    assert built["outcome"] == "unknown" and "needs a source build: `nvcc` is not installed" in built["reason"]
    assert said["check"]["outcome"] == "yes" and "assumed to be installed" in said["check"]["reason"]


def test_nothing_to_install_is_said(uv, old, fix, capsys):
    for path in old.site.glob("six-*"):
        path.rename(old.site / "six-1.16.0.dist-info")
        (old.site / "six-1.16.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: six\nVersion: 1.16.0\n"
        )
    assert run(fix("--dry-run")) == 0
    assert "nothing to install" in capsys.readouterr().out
