"""A sweep that is ended from outside, at any time and by any means, goes on as if it never had been."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.helpers.paths import HELPERS, KERNELS

CASES = 60
HOST = """
import pathlib, sys
from doctor.runner import run
from doctor.stress import worker
run.kernels_dir = lambda: pathlib.Path(sys.argv[1])
worker.PAUSE = 0.01
from doctor.cli.main import main
main(["stress", "--python", sys.executable, *sys.argv[2:]])
"""


class Sweep:
    """`attn-doctor stress` in a process of its own, over a made-up program that needs no torch."""

    def __init__(self, folder):
        self.folder, self.asked_file = folder, folder / "asked"
        self.programs = folder / "kernels"
        (self.programs / "programs").mkdir(parents=True)
        for name in ("__main__.py", "protocol.py"):
            shutil.copy(KERNELS / name, self.programs)
        shutil.copy(HELPERS / "made_up_sweep.py", self.programs / "programs" / "sweep.py")

    def start(self, *options, conduct="", journal="journal", **more):
        named = ["--journal", str(self.folder / journal)] if journal else []
        command = [sys.executable, "-c", HOST, str(self.programs), "--cases", str(CASES), *named, *options]
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "ASKED": str(self.asked_file), "MADE_UP": conduct, "TMPDIR": str(temporary),
                       **more}  # fmt: skip
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *options, **more):
        """(exit code, what was said, the report or None)."""
        process = self.start(*options, "--format", "json", **more)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err and "this is a fault of attn-doctor" not in err, err
        return process.returncode, err, json.loads(out) if out else None

    @property
    def asked(self):
        return self.asked_file.read_text().splitlines() if self.asked_file.exists() else []

    def wait_for(self, count):
        deadline = time.monotonic() + 60
        while len(self.asked) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def running(self):
        """Pids of the programs whose folder is ours."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cwd"):
            try:
                place = str(entry.readlink())
                state = (entry.parent / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if place.startswith(str(self.folder / "temporary")) and state != "Z":
                found.append(entry.parent.name)
        return found


@pytest.fixture
def sweep(tmp_path):
    return Sweep(tmp_path)


def adds_up(told):
    became, cases = told["cases"]["became"], told["cases"]
    per_backend = Counter()
    for counts in told["backends"].values():
        per_backend.update(counts)
    assert sum(became.values()) == cases["planned"] * cases["devices"]
    assert cases["answered"] == sum(count for name, count in became.items() if name != "not reached")
    assert +per_backend == Counter(became)
    return became


SLOW = "sdpa.default=slow,sdpa.flash=slow,sdpa.math=slow"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_answers_are_kept_and_nothing_is_checked_twice(sweep, number):
    process = sweep.start(conduct=SLOW)
    sweep.wait_for(12)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while sweep.running:
        assert time.monotonic() < deadline, "a program was left running"
        time.sleep(0.02)
    before = len(sweep.asked)
    if number != signal.SIGKILL:
        assert process.returncode == 130 and "the same command continues from there" in err
        assert not list((sweep.folder / "temporary").glob("attn-doctor-*"))
    code, _, told = sweep()
    planned = told["cases"]["planned"]
    assert code == 0 and told["complete"] and adds_up(told) == {"right": planned}
    unread = 4 if number == signal.SIGKILL else 1  # results that the killed host had not read yet
    assert before - unread <= told["cases"]["resumed"] <= before and before < planned
    twice = [case for case, count in Counter(sweep.asked).items() if count > 1]
    assert len(sweep.asked) <= planned + unread and len(twice) <= unread, "except those under way"
    sweep.asked_file.unlink()
    _, _, whole = sweep(journal="another")
    assert whole["cases"]["became"] == told["cases"]["became"] and whole["backends"] == told["backends"]


@pytest.mark.slow
def test_a_backend_that_was_left_out_stays_so(sweep):
    """It had its three processes before the sweep was stopped."""
    conduct = "sdpa.flash=exit,sdpa.math=slow,sdpa.default=slow"
    code, _, whole = sweep("--shrink", "0.1", conduct=conduct, journal="whole")
    assert code == 1 and adds_up(whole)["crashed"] == 3 and whole["backends"]["sdpa.flash"]["not reached"] > 0
    sweep.asked_file.unlink()
    process = sweep.start(conduct=conduct)
    sweep.wait_for(15)
    process.kill()
    process.communicate(timeout=30)
    _, _, told = sweep("--shrink", "0.1", conduct=conduct)
    assert told["cases"]["resumed"] > 5 and told["cases"]["became"] == whole["cases"]["became"]


def test_a_budget_ends_it_in_time_even_in_a_case_that_hangs(sweep):
    began = time.monotonic()
    code, _, told = sweep("--budget", "2", "--backend", "sdpa.math", "--backend", "sdpa.flash",
                          conduct="sdpa.flash=hang")  # fmt: skip
    assert time.monotonic() - began < 12
    assert code in (0, 3) and (told is None or adds_up(told)["not reached"] > 0)


def test_no_answer_is_no_diagnosis(sweep):
    code, err, told = sweep("--budget", "0.5", conduct="sdpa.default=hang")
    assert code == 3 and told is None and "no case completed within the budget" in err


def test_all_refused_is_no_good_news(sweep):
    code, err, told = sweep("--backend", "sdpa.math", conduct="sdpa.math=refused")
    assert code == 3 and told is None and "no case could be judged" in err and "not here" in err


def test_every_outcome_is_counted(sweep):
    code, _, told = sweep("--shrink", "0.1", conduct="sdpa.default=failed,sdpa.flash=no-memory")
    became = adds_up(told)
    assert code == 1 and set(became) == {"right", "failed", "no memory"} and told["complete"]
    assert [item["kinds"] for item in told["failures"]] == [["failed:RuntimeError"]]


def test_an_interpreter_that_is_taken_away_is_said_and_blamed_on_no_case(sweep):
    """Its first process ends after some cases; no other one starts."""
    code, _, told = sweep("--shrink", "0.1", conduct="sdpa.flash=exit,start=fails-later")
    assert code == 1 and told["vanished"] and "taken away" in told["vanished"][0]["said"]
    became = adds_up(told)
    assert became["not reached"] > 0 and became["crashed"] == 1 and not told["complete"]
    (sweep.folder / "asked").rename(sweep.folder / "asked.before")
    _, _, again = sweep("--shrink", "0.1")
    assert again["complete"] and "not reached" not in adds_up(again), "and the next one asks what was not reached"


def test_more_time_or_memory_is_a_reason_to_check_again(sweep):
    sweep("--timeout", "1", "--memory", "1", "--shrink", "0.1", "--budget", "30",
          conduct="sdpa.default=no-memory,sdpa.flash=hang")  # fmt: skip
    text = (sweep.folder / "journal").read_text()
    (sweep.folder / "journal").write_text(text.replace('{"done": true}\n', ""))
    lines = [json.loads(line) for line in text.splitlines()]
    healthy = sum("answer" in line and line["answer"]["outcome"] == "ran" for line in lines)
    _, _, told = sweep("--timeout", "1", "--memory", "1", "--shrink", "0.1", conduct="sdpa.default=no-memory")
    assert told["cases"]["resumed"] > healthy, "the same limits: the same answers"
    (sweep.folder / "journal").write_text(text.replace('{"done": true}\n', ""))
    _, _, told = sweep("--timeout", "9", "--memory", "2")
    assert told["cases"]["resumed"] == healthy and adds_up(told) == {"right": told["cases"]["planned"]}


@pytest.mark.slow
def test_two_sweeps_do_not_share_a_journal(sweep):
    first = sweep.start(conduct=SLOW)
    sweep.wait_for(5)
    code, err, told = sweep()
    assert code == 2 and told is None and "another sweep is writing" in err
    code, _, told = sweep(journal=None, XDG_CACHE_HOME=str(sweep.folder / "cache"))
    assert code == 0 and not told["notes"]
    out, _ = first.communicate(timeout=60)
    assert first.returncode == 0 and "nothing wrong" in out


def test_the_journal_that_no_one_requested_is_no_condition(sweep):
    file = sweep.folder / "file"
    file.write_text("")
    code, _, told = sweep(journal=None, XDG_CACHE_HOME=str(file / "below"))
    assert code == 0 and any("cannot write the journal" in note for note in told["notes"])
    code, err, _ = sweep(journal="file/below")
    assert code == 2 and "cannot write the journal" in err, "the one that was named is"


def test_a_disk_that_is_full_costs_the_journal_alone(sweep):
    code, err, _ = sweep(journal="/dev/full")
    assert code == 2 and "is not a file" in err
    _, _, told = sweep("--cases", "6")
    size = (sweep.folder / "journal").stat().st_size
    # A limit on the size of files is the disk that is full, for a test that may not mount one.
    full = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    full += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size * 3 // 4}, {size * 3 // 4}))\n"
    done = subprocess.run(
        [sys.executable, "-c", full + HOST, str(sweep.programs), "--journal", str(sweep.folder / "other"), "--format",
         "json", "--cases", "6"],
        env={**os.environ, "ASKED": os.devnull}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    limited = json.loads(done.stdout)
    assert limited["complete"] and limited["cases"]["became"] == told["cases"]["became"]
    assert any("cannot write the journal" in note for note in limited["notes"])


def test_no_room_for_temporary_files_is_one_clear_line(sweep, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import tempfile\ntempfile._candidate_tempdir_list = lambda: []\n")
    code, err, _ = sweep(PYTHONPATH=str(tmp_path))
    assert code == 3 and "temporary" in err
