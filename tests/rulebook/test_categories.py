"""One set of categories: every rule that ships has one of them, or none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from doctor.diagnosis.logs import kinds
from doctor.rulebook.authoring.lint import lint
from doctor.rulebook.categories import CATEGORIES, FORMER, OF_FINDINGS, OF_LOGS, WRONG_NUMBERS
from doctor.rulebook.rule import Rule

ROOT = Path(__file__).resolve().parents[2]
#: More words than that, and no reader knows them.
MOST = 27
_CATEGORY = re.compile(r"^ *category: ([^#\n]*?) *(?:#.*)?$", re.MULTILINE)


def stated() -> dict[str, set[str]]:
    """Return category → the files that state it."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "rules").rglob("*.yaml"):
        for word in _CATEGORY.findall(path.read_text("utf-8")):
            found.setdefault(word, set()).add(path.stem)
    return found


def test_every_rule_has_one_of_the_categories() -> None:
    found = stated()
    unknown = {word: sorted(files)[:3] for word, files in found.items() if word not in CATEGORIES}
    assert not unknown, f"write one of {', '.join(CATEGORIES)}: {unknown}"
    assert found.keys() == CATEGORIES.keys(), "a category that no rule has says nothing"
    explaining = {name for word in OF_FINDINGS for name in found[word] if name.startswith("LOG")}
    assert not explaining, "answers about logs do not name these"


def test_there_are_few_categories_each_with_a_meaning() -> None:
    assert len(CATEGORIES) == len(OF_LOGS) + len(OF_FINDINGS) <= MOST
    assert all(meaning and not meaning.endswith(".") for meaning in CATEGORIES.values())


def test_the_shapes_of_messages_name_categories_of_logs() -> None:
    assert {category for _, category in kinds._SHAPES} <= OF_LOGS.keys()
    assert all(kinds.category_of(word, "line") in OF_LOGS for word in (*CATEGORIES, None, "word"))


@pytest.mark.parametrize("word", FORMER)
def test_a_former_word_is_read_as_what_it_is_now(word: str) -> None:
    assert word not in CATEGORIES and FORMER[word] in CATEGORIES
    assert Rule("OWN001", "own", {"category": word}, "OWN001.yaml").category == FORMER[word]


@pytest.mark.parametrize(
    ("word", "hint"),
    [("wrong-numerics", f"write `{WRONG_NUMBERS}`"), ("crahs", "did you mean `crash`?"), ("zzzzzz", "categories are ")],
)
def test_the_lint_names_the_word_to_write(tmp_path: Path, word: str, hint: str) -> None:
    text = (ROOT / "rules" / "torch" / "TORCH030.yaml").read_text("utf-8")
    assert _CATEGORY.search(text)
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "TORCH030.yaml").write_text(_CATEGORY.sub(f"category: {word}", text))
    faults = [fault for fault in lint([folder / "TORCH030.yaml"]) if "category" in fault.message]
    assert [fault.message for fault in faults] == [f"there is no category `{word}`"]
    assert hint in str(faults[0].hint)
