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

from doctor.runner import spool as spool_module
from doctor.runner.spool import Spool

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


def test_other_descriptors_are_inherited():
    read_end, write_end = os.pipe()
    try:
        done = run(*python(f"import os; os.write({write_end}, b'through')"), pass_fds=[write_end])
        assert done.returncode == 0 and os.read(read_end, 99) == b"through"
    finally:
        os.close(read_end)
        os.close(write_end)


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
    monkeypatch.setattr(spool_module, "HEAD", 100)
    monkeypatch.setattr(spool_module, "TAIL", 100)
    spool = Spool()
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


FAILURE = "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'"


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_is_the_commands_own_and_is_read_after_a_failure(tmp_path, mode):
    log = tmp_path / "train.log"
    log.write_text("older text\n")
    code = f"import os, stat; assert stat.S_ISREG(os.fstat(1).st_mode); print('step 1'); print({FAILURE!r})"
    failing = f"{code}; raise SystemExit(4)"
    for command, expected in ((code, b""), (failing, b"transformers 4.48 removed")):
        with log.open(mode) as stream:
            done = subprocess.run(
                [*RUN, *python(command)], stdout=stream, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60
            )
        assert expected in done.stderr if expected else done.stderr == b""
    assert log.read_text() == ("older text\n" if mode == "a" else "") + f"step 1\n{FAILURE}\n" * (
        2 if mode == "a" else 1
    )


def test_both_streams_in_one_file_keep_their_order_and_the_explanation_follows(tmp_path):
    log = tmp_path / "train.log"
    code = f"import os\nfor n in range(99): os.write(1 + n % 2, b'line %d\\n' % n)\nraise SystemExit({FAILURE!r})"
    with log.open("w") as stream:
        subprocess.run([*RUN, *python(code)], stdout=stream, stderr=stream, env=ENVIRONMENT, timeout=60)
    text = log.read_text()
    assert text.startswith("".join(f"line {n}\n" for n in range(99)) + FAILURE + "\n")
    assert text.count("transformers 4.48 removed") == 1 and "line 100: " in text


def test_output_of_an_earlier_run_in_the_same_file_is_not_explained(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"{FAILURE}\n")
    with log.open("a") as stream:
        done = subprocess.run(
            [*RUN, *python("raise SystemExit(4)")], stdout=stream, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60
        )
    assert done.returncode == 4 and b"cause:" not in done.stderr


def test_what_goes_to_dev_null_is_not_looked_at_and_the_answer_says_so():
    code = "import os, sys; sys.exit('same' if os.fstat(1).st_rdev == os.stat('/dev/null').st_rdev else 'other')"
    done = subprocess.run(
        [*RUN, *python(code)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60
    )
    assert done.returncode == 1 and done.stderr.startswith(b"same\n")
    assert b"stdout goes to /dev/null and was not looked at" in done.stderr


def test_the_start_and_the_end_of_a_long_file_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "HEAD", 100)
    monkeypatch.setattr(spool_module, "TAIL", 100)
    log = tmp_path / "train.log"
    log.write_text("x" * 50 + "".join(f"line {number:04}\n" for number in range(200)))
    with log.open("rb") as stream:
        file = spool_module.WrittenFile(stream.fileno(), 50)
        kept = b"".join(file.blocks())
        assert file.dropped and kept.startswith(b"line 0000\n") and kept.endswith(b"line 0199\n") and len(kept) == 200
        log.write_text("cut\n")
        assert not file.dropped and b"".join(file.blocks()) == b"cut\n"
