"""Several cases in one report: every format says where a finding is found, and what becomes of each case."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from doctor.model import Case, Evidence, Fact, Facts, Finding, Severity, Verdict
from doctor.report.cases import message_of, messages, name_of, readings, rows, where
from doctor.report.formats import renderer
from doctor.report.locations import place_of
from doctor.report.style import Style
from doctor.report.summary import verdict

TORCH = Fact("torch.version", "2.6.0", "req.txt:3", raw="torch==2.6.0")


def finding(rule, length, severity=Severity.ERROR):
    evidence = (
        Evidence("torch.version", "<2.7", ">=2.7", TORCH, True),
        Evidence("workload.seq_len_q", ">1", "", Fact("workload.seq_len_q", length, f"job-{length}: seq_len_q"), True),
    )
    return Finding(
        rule, "n", severity, Verdict.FIRES, f"{rule} in short", f"{length} tokens are too many", "", evidence, ()
    )


@pytest.fixture
def several(make_report):
    """Two GPUs × two jobs: one error in both jobs of the b200, one warning on all but one."""
    healthy = [item._replace(fails_at_run=None) for item in make_report().predictions]
    cases = []
    for gpu in ("h100", "b200"):
        for job, length in (("llama", 1024), ("gemma", 2048)):
            found = [finding("T001", length)] if gpu == "b200" else []
            found += [finding("T002", 5, "warning")] if (gpu, job) != ("h100", "gemma") else []
            facts = Facts([TORCH, Fact("gpu.name", gpu, "--gpu"), Fact("workload.seq_len_q", length, "job")])
            predictions = tuple(healthy) if job == "llama" else ()
            cases.append(Case("req.txt", gpu, job, facts, tuple(found), predictions, ()))
    merged = (finding("T001", 1024)._replace(cases=(2, 3)), finding("T002", 5, "warning")._replace(cases=(0, 2, 3)))
    return make_report(
        cases=tuple(cases), findings=merged, predictions=(), fixes=(), undetermined=(), runs=(), notes=(),
        facts=Facts([TORCH]),
    )  # fmt: skip


def show(name, report):
    return renderer(name)(report, Style())


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((0, 1, 2, 3), "all 4 cases"), ((2, 3), "b200 · llama, gemma"), ((0, 2), "h100, b200 · llama"),
        ((0,), "h100 · llama"), ((0, 2, 3), "h100 · llama; b200 · llama, gemma"), ((), ""),
    ],
)  # fmt: skip
def test_where_is_said_as_short_as_it_can_be(numbers, told, several):
    assert where(several, numbers) == told


def test_an_axis_of_which_nothing_is_missing_is_not_spelled_out(several):
    cases = tuple(
        several.cases[0]._replace(gpu=gpu, workload=job) for gpu in ("a", "b", "c") for job in ("j", "k", "l")
    )
    report = several._replace(cases=cases)
    assert where(report, (0, 3, 6)) == "every GPU · j"
    assert where(report, (3, 4, 5)) == "b · every job"


def test_several_environments_are_named(several):
    cases = tuple(case._replace(environment=case.gpu, gpu=None) for case in several.cases)
    report = several._replace(cases=cases)
    assert where(report, (0, 1)) == "h100: llama, gemma"
    assert len({name_of(case) for case in cases}) == 4


def test_what_differs_from_case_to_case_is_reported_for_each(several):
    first, second = several.findings
    assert messages(several, first) == [("1024 tokens are too many", (2,)), ("2048 tokens are too many", (3,))]
    assert [(fact.value, numbers) for fact, numbers in readings(several, first, first.evidence[1])] == [
        (1024, (2,)), (2048, (3,)),
    ]  # fmt: skip
    assert [fact.value for fact, _ in readings(several, first, first.evidence[0])] == ["2.6.0"]
    assert messages(several, second) == [(second.message, (0, 2, 3))]


def test_the_line_of_the_pin_is_found_through_the_case(several):
    implied = Fact("cudnn.version", "9.1.0", "what torch 2.6.0 brings")
    one = several.findings[0]._replace(evidence=(Evidence("cudnn.version", "<9.3", ">=9.3", implied, True),))
    assert place_of(several._replace(facts=Facts()), one).line == 3


def test_the_verdict_is_the_worst_and_says_of_how_many(several):
    assert verdict(several) == ("error", "FAIL", "2 of 4 cases: T001 in short")
    fine = several._replace(findings=(), cases=tuple(case._replace(findings=()) for case in several.cases[1::2]))
    assert verdict(fine)[0] == "ok"
    assert verdict(fine)[2] == "no known problems in any of 2 cases"


def test_every_case_is_in_the_table_with_its_verdict(several):
    told = {(row.workload, row.gpus): (row.verdict, row.findings) for row in rows(several)}
    assert told[("gemma", "b200")] == ("FAIL", ("T001", "T002"))
    assert ("gemma", "h100") in told
    assert sum(len(row.gpus.split(", ")) for row in rows(several)) == 4


@pytest.mark.parametrize("name", ["text", "markdown", "github", "sarif"])
def test_every_format_says_where(name, several):
    assert "b200 · llama, gemma" in show(name, several)


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_the_table_is_for_people(name, several):
    text = renderer(name)(several, Style(verbose=True))
    assert "4 cases" in text
    for part in ("1024 tokens are too many", "2048 tokens are too many", "1024, 2048"):
        assert part in text


class TestJson:
    def test_one_case_is_as_it_was(self, report):
        content = json.loads(show("json", report))
        assert not {"cases", "known"} & set(content)
        assert not {"cases", "messages"} & set(content["findings"][0])

    def test_cases_and_where(self, several):
        content = json.loads(show("json", several))
        assert [case["findings"] for case in content["cases"]] == [["T002"], [], ["T001", "T002"], ["T001", "T002"]]
        assert content["findings"][0]["cases"] == [2, 3]
        assert content["findings"][0]["messages"] == [
            {"message": "1024 tokens are too many", "cases": [2]},
            {"message": "2048 tokens are too many", "cases": [3]},
        ]  # fmt: skip
        assert content["findings"][0]["evidence"][1]["readings"][1] == {"found": 2048, "cases": [3]}
        assert content["cases"][0]["backends"][0]["selected"] == "te.fused"
        assert content["cases"][2]["facts"]["gpu.name"]["value"] == "b200"
        assert "torch.version" not in content["cases"][2]["facts"]


def test_sarif_names_the_cases_of_a_result(several):
    first = json.loads(show("sarif", several))["runs"][0]["results"][0]
    assert first["properties"]["cases"] == [
        {"environment": "req.txt", "gpu": "b200", "workload": job} for job in ("llama", "gemma")
    ]


def test_junit_has_a_suite_for_each_case(several):
    suites = ElementTree.fromstring(show("junit", several)).findall("testsuite")
    failures = {suite.get("name").rpartition("req.txt · ")[2]: suite.get("failures") for suite in suites}
    assert {name: failures[name] for name in ("h100 · gemma", "b200 · llama", "b200 · gemma")} == {
        "h100 · gemma": "0", "b200 · llama": "1", "b200 · gemma": "1",
    }  # fmt: skip


def test_what_the_baseline_has_is_not_in_the_table(several):
    report = several._replace(findings=several.findings[1:], known=several.findings[:1])
    assert not any("T001" in row.findings for row in rows(report))
    junit = ElementTree.fromstring(show("junit", report))
    assert not list(junit.iter("failure"))


def test_what_breaks_only_as_the_baseline_has_it_is_no_failure(make_report):
    report = make_report(findings=(finding("T002", 5, "warning"),), known=(finding("T001", 5),))
    assert verdict(report)[:2] == ("warning", "WARN")


@pytest.mark.parametrize("name", ["html", "github", "sarif", "gitlab", "markdown", "text"])
def test_every_format_says_what_differs_from_case_to_case(name, several):
    said = show(name, several)
    assert "1024 tokens are too many" in said and "2048 tokens are too many" in said


def test_the_page_says_where_the_cases_found_different_values(several):
    assert "1024, 2048" in show("html", several) and "different per case" in show("html", several)


def test_a_long_list_of_different_messages_ends(several):
    cases = tuple(case._replace(findings=(finding("T001", 100 + number),)) for number, case in enumerate(several.cases))
    whole = several._replace(cases=cases, findings=(finding("T001", 100)._replace(cases=(0, 1, 2, 3)),))
    assert message_of(whole, whole.findings[0]).endswith("; and 1 similar messages")


def test_a_library_has_one_name_in_every_format(several):
    table = {name: show(name, several) for name in ("text", "markdown", "html")}
    assert not [name for name, said in table.items() if "transformer_engine:" in said or ">transformer_engine" in said]


def test_the_page_names_the_findings_of_each_case_and_the_environment_only_where_there_are_several(several):
    page = show("html", several)
    assert '<td><a href="#f1">T001</a>, <a href="#f2">T002</a></td>' in page and "<td>req.txt</td>" not in page
    other = tuple(case._replace(environment="b.txt") if number else case for number, case in enumerate(several.cases))
    assert "<td>b.txt</td>" in show("html", several._replace(cases=other))
