"""Programs that fail, hang, flood or leave children: each is a result, and nothing of it stays."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from doctor.runner import command as child
from doctor.runner.command import run_child


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def alive(pid: int) -> bool:
    """Whether it is still at work some seconds later: a busy machine takes its time to end what was killed."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.05)
    return True


def test_what_it_says_and_how_it_ends():
    ran = run_child(python("import sys; print('out'); print('error: no', file=sys.stderr); sys.exit(3)"), timeout=30)
    assert (ran.code, ran.out, ran.good, ran.trouble) == (3, "out\n", False, None)
    assert ran.end == "ended with status 3: error: no"


def test_death_of_a_signal():
    ran = run_child(python("import os; os.kill(os.getpid(), 9)"), timeout=30)
    assert not ran.good and "SIGKILL" in ran.end


def test_what_cannot_be_started(tmp_path):
    ran = run_child([str(tmp_path / "none")], timeout=5)
    assert ran.code is None and ran.trouble == "cannot be started: no such file or directory"


def test_a_hang_ends_with_all_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "GRACE", 1.0)
    source = f"""
import pathlib, signal, subprocess, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "60"])
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
time.sleep(60)
"""
    began = time.monotonic()
    ran = run_child(python(source), timeout=1.0)
    assert ran.trouble == "gave no answer within 1 s" and ran.code is None
    assert time.monotonic() - began < 1 + child.GRACE + 5
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_child_left_behind_by_a_clean_exit_is_ended(tmp_path):
    source = f"""
import pathlib, subprocess
child = subprocess.Popen(["sleep", "60"])
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
"""
    began = time.monotonic()
    assert run_child(python(source), timeout=30).good
    assert time.monotonic() - began < 20
    time.sleep(0.1)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_late_one_may_put_things_back(tmp_path):
    source = f"""
import pathlib, time
try:
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path({str(tmp_path / "restored")!r}).write_text("yes")
"""
    run_child(python(source), timeout=1.5)
    assert (tmp_path / "restored").exists()


def test_a_flood_is_stopped(monkeypatch):
    monkeypatch.setattr(child, "FLOOD", 1 << 20)
    source = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    ran = run_child(python(source), timeout=60)
    assert ran.trouble is not None and "printed more than" in ran.trouble and len(ran.out) <= child.TAIL


def test_it_is_not_led_astray(monkeypatch):
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://kept.invalid/simple")
    ran = run_child(python("import os; print(sorted(k for k in os.environ if k.startswith(('PIP_', 'PYTHONPATH'))))"),
                    timeout=30)  # fmt: skip
    assert "PIP_TARGET" not in ran.out and "PYTHONPATH" not in ran.out and "PIP_INDEX_URL" in ran.out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="bytes that are not text come from anywhere")
def test_bytes_that_are_no_text():
    ran = run_child(python("import os; os.write(1, bytes([255, 254]) + b'x')"), timeout=30)
    assert ran.good and ran.out.endswith("x")
