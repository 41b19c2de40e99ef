"""Measured backends in every format: order, warnings, what did not run, and the plot of several lengths."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.facts.measurement import Measurement, from_record
from doctor.report.formats import renderer
from doctor.report.line_chart import line_chart
from doctor.report.speed import answer_of, warnings_of
from doctor.report.speed_model import Speed, SpeedRow
from doctor.report.style import Style

ONE = Measurement(
    "NVIDIA H100 80GB HBM3", "9.0", "2.11.0+cu130", "sdpa.flash", None, "bfloat16", 4, 32, 8, 128, 128, 4096, 4096,
    "causal", ms=3.0, ms_spread=0.03, ms_forward=1.0, ms_launch=0.3, tflops=300.0, peak_share=0.4, bytes_peak=2**28,
    memory={"inputs": 2**27, "mask": 0, "output": 2**26, "saved": 2**20}, max_error=2e-3, right=True,
    deterministic=False,
)  # fmt: skip
JOB = {**{name: getattr(ONE, name) for name in (
    "batch_size", "seq_len_q", "seq_len_kv", "num_heads", "num_kv_heads", "head_dim_qk", "head_dim_v", "dtype", "mask",
    "training",
)}}  # fmt: skip


def row(**changes: Any) -> SpeedRow:
    one = replace(ONE, **changes)
    return SpeedRow(one, one.backend, f"take {one.backend}")


def speed(*rows: SpeedRow, **changes: Any) -> Speed:
    ordered = sorted(rows, key=lambda item: (item.measurement.ms is None, item.measurement.ms or 0.0))
    return Speed(
        "attn-doctor 0", "python", JOB, tuple(ordered), changes.pop("selected", "sdpa.flash"), 750.0, **changes
    )


CUDNN = row(backend="sdpa.cudnn", ms=1.5)
MATH = row(backend="sdpa.math", ms=30.0, bytes_peak=2**33)
REFUSED = row(backend="fa.flash3", ms=None, ms_forward=0.5, outcome="refused", reason="it has no backward pass")
ALL = speed(row(), CUDNN, MATH, REFUSED, not_installed=("flash-attn",), lost={"sinks": "no program computes them"})


def text(content: Speed) -> str:
    return renderer("text", "speed")(content, Style())


def test_the_fastest_comes_first_with_what_selects_it() -> None:
    lines = [line.split()[0] for line in text(ALL).splitlines() if line.startswith("  sdpa.")]
    assert lines[:3] == ["sdpa.cudnn", "sdpa.flash", "sdpa.math"]
    assert "take sdpa.cudnn" in text(ALL)


def test_a_slow_selection_is_a_warning_that_names_the_faster_one() -> None:
    answer = answer_of(ALL)
    assert (answer.look, answer.word) == ("warning", "SLOW")
    assert "2.0 times as long as sdpa.cudnn" in answer.sentence
    assert warnings_of(ALL) == ("sdpa.cudnn is 2.0 times as fast as sdpa.flash; to select it: take sdpa.cudnn",)


def test_a_selection_near_the_fastest_is_no_warning() -> None:
    assert answer_of(speed(row(), row(backend="sdpa.cudnn", ms=2.5))).look == "ok"
    assert not warnings_of(speed(row(), row(backend="sdpa.cudnn", ms=2.5)))


def test_what_differs_by_less_than_its_spread_is_equally_fast() -> None:
    near = row(backend="fa.flash2", ms=1.53, ms_spread=0.05)
    content = speed(row(), CUDNN, near, selected="fa.flash2")
    assert [item.name for item in content.as_fast] == ["sdpa.cudnn", "fa.flash2"]
    assert "FASTEST" in text(content) and "and so does sdpa.cudnn" in text(content)
    assert json.loads(renderer("json", "speed")(content, Style()))["as_fast"] == ["sdpa.cudnn", "fa.flash2"]
    apart = speed(row(), CUDNN, replace_spread(near, 0.01), selected="fa.flash2")
    assert [item.name for item in apart.as_fast] == ["sdpa.cudnn"] and "and so does" not in text(apart)


def replace_spread(item: SpeedRow, spread: float) -> SpeedRow:
    return replace(item, measurement=replace(item.measurement, ms_spread=spread))


def test_kernels_of_another_backend_are_named() -> None:
    other = row(backend="sdpa.math", ms=2.5, kernels=("flash",))
    own = row(kernels=("flash",))
    assert "sdpa.math: the kernels that ran are of flash" in text(speed(own, other))
    assert "the kernels that ran" not in text(speed(own, CUDNN)), "unknown is no other backend"


def test_a_wrong_backend_is_never_the_fastest() -> None:
    wrong = row(backend="sageattention", ms=0.1, right=False, max_error=0.1)
    content = speed(row(), wrong)
    assert content.fastest is not None and content.fastest.measurement.backend == "sdpa.flash"
    assert "1.0e-01 wrong" in text(content)


def test_a_wrong_selection_is_an_error() -> None:
    answer = answer_of(speed(row(ms=1.0, right=False, max_error=0.8), row(backend="sdpa.efficient", ms=2.0)))
    assert (answer.look, answer.word) == ("error", "WRONG")
    assert "sdpa.efficient" in answer.sentence


def test_memory_of_the_selection_is_compared() -> None:
    (first,) = warnings_of(speed(row(bytes_peak=2**30), row(backend="sdpa.cudnn", ms=2.9, bytes_peak=2**28)))
    assert "1.00 GiB" in first or "1 GiB" in first
    assert "sdpa.cudnn" in first


def test_a_step_that_the_cpu_starts_slowly_is_said() -> None:
    (first,) = warnings_of(speed(row(ms=0.02, ms_launch=0.2)))
    assert "CPU" in first


def test_what_did_not_run_is_listed_with_its_reason() -> None:
    shown = text(ALL)
    assert "fa.flash3: refused: it has no backward pass (forward alone: 0.500 ms)" in shown
    assert "not installed: flash-attn" in shown and "`workload.sinks`" in shown


def test_a_selection_that_does_not_run_is_the_headline() -> None:
    answer = answer_of(speed(CUDNN, row(ms=None, outcome="crashed", reason="killed by SIGSEGV")))
    assert answer.word == "DOES NOT RUN" and "SIGSEGV" in answer.sentence


def test_nothing_ran() -> None:
    assert answer_of(speed(REFUSED)).word == "NOT MEASURED"
    assert answer_of(speed()).word == "NOT MEASURED"


def test_every_measurement_in_json_is_a_record() -> None:
    content = json.loads(renderer("json", "speed")(ALL, Style()))
    assert [from_record(item) for item in content["measurements"]] == [item.measurement for item in ALL.rows]
    assert content["measurements"][1]["times_fastest"] == 2.0
    assert content["fastest"] == "sdpa.cudnn" and content["selected"] == "sdpa.flash"


def test_several_lengths_are_a_table_and_a_plot() -> None:
    longer = [
        row(backend=name, ms=4 * ms, seq_len_q=8192, seq_len_kv=8192)
        for name, ms in (("sdpa.flash", 3), ("sdpa.cudnn", 2))
    ]
    full = row(backend="sdpa.math", ms=None, outcome="refused", reason="out of memory", seq_len_q=8192, seq_len_kv=8192)
    content = speed(row(), CUDNN, MATH, *longer, full)
    assert content.lengths == (4096, 8192)
    lines = [line.split() for line in text(content).splitlines()]
    assert ["sdpa.flash", "3.000", "12"] in lines
    assert ["sdpa.math", "30", "no", "memory"] in lines
    page = renderer("html", "speed")(content, Style())
    assert page.count("<polyline") == 3 and "8k" in page


def test_a_page_of_one_length_has_bars() -> None:
    page = renderer("html", "speed")(ALL, Style())
    assert "<rect" in page and "<polyline" not in page and "<script" not in page


def test_text_of_a_record_becomes_no_markup() -> None:
    bad = row(backend="sdpa.cudnn", ms=None, outcome="failed", reason="<script>alert(1)</script>")
    assert "<script" not in renderer("html", "speed")(speed(row(), bad), Style())


def test_formats_without_a_view_are_refused() -> None:
    with pytest.raises(DoctorError, match="cannot show speed"):
        renderer("sarif", "speed")


def test_labels_of_lines_do_not_cover_each_other() -> None:
    chart = line_chart({name: {1: 1.0, 2: 2.0} for name in "abcdef"}, "six equal lines", str, "ms")
    assert chart is not None
    places = sorted(line.label_y for line in chart.lines)
    assert all(below - above >= 12 for above, below in pairwise(places))
    assert line_chart({"a": {1: 1.0}}, "one size", str, "ms") is None
