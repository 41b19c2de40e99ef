"""The default text report: verdict, cause, backend, fix and next command on one screen."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from doctor import diagnose
from doctor.model import (
    ApiUse,
    Candidate,
    ChangeKind,
    Fact,
    Facts,
    Finding,
    FixSafety,
    InstallPlan,
    Prediction,
    Reason,
    Remedy,
    Report,
    Severity,
    Verdict,
)
from doctor.report.brief import comparison
from doctor.report.fix_text import fix_lines
from doctor.report.formats import renderer
from doctor.report.style import Style
from doctor.report.summary import conclusion
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.resolver import FactResolver

INCIDENTS = Path(__file__).parents[2] / "examples" / "incidents"
SCREEN = 24  # lines
WIDTH = 80


@cache
def incident(letter: str) -> Report:
    return diagnose(facts=INCIDENTS / letter / "facts.yaml", workload=INCIDENTS / letter / "workload.yaml", run=True)


def show(report: Report, **style: object) -> str:
    return renderer("text")(report, Style(width=WIDTH, **style))  # type: ignore[arg-type]


@pytest.mark.parametrize("letter", sorted(folder.name for folder in INCIDENTS.iterdir()))
def test_an_incident_fits_one_screen_with_cause_rules_and_fix(letter):
    report = incident(letter)
    text = show(report)
    lines = text.splitlines()
    first_fix = report.fixes[0]
    assert len(lines) <= SCREEN, text
    assert lines[0].startswith(("FAIL ", "FAIL:"))
    assert all(finding.rule in text for finding in report.findings)
    first = report.findings[0]
    assert " ".join(first.message.split()) in " ".join(text.split())
    assert all(f"  {number} " in text for number in range(1, len(report.fixes) + 1))
    commands = [line for line in fix_lines(first_fix) if not line.startswith("#")]
    flat = " ".join(text.split())  # a command that is the title is not repeated
    assert all(" ".join(line.split()) in flat for line in commands)
    assert f"attn-doctor rules show {first.rule}" in text.replace("\n  ", " ")


def test_only_commands_are_wider_than_the_screen():
    for letter in "abcdef":
        wide = [line.strip() for line in show(incident(letter)).splitlines() if len(line) > WIDTH]
        assert all(line.startswith(("pip ", "export ", "fix: ", "uv ")) or "https://" in line for line in wide), wide


def warning(rule: str, **more: object) -> Finding:
    return Finding(
        rule, "n", Severity.WARNING, Verdict.FIRES, f"{rule} in short", f"{rule} at length", "", (), (), **more
    )  # type: ignore[arg-type]


def test_a_finding_that_no_fix_of_the_report_clears_shows_its_own(make_report):
    alone = warning("W001", alternatives=(Remedy(set_env={"A": "1"}), Remedy(set_env={"B": "2"})))
    risky = warning(
        "W002", alternatives=(Remedy(require={"torch": "==2.8.0"}, unset_env=("C",), safety=FixSafety.RISKY),)
    )
    worded = warning("W003", alternatives=(Remedy(note="Ask the platform team."),))
    report = make_report()
    lines = show(report._replace(findings=(report.findings[0], alone))).splitlines()
    assert lines[lines.index("warning W001: W001 in short") + 1] == "  fix: export A=1"
    lines = show(report._replace(findings=(report.findings[0], risky))).splitlines()
    at = lines.index("warning W002: W002 in short")
    assert lines[at + 1 : at + 4] == [
        "  fix: (risky: see `-v`)", "    pip install torch==2.8.0", "    unset C",
    ]  # fmt: skip
    assert "  fix: Ask the platform team." in show(report._replace(findings=(report.findings[0], worded)))
    cleared = report.fixes[0]._replace(resolves=("TE900", "W001"))
    assert "export A=1" not in show(report._replace(findings=(report.findings[0], alone), fixes=(cleared,)))


def test_several_warnings_next_to_an_error_take_a_line_each(make_report):
    report = make_report()
    long = warning("W001", alternatives=(Remedy(set_env={"A": "1"}),))._replace(summary="word " * 40)
    text = show(report._replace(findings=(report.findings[0], long, warning("W002"))))
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("warning W001: word"))
    assert lines[at].endswith(" …") and len(lines[at]) <= WIDTH
    assert lines[at + 1] == "warning W002: W002 in short" and "export A=1" not in text


def test_warnings_alone_are_shown_in_full(make_report):
    text = show(make_report(findings=(warning("W001"), warning("W002")), predictions=(), fixes=()))
    assert text.startswith("WARN: W001 in short (and 1 more)")
    assert "warning W001: W001 in short\n  W001 at length" in text
    assert "warning W002: W002 in short\n  W002 at length" in text


def use(reach: str, *, own_code: bool = False) -> ApiUse:
    return ApiUse("a.py", 1, "f", "a.b has no c", "warning", reach, own_code, "a.b", None, None)


def test_uses_that_few_jobs_reach_take_a_line_each(make_report):
    def text(*found: Finding) -> str:
        return show(make_report(findings=found, predictions=(), fixes=()))

    rare = [warning("API002", uses=(use("on_demand"),)), warning("API010", uses=(use("common"),))]
    both = text(rare[0], warning("W001"), rare[1])
    assert "W001 at length" in both and both.count("at length") == 1
    assert all(f"warning {item.rule}: {item.summary}" in both for item in rare)
    alone = text(*rare)
    assert "API002 at length" in alone and "API010 at length" not in alone
    assert "API004 at length" in text(warning("W001"), warning("API004", uses=(use("on_demand", own_code=True),)))


def test_a_command_of_a_fix_is_never_broken_into_lines(make_report):
    command = f"export CUDNN_HOME={'/very/long/folder' * 6}"
    report = make_report()
    change = report.fixes[0].changes[0]._replace(kind=ChangeKind.CALL, name=command, after=None)
    fix = report.fixes[0]._replace(title=f"Run `{command}`", changes=(change,), plan=InstallPlan())
    assert f"      {command}\n" in show(report._replace(fixes=(fix,)))


def test_several_errors_are_all_named(make_report):
    report = make_report()
    findings = tuple(report.findings[0]._replace(rule=f"T{number:03}") for number in range(8))
    text = show(report._replace(findings=findings))
    assert all(f"error T{number:03}:" in text for number in range(8))
    assert "(and 7 more)" in text.splitlines()[0]


def test_no_fix_says_why(make_report):
    report = make_report(fixes=())
    assert "No fix for TE900: The limit is in the GPU." in show(report)


UNKNOWN = Prediction("transformer_engine", None, False, (), None, None)
NONE = Prediction("transformer_engine", None, True, (Candidate("te.fused", "Fused", False, ()),))
CRASHES = Prediction("torch", "sdpa.flash", True, (), Reason("X001", "the kernel dies", True, "x"))
QUIET = {"findings": (), "predictions": (), "undetermined": (), "runs": (), "fixes": ()}
JOB = Facts([Fact("workload.mask", "causal", "job.yaml: mask")])


@pytest.mark.parametrize(
    ("changes", "word", "sentence"),
    [
        ({}, "FAIL", "FusedAttention lacks a mask"),
        ({**QUIET, "predictions": (CRASHES,)}, "FAIL", "the kernel dies"),
        ({**QUIET, "predictions": (NONE,)}, "FAIL", "no attention backend of TransformerEngine serves this job"),
        ({**QUIET, "findings": (warning("W001"),)}, "WARN", "W001 in short"),
        ({**QUIET, "predictions": (UNKNOWN,)}, "INCOMPLETE", "cannot predict the attention backend"),
        ({**QUIET, "unread": ("a.lock:1: x",)}, "INCOMPLETE", "1 declared file not read"),
        ({**QUIET, "facts": JOB}, "OK", "no known problems"),
        ({**QUIET, "facts": JOB, "known": (warning("W001"),)}, "OK", "no new findings (1 known finding in the base"),
        ({**QUIET, "ignored": (warning("W001"),)}, "OK", "no new findings (ignored by the project: W001)"),
        ({**QUIET, "known": (warning("W001"),), "predictions": (CRASHES,)}, "FAIL", "the kernel dies"),
    ],
)  # fmt: skip
def test_the_four_verdicts(changes, word, sentence, make_report):
    report = make_report(**changes)
    assert conclusion(report)[1] == word
    assert conclusion(report)[2].startswith(sentence)
    for name in ("text", "markdown", "html", "github", "junit"):
        assert word in renderer(name)(report, Style()), name


def test_quiet_shows_errors_only(report):
    text = show(report, quiet=True)
    assert "TE900" in text and "FA900" not in text and "Fix" not in text


def test_verbose_adds_sources_reasons_and_skipped_checks(report):
    short, whole = show(report), show(report, verbose=True)
    for part in ("https://example.org/pull/1", "switched off by NVTE_FLASH_ATTN=0", "CUDA900", "Common wrong fix:",
                 "The limit is in the GPU.", "Assumptions (override with --set):"):  # fmt: skip
        assert part in whole and part not in short, part


#: The same things have the same names in every format.
WORDS = {
    "markdown": ("Target", "Machine", "Packages", "Skipped 3 checks", "unavailable", "selected", "Common wrong fix",
                 "The limit is in the GPU", "(risky: see note)"),
    "html": ("Target", "Machine", "Packages", "Skipped checks", "unavailable", "Common wrong fix",
             "The limit is in the GPU", "(risky: see note)"),
    "github": ("skipped 3 checks", "Common wrong fix", "The limit is in the GPU", "(risky: see note)"),
    "junit": ("Target", "Machine", "Packages", "skipped", "Common wrong fix", "The limit is in the GPU"),
    "gitlab": ("Common wrong fix", "The limit is in the GPU", "(risky: see note)"),
    "sarif": ("skipped CUDA900", "Common wrong fix", "The limit is in the GPU", "(risky: see note)"),
}  # fmt: skip
#: Words of the first version, which meant nothing to readers.
REPLACED = (
    "could not tell", "for want of", "cures", "not this:", "Not this:", "with care", "nothing found", "healthy:",
    "What to do", "from case to case", "alike",
)  # fmt: skip


@pytest.mark.parametrize("name", ["text", *WORDS])
def test_every_format_uses_the_same_words(name, make_report):
    text = renderer(name)(make_report(target="facts in a.yaml"), Style(verbose=True))
    assert [word for word in WORDS.get(name, ()) if word not in text] == []
    assert [word for word in REPLACED if word in text] == []


@pytest.mark.parametrize(("name", "marks"), [
    ("text", ("FAIL", "Attention", "Fix", "note:", "skipped")),
    ("markdown", ("FAIL", "### ❌ TE900", "Backends of", "### Fix:", "Skipped", "> CUDA901")),
    ("html", ('<h1><span class="error">', 'id="findings"', 'id="backends"', 'id="fixes"', 'id="undetermined"')),
])  # fmt: skip
def test_formats_for_people_keep_one_order(name, marks, report):
    text = renderer(name)(report, Style())
    body = text.partition("<body>")[2] or text
    places = [body.index(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("key", "wanted", "value", "line"),
    [
        ("cudnn.version", "<9.3", "9.1.0", "cudnn.version: found 9.1.0, needs >=9.3"),
        ("binaries.known_unloadable", "true", True,
         "binaries.known_unloadable: found yes (compiled files of other packages do not load)"),
        ("gpu.data_center", "false", False, "gpu.data_center: found no, needs yes"),
        ("platform.system", ["absent", "Linux"], "Linux", "platform.system: found Linux"),
        ("workload.mask", ["causal", "padding"], "causal", "workload.mask: found causal, needs another value"),
    ],
)  # fmt: skip
def test_the_line_of_a_condition_reads_as_a_fact(key, wanted, value, line):
    """No `needs no`, no `needs none of absent`: what a rule writes is no sentence."""
    (evidence,) = parse_conditions({key: wanted}).evidence(FactResolver(Facts([Fact(key, value, "a file")])))
    assert evidence.holds and comparison(key, evidence, [evidence.fact]) == line
