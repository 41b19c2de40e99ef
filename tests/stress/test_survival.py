"""What hosts and libraries do to a sweep before its first case: each is said, none ends it. No torch, no GPU needed."""

from __future__ import annotations

import sys

import pytest

from doctor.errors import DoctorError, NoDiagnosis
from doctor.runner.result import KernelResult
from doctor.runner.run import run_snippet
from doctor.stress.devices import devices_of
from doctor.stress.discovery import SweepOptions, discover, own_functions, selected_backends
from doctor.stress.verdict import fault_kinds, verdict
from doctor.stress.worker import Worker
from tests.helpers.fake_torch import HOSTILE, install


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The look at a host whose torch, and whose hostile libraries, are fakes: (what was found, problems)."""

    def call(*hostile, fake="", options=None, **env):
        monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "fake", *hostile)))
        monkeypatch.setenv("FAKE", fake)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return discover(options or SweepOptions(sys.executable, timeout=20.0), lambda text: None)

    return call


def test_two_gpus_each_with_a_lane(here):
    found, problems = here()
    made, trouble = devices_of(found, None)
    assert [lane.env["CUDA_VISIBLE_DEVICES"] for lane in made] == ["0", "1"]
    assert [lane.name for lane in made] == ["uuid-0", "uuid-1"] and not problems and not trouble


def test_a_gpu_that_is_lost_is_left_out_and_said(here):
    found, _ = here(fake="gone")
    made, trouble = devices_of(found, None)
    assert len(made) == 1 and "GPU 1" in trouble[0] and "GPU is lost" in trouble[0]


def test_a_busy_gpu_is_said(here):
    found, _ = here(fake="busy")
    notes = [note for lane in devices_of(found, None)[0] for note in lane.notes]
    assert any("120.0 of 128.0 GiB are in use" in note for note in notes) and any("97 %" in note for note in notes)


def test_no_permission_is_no_silent_sweep_of_the_cpu(here):
    found, problems = here(fake="no permission")
    assert found["device"] == "cpu" and "Error 999" in problems[0]


@pytest.mark.parametrize("listed", ["", "-1", "7", "nonsense", "0,0", "-1,0", ","])
def test_a_list_of_devices_that_names_none(here, listed):
    found, problems = here(CUDA_VISIBLE_DEVICES=listed)
    assert found["device"] == "cpu" and problems[0].startswith("no GPU")


@pytest.mark.parametrize(
    "listed, tokens",
    [
        ("1,0", ["1", "0"]),
        (" 1 ", ["1"]),
        ("GPU-bb", ["GPU-bb"]),
        ("MIG-cc", ["MIG-cc"]),
        ("0,-1,1", ["0"]),
    ],
)
def test_a_list_of_devices_is_never_widened(here, listed, tokens):
    found, _ = here(CUDA_VISIBLE_DEVICES=listed)
    assert [lane.env["CUDA_VISIBLE_DEVICES"] for lane in devices_of(found, None)[0]] == tokens


def test_a_mig_slice_is_a_gpu_of_its_own_kind(here):
    found, _ = here(CUDA_VISIBLE_DEVICES="MIG-cc")
    (lane,) = devices_of(found, None)[0]
    assert "MIG 1g.18gb" in lane.label and lane.name == "uuid-MIG-cc"


def test_libraries_that_end_the_process_when_imported(here):
    """`os._exit`, a segfault, noise and a fork, warnings without end, SystemExit, a module that lacks its function."""
    found, problems = here(*HOSTILE)
    states = found["backends"]
    assert "importing the libraries" in problems[0]
    assert states["sdpa.default"] is None and states["fa3_fwd"] is None and states["sage"] is None
    for name in ("flash2", "xformers"):
        assert "ended the process" in states[name], states[name]
    assert "not on this machine" in states["te.fused"] and "ImportError" in states["flash3"]
    options = SweepOptions(sys.executable)
    assert "sdpa.default" in selected_backends(options, found, "cuda") and "xformers" not in selected_backends(
        options, found, "cuda"
    )
    with pytest.raises(NoDiagnosis, match="ended the process"):
        selected_backends(SweepOptions(sys.executable, backends=("xformers",)), found, "cuda")


def test_an_import_that_gives_up_costs_its_backend_alone(here):
    """SystemExit is no crash: nothing need be started again for it."""
    found, problems = here("transformer_engine", "flash_attn_interface")
    assert "SystemExit: not on this machine" in found["backends"]["te.fused"] and not problems
    assert found["backends"]["sdpa.default"] is None


@pytest.mark.parametrize(
    "source, function, word",
    [
        ("def f(*a, **k): pass", "g", "defines no 'g'"),
        ("f = 3", "f", "no function but of type int"),
        ("def f(:", "f", "SyntaxError"),
        ("raise SystemExit('not today')", "f", "not today"),
        ("import os; os._exit(0)", "f", "ended the process"),
        ("import no_such_library", "f", "no_such_library"),
    ],
)
def test_a_function_of_ones_own_that_cannot_be_checked(here, tmp_path, source, function, word):
    path = tmp_path / "my own: functions.py"
    path.write_text(source)
    options = SweepOptions(sys.executable, timeout=20.0, backends=(f"file:{path}:{function}",))
    with pytest.raises(DoctorError, match="cannot run") as told:
        found, _ = here(options=options)
        selected_backends(options, found, "cpu")
    assert word in told.value.message and told.value.exit_code == 2


def test_a_function_of_ones_own_is_checked_alone(here, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("print('noise')\ndef f(*a, **k): pass")
    options = SweepOptions(sys.executable, timeout=20.0, backends=(f"file:{path}:f", f"file:{path}:f"))
    found, problems = here(options=options)
    assert selected_backends(options, found, "cpu") == [f"file:{path}:f"] and not problems
    assert own_functions(options.backends) != own_functions(())


def test_an_interpreter_that_hangs_is_waited_for_once(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import time; time.sleep(300)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun = []
    real = Worker.run_one
    monkeypatch.setattr(
        Worker, "run_one", lambda self, request, until=None: (begun.append(request), real(self, request, until))[1]
    )
    monkeypatch.setattr("doctor.stress.discovery.Worker", lambda python, *, timeout: Worker(python, timeout=1.0))
    with pytest.raises(NoDiagnosis, match="no answer within 1 s"):
        discover(SweepOptions(sys.executable), lambda text: None)
    assert len(begun) == 1


def test_torch_itself_ends_the_process(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NoDiagnosis, match="cannot be used"):
        discover(SweepOptions(sys.executable, timeout=20.0), lambda text: None)


def test_memory_of_a_gpu_is_limited_once_per_process():
    source = """
