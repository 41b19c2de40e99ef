"""Starting a rule: a file that is valid at once, whose lint names what is missing, and never over another."""

from __future__ import annotations

import pytest

from doctor.errors import DoctorError
from doctor.rulebook.authoring.lint import lint
from doctor.rulebook.authoring.scaffold import new_rule, next_id
from doctor.rulebook.authoring.tests import run_rule_tests
from doctor.rulebook.schema import read_source


def test_a_new_rule_is_valid_and_says_what_to_fill_in(tmp_path):
    path = new_rule("transformer_engine", "TE998", "some-flaw", tmp_path)
    assert path == tmp_path / "transformer_engine" / "TE998.yaml"
    assert read_source(path).content["id"] == "TE998"
    assert all(outcome.passed for outcome in run_rule_tests([path]))
    blanks = {fault.message for fault in lint([path]) if "filled in" in fault.message}
    assert {message.split("`")[1] for message in blanks} == {"summary", "why", "references", "message", "fix", "tests"}


def test_a_rule_that_is_filled_in_passes_the_lint(tmp_path):
    path = new_rule("torch", "TORCH998", "some-flaw", tmp_path)
    text = path.read_text().replace("FILL IN a URL, path", "https://example.org/x path")
    text = text.replace("FILL IN ", "").replace(" FILL IN", "")
    path.write_text(text + "  silent without: {given: {torch.version: absent}, expect: silent}\n")
    assert [str(fault) for fault in lint([path])] == []


def test_nothing_is_overwritten(tmp_path):
    path = new_rule("torch", "TORCH998", "some-flaw", tmp_path)
    before = path.read_text()
    with pytest.raises(DoctorError, match="is taken by"):
        new_rule("torch", "TORCH998", "other-flaw", tmp_path)
    path.rename(path.with_suffix(".yaml.bak"))
    path.symlink_to("TORCH998.yaml.bak")
    with pytest.raises(DoctorError):
        new_rule("torch", "TORCH998", "other-flaw", tmp_path)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("library", "rule_id", "name", "words", "hint"),
    [
        ("torhc", "TORCH998", "flaw", "no library `torhc`", "did you mean `torch`?"),
        ("../etc", "TORCH998", "flaw", "no library", None),
        ("torch", "../X001", "flaw", "no rule id", None),
        ("torch", "TORCH998", "A Flaw", "no rule name", None),
        ("transformer_engine", "TE103", "flaw", "`TE103` is taken by", None),
    ],
)
def test_what_cannot_be_started(tmp_path, library, rule_id, name, words, hint):
    with pytest.raises(DoctorError) as caught:
        new_rule(library, rule_id, name, tmp_path)
    assert words in caught.value.message and (hint is None or caught.value.hint == hint)
    assert not list(tmp_path.rglob("*.yaml"))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "torch").write_text("a file where the folder should be")
    with pytest.raises(DoctorError, match="cannot write"):
        new_rule("torch", "TORCH998", "flaw", tmp_path)


def test_the_next_id_follows_the_last_of_the_library(tmp_path):
    number = int(next_id("transformer_engine", tmp_path).removeprefix("TE"))
    new_rule("transformer_engine", f"TE{number:03}", "flaw", tmp_path)
    assert next_id("transformer_engine", tmp_path) == f"TE{number + 1:03}"
    assert next_id("my_own_lib", tmp_path) == "MOL001"
    assert next_id("solo", tmp_path) == "SOLO001"
