"""However the doctor ends, nothing that it started is left: by request, by a closed terminal, or killed outright."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from doctor.runner import process_group
from doctor.runner.process import KernelProcess
from doctor.runner.run import make_run_folder

#: A doctor that runs a program which starts a child and hangs; its temporary files are in a folder of the test's.
HOST = """
import sys, threading
from doctor.runner.process_group import graceful_shutdown
from doctor.runner.run import run_snippet
HANGS = '''
def run(request):
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    open(request["pids"] + ".new", "w").write(f"{os.getpid()} {child.pid}")
    os.rename(request["pids"] + ".new", request["pids"])
    time.sleep(300)
'''
def ask():
    try:
        run_snippet(sys.executable, HANGS, {"pids": sys.argv[1]}, timeout=200)
    except KeyboardInterrupt:
        pass
    through.set()
through = threading.Event()
with graceful_shutdown():
    if sys.argv[2] == "thread":
        threading.Thread(target=ask, daemon=True).start()
        try:
            through.wait()
        except KeyboardInterrupt:
            through.wait(20)
    else:
        ask()
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = pathlib.Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def host(tmp_path):
    """Starts a doctor that waits for a hanging program: (the doctor, the pids that depend on it)."""

    def start(where, **more):
        pids = tmp_path / "pids"
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen([sys.executable, "-c", HOST, str(pids), where], env=environment, **more)
        deadline = time.monotonic() + 60
        while not pids.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        return process, [int(pid) for pid in pids.read_text().split()]

    return start


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_outlives_the_doctor(host, tmp_path, number, where):
    if number == signal.SIGKILL and not hasattr(__import__("fcntl"), "F_SETSIG"):
        pytest.skip("this system has no signal for a pipe that closes")
    process, pids = host(where)
    process.send_signal(number)
    process.wait(30)
    deadline = time.monotonic() + 20
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, "something was left running"
        time.sleep(0.02)
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob("attn-doctor-*")), "what is temporary is removed"


QUERY = """
import sys
from doctor.sources.probes.interpreter import InterpreterQuery
query = InterpreterQuery(sys.argv[1])
print("started", flush=True)
query.answer(60.0)
"""


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGKILL])
def test_an_interpreter_that_is_queried_does_not_outlive_the_doctor(tmp_path, number):
    pids = tmp_path / "pids"
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\ntrap '' TERM\nsleep 300 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait\n")
    slow.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-c", QUERY, str(slow)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"started\n"
    process.stdout.close()
    deadline = time.monotonic() + 60
    while not pids.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    process.wait(30)
    while not all(gone(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "something was left running"
        time.sleep(0.02)


def test_what_is_ignored_stays_ignored(host):
    """`nohup attn-doctor …`: the terminal closes, the work goes on."""
    process, pids = host("main", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None and not any(map(gone, pids))
    process.kill()
    process.wait(30)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(KeyboardInterrupt), process_group.graceful_shutdown(), process_group.graceful_shutdown():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert not process_group.end_requested()


def test_a_signal_waits_until_a_child_is_bound(monkeypatch):
    real, started = subprocess.Popen, []

    def interrupted(*arguments, **options):
        child = real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)  # the handler runs before the next line
        started.append(child)
        return child

    monkeypatch.setattr("doctor.runner.process_group.subprocess.Popen", interrupted)
    pipe = process_group.ParentDeathPipe()
    with pytest.raises(KeyboardInterrupt), process_group.graceful_shutdown():
        pipe.start([sys.executable, "-c", "import time; time.sleep(60)"])
    pipe.close()
    (child,) = started
    assert child.wait(30) == -signal.SIGKILL  # closing the pipe ends its group


def test_no_descriptors_are_left_behind():
    """A sweep starts thousands of processes."""
    folder = make_run_folder({"program": "import sys; sys.exit(3)"})
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    for python in (sys.executable, "no-such-interpreter"):
        answers, _ = KernelProcess(python, "program", folder, [{}], None).collect(30)
        assert answers[0].outcome in ("crashed", "unavailable")
    process_group.reap_killed()
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before


def test_what_cannot_be_killed_does_not_hold_the_host(tmp_path, monkeypatch):
    """A process in the driver's hands takes no signal: it is said, and left."""
    monkeypatch.setattr(process_group, "LAST_WAIT", 0.2)
    monkeypatch.setattr(process_group.os, "killpg", lambda group, number: None)  # as if the system did not
    folder = make_run_folder({"program": "import time; time.sleep(300)"})
    process = KernelProcess(sys.executable, "program", folder, [{}], None)
    began = time.monotonic()
    pipe, process.death_pipe = process.death_pipe, process_group.ParentDeathPipe()
    (answer,), _ = process.collect(0.5)
    assert answer.outcome == "timeout" and "cannot be killed" in answer.reason and time.monotonic() - began < 20
    process_group.reap_killed()
    pipe.close()  # and now it goes
    assert process.process is not None and process.process.wait(30) == -signal.SIGKILL
