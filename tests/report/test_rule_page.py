"""One rule as a page: the same in the terminal and in the documentation."""

from __future__ import annotations

import re

import pytest

from doctor.cli.main import run
from doctor.report.rule_page import as_markdown, as_text, escaped, page_of
from doctor.report.style import Style
from tests.helpers.rulebook import builtin_rulebook

RULES = builtin_rulebook().rules


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_has_a_page_with_sources_examples_and_a_condition(rule):
    page = page_of(rule)
    titles = [section.title for section in page.sections]
    assert {"When", "Message", "Examples", "Sources"} <= set(titles)
    text, markdown = as_text(page, Style()), as_markdown(page)
    assert [line[:-1] for line in text.splitlines() if re.fullmatch(r"[A-Z][^:`]*:", line)] == titles
    assert [line[3:] for line in markdown.splitlines() if line.startswith("## ")] == titles
    for source in rule.references:
        assert source in text
        assert source in markdown or escaped(source) in markdown


def test_a_page_shows_where_the_border_runs():
    text = as_text(page_of(RULES["TE103"]), Style())
    fires, _, silent = text.partition("It is silent with")
    assert "cudnn.version: 8.9.0" in fires.partition("It fires with")[2]
    assert "It is skipped with" in silent


def test_the_terminal_and_the_markdown_come_from_the_command(capsys: pytest.CaptureFixture[str]):
    assert run(["rules", "show", "te103"]) == 0
    assert capsys.readouterr().out == as_text(page_of(RULES["TE103"]), Style(False, 100))
    assert run(["rules", "show", "TE103", "--format", "markdown"]) == 0
    assert capsys.readouterr().out == as_markdown(page_of(RULES["TE103"]))


def test_markdown_shows_what_the_rule_says():
    assert escaped("a <b> *c* `d <e>` f_g") == r"a \<b\> \*c\* `d <e>` f\_g"
