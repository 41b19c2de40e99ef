"""An analysis ends with its limit or with Ctrl-C, keeps what is finished, and reads only what the job reaches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.drift.findings import DriftReport
from doctor.drift.pipeline import Analysis, DriftRequest, analyze
from tests.helpers.rulebook import builtin_stack

#: The program of the analyzer, in which the analysis of one package takes a minute; it leaves its process id.
SLOW = """
import os, pathlib, time
import doctor.drift.worker as worker
real = worker.analyze_guarded
def slow(environment, caller, *rest):
    if caller.name == {name!r}:
        pathlib.Path({pids!r}).open("a").write(f"{{os.getpid()}}\\n")
        time.sleep(60)
    return real(environment, caller, *rest)
worker.analyze_guarded = slow
worker.main()
"""
FILES = {"flash_attn/__init__.py": "def run(q): return q\n"}


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """Make the analysis of one package slow; the result is the file with the ids of its processes."""

    def make(name: str) -> Path:
        pids = tmp_path / "pids"
        program = SLOW.format(name=name, pids=str(pids))
        monkeypatch.setattr("doctor.drift.processes.own_command", lambda module: [sys.executable, "-c", program])
        return pids

    return make


@pytest.fixture
def three(site):
    """Install accelerate and peft, which call flash-attn."""
    site.install("flash-attn", "2.6.3", FILES)
    for name in ("accelerate", "peft"):
        site.install(name, "1.0", {f"{name}/__init__.py": "from flash_attn import run, gone\n"})
    return site.root


def names(releases) -> list[str]:
    return sorted(item.name for item in releases)


def test_the_limit_ends_a_slow_package_and_the_others_are_kept(three, slow, tmp_path, monkeypatch):
    pids = slow("peft")
    request = DriftRequest((three,), builtin_stack(), cache=tmp_path / "cache", limit=8.0, jobs=2)
    steps: list[str] = []
    began = time.monotonic()
    first = analyze(request, steps.append)
    assert 7.5 < time.monotonic() - began < 12
    assert names(first.coverage.late) == ["peft"] and "accelerate" in names(first.coverage.analyzed)
    assert [item.caller.name for item in first.findings] == ["accelerate"]
    assert any("peft 1.0" in text for text in steps), "the progress names the package"
    (process,) = pids.read_text().split()
    assert not Path(f"/proc/{process}").exists(), "its process is gone"

    monkeypatch.undo()
    steps.clear()
    second = analyze(DriftRequest((three,), builtin_stack(), cache=tmp_path / "cache"), steps.append)
    assert names(second.coverage.late) == [] and len(second.findings) == 2
    assert steps and not any("accelerate" in text for text in steps), "it goes on where the first one stopped"


def test_a_package_that_took_the_whole_limit_is_not_tried_again_within_it(three, slow, tmp_path):
    pids = slow("peft")
    (tmp_path / "cache").mkdir()
    for name in ("accelerate", "flash-attn"):
        analyze(DriftRequest((three,), builtin_stack(), cache=tmp_path / "cache", callers=(name,)))
    request = DriftRequest((three,), builtin_stack(), cache=tmp_path / "cache", limit=4.0)
    assert names(analyze(request).coverage.late) == ["peft"]
    began = time.monotonic()
    assert names(analyze(request).coverage.late) == ["peft"]
    assert time.monotonic() - began < 2
    assert len(pids.read_text().split()) == 1
    for limit in (0.0, 5.0):
        assert names(item.release for item in Analysis(request_with(request, limit)).missing) == ["peft"]


def request_with(request: DriftRequest, limit: float) -> DriftRequest:
    return DriftRequest(request.site_packages, request.stack, cache=request.cache, limit=limit)


@pytest.mark.parametrize("cached", [False, True], ids=["first", "later"])
def test_only_what_the_job_reaches_is_analyzed(site, tmp_path, cached):
    """trl calls accelerate, accelerate calls flash-attn; nothing of the job calls vllm, which calls all of them."""
    site.install("flash-attn", "2.6.3", FILES)
    site.install(
        "accelerate", "1.0", {"accelerate/__init__.py": "", "accelerate/use.py": "from flash_attn import gone\n"}
    )
    site.install("trl", "1.0", {"trl/__init__.py": "def f():\n    import accelerate\n"})
    site.install("vllm", "1.0", {"vllm/__init__.py": "import trl, accelerate\nfrom flash_attn import gone\n"})
    if cached:
        analyze(DriftRequest((site.root,), builtin_stack(), cache=tmp_path / "cache"))
    report: DriftReport = analyze(DriftRequest((site.root,), builtin_stack(), cache=tmp_path / "cache", roots=("trl",)))
    assert names(report.coverage.analyzed) == ["accelerate", "flash-attn", "trl"]
    assert names(report.coverage.unused) == ["vllm"]
    assert {item.caller.name for item in report.findings} == {"accelerate"}


def test_own_code_is_a_root(site, tmp_path):
    site.install("flash-attn", "2.6.3", FILES)
    site.install("peft", "1.0", {"peft/__init__.py": "import flash_attn\n"})
    site.install("trl", "1.0", {"trl/__init__.py": ""})
    site.install("vllm", "1.0", {"vllm/__init__.py": "import trl\n"})
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import peft\n")
    report = analyze(DriftRequest((site.root,), builtin_stack(), code=(code,), roots=("trl",)))
    assert names(report.coverage.analyzed) == sorted([str(code), "flash-attn", "peft", "trl"])


#: The command line of `check` on a tree, with the slow analyzer.
CHECK = """
import sys
import doctor.drift.processes as processes
processes.own_command = lambda module: [sys.executable, "-c", {program!r}]
from doctor.cli.main import main
main(["check", "--no-run", "--site-packages", {root!r}, "--drift-limit", "0"])
"""


def test_ctrl_c_ends_check_within_a_second(three, tmp_path):
    """The signal of a terminal goes to the group of the program; its processes are in groups of their own."""
    pids = tmp_path / "pids"
    program = CHECK.format(program=SLOW.format(name="peft", pids=str(pids)), root=str(three))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    taken = []
    for _ in range(3):  # a busy machine may be late once
        pids.unlink(missing_ok=True)
        started = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + 120
        while not (pids.exists() and pids.read_text().endswith("\n")) and time.monotonic() < until:
            time.sleep(0.05)
        began = time.monotonic()
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=60)
        taken.append(time.monotonic() - began)
        assert started.returncode == 130 and err == "error: interrupted\n"
        assert out.startswith(("OK", "INCOMPLETE", "FAIL", "WARN")), "the verdict was printed before"
        assert not Path(f"/proc/{pids.read_text().split()[0]}").exists(), "its process is gone"
        if taken[-1] < 1:
            break
    assert min(taken) < 1, taken
