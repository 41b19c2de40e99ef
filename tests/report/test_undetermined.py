"""Skipped checks: the missing workload once, the rest by what is missing."""

import pytest

from doctor.model import Undetermined
from doctor.report.formats import renderer
from doctor.report.style import Style
from doctor.report.undetermined import count, lines, relevant

NO_JOB = Undetermined(
    ("workload.mask",), ("T001", "T002"), "`workload.mask`: no workload was given; `x.version`: not given"
)


@pytest.fixture
def open_questions(make_report):
    many = [Undetermined((f"env.P{number}",), (f"P{number}",), f"`env.P{number}`: not given")
            for number in range(20)]  # fmt: skip
    wide = Undetermined(("gpu.sm",), tuple(f"W{number}" for number in range(9)), "`gpu.sm`: not given")
    return make_report(undetermined=(*many, NO_JOB, wide), findings=(), cases=())


def test_what_lacks_a_workload_is_said_once_and_the_widest_gap_first(open_questions):
    first, second, *_ = lines(open_questions, most=12)
    assert first.startswith("2 need a workload") and "--model" in first
    assert second == "W0, W1, W2, W3, W4 and 4 more: `gpu.sm`: not given"


def test_a_shortened_list_says_how_much_it_leaves_out_and_a_whole_one_is_whole(open_questions):
    assert lines(open_questions, most=12)[-1].startswith("and 9 more combinations")
    whole = lines(open_questions)
    assert len(whole) == 22 and "W8" in whole[1]
    assert count(relevant(open_questions)) == "31 checks"


@pytest.mark.parametrize("name", ["text", "github", "markdown", "html"])
def test_no_format_for_people_lists_the_keys_of_a_missing_workload(name, open_questions):
    said = renderer(name)(open_questions, Style(verbose=True))
    assert "2 need a workload" in said and "no workload was given" not in said


def test_checks_of_a_library_that_is_neither_installed_nor_named_are_not_skipped_checks(make_report):
    other = Undetermined(("xformers.version",), ("XF900",), "`xformers.version`: not given")
    named = Undetermined(("torch.version",), ("TORCH900",), "`torch.version`: not readable")
    report = make_report(undetermined=(other, named))
    assert [item.rules for item in relevant(report)] == [("TORCH900",)]
    for name in ("text", "markdown", "github", "junit", "sarif", "html"):
        said = renderer(name)(report, Style(verbose=True))
        assert "TORCH900" in said and "XF900" not in said, name
    assert "XF900" in renderer("json")(report, Style())
