"""The sweep on a CPU: planted faults are found, healthy attention is not accused, nothing that dies costs the run."""

from __future__ import annotations

import subprocess
import time

import pytest

from doctor.errors import DoctorError, NoDiagnosis
from doctor.stress.discovery import SweepOptions, discover
from doctor.stress.report import as_json, as_text, short
from doctor.stress.sweep import by_backend, sweep
from doctor.stress.verdict import verdict
from tests.helpers.paths import HELPERS

FAULTS = HELPERS / "faults.py"

#: Fault → a kind that must be among those found, and a word of its smallest form.
PLANTED = {
    "wrong_stride": ("out", ""),
    "wrong_alignment": ("out", "causal"),
    "dropped_tail": ("out", ""),
    "scale_off": ("out", ""),
    "swapped_heads": ("out", ""),
    "stale_output": ("out", ""),
    "unwritten_rows": ("out_nan", ""),
    "nan_gradient": ("dk_nan", ""),
    "varying_output": ("not_repeatable", ""),
    "varying_gradient": ("not_repeatable", ""),
    "remembers_layout": ("dq", "other_grad"),
    "remembers_for_good": ("dq", "other_grad"),
    "writes_input": ("inputs_changed", ""),
    "forgets_dropout": ("dropout", "dropout=0.1"),
    "redraws_dropout": ("dropout_backward", "dropout=0.1"),
}
#: One of each sort: that all are found, `test_planted.py` shows; shrinking all of them takes minutes.
AT_ONCE = ("dropped_tail",)


def planted(name: str) -> str:
    return f"file:{FAULTS}:{name}"


@pytest.fixture(scope="module")
def all_planted(request, torch_python):
    """One sweep over all planted faults that this run covers: starting torch costs more than the cases."""
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {str(item.callspec.params["name"]) for item in mine if "name" in item.callspec.params} | {*AT_ONCE}
    names = tuple(planted(name) for name in PLANTED if name in asked)
    few = set(asked) <= {*AT_ONCE}
    cases, shrink = (6, 120) if few else (60, 600)  # of each fault; seconds for all
    backends = ("sdpa.math", *names)
    return sweep(SweepOptions(torch_python, cases=cases * len(backends), backends=backends, shrink=shrink, timeout=60))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AT_ONCE else pytest.mark.slow) for name in PLANTED]
)
def test_planted_fault_is_found_shrunk_and_shown(torch_python, all_planted, name):
    kind, word = PLANTED[name]
    mine = [item for item in all_planted.failures if item.backend == planted(name)]
    found = [item for item in mine if kind in item.kinds]
    assert found, [item.kinds for item in mine]
    item = found[0]
    assert item.small is not None and item.script is not None
    assert item.shown, f"the script does not show it:\n{item.script}\n{item.said}"
    assert word in short(item.small)
    small = item.small
    assert small["batch_size"] * small["num_heads"] * small["seq_len_q"] * small["seq_len_kv"] <= 8 * 128


def test_the_script_is_alone(torch_python, all_planted):
    """In another process, from its text, with nothing of ours in sight."""
    item = next(item for item in all_planted.failures if item.backend == planted(AT_ONCE[0]) and item.script)
    again = subprocess.run([torch_python, "-c", item.script], capture_output=True, timeout=120)
    assert again.returncode == 1 and b"Traceback" not in again.stderr, again.stderr[-2000:]
    healthy = item.script.replace(AT_ONCE[0], "healthy")
    assert subprocess.run([torch_python, "-c", healthy], capture_output=True, timeout=120).returncode == 0


def test_report(all_planted):
    told = as_json(all_planted)
    assert told["verdict"] == "bad" and told["backends"]["sdpa.math"]["right"] > 3
    failure = next(item for item in told["failures"] if item["backend"] == planted(AT_ONCE[0]))
    assert failure["script_shows_it"] is True and "import torch" in failure["script"] and failure["smallest"]
    assert 0 < told["margins"]["sdpa.math float32"] < 1
    assert {"import", "context", "cases", "wall"} <= set(told["seconds"])


