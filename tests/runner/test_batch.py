"""Many kernels, few processes: whatever one case does, the others get their answers, and time is reported by stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.runner.batch import KernelRunner, groups, prewarm, spent

HEAD = "import os\nfrom ..protocol import Refused, Unavailable, step\n"
TAIL = "\n"
PID = "def run(request): return {'pid': os.getpid(), 'got': request}"


@pytest.fixture
def bench(tmp_path: Path) -> KernelRunner:
    return KernelRunner(sys.executable, 20.0, tmp_path)


def add(bench: KernelRunner, name: str, body: str) -> None:
    (bench.kernels / f"{name}.py").write_text(HEAD + body + TAIL)


def pids(*answers: object) -> list[int]:
    return [answer.observed["pid"] for answer in answers]  # type: ignore[attr-defined]


def test_all_kernels_share_one_process(bench: KernelRunner) -> None:
    for name in ("one", "two"):
        add(bench, name, PID)
    got = bench.run({"one": [{"a": 1}, {"a": 2}], "two": [{"a": 3}]})
    assert len(set(pids(*got["one"], *got["two"]))) == 1
    assert [answer.observed["got"] for answer in (*got["one"], *got["two"])] == [{"a": 1}, {"a": 2}, {"a": 3}]


CRASHES = {
    "segfault": ("import ctypes; step('jump'); ctypes.string_at(0)", "crashed", "killed by SIGSEGV at step `jump`"),
    "os._exit": ("step('leave'); os._exit(0)", "crashed", "exited with status 0 without an answer at step `leave`"),
    "hang": ("import time; step('wait'); time.sleep(600)", "timeout", "no answer within 2 s at step `wait`"),
    "lost device": ("raise RuntimeError('CUDA error: an illegal memory access')", "failed", "RuntimeError: CUDA error"),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_death_in_the_middle_costs_one_case(bench: KernelRunner, crash: str) -> None:
    body, outcome, reason = CRASHES[crash]
    add(bench, "one", PID)
    add(bench, "two", f"def run(request):\n    if request['die']: {body}\n    return {{'pid': os.getpid()}}")
    add(bench, "zed", PID)
    quick = KernelRunner(bench.python, 2.0, bench.kernels)
    got = quick.run({"one": [{}], "two": [{"die": False}, {"die": True}, {"die": False}], "zed": [{}]})
    first, dead, last = got["two"]
    assert (dead.outcome, dead.reason[: len(reason)]) == (outcome, reason)
    assert pids(first) == pids(*got["one"]) != pids(last) == pids(*got["zed"])


def test_os_exit_when_a_program_is_imported_costs_that_program(bench: KernelRunner) -> None:
    add(bench, "one", PID)
    add(bench, "two", "os._exit(7)\n" + PID)
    add(bench, "zed", PID)
    got = bench.run({"one": [{}], "two": [{}], "zed": [{}]})
    assert got["two"][0].reason == "exited with status 7 without an answer at step `load two`"
    assert [answer.outcome for answer in (*got["one"], *got["zed"])] == ["ran", "ran"]


@pytest.mark.parametrize(("dies", "outcome"), [("os._exit(1)", "crashed"), ("time.sleep(600)", "timeout")])
def test_what_ends_in_the_import_of_torch_is_not_waited_for_again(
    bench: KernelRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str, outcome: str
) -> None:
    log = tmp_path / "log"
    (tmp_path / "torch.py").write_text(f"import os, time\nopen({str(log)!r}, 'a').write('x')\n{dies}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("one", "two"):
        add(bench, name, "def run(request):\n    step('import torch'); import torch")
    began = time.monotonic()
    got = KernelRunner(bench.python, 2.0, bench.kernels).run({"one": [{}, {"a": 1}], "two": [{}]})
    assert {answer.outcome for answer in (*got["one"], *got["two"])} == {outcome}
    assert log.read_text() == "x" and time.monotonic() - began < 6


NOISE = {
    "prints": "print('noise', end='')\n" + PID,
    "fd 1": 'os.write(1, b\'\\xff{"contract": 1, "case": 0, "outcome": "refused"}\\n\')\n' + PID,
    "fork that goes on": "if os.fork() == 0: os.write(1, b'child')\n" + PID,
    "fork in the case": "def run(request):\n    os.fork()\n    return {'pid': 1, 'got': request}",
    "threads and children": "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + PID,
    "warnings": "import warnings\n[warnings.warn('w' * 99 + str(i)) for i in range(5000)]\n" + PID,
}


@pytest.mark.parametrize("noise", NOISE)
def test_noise_reaches_no_answer(bench: KernelRunner, noise: str) -> None:
    add(bench, "one", PID)
    add(bench, "two", NOISE[noise])
    add(bench, "zed", PID)
    got = bench.run({"one": [{"a": 1}], "two": [{"a": 2}, {"a": 3}], "zed": [{"a": 4}]})
    answers = [*got["one"], *got["two"], *got["zed"]]
    assert [(answer.outcome, answer.observed["got"]["a"]) for answer in answers] == [("ran", i) for i in (1, 2, 3, 4)]


@pytest.mark.parametrize("answer", ["[1, 2]", "'text'", "None", "{'errors': 'nan', 'ran': 5}", "{1: {2: object()}}"])
def test_an_answer_of_garbage_is_data(bench: KernelRunner, answer: str) -> None:
    add(bench, "one", f"def run(request): return {answer}")
    add(bench, "two", PID)
    got = bench.run({"one": [{}], "two": [{}]})
    assert (got["one"][0].outcome, got["two"][0].outcome) == ("ran", "ran")


def test_a_broken_program_costs_itself(bench: KernelRunner) -> None:
    add(bench, "one", "def run(request) return 1")
    add(bench, "two", PID)
    got = bench.run({"one": [{}], "two": [{}], "nowhere": [{}, {}], "dispatch": [{}]})
    assert got["one"][0].outcome == "failed" and got["one"][0].reason.startswith("File")
    assert got["two"][0].outcome == "ran"
    assert [answer.reason for answer in got["nowhere"]] == ["there is no kernel `nowhere`"] * 2
    assert got["dispatch"][0].reason == "there is no kernel `dispatch`"


def test_a_program_shadows_no_library_of_the_target(
    bench: KernelRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "facts.py").write_text("x = 7")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    add(bench, "facts", "def run(request):\n    import facts\n    return {'x': facts.x}")
    assert bench.run({"facts": [{}]})["facts"][0].observed == {"x": 7}


def test_each_environment_has_a_process_of_its_own(bench: KernelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    add(
        bench,
        "one",
        "SEEN = os.environ.get('NVTE_FLASH_ATTN')\ndef run(request): return {'seen': SEEN, 'got': request}",
    )
    asked = [{"a": 1}, {"env": {"NVTE_FLASH_ATTN": 1}}, {"env": {"NVTE_FLASH_ATTN": None}}, {"a": 2}]
    got = bench.run({"one": asked})["one"]
    assert [answer.observed["seen"] for answer in got] == ["0", "1", None, "0"]
    assert got[1].observed["got"] == {}, "the environment is no part of the question"


def test_transformer_engine_keeps_to_itself() -> None:
    def shared(*kernels: str) -> list[list[str]]:
        return [[kernel for kernel, _ in places] for _, places in groups({name: [{}] for name in kernels})]

    assert shared("sdpa", "strided_qkv", "cudnn_sdpa") == [["sdpa", "cudnn_sdpa", "strided_qkv"]]
    assert shared("cudnn_sdpa", "strided_qkv", "te_attention") == [["te_attention", "strided_qkv"], ["cudnn_sdpa"]]


def test_time_is_split_by_stage(bench: KernelRunner) -> None:
    body = (
        "import time\ndef run(request):\n    if request['first']:\n"
        "        step('import torch'); time.sleep(0.4); step('torch imported')\n"
        "        step('cuda context'); time.sleep(0.2); step('cuda context made')\n"
        "    time.sleep(0.1); return {}"
    )
    add(bench, "one", body)
    got = bench.run({"one": [{"first": True}, {"first": False}]})
    first, second = got["one"]
    # The host counts from when it reads that a stage began, which on a busy machine is late, at the next one's expense.
    assert first.spent["import"] > 0.2 and first.spent["context"] > 0.05
    assert sum(first.spent.values()) >= 0.7
    assert set(second.spent) == {"case"}
    total = spent(got)
    assert set(total) == {"kernels.start", "kernels.import", "kernels.context", "kernels.case"}
    assert total["kernels.case"] > 0.1 and total["kernels.start"] > 0


def test_the_time_of_a_death_is_reported_too(bench: KernelRunner) -> None:
    add(bench, "one", "import time\ndef run(request):\n    step('import torch'); time.sleep(0.3); os._exit(1)")
    (answer,) = bench.run({"one": [{}]})["one"]
    assert answer.spent["import"] > 0.15


def test_what_fails_behind_others_is_checked_again_alone(bench: KernelRunner) -> None:
    body = "import sys\ndef run(request):\n    sys.asked = getattr(sys, 'asked', 0) + 1\n"
    add(bench, "one", body + "    return {'wrong': False}")
    add(bench, "two", body + "    return {'wrong': sys.asked > 1, 'pid': os.getpid()}")
    add(bench, "zed", "def run(request): raise RuntimeError('always')")
    got = bench.run({"one": [{}], "two": [{}], "zed": [{}]})
    assert got["two"][0].observed["wrong"] is False and got["two"][0].observed["behind_others"] == "a wrong result"
    assert (got["zed"][0].outcome, got["zed"][0].reason) == ("failed", "RuntimeError: always")
    assert "behind_others" not in got["one"][0].observed


#: What replaces torch: it says who imported it, and how often.
TORCH = "import os, sys, time\nopen({log!r}, 'a').write(str(os.getpid()) + ' ')\n"
ASKS = (
    "from ..attention.gpu import import_torch\n"
    "def run(request):\n    torch = import_torch()\n    return {'pid': os.getpid()}"
)


@pytest.fixture
def torch_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where each import of torch leaves its process; `more` of it is added by the test."""
    (tmp_path / "lib").mkdir()
    log = tmp_path / "log"
    (tmp_path / "lib" / "torch.py").write_text(TORCH.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    return log


def more(log: Path, body: str) -> None:
    torch = log.parent / "lib" / "torch.py"
    torch.write_text(torch.read_text() + body)


def until(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_head_start_is_the_process_that_answers(bench: KernelRunner, torch_log: Path) -> None:
    add(bench, "one", ASKS)
    ahead = prewarm(bench.python)
    until(torch_log.exists)
    time.sleep(0.3)  # which no one waited for, so it is no one's time
    got = replace(bench, prewarmed=ahead).run({"one": [{}, {"a": 1}]})["one"]
    assert torch_log.read_text().split() == [str(pid) for pid in set(pids(*got))], "imported once, by who answers"
    assert got[0].spent["import"] > 0 and sum(spent({"one": got}).values()) < 20
    assert "wait" not in got[0].spent
    again = replace(bench, prewarmed=ahead).run({"one": [{}]})["one"]
    assert again[0].outcome == "ran" and pids(*again) != pids(got[0]), "it was taken: others start as ever"


@pytest.mark.parametrize(
    ("body", "outcome", "reason"),
    [
        ("os._exit(3)", "crashed", "exited with status 3 without an answer at step `import torch`"),
        ("os.kill(os.getpid(), 11)", "crashed", "killed by SIGSEGV at step `import torch`"),
        ("raise ImportError('libcudart.so.13: cannot open')", "failed", "ImportError: libcudart.so.13: cannot open"),
        ("import no_such_module", "failed", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("sys.exit('no license')", "failed", "SystemExit: no license"),
        ("sys.stdout.write('{}\\n' * 9); os.fork()", "ran", ""),
    ],
)
def test_what_a_broken_torch_does_is_reported_as_without_a_head_start(
    bench: KernelRunner, torch_log: Path, body: str, outcome: str, reason: str
) -> None:
    more(torch_log, body)
    add(bench, "one", ASKS)
    ahead = prewarm(bench.python)
    until(torch_log.exists)
    for tried in (replace(bench, prewarmed=ahead), bench):
        answers = tried.run({"one": [{}, {"a": 1}]})["one"]
        assert [(answer.outcome, answer.reason) for answer in answers] == [(outcome, reason)] * 2


def test_a_head_start_that_hangs_is_timed_from_its_cases_on(bench: KernelRunner, torch_log: Path) -> None:
    more(torch_log, "time.sleep(600)")
    add(bench, "one", ASKS)
    answers = KernelRunner(bench.python, 1.0, bench.kernels, prewarm(bench.python)).run({"one": [{}, {"a": 1}]})["one"]
    assert {(a.outcome, a.reason) for a in answers} == {("timeout", "no answer within 1 s at step `import torch`")}


def test_a_head_start_keeps_to_its_own_environment(bench: KernelRunner, torch_log: Path) -> None:
    add(bench, "one", "SEEN = os.environ.get('NVTE_FLASH_ATTN')\ndef run(request): return {'seen': SEEN}")
    with_ahead = replace(bench, prewarmed=prewarm(bench.python))
    got = with_ahead.run({"one": [{"env": {"NVTE_FLASH_ATTN": 1}}, {}]})["one"]
    assert [answer.observed["seen"] for answer in got] == ["1", None]


def test_a_head_start_that_no_one_takes_leaves_nothing(bench: KernelRunner, torch_log: Path) -> None:
    more(torch_log, "time.sleep(600)")
    ahead = prewarm(bench.python)
    until(lambda: torch_log.exists() and bool(torch_log.read_text()))
    ahead.close()
    pid = int(torch_log.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())
    assert not ahead.directory.exists()