import types
from . import sweep

def run(request):
    fractions = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        get_device_properties=lambda index: types.SimpleNamespace(total_memory=100),
        set_per_process_memory_fraction=fractions.append,
    )
    sweep.import_torch = lambda: types.SimpleNamespace(cuda=cuda)
    for limit in (25, 25):
        sweep._limit_memory({"memory_bytes": limit})
    sweep._limited = False
    sweep._limit_memory({"memory_bytes": 1000})
    return {"fractions": fractions}
"""
    assert run_snippet(sys.executable, source, timeout=30).observed == {"fractions": [0.25, 1.0]}


def test_memory_of_the_host_is_held_too():
    """On a CPU: what is beyond the limit is refused, where the system would kill."""
    source = """
import types
from . import sweep

def run(request):
    cuda = types.SimpleNamespace(is_available=lambda: False)
    sweep.import_torch = lambda: types.SimpleNamespace(cuda=cuda)
    bytearray(256 << 20)
    sweep._limit_memory({"memory_bytes": 128 << 20})
    bytearray(256 << 20)
"""
    answer = run_snippet(sys.executable, source, timeout=30)
    assert answer.outcome == "failed" and verdict(answer) == "no memory", answer.reason
    assert devices_of({}, 5)[0][0].memory_bytes == 5


@pytest.mark.parametrize(
    "reason",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to",
        "RuntimeError: std::bad_alloc",
        "MemoryError",
        "RuntimeError: unable to mmap 64 bytes from file: Cannot allocate memory (12)",
    ],
)
def test_want_of_memory_is_no_fault(reason):
    assert verdict(KernelResult("failed", reason=reason)) == "no memory"


IN_THE_SWEEP = """
import sys
from ..sweep.run import last_warnings
def run(request):
    {0}
"""


def test_warnings_without_end_cost_no_memory():
    body = """import warnings
    before = warnings.showwarning
    with last_warnings() as caught:
        for number in range(5000):
            warnings.warn(f"{number} things are deprecated")
    return {"kept": len(caught), "last": str(caught[-1].message), "back": warnings.showwarning is before}
    """
    told = run_snippet(sys.executable, IN_THE_SWEEP.format(body), timeout=30).observed
    assert told == {"kept": 200, "last": "4999 things are deprecated", "back": True}


NO_OUTPUT = {
    "lambda q, k, v, **how: [q]": "returned list",
    "lambda q, k, v, **how: None": "returned NoneType",
    "lambda q, k, v, **how: q.double()": "dtype torch.float64 instead of",
    "lambda q, k, v, **how: q[..., :1]": "of shape",
    "lambda q, k, v, **how: q.to('meta')": "device meta instead of cpu",
    "lambda q, k, v, **how: q.to_sparse()": "layout torch.sparse_coo instead of",
}
RUN_SCRIPTS = """
import contextlib, io

def run(request):
    printed, codes = io.StringIO(), []
    for script in request["scripts"]:
        with contextlib.redirect_stdout(printed):
            try:
                exec(script, {"__name__": "script"})
            except SystemExit as end:
                codes.append(int(end.code))
    return {"codes": codes, "printed": printed.getvalue()}
"""


def test_what_is_no_output_is_reported_as_that(torch_python, tmp_path):
    lines = [f"attend_{number} = {function}\n" for number, function in enumerate(NO_OUTPUT)]
    (tmp_path / "mine.py").write_text("".join(lines))
    cases = [
        {"backend": f"file:{tmp_path}/mine.py:attend_{number}", "device": "cpu", "dtype": "float32", "head_dim_qk": 8,
         "head_dim_v": 8, "seq_len_q": 16, "seq_len_kv": 16}
        for number in range(len(NO_OUTPUT))
    ]  # fmt: skip
    scripts = [{"op": "script", "case": case, "kinds": ["failed:WrongKind"]} for case in cases]
    results = []
    Worker(torch_python, timeout=60).run([*cases, *scripts], lambda _, result: results.append(result))
    for word, result in zip(NO_OUTPUT.values(), results, strict=False):
        assert result.outcome == "failed" and fault_kinds(result) == ["failed:WrongKind"] and word in result.reason
    texts = [result.observed["script"] for result in results[len(cases) :]]
    together = run_snippet(torch_python, RUN_SCRIPTS, {"scripts": texts}, timeout=60).observed
    assert together["codes"] == [1] * len(cases) and together["printed"].count("WrongKind") == len(cases)
