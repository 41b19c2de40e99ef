"""The runner of in-file tests: what a rule is judged on, and what its author reads when it judges otherwise."""

from __future__ import annotations

import pytest

from doctor.rulebook.authoring.tests import failure_text, in_file_tests, load_libraries, run_rule_tests, run_test
from doctor.rulebook.rule import Library
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.schema import read_source

HEAD = """\
id: T001
name: flaw
{effect}
summary: Something breaks
references: [a/b@v1]
message: needs torch 2.6 (found {{torch.version}})
when:
  torch.version: "<2.6"
  workload.mask: [causal, arbitrary]
tests:
  it: {test}
"""
NO_LIBRARIES = Rulebook({}, {})


def outcome(tmp_path, test, effect="severity: note", libraries=NO_LIBRARIES):
    path = tmp_path / "torch" / "T001.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD.format(effect=effect, test=test))
    (found,) = in_file_tests(read_source(path))
    return run_test(found, libraries)


BOTH = "torch.version: 2.5.0, workload.mask: causal"


@pytest.mark.parametrize(
    "test",
    [
        f"{{given: {{{BOTH}}}, expect: fires}}",
        f"{{given: {{{BOTH}}}, expect: fires, message: found 2.5.0}}",
        "{given: {torch.version: 2.6.0, workload.mask: causal}, expect: silent}",
        "{given: {torch.version: 2.6.0}, expect: silent}",
        "{given: {torch.version: null, workload.mask: causal}, expect: undetermined, missing: [torch.version]}",
        "{given: {}, expect: undetermined, missing: [workload.mask, torch.version]}",
    ],
)
def test_what_holds_passes(tmp_path, test):
    assert outcome(tmp_path, test).passed


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (f"{{given: {{{BOTH}}}, expect: silent}}", "expected silent, but the rule is firing"),
        ("{given: {torch.version: 2.6.0}, expect: fires}", "expected fires, but the rule is silent"),
        ("{given: {torch.version: 2.5.0}, expect: fires}", "expected fires, but the rule is undetermined"),
        ("{given: {torch.version: 2.5.0}, expect: undetermined, missing: [torch.version]}",
         "expected `torch.version` to be missing, found `workload.mask`"),
        ("{given: {torch.version: 2.5.0}, expect: undetermined, missing: []}", "expected nothing to be missing"),
        (f"{{given: {{{BOTH}}}, expect: fires, message: found 2.4}}",
         "expected the message to contain `found 2.4`, found `needs torch 2.6 (found 2.5.0)`"),
    ],
)  # fmt: skip
def test_what_does_not_hold_fails_with_the_reason(tmp_path, test, words):
    found = outcome(tmp_path, test)
    assert not found.passed and words in found.problem
    assert failure_text(found).startswith(f"{tmp_path}/torch/T001.yaml:11: T001::it: ")


def test_a_failure_says_what_each_condition_judged(tmp_path):
    found = outcome(tmp_path, "{given: {torch.version: 2.7.0, workload.mask: causal}, expect: fires}")
    assert found.problem.splitlines()[1:] == [
        "  does not hold: `torch.version: <2.6` (2.7.0 from the test)",
        "  holds: `workload.mask: one of causal, arbitrary` (causal from the test)",
    ]


def test_a_run_time_rule_is_judged_by_its_condition_unless_the_backend_is_given(tmp_path):
    effect = "fails_at_run: te.fused"
    for selected, expect in [
        ("", "fires"),
        (", te.selected: te.fused", "fires"),
        (", te.selected: te.unfused", "silent"),
        (", te.selected: absent", "silent"),
        (", te.selected: null", "undetermined"),
    ]:
        assert outcome(tmp_path, f"{{given: {{{BOTH}{selected}}}, expect: {expect}}}", effect).passed, selected
    found = outcome(tmp_path, f"{{given: {{{BOTH}, te.selected: te.unfused}}, expect: fires}}", effect)
    assert "`te.selected` is te.unfused, the rule is about te.fused" in found.problem


def test_a_release_implies_and_a_given_value_wins(tmp_path):
    releases = {"1.0": {"torch.version": "2.5.0"}}
    lib = Rulebook({}, {"lib": Library("lib", {"distributions": ["lib"], "releases": releases})})
    implied = "{given: {lib.version: 1.0, workload.mask: causal%s}, expect: %s}"
    assert outcome(tmp_path, implied % ("", "fires"), libraries=lib).passed
    assert outcome(tmp_path, implied % (", torch.version: 2.6.0", "silent"), libraries=lib).passed
    assert outcome(tmp_path, implied % (", torch.version: null", "undetermined"), libraries=lib).passed
    assert outcome(tmp_path, implied % ("", "undetermined")).passed


def test_a_folder_is_run_whole_and_an_unreadable_file_fails_alone(tmp_path):
    outcome(tmp_path, f"{{given: {{{BOTH}}}, expect: fires}}")
    (tmp_path / "torch" / "T002.yaml").write_text("id: T002\nnaem: x\n")
    results = {found.id: found.problem for found in run_rule_tests([tmp_path], NO_LIBRARIES)}
    assert results.pop("T001::it") is None
    assert list(results) == ["T002::(file)"] and "unknown key `naem` (did you mean `name`?)" in results["T002::(file)"]


def test_a_team_brings_libraries_of_its_own(tmp_path):
    (tmp_path / "library.yaml").write_text("name: ours\ndistributions: [ours]\n")
    libraries = load_libraries([tmp_path]).libraries
    assert "ours" in libraries and "torch" in libraries
