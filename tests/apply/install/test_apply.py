"""`fix --apply` and `--rollback` with an installer that works, refuses, fails, hangs, or is interrupted."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.cli.main import run

ROOT = Path(__file__).resolve().parents[3]
AFTER = {"six": "1.16.0", "iniconfig": "2.0.0", "attrs": "23.1.0"}
BEFORE = {"six": "1.15.0", "iniconfig": "1.1.1", "attrs": "23.1.0"}


def proof(capsys) -> dict[str, object]:
    found = json.loads(capsys.readouterr().out)["proof"]
    found["by_name"] = {step["name"]: step for step in found["steps"]}
    return found


def test_it_changes_what_the_plan_says_and_takes_it_back(uv, old, fix, capsys):
    assert run(fix("--apply", "--yes", "--format", "json")) == 0
    said = proof(capsys)
    assert said["kind"] == "apply" and old.versions == AFTER
    assert {step["name"]: step["outcome"] for step in said["steps"]} == {
        "resolves": "yes", "installs": "yes", "check": "yes", "kernels": "unknown",
    }  # fmt: skip
    assert "errors before: SM001; now: none" in said["by_name"]["check"]["reason"]
    (freeze,) = old.freezes
    assert freeze["state"] == "done" and freeze["changed"] == ["iniconfig", "six"]
    assert {name: item["version"] for name, item in freeze["packages"].items()} == BEFORE
    assert run(fix("--rollback", "--yes", "--format", "json")) == 0
    said = proof(capsys)
    assert said["kind"] == "rollback" and said["by_name"]["state"]["outcome"] == "yes"
    assert old.versions == BEFORE and old.freezes[0]["state"] == "taken back"
    words = uv.calls("install")[-1]
    assert "--no-deps" in words and words[-2:] == ["iniconfig==1.1.1", "six==1.15.0"]
    assert run(fix("--rollback", "--yes")) == 2
    assert "no applied fix to undo" in capsys.readouterr().err


def test_the_plan_is_shown_before_anything_is_done(uv, old, fix, capsys):
    run(fix("--apply", "--yes"))
    err = capsys.readouterr().err
    for text in ("six 1.15.0 → 1.16.0", "iniconfig 1.1.1 → 2.0.0", "uv pip install --python", "--rollback"):
        assert text in err


def test_what_a_change_adds_is_removed_again(uv, old, fix):
    uv.plan(compile=[{"resolved": "six==1.16.0\niniconfig==2.0.0\nattrs==23.1.0\n"}])
    run(fix("--apply", "--yes"))
    old.put("newcomer", "1.0")
    path = next((old.folder / ".attn-doctor").glob("*.json"))
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "changed": ["iniconfig", "newcomer", "six"]}))
    assert run(fix("--rollback", "--yes")) == 0
    assert old.versions == BEFORE and uv.calls("uninstall")[0][-1] == "newcomer"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "goes_ahead"), [("y\n", True), ("yes\n", True), ("n\n", False), ("", False)])
def test_it_checks(uv, old, fix, monkeypatch, capsys, answer, goes_ahead):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code = run(fix("--apply", "--format", "json"))
    said = proof(capsys)
    assert (old.versions == AFTER) is goes_ahead and code == (0 if goes_ahead else 1)
    assert ("applied" not in said["by_name"]) is goes_ahead
    assert bool(old.freezes) is goes_ahead  # nothing touched, nothing written


def test_without_a_terminal_it_needs_yes(uv, old, fix, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(fix("--apply")) == 2
    assert "--yes" in capsys.readouterr().err and old.versions == BEFORE and not uv.calls("install")


def test_a_refused_fix_is_not_applied(uv, old, fix, capsys):
    uv.plan(compile=[{"code": 1, "err": "error: No solution found\n  cause: Because six==1.16.0 is not wanted.\n"}])
    assert run(fix("--apply", "--yes", "--format", "json")) == 1
    said = proof(capsys)
    assert said["by_name"]["resolves"]["outcome"] == "no" and old.versions == BEFORE and not uv.calls("install")
    assert "six==1.16.0 is not wanted" in said["by_name"]["resolves"]["reason"]


def test_an_installation_that_fails_midway_says_where_it_is(uv, old, fix, capsys):
    uv.plan(install=[{"only": 1, "code": 2, "err": "error: disk is odd\n"}, {}])
    assert run(fix("--apply", "--yes", "--format", "json")) == 1
    said = proof(capsys)
    assert said["by_name"]["installs"]["outcome"] == "no"
    reason = said["by_name"]["state"]["reason"]
    assert "changed so far: iniconfig 1.1.1 → 2.0.0; undo with `attn-doctor fix --rollback --python " in reason
    assert old.freezes[0]["state"] == "failed" and old.freezes[0]["changed"] == ["iniconfig"]
    assert run(fix("--rollback", "--yes")) == 0 and old.versions == BEFORE


def test_a_lost_network_is_reported_and_nothing_is_claimed(uv, old, fix, capsys):
    lost = {"code": 2, "only": 0, "err": "error: Failed to fetch: x\n  cause: dns error\n"}
    uv.plan(compile=[lost], install=[lost])
    assert run(fix("--apply", "--yes", "--format", "json")) == 1
    said = proof(capsys)
    assert said["by_name"]["resolves"]["outcome"] == "unknown" and said["by_name"]["installs"]["outcome"] == "unknown"
    assert said["by_name"]["state"] | {"seconds": 0} == {
        "name": "state", "outcome": "unknown", "reason": "no package has changed", "command": None, "seconds": 0,
    } and old.versions == BEFORE  # fmt: skip
    assert said["freeze"] is None and run(fix("--rollback", "--yes")) == 2, "there is nothing to take back"


def test_a_hang_ends(uv, old, fix, capsys):
    uv.plan(install=[{"only": 1, "sleep": 60, "spawn": True}])
    began = time.monotonic()
    assert run(fix("--apply", "--yes", "--proof-timeout", "1", "--format", "json")) == 1
    assert time.monotonic() - began < 40
    assert "gave no answer within 1 s" in proof(capsys)["by_name"]["installs"]["reason"]
    child = int((uv.folder / "child").read_text())
    time.sleep(0.2)
    assert not Path(f"/proc/{child}").exists() or ") Z" in Path(f"/proc/{child}/stat").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_the_freeze_and_says_how_to_go_back(uv, old, fix, number):
    uv.plan(install=[{"only": 1, "sleep": 60}, {}])
    command = [sys.executable, "-m", "doctor", *fix("--apply", "--yes")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (uv.folder / "in-install").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert "changed so far: iniconfig 1.1.1 → 2.0.0" in err and "--rollback" in err
    assert old.freezes[0]["state"] == "begun" and old.freezes[0]["changed"] is None
    installer = int((uv.folder / "in-install").read_text())
    assert not Path(f"/proc/{installer}").exists()
    assert run(fix("--rollback", "--yes")) == 0 and old.versions == BEFORE


def test_a_killed_doctor_leaves_the_freeze_too(uv, old, fix):
    uv.plan(install=[{"only": 1, "sleep": 5}, {}])
    process = subprocess.Popen([sys.executable, "-m", "doctor", *fix("--apply", "--yes")], cwd=ROOT,
                               stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    while not (uv.folder / "in-install").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=30)
    assert old.freezes[0]["state"] == "begun"
    os.kill(int((uv.folder / "in-install").read_text()), signal.SIGKILL)
    assert run(fix("--rollback", "--yes")) == 0 and old.versions == BEFORE


def test_what_the_system_manages_stays_alone(uv, old, fix, monkeypatch, capsys):
    from doctor.apply.install import location as place

    real = place.place_of
    monkeypatch.setattr(place, "place_of", lambda python: replace(real(python), managed=True))
    assert run(fix("--apply", "--yes")) == 2
    captured = capsys.readouterr().err
    assert "managed by the system" in captured and "--break-system-packages" in captured and old.versions == BEFORE
    assert run(fix("--apply", "--yes", "--break-system-packages")) == 0
    assert "--break-system-packages" in uv.calls("install")[0] and old.versions == AFTER


def test_the_mark_of_a_managed_python_is_found(tmp_path, old):
    """A copy of an interpreter that says it is no environment, with the mark next to its library."""
    from doctor.apply.install.location import place_of

    stdlib = tmp_path / "lib"
    stdlib.mkdir()
    answer = json.dumps(["attn-doctor", str(tmp_path), str(tmp_path), str(stdlib), str(tmp_path)])
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho noise\necho '{answer}'\n")
    fake.chmod(0o755)
    assert not place_of(str(fake)).managed
    (stdlib / "EXTERNALLY-MANAGED").write_text("[externally-managed]\n")
    assert place_of(str(fake)).managed
    assert not place_of(old.python).managed


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--apply", "--yes", "--set", "torch.version=2.6.0"), "describes another environment"),
        (("--rollback", "--dry-run"), "exclude each other"),
        (("--apply", "--yes", "--dry-run"), "`--apply` and `--dry-run` exclude each other"),
        (("--apply", "--verify", "--dry-run"), "exclude each other"),
        (("--rollback", "--pin"), "`--rollback` and `--pin` exclude each other"),
        (("--rollback", "--write"), "`--rollback` and `--write` exclude each other"),
        (("--rollback", "--hold", "six"), "exclude each other"),
        (("--yes",), "goes with"),
        (("--installer", "uv"), "goes with"),
        (("--break-system-packages",), "goes with"),
    ],
)
def test_contradictions_are_reported_in_one_line(uv, old, fix, capsys, more, words):
    assert run(fix(*more)) == 2
    assert words in capsys.readouterr().err and old.versions == BEFORE


def test_no_file_is_edited_to_what_a_resolver_refuses(uv, old, fix, tmp_path, capsys):
    path = tmp_path / "requirements.txt"
    path.write_text("six==1.15.0\n")
    uv.plan(compile=[{"code": 1, "err": "× No solution found when resolving dependencies:\n ╰─▶ Because of it."}])
    assert run(fix("--dry-run", "--write", str(path))) == 1
    captured = capsys.readouterr()
    assert path.read_text() == "six==1.15.0\n" and "no: resolves: Because of it" in captured.out
    assert "# no file is edited: the fix did not pass verification\n" in captured.out
    uv.plan()
    assert run(fix("--dry-run", "--write", str(path))) == 1 and "six==1.16.0" in path.read_text()


def test_facts_from_a_file_cannot_be_changed(uv, tmp_path, capsys):
    path = tmp_path / "facts.yaml"
    path.write_text("facts: {torch.version: 2.6.0}\n")
    assert run(["fix", "--facts", str(path), "--apply", "--yes"]) == 2
    assert "needs an interpreter" in capsys.readouterr().err


def test_the_plan_is_what_the_installer_says_it_would_do(uv, old, fix, capsys):
    """Dependencies that come along are reported before; what only a resolver had to consider is not."""
    said = "Would uninstall 1 package\n - six==1.15.0\n + six==1.16.0\n + iniconfig==2.0.0\n + Some.Dependency==3.1\n"
    uv.plan(foresee=[{"err": said}], compile=[{"resolved": "six==1.16.0\niniconfig==2.0.0\nattrs==99.0\nother==1\n"}])
    assert run(fix("--apply", "--yes")) == 0
    err = capsys.readouterr().err
    assert "some-dependency nothing → 3.1" in err and "six 1.15.0 → 1.16.0" in err and "other" not in err
    words = uv.calls("foresee")[0]
    assert "--dry-run" in words and "six==1.16.0" in words


def test_the_installers_forecast_is_read():
    from doctor.apply.install.apply import would_install

    assert would_install("Resolved 3\n - six==1.15.0\n + six==1.16.0\n ~ local==1\n") == {"six": "1.16.0"}
    assert would_install("noise\nWould install huggingface-hub-0.30.1 torch-2.6.0+cu126\n") == {
        "huggingface-hub": "0.30.1", "torch": "2.6.0+cu126",
    }  # fmt: skip
    assert would_install("Would make no changes") == {}


def test_what_is_held_is_a_constraint_and_no_order_to_install_it():
    from doctor.apply.install.apply import plan_of
    from doctor.apply.install.dry_run import Resolution
    from doctor.apply.install.state import Kept
    from doctor.model import Facts, InstallPlan, PinnedRequirement, Report

    report = Report("t", {}, Facts(), (), (), (), (), {})
    held = (
        PinnedRequirement("torch", "2.4.0", "installed", True),
        PinnedRequirement("xtuner", "0.2.0", "installed", True),
    )
    pins = InstallPlan(changed=(PinnedRequirement("transformers", "4.48.0", "why"),), held=held, built=(
        PinnedRequirement("flash-attn", "2.6.3", "installed", True),))  # fmt: skip
    before = {name: Kept(version) for name, version in
              {"torch": "2.4.0", "xtuner": "0.2.0", "transformers": "4.44.2", "tokenizers": "0.19.1",
               "mine": "1.0", "flash-attn": "2.6.3"}.items()}  # fmt: skip
    before["mine"] = Kept("1.0", "file:///src/mine", True)
    resolved = {"transformers": "4.48.0", "tokenizers": "0.21.4", "torch": "2.4.0", "xtuner": "0.2.0", "mine": "2.0",
                "bitsandbytes": "0.45.0", "nvidia-cudnn-cu12": "9.1.0.70"}  # fmt: skip
    plan = plan_of(report, pins, Resolution(True, "", versions=resolved), before)
    assert plan.requirements == ("transformers==4.48.0", "tokenizers==0.21.4")
    assert {"torch==2.4.0", "xtuner==0.2.0"} <= set(plan.constraints)
    assert not any(line.startswith(("mine", "nvidia-")) for line in plan.constraints)
    assert plan.built == ()  # torch stays: what was built against it does too
    moved = plan_of(report, pins._replace(moves_torch=True), Resolution(True, "", versions=resolved), before)
    assert [line.package for line in moved.built] == ["flash-attn"]
    assert "flash-attn 2.6.3, rebuilt" in moved.changes


def test_another_build_of_the_same_torch_is_installed(uv, old, fix, capsys):
    """TORCH030 changes nothing but the build: it has a plan, an index, and a release that the check then sees."""
    old.put("torch", "2.13.0+cpu")
    (old.site / "torch").mkdir()
    (old.site / "torch" / "__init__.py").touch()
    (old.site / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda = None\n")
    run(fix("--apply", "--yes", "--gpu", "h100", "--format", "json"))
    report = json.loads(capsys.readouterr().out)
    assert "TORCH030" in [item["id"] for item in report["findings"]]
    assert old.versions["torch"].startswith("2.13.0+cu")
    words = next(words for words in uv.calls("install") if any(word.startswith("torch==") for word in words))
    label = old.versions["torch"].partition("+")[2]
    assert f"https://download.pytorch.org/whl/{label}" in words
    steps = {step["name"]: step for step in report["proof"]["steps"]}
    assert steps["installs"]["outcome"] == "yes" and "TORCH030" in steps["check"]["reason"]
