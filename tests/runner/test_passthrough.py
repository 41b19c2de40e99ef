"""`attn-doctor run`: bytes, exit codes, signals and terminals pass unchanged."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doctor.runner import passthrough

RUN = [sys.executable, "-m", "doctor", "run", "--"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path.cwd())}


def run(*command, **options):
    return subprocess.run([*RUN, *command], capture_output=True, env=ENVIRONMENT, timeout=60, **options)


def python(code):
    return sys.executable, "-c", code


def test_bytes_of_both_streams_pass_unchanged():
    code = "import os; os.write(1, bytes(range(256)) * 3000); os.write(2, b'\\xff\\n' * 9); os.write(1, b'no newline')"
    done = run(*python(code))
    assert done.returncode == 0
    assert done.stdout == bytes(range(256)) * 3000 + b"no newline" and done.stderr == b"\xff\n" * 9


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_the_exit_code_passes(code):
    assert run(*python(f"raise SystemExit({code})")).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_signal_passes(number):
    assert run(*python(f"import os; os.kill(os.getpid(), {int(number)})")).returncode == -number


def test_a_command_that_does_not_exist():
    done = run("no-such-command-anywhere")
    assert done.returncode == 127 and b"cannot run `no-such-command-anywhere`" in done.stderr


def test_stdin_is_the_commands_own():
    assert run("cat", input=b"\0\x01 text").stdout == b"\0\x01 text"


def test_options_of_the_command_stay_its_own():
    assert run("echo", "--help", "-q", "--output", "x").stdout == b"--help -q --output x\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_forwarded(number):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('got it', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\ntime.sleep(30)"
    )
    with subprocess.Popen(
        [*RUN, *python(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as job:
        assert job.stdout is not None and job.stdout.readline() == b"ready\n"
        job.send_signal(number)
        assert job.stdout.read() == b"got it\n" and job.wait(20) == 5


def test_children_that_outlive_the_command_keep_their_output():
    child = "import os, sys, time; time.sleep(1); os.write(1, sys.argv[1].encode() + bytes([32]))"
    code = f"import subprocess, sys\nfor n in range(8): subprocess.Popen([sys.executable, '-c', {child!r}, str(n)])\n"
    start = time.monotonic()
    done = run(*python(code))
    assert sorted(done.stdout.split()) == [str(n).encode() for n in range(8)] and done.returncode == 0
    assert time.monotonic() - start < 30


def test_a_terminal_stays_a_terminal():
    reader, writer = pty.openpty()
    code = "import os, sys; print(os.isatty(1), os.isatty(2), os.isatty(0)); print('second')"
    subprocess.run([*RUN, *python(code)], stdin=writer, stdout=writer, stderr=writer, env=ENVIRONMENT, timeout=60)
    assert os.read(reader, 4096) == b"True True True\r\nsecond\r\n"
    os.close(reader)
    os.close(writer)


def test_ctrl_c_on_a_terminal_reaches_the_command_once():
    code = (
        "import signal, sys, time\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\nwhile not seen: time.sleep(0.05)\n"
        "time.sleep(1)\nprint('signals', len(seen), flush=True)\nsys.exit(5)"
    )
    child, terminal = pty.fork()  # the terminal controls the child's session: Ctrl-C goes to its foreground group
    if child == 0:
        os.execve(sys.executable, [*RUN, *python(code)], ENVIRONMENT)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal ends with its last writer
        while data := os.read(terminal, 4096):
            if b"ready" not in shown and b"ready" in shown + data:
                os.write(terminal, b"\x03")
            shown += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert b"signals 1" in shown


def test_the_start_and_the_end_of_a_long_output_are_kept(monkeypatch):
    monkeypatch.setattr(passthrough, "_HEAD", 100)
    monkeypatch.setattr(passthrough, "_TAIL", 100)
    spool = passthrough.Spool()
    lines = [f"line {number:04}\n".encode() for number in range(200)]
    for line in lines:
        spool.add(1, line)
    spool.add(2, b"no end")
    kept = b"".join(spool.blocks())
    assert spool.dropped and kept.startswith(b"".join(lines[:10])) and kept.endswith(lines[-1] + b"no end\n")
    assert len(kept) < 300


def test_options_and_variables_go_through_the_full_program(tmp_path):
    line = "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'"
    answer = tmp_path / "answer"
    command = [*RUN[:-1], "--output", str(answer), "--", *python(f"import sys; sys.exit({line!r})")]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 1 and b"cause:" not in done.stderr and "transformers 4.48 removed" in answer.read_text()
    variables = {**ENVIRONMENT, "ATTN_DOCTOR_QUIET": "1"}
    quiet = subprocess.run([*RUN, *python("raise SystemExit(3)")], capture_output=True, env=variables, timeout=60)
    assert quiet.returncode == 3 and quiet.stderr == b""


def test_a_reader_that_leaves_ends_the_command():
    code = "import sys\nfor n in range(10**7): print(n)"
    with subprocess.Popen(
        [*RUN, *python(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as job:
        assert job.stdout is not None
        job.stdout.readline()
        job.stdout.close()
        assert job.wait(30) != 0


def test_a_failure_is_explained_on_stderr():
    line = "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'"
    done = run(*python(f"import sys; sys.exit({line!r})"))
    assert done.returncode == 1 and done.stdout == b""
    assert b"transformers 4.48 removed" in done.stderr and b"pip install" in done.stderr
