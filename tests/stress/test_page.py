"""The page of a sweep: error over bound as a chart, coverage, faults; hostile texts stay text."""

from __future__ import annotations

import re

import pytest

from doctor.report.bar_chart import bar_chart
from doctor.stress.compare_rules import CaseGroup, Comparison
from doctor.stress.page import as_html
from doctor.stress.sweep import by_backend, margins
from doctor.stress.verdict import CaseVerdict
from tests.helpers.sweep_results import EVIL, sweep_result


def test_the_chart_has_every_backend_and_dtype() -> None:
    result = sweep_result()
    page = as_html(result)
    values = margins(result.records)
    assert len(values) > 3 and page.count("<rect") == len(values)
    for (backend, dtype), value in values.items():
        assert f">{backend} {dtype}</text>" in page and f">{value:.2f}</text>" in page
    (backend, dtype), largest = max(values.items(), key=lambda item: item[1])
    assert f"The largest is {largest:.2f}, of " in page


def test_bars_are_as_long_as_their_values() -> None:
    chart = bar_chart([("a", 0.25), ("b", 0.5), ("c", 1.0)], "x")
    assert chart is not None
    lengths = [bar.length for bar in chart.bars]
    assert lengths[1] == pytest.approx(2 * lengths[0], abs=0.2) and chart.left + lengths[2] == pytest.approx(
        chart.limit_x
    )
    assert [bar.near for bar in chart.bars] == [False, False, True]
    beyond = bar_chart([("a", 2.0)], "x")
    assert beyond is not None and beyond.limit_x < beyond.left + beyond.bars[0].length < beyond.width
    assert bar_chart([], "x") is None


def test_coverage_counts_what_the_sweep_counts() -> None:
    result = sweep_result()
    page = as_html(result)
    for name, counts in by_backend(result).items():
        covered, total = result.plan.pairs[name]
        row = re.search(rf'<th scope="row">{name}</th>(.*?)</tr>', page)
        assert row and f"{covered} of {total}" in row[1]
        assert f">{counts[CaseVerdict.RIGHT]}</td>" in row[1] and ">2.00</td>" in row[1] and ">1.50</td>" in row[1]


def test_a_fault_has_its_script_and_a_lost_gpu_is_named() -> None:
    page = as_html(sweep_result())
    assert '<span class="error">FAIL</span>' in page and "1 fault and 1 device lost during the sweep" in page
    assert "Fault 1" in page and "import torch" in page and "run on its own, it shows the fault" in page
    assert "predicted by SDPA001" in page and "unspecified launch failure" in page


def test_hostile_texts_stay_text() -> None:
    page = as_html(sweep_result())
    assert EVIL not in page and "<script" not in page and "<img" not in page and "&lt;script&gt;" in page


def test_cases_that_were_not_reached_make_it_incomplete() -> None:
    page = as_html(sweep_result(bad=False, reached=5))
    assert "INCOMPLETE" in page and "not reached" in page and "Fault 1" not in page
    assert '<span class="ok">OK</span>' in as_html(sweep_result(bad=False))
    empty = as_html(sweep_result(bad=False, reached=0))
    assert "No case has a right result." in empty and "<svg" not in empty


def test_rules_are_compared() -> None:
    result = sweep_result()
    comparison = Comparison(covered=7)
    comparison.predicted["SDPA101", "refused"] = CaseGroup(result.plan.cases[0], count=3)
    comparison.refuted["SDPA102", "sdpa.flash"] = CaseGroup(result.plan.cases[0])
    comparison.unpredicted["sdpa.math"] = CaseGroup(result.plan.cases[0], "why")
    page = as_html(result, comparison)
    assert re.search(r"SDPA101</th><td class=\"\">predicted</td><td class=\"\">3</td>", page)
    assert re.search(r"SDPA102</th><td class=\"error\">refuted</td>", page) and "not predicted" in page
