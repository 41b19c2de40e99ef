"""What kernels said, in every format: where the time went, what a run refuted, and how to see a surprise again."""

import json

import pytest

from doctor.cli.output import exit_code
from doctor.model import Confirmation, Finding, Severity
from doctor.report.formats import renderer
from doctor.report.style import Style

SCRIPT = "# attn-doctor, kernel sdpa: the result is wrong\nimport torch\nwith sdpa_kernel(1):\n    out = `sdpa`(q)\n"


def show(form, report):
    return renderer(form, "diagnosis")(report, Style())


def found(verdict, severity, **more):
    said = Confirmation(verdict, "sdpa", {}, "ran", {}, "out is off by 3.7", 1.25)
    return Finding("UNPREDICTED", "n", severity, verdict, "s", "m", "", (), (), confirmation=said, **more)


@pytest.fixture
def surprise(make_report):
    return make_report(findings=(found("unpredicted", Severity.ERROR, reproduction=SCRIPT),), fixes=())


def test_text_shows_the_script_line_by_line(surprise):
    text = show("text", surprise)
    assert "seen in a run: `sdpa` ran in 1.2 s: out is off by 3.7" in text
    assert "    import torch\n    with sdpa_kernel(1):\n        out = `sdpa`(q)\n" in text


def test_markdown_shows_it_as_python_in_a_fence_of_its_own(surprise):
    lines = show("markdown", surprise).splitlines()
    begin = lines.index("```python")
    assert lines[begin + 1 : begin + 5] == SCRIPT.splitlines() and lines[begin + 5] == "```"


def test_json_and_sarif_carry_it_whole(surprise):
    (finding,) = json.loads(show("json", surprise))["findings"]
    assert (finding["verdict"], finding["confirmation"]["verdict"]) == ("unpredicted", "unpredicted")
    assert finding["reproduction"] == SCRIPT
    run = json.loads(show("sarif", surprise))["runs"][0]
    assert run["results"][0]["properties"]["reproduction"] == SCRIPT
    assert "import torch" in run["tool"]["driver"]["rules"][0]["help"]["text"]


@pytest.mark.parametrize("form", ["github", "junit", "html"])
def test_other_formats_show_it_too(surprise, form):
    assert "import torch" in show(form, surprise)


def test_without_a_script_json_says_null(report):
    assert [finding["reproduction"] for finding in json.loads(show("json", report))["findings"]] == [None, None]


def test_the_time_of_kernels_is_split(make_report):
    timing = {"kernels": 5.0, "kernels.import": 2.46, "kernels.context": 0.31, "kernels.case": 1.72, "total": 5.2}
    report = make_report(timing=timing)
    last = renderer("text")(report, Style(verbose=True)).rstrip().splitlines()[-1]
    assert last == "2 rules in 5.20 s, 5.0 s of it in kernels (import 2.5, CUDA context 0.3, cases 1.7)"
    assert json.loads(show("json", report))["timing"] == timing


@pytest.mark.parametrize(("verdict", "severity", "code"), [("unpredicted", "error", 1), ("refuted", "note", 0)])
def test_what_a_run_refuted_fails_no_check_and_a_surprise_does(make_report, verdict, severity, code):
    report = make_report(findings=(found(verdict, Severity(severity)),), predictions=(), fixes=(), undetermined=())
    assert exit_code(report, "error") == code
    words = {"unpredicted": "seen in a run:", "refuted": "refuted by a run:"}[verdict]
    assert words in show("text", report), "still visible"
    assert show("text", report).startswith("FAIL" if code else "OK")
