"""Signatures of rules: forms, anchors, a cache of their own, and rules that only explain."""

import pytest

from doctor.errors import DoctorError
from doctor.rulebook.anchors import anchors_of, fixed_length
from doctor.rulebook.authoring.lint import lint
from doctor.rulebook.authoring.tests import run_rule_tests
from doctor.rulebook.categories import OF_LOGS
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.signatures import load_log_rules, parse_signatures

EXPLAINS = """\
id: LOGX001
name: made-up-failure
category: missing-module/package
packages: [made-up]
summary: the made-up module is missing
references: [owner/made-up#1]
signatures: ["No module named 'made_up'"]
tests:
  matches: {log: ["ModuleNotFoundError: No module named 'made_up'"], expect: matches}
  silent: {log: ["No module named 'other'"], expect: no match}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def folder(tmp_path, text, name="LOGX001.yaml"):
    path = tmp_path / "rules" / "made_up" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path.parent.parent


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("cannot import name '(?:a|b)c' from", ("cannot import name '",)),
        (r"x \d+ of the (?:first|second) part", (" of the ",)),
        (r"\d(?:first one|second)\d", ("first one", "second")),
        (r"(?:abcdef)+\d", ("abcdef",)),
        (r"(?:abcdef)?\d", ()),
        (r"\w+", ()),
        (r"(", ()),
    ],
)
def test_every_match_contains_an_anchor(pattern, texts):
    assert anchors_of(pattern) == texts


def test_texts_whose_case_does_not_matter_are_spelled_in_every_way():
    assert set(anchors_of("(?i:nan)\\d")) == {"nan", "Nan", "nAn", "naN", "NAn", "NaN", "nAN", "NAN"}


def test_a_signature_is_a_text_or_a_mapping_with_further_lines():
    plain, conditional = parse_signatures(["plain text", {"match": "line one", "near": "two", "not_near": ["three"]}])
    assert plain.explains("a plain text here") and not plain.explains("other")
    assert conditional.explains("line one\nline two") and not conditional.explains("line one")
    assert not conditional.explains("line one\nline two\nline three")


def test_a_frame_says_whose_code_raised_the_error():
    (owned,) = parse_signatures([{"match": "Error: no block size", "frame": "/vllm/"}])
    own, other = (f'File "/x/site-packages/{name}/a.py", line 1, in f\n' for name in ("vllm", "torch"))
    assert owned.explains(f"{other}{own}ValueError: no block size")
    assert not owned.explains(f"{own}{other}ValueError: no block size")
    assert not owned.explains("ValueError: no block size")


def test_a_signature_leaves_groups_of_messages_to_other_rules(tmp_path):
    (general,) = parse_signatures([{"match": "Error: ", "unless": "calls and names"}])
    assert general.explains("ValueError: no block size")
    assert not general.explains("ImportError: cannot import name 'x' from 'y'")
    unknown = EXPLAINS.replace("[\"No module named 'made_up'\"]", "{match: No module, unless: [no such group]}")
    rules = folder(tmp_path, unknown)
    with pytest.raises(DoctorError, match="`no such group` is no group of messages"):
        load_log_rules((str(rules),))


def test_check_does_not_read_rules_that_only_explain(tmp_path):
    rules = folder(tmp_path, EXPLAINS)
    (rules / "made_up" / "library.yaml").write_text("name: made_up\n")
    assert "LOGX001" not in load_rulebook((str(rules),)).rules
    assert "LOGX001" in {rule.rule.id for rule in load_log_rules((str(rules),))}


def test_signatures_come_from_their_cache_until_a_file_changes(tmp_path):
    rules = folder(tmp_path, EXPLAINS)
    first = load_log_rules((str(rules),))
    assert load_log_rules((str(rules),)) == first
    (rules / "made_up" / "LOGX001.yaml").write_text(EXPLAINS.replace("the made-up module", "the other module"))
    (changed,) = (rule for rule in load_log_rules((str(rules),)) if rule.rule.id == "LOGX001")
    assert changed.rule.stated["summary"].startswith("the other")


def test_tests_of_a_rule_run_on_their_logs(tmp_path):
    rules = folder(tmp_path, EXPLAINS)
    outcomes = run_rule_tests([rules / "made_up" / "LOGX001.yaml"])
    assert [outcome.passed for outcome in outcomes] == [True, True]
    (rules / "made_up" / "LOGX001.yaml").write_text(EXPLAINS.replace("named 'other'", "named 'made_up'"))
    assert [outcome.passed for outcome in run_rule_tests([rules / "made_up" / "LOGX001.yaml"])] == [True, False]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("missing-module/package", "missing-modules", "there is no category"),
        ("ModuleNotFoundError: No module named 'made_up'", "made_up", "no log in `tests` shows this signature"),
        ("No module named 'made_up'\"]", '\\\\d+"]', "has no fixed text"),
        ("packages: [made-up]\n", "", "`packages` is missing"),
    ],
)
def test_what_the_lint_finds_in_a_rule_that_explains(tmp_path, old, new, words):
    rules = folder(tmp_path, EXPLAINS.replace(old, new))
    assert any(words in fault.message for fault in lint([rules / "made_up" / "LOGX001.yaml"]))


def test_a_pattern_that_re2_does_not_take_names_the_file(tmp_path):
    rules = folder(tmp_path, EXPLAINS.replace("No module named 'made_up'\"]", 'No module (?=named)"]'))
    with pytest.raises(DoctorError, match=r"LOGX001\.yaml.*no regular expression"):
        load_log_rules((str(rules),))


def test_every_rule_that_only_explains_has_a_category():
    rules = [rule for rule in load_log_rules() if rule.explains_only]
    assert len(rules) > 250 and all(rule.category in OF_LOGS for rule in rules)
    assert {rule.category for rule in rules} == set(OF_LOGS)


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("abc", 3),
        (r"a[bc]\w+d", 2),
        ("ab(?:cde|f)g", 4),
        ("(?i:Abc)x{2}y?", 5),
        (r"(?P<name>ab)\.c", 4),
        ("(", 0),
    ],
)
def test_the_length_that_a_pattern_spells_out(pattern, length):
    assert fixed_length(pattern) == length
