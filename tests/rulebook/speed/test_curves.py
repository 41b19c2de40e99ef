"""The curves that ship, against measurements that were not fitted; a third of the shapes is held out by a hash."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from doctor.errors import DoctorError
from doctor.facts.measurement import MEMORY_PARTS
from doctor.rulebook.speed.curves import load_records, peak
from doctor.rulebook.speed.shape import CallShape, measured_shape, needs_of

ROOT = Path(__file__).resolve().parents[3]
LLAMA = CallShape("bfloat16", 1, 32, 8, 128, 128, 8192, 8192, causal=True)


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    """Return the script that fits the curves."""
    spec = importlib.util.spec_from_file_location("fit_speed", ROOT / "scripts/release/fit_speed.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_order_of_backends_on_shapes_that_were_not_fitted(fit: ModuleType) -> None:
    records = load_records()
    machine = records.machine("9.0", "NVIDIA H100 80GB HBM3")
    assert machine is not None
    kept = [item for item in fit.records_of(fit.RECORDS) if fit.held_out(measured_shape(item))]
    found = fit.judged(records, machine, kept)
    assert found["shapes"] >= 90
    assert found["best"] >= 0.9 and found["tau"] >= 0.9, found
    worst = {name: numbers for name, numbers in found["factor"].items() if numbers[1] > 1.2}
    assert not worst, f"median factor between predicted and measured time: {worst}"


def test_memory_of_shapes_that_were_not_fitted(fit: ModuleType) -> None:
    records = load_records()
    machine = records.machine("9.0", None)
    kept = [item for item in fit.records_of(fit.RECORDS) if fit.held_out(measured_shape(item))]
    found = fit.judged(records, machine, kept)["memory"]
    assert set(found) >= {"sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math", "hf.eager", "flex.triton"}
    assert {name: error for name, (_, error, _) in found.items() if error > 0.1} == {}


def test_held_out_shapes_have_no_part_in_the_curves(fit: ModuleType) -> None:
    items = fit.records_of(fit.RECORDS)
    kept = {measured_shape(item) for item in items if fit.held_out(measured_shape(item))}
    assert kept and not any(shape._replace(training=not shape.training) in {*_fitted(fit, items)} for shape in kept)


def _fitted(fit: ModuleType, items: list[object]) -> list[CallShape]:
    return [shape for item in items if not fit.held_out(shape := measured_shape(item))]  # type: ignore[arg-type]


def test_gpu_without_records_is_unknown() -> None:
    records = load_records()
    assert records.machine("10.0", "NVIDIA B200") is None
    assert records.machine("9.0", "NVIDIA H20") is None  # as many bytes, a seventh of the operations
    assert records.machine("9.0", "NVIDIA H100 PCIe") is None
    assert records.machine("9.0", "NVIDIA H200") is not None


def test_call_unlike_every_record_is_unknown() -> None:
    records = load_records()
    machine = records.machine("9.0", None)
    assert machine is not None
    assert records.milliseconds(machine, "sdpa.flash", LLAMA) is not None
    assert records.milliseconds(machine, "sdpa.flash", LLAMA._replace(head_dim_qk=112, head_dim_v=112)) is None
    assert records.milliseconds(machine, "vllm.flash_attn", LLAMA) is None
    assert records.memory_of("vllm.flash_attn", LLAMA) is None
    assert records.memory_of("fa.flash3", LLAMA) is None  # its backward was not measured
    assert records.memory_of("fa.flash3", LLAMA._replace(training=False)) is not None


def test_a_window_costs_less_only_where_blocks_are_skipped() -> None:
    records = load_records()
    machine = records.machine("9.0", None)
    assert machine is not None
    window = LLAMA._replace(window=512)
    for backend, skips in (("flex.triton", True), ("sdpa.cudnn", False), ("sdpa.efficient", False)):
        whole, part = (records.milliseconds(machine, backend, shape) for shape in (LLAMA, window))
        assert whole is not None and part is not None
        assert (part < 0.5 * whole) if skips else (part > 1.3 * whole), backend


def test_parts_of_memory_are_those_of_measurements() -> None:
    parts = load_records().memory_of("sdpa.flash", LLAMA)
    assert parts is not None and tuple(parts) == tuple(MEMORY_PARTS)


def test_scores_make_the_memory_of_an_unfused_backend() -> None:
    records = load_records()
    eager, flash = (records.memory_of(name, LLAMA) for name in ("hf.eager", "sdpa.flash"))
    assert eager is not None and flash is not None
    assert peak(eager) > 20 * peak(flash)
    longer = records.memory_of("hf.eager", LLAMA._replace(seq_len_q=16384, seq_len_kv=16384))
    assert longer is not None and 3.5 < peak(longer) / peak(eager) <= 4.1
    assert flash["inputs"] == LLAMA.batch_size * 8192 * 128 * 2 * (32 + 8 + 8 + 32)


def test_causal_blocks_are_counted_whole_on_the_diagonal() -> None:
    short = LLAMA._replace(seq_len_q=128, seq_len_kv=128)
    for shape, share in ((LLAMA, 0.5 + 64 / 8192), (short, 1.0)):
        all_pairs = needs_of(shape._replace(causal=False), {"skips": ["causal"]}, 132).tflop
        assert needs_of(shape, {"skips": ["causal"]}, 132).tflop == pytest.approx(share * all_pairs)


def test_records_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "curves.json").write_text("{")
    with pytest.raises(DoctorError, match="cannot read the records of speed"):
        load_records(tmp_path)
    (tmp_path / "curves.json").write_text("{}")
    (tmp_path / "backends.json").write_text("{}")
    with pytest.raises(DoctorError, match="lack"):
        load_records(tmp_path)
