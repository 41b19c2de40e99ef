"""Rules and libraries are read through typed fields: no text key reaches into what their files state."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from doctor.rulebook.rule import Library, Rule

DOCTOR = Path(__file__).resolve().parents[2] / "doctor"
FIELDS = DOCTOR / "rulebook" / "rule.py"
#: Modules that show or keep the whole file: attributes, never keys.
WHOLE = {"cli/rules.py", "report/rule_page.py", "rulebook/rulebook.py"}


def reads(tree: ast.AST) -> list[int]:
    """Return the lines that take a part of `X.stated` by a key."""
    found = []
    for node in ast.walk(tree):
        inner = node.value if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            inner = node.func.value
        if isinstance(node, ast.Compare):
            inner = next((item for item in node.comparators if isinstance(item, ast.Attribute)), None)
        if isinstance(inner, ast.Attribute) and inner.attr == "stated":
            found.append(node.lineno)
    return found


def test_no_key_reaches_into_a_rule_or_a_library() -> None:
    paths = [path for path in sorted(DOCTOR.rglob("*.py")) if path != FIELDS]
    found = [f"{path}:{line}" for path in paths for line in reads(ast.parse(path.read_text("utf-8")))]
    assert found == []


def test_the_whole_file_is_taken_where_it_is_shown_or_kept_only() -> None:
    taking = {
        path.relative_to(DOCTOR).as_posix()
        for path in DOCTOR.rglob("*.py")
        if path != FIELDS and re.search(r"rule\.stated\b", path.read_text("utf-8"))
    }
    assert taking <= WHOLE


def test_a_read_by_key_is_found() -> None:
    text = 'rule.stated["why"]\nrule.stated.get("why")\n"why" in rule.stated\nrule.stated.items()\n'
    assert reads(ast.parse(text)) == [1, 2, 3]


def test_the_fields_of_a_rule_without_any_are_empty() -> None:
    rule = Rule("X001", "x", {"id": "X001", "name": "n", "summary": "s"}, "X001.yaml")
    assert (rule.name, rule.summary, rule.message, rule.cause, rule.weight) == ("n", "s", "s", "n", 0)
    assert not any((rule.why, rule.category, rule.yields_to, rule.needs, rule.no_pin, rule.myth, rule.confirm,
                    rule.fix_reasons, rule.packages, rule.is_benign, rule.is_checked, rule.condition))  # fmt: skip
    assert Library("x", {"name": "x"}).title == "x"
