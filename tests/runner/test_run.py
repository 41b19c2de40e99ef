"""Whatever a program under examination does, the host brings back one answer per case and leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from doctor.runner.process import PACKAGE
from doctor.runner.result import KernelResult, signal_name
from doctor.runner.run import run_one, run_program, run_snippet
from tests.helpers.paths import KERNELS

HEAD = "from ..protocol import Refused, Unavailable, step\n"
TAIL = "\n"


def snippet(
    body: str, request: object = None, *, timeout: float = 20, env: dict[str, str | None] | None = None
) -> KernelResult:
    return run_snippet(sys.executable, HEAD + body + TAIL, request or {}, timeout=timeout, env=env)  # type: ignore[arg-type]


@pytest.fixture
def program(tmp_path: pathlib.Path):  # type: ignore[no-untyped-def]
    def write(body: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(HEAD + body + TAIL)
        return str(path)

    return write


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_echo() -> None:
    answer = snippet("def run(r): return {'got': r}", {"a": [1, 2.5, None, "ä"]})
    assert (answer.outcome, answer.observed) == ("ran", {"got": {"a": [1, 2.5, None, "ä"]}})
    assert answer.signal is None


def test_refused_and_unavailable_carry_the_stacks_own_words() -> None:
    refused = snippet("def run(r): raise Refused('no kernel')")
    assert refused == KernelResult("refused", {}, "no kernel", refused.seconds, None, "start")
    assert snippet("def run(r): raise Unavailable('no GPU')").outcome == "unavailable"


def test_exception_is_data() -> None:
    answer = snippet("def run(r): return 1 / 0")
    assert answer.outcome == "failed"
    assert answer.reason == "ZeroDivisionError: division by zero"
    assert "snippet.py:2 run" in answer.observed["traceback"][-1]


def test_missing_module() -> None:
    answer = snippet("def run(r): import no_such_module_at_all")
    assert (answer.outcome, "No module named" in answer.reason) == ("failed", True)


def test_sys_exit_in_an_import_is_an_answer() -> None:
    answer = snippet("def run(r):\n    import sys; sys.exit('license expired')")
    assert (answer.outcome, answer.reason) == ("failed", "SystemExit: license expired")


def test_numbers_that_json_lacks() -> None:
    observed = snippet("def run(r): return {'a': float('nan'), 'b': [float('-inf')], 3: (1,), 'c': object}").observed
    assert (observed["a"], observed["b"], observed["3"]) == ("nan", ["-inf"], [1])


NOISE = {
    "python prints": 'def run(r):\n    print(\'{"contract": 1, "outcome": "refused"}\'); return {\'x\': 1}',
    "unfinished line": "import sys\nsys.stdout.write('half a line')\nsys.stdout.flush()\ndef run(r): return {'x': 1}",
    "C puts": "import ctypes\nc = ctypes.CDLL(None)\ndef run(r):\n    c.puts(b'C'); c.fflush(None); return {'x': 1}",
    "C puts, not flushed": "import ctypes\nctypes.CDLL(None).puts(b'from C')\ndef run(r): return {'x': 1}",
    "child": "def run(r):\n    import subprocess; subprocess.call(['echo', 'child']); return {'x': 1}",
    "raw fd 1": "import os\nos.write(1, bytes(range(256)))\ndef run(r):\n    os.write(1, b'0' * 9999); return {'x': 1}",
    "closed stdout": "import sys\ndef run(r):\n    sys.stdout.close(); return {'x': 1}",
    "huge": "import os\nfor _ in range(300): os.write(1, b'x' * 65536)\ndef run(r):\n"
    "    for _ in range(300): os.write(1, b'y' * 65536)\n    return {'x': 1}",
    "atexit": "import atexit\natexit.register(print, '{\"contract\": 1}')\ndef run(r): return {'x': 1}",
    "fork that returns": "import os\ndef run(r):\n    return {'x': 1 if os.fork() else 2}",
}


@pytest.mark.parametrize("noise", NOISE)
def test_noise_does_not_reach_the_answer(noise: str) -> None:
    answer = snippet(NOISE[noise])
    assert (answer.outcome, answer.observed) == ("ran", {"x": 1}), answer


def test_printing_sitecustomize(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', end=''); import os; os.write(1, b'raw')\n")
    answer = snippet(
        "def run(r):\n    import os; return {'path': os.environ['PYTHONPATH']}", env={"PYTHONPATH": str(tmp_path)}
    )
    assert answer.observed == {"path": str(tmp_path)}, "the kernel keeps the PYTHONPATH of the user"


@pytest.mark.parametrize(
    "source",
    [
        "import os; os.chdir('/')",
        "import os\nos.fork()",
        "import os, time\nif os.fork() == 0: time.sleep(60)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "import sys; sys.stdout.close()",
        "import signal\nfor number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)",
        "import builtins; builtins.print = None",
    ],
)
def test_sitecustomize_that_does_things(source: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(source)
    program = HEAD + "def run(r): return r"
    for _ in range(3):  # after a fork both read the request, and either may get it: it ends well or it is said
        answer = run_snippet(sys.executable, program, {"q": 1}, timeout=30, env={"PYTHONPATH": str(tmp_path)})
        if "fork" not in source or answer.outcome == "ran":
            break
        assert "something that runs at the start" in answer.reason
    assert answer.outcome == "ran" and answer.observed == {"q": 1}, answer.reason


def test_what_is_imported_may_replace_what_we_use() -> None:
    source = """