@pytest.mark.parametrize(
    "seed, beside, cases",
    [
        pytest.param(1, ("sdpa.default", "sdpa.math"), 60, marks=pytest.mark.slow),
        pytest.param(2, ("sdpa.flash",), 60, marks=pytest.mark.slow),
        (3, None, 8),
        pytest.param(3, None, 60, marks=pytest.mark.slow),
    ],
)
def test_no_false_positive(torch_python, seed, beside, cases):
    """Sweep healthy attention; None: all that is installed."""
    backends = () if beside is None else (*beside, planted("healthy"))
    outcome = sweep(SweepOptions(torch_python, cases=cases, seed=seed, backends=backends, timeout=60, device="cpu"))
    assert not outcome.bad, as_text(outcome)
    assert outcome.complete and len(outcome.records) == len(outcome.plan.cases) >= cases
    table = by_backend(outcome)
    assert {"sdpa.math", "sdpa.flash"} <= set(table) if beside is None else set(table) == set(backends)
    assert all(counts["right"] > 0 for counts in table.values())
    assert set(table.get("sdpa.math", ())) <= {"right", "refused"}


@pytest.mark.slow
def test_a_crash_costs_its_case(torch_python):
    options = SweepOptions(torch_python, cases=25, backends=("sdpa.math", planted("crashes")), shrink=8, timeout=60)
    outcome = sweep(options)
    table = by_backend(outcome)
    assert 1 <= table[planted("crashes")]["crashed"] <= 3, "after three the rest is left out"
    assert table["sdpa.math"]["right"] == sum(table["sdpa.math"].values()) > 5
    assert any("crashed" in item.kinds for item in outcome.failures)


@pytest.mark.slow
def test_a_hang_costs_its_case(torch_python):
    outcome = sweep(SweepOptions(torch_python, cases=30, backends=(planted("hangs"),), shrink=0.1, timeout=20))
    assert {verdict(answer) for _, _, answer in outcome.records} == {"right", "timeout"}


@pytest.mark.slow
def test_it_goes_on_where_it_was(torch_python, tmp_path):
    journal = tmp_path / "journal.jsonl"
    options = {"cases": 120, "backends": ("sdpa.math",), "journal": journal}
    began = time.monotonic()
    discover(SweepOptions(torch_python, backends=("sdpa.math",)), lambda text: None)
    first = sweep(SweepOptions(torch_python, budget=2 * (time.monotonic() - began) + 3, **options))
    assert not first.complete and 0 <= len(first.records) < len(first.plan.cases)
    with journal.open("a") as file:
        file.write('{"gpu": "cpu", "ke')  # the machine went down in the middle of a line
    second = sweep(SweepOptions(torch_python, **options))
    assert second.resumed == len(first.records) and second.complete
    assert len(second.records) == len(second.plan.cases)
    third = sweep(SweepOptions(torch_python, **options))
    assert third.resumed == 0, "a finished sweep is not taken for an unfinished one"


def test_bad_input(torch_python, tmp_path, monkeypatch):
    with pytest.raises(DoctorError, match="no backend `sdpa\\.flahs`"):
        sweep(SweepOptions(torch_python, backends=("sdpa.flahs",)))
    with pytest.raises(DoctorError, match="no file"):
        sweep(SweepOptions(torch_python, backends=("file:/nowhere/x.py:f",)))
    with pytest.raises(NoDiagnosis, match="cannot"):
        sweep(SweepOptions("/nowhere/python"))
    found = discover(SweepOptions(torch_python, backends=("sdpa.cudnn", "sdpa.math"), device="cpu"), lambda text: None)
    monkeypatch.setattr("doctor.stress.sweep.discover", lambda *_: found)  # starting torch once is enough
    with pytest.raises(NoDiagnosis, match="needs a GPU"):
        sweep(SweepOptions(torch_python, backends=("sdpa.cudnn",), device="cpu"))
    other = tmp_path / "other.jsonl"
    other.write_text('{"something": "else"}\n')
    with pytest.raises(DoctorError, match="not a journal"):
        sweep(SweepOptions(torch_python, backends=("sdpa.math",), cases=5, device="cpu", journal=other))