import json, os, time
json.dumps = os.write = os.getpid = time.monotonic = lambda *a, **k: 1 / 0
"""
    assert snippet(source + "def run(r): return {'a': 1}").observed == {"a": 1}


def test_relative_pythonpath_still_means_the_users_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text("x = 7")
    monkeypatch.chdir(tmp_path)
    assert snippet("def run(r):\n    import mine; return {'x': mine.x}", env={"PYTHONPATH": "lib:"}).observed == {
        "x": 7
    }


def test_cwd_of_the_user_shadows_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadow')")
    monkeypatch.chdir(tmp_path)
    answer = snippet(
        "def run(r):\n    import os; return {'files': sorted(os.listdir('.'))}", env={"PYTHONSAFEPATH": "1"}
    )
    assert answer.outcome == "ran"
    assert answer.observed["files"] == [PACKAGE]


def test_segfault_says_where() -> None:
    answer = snippet("def run(r):\n    import ctypes; step('jump'); ctypes.string_at(0)")
    assert (answer.outcome, answer.signal, answer.where) == ("crashed", "SIGSEGV", "jump")
    assert answer.reason == "killed by SIGSEGV at step `jump`"


def test_os_exit_in_an_import(tmp_path: pathlib.Path) -> None:
    (tmp_path / "quits.py").write_text("import os, sys; sys.stderr.write('bye\\n'); os._exit(0)")
    answer = snippet("def run(r):\n    step('import quits'); import quits", env={"PYTHONPATH": str(tmp_path)})
    assert answer.outcome == "crashed"
    assert answer.reason == "exited with status 0 without an answer at step `import quits`: bye"
    assert answer.stderr_tail == "bye\n"


def test_hang_is_killed_with_its_grandchild() -> None:
    body = (
        "def run(r):\n    import subprocess, sys, time\n"
        "    p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    step('child %d' % p.pid); time.sleep(600)"
    )
    began = time.monotonic()
    answer = snippet(body, timeout=1.5)
    assert answer.outcome == "timeout" and time.monotonic() - began < 8
    assert answer.where and gone(int(answer.where.split()[1]))


def test_grandchild_that_holds_the_pipes_does_not_hold_the_host() -> None:
    body = "import subprocess, os\ndef run(r):\n    subprocess.Popen(['sleep', '600']); os._exit(3)"
    began = time.monotonic()
    assert snippet(body).outcome == "crashed"
    assert time.monotonic() - began < 5


def test_child_left_behind_is_ended() -> None:
    answer = snippet("import subprocess\ndef run(r): return {'pid': subprocess.Popen(['sleep', '600']).pid}")
    assert gone(answer.observed["pid"])


def test_ignores_sigterm_and_floods_stderr() -> None:
    body = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def run(r):\n    while True: sys.stderr.write('x' * 4096)"
    )
    answer = snippet(body, timeout=1)
    assert answer.outcome == "timeout" and 0 < len(answer.stderr_tail) <= 8192


def test_crash_costs_only_its_case(program) -> None:  # type: ignore[no-untyped-def]
    path = program(
        "import os, signal\ndef run(r):\n    step('case %d' % r['i'])\n"
        "    if r['i'] == 2: os.kill(os.getpid(), signal.SIGABRT)\n    return {'i': r['i'], 'pid': os.getpid()}"
    )
    answers = run_program(sys.executable, path, [{"i": i} for i in range(5)], timeout=20)
    assert [a.outcome for a in answers] == ["ran", "ran", "crashed", "ran", "ran"]
    assert (answers[2].signal, answers[2].where) == ("SIGABRT", "case 2")
    assert [a.observed["i"] for a in answers if a.outcome == "ran"] == [0, 1, 3, 4]
    assert answers[0].observed["pid"] == answers[1].observed["pid"] != answers[3].observed["pid"]
    assert answers[3].observed["pid"] == answers[4].observed["pid"]


def test_lost_device_gets_a_fresh_process(program) -> None:  # type: ignore[no-untyped-def]
    path = program(
        "import os\ndef run(r):\n    if r['i'] == 1: raise RuntimeError('CUDA error: an illegal memory access')\n"
        "    return {'pid': os.getpid()}"
    )
    answers = run_program(sys.executable, path, [{"i": i} for i in range(3)], timeout=20)
    assert [a.outcome for a in answers] == ["ran", "failed", "ran"]
    assert answers[0].observed["pid"] != answers[2].observed["pid"]


def test_timeout_is_per_answer_and_costs_one_case(program) -> None:  # type: ignore[no-untyped-def]
    path = program("import time\ndef run(r):\n    time.sleep(r['s']); return {}")
    answers = run_program(sys.executable, path, [{"s": s} for s in (0.7, 0.7, 60, 0.1)], timeout=1.2)
    assert [a.outcome for a in answers] == ["ran", "ran", "timeout", "ran"]


def test_death_before_the_first_case_is_not_retried_for_each(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "dies.py"
    log = tmp_path / "log"
    path.write_text(f"open({str(log)!r}, 'a').write('x')\nimport os; os._exit(5)\n")
    answers = run_program(sys.executable, str(path), [{}] * 50, timeout=20)
    assert len(answers) == 50 and {a.outcome for a in answers} == {"crashed"} and log.read_text() == "x"
    assert answers[0].reason == "exited with status 5 without an answer before it took the request"


def test_no_cases() -> None:
    assert run_program(sys.executable, "facts", [], timeout=1) == []


@pytest.mark.parametrize("kind", ["missing", "directory", "not executable", "no program"])
def test_interpreter_that_cannot_start(kind: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "python"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(b"\x7fnot a program")
        path.chmod(0o755 if kind == "no program" else 0o644)
    answers = run_program(str(path), "facts", [{}, {}], timeout=5)
    assert [a.outcome for a in answers] == ["unavailable"] * 2
    assert answers[0].reason.startswith(f"cannot start `{path}`: ")


def test_interpreter_that_is_something_else() -> None:
    answer = run_snippet("/bin/true", "", timeout=5)
    assert answer.outcome == "crashed" and "status 0 without an answer" in answer.reason


def test_relative_interpreter_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "py").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert run_snippet("./py", HEAD + "def run(r): return {}" + TAIL, timeout=20).outcome == "ran"


def test_environment_overlay_sets_and_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    body = "def run(r):\n    import os; return {k: os.environ.get(k) for k in ('NVTE_FLASH_ATTN', 'NVTE_DEBUG')}"
    assert snippet(body).observed["NVTE_FLASH_ATTN"] == "0"
    answer = snippet(body, env={"NVTE_FLASH_ATTN": None, "NVTE_DEBUG": "1"})
    assert answer.observed == {"NVTE_FLASH_ATTN": None, "NVTE_DEBUG": "1"}


def test_program_alone_takes_a_bare_request_and_answers_last() -> None:
    command = [sys.executable, "-B", str(KERNELS), "script"]
    done = subprocess.run(
        command, input=b'{"kernel": "sdpa", "where": "import torch", "kind": "failed"}', capture_output=True, check=True
    )
    last = done.stdout.decode().strip().splitlines()[-1]
    assert '"script": "import torch' in last and '"contract": 1' in last


def test_temporary_directory_is_removed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    snippet("def run(r): return {}")
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_nothing_running(tmp_path: pathlib.Path) -> None:
    body = HEAD + f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    code = f"from doctor.runner.run import run_snippet; run_snippet({sys.executable!r}, {body!r}, timeout=600)"
    host = subprocess.Popen(
        [sys.executable, "-c", code], cwd=pathlib.Path(__file__).parents[2], stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    os.kill(host.pid, signal.SIGINT)
    host.wait(10)
    assert gone(int((tmp_path / "pid").read_text()))


def test_signal_names() -> None:
    assert (signal_name(11), signal_name(999)) == ("SIGSEGV", "signal 999")


def test_oldest_python_runs_the_contract() -> None:
    import shutil

    old = shutil.which("python3.8")
    if old is None or subprocess.run([old, "-c", ""], capture_output=True).returncode:
        pytest.skip("no Python 3.8 here")
    assert run_snippet(old, HEAD + "def run(r): return {}" + TAIL, timeout=20).outcome == "ran"
    assert run_one(old, "facts", timeout=20).outcome == "ran"
