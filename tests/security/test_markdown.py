"""Markdown from inputs, as CommonMark reads it: no HTML but our own, no picture, no table cell that an input ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from .conftest import FACTS, WORKLOAD, Doctor, rule, rules_folder
from .test_rule_files import small_rulebook  # noqa: F401 - a fixture

EVIL = (
    "``a`b``<img src=x onerror=y>", "`a|<img src=x onerror=y>|b`", "a`<img src=x>`", "\\`<img src=x>\\`", "```<b>x</b>",
    "`` ` ``<script>x</script>`", "<!-- x", "<details><summary>", "![x](http://h/x.png)", "a\n\n<img src=x>", "- <b>",
    "`a` `b``<b>`c`", "&lt;b&gt;<b>", "`\\`<b>`", "a | <b> | `c", "[x](javascript:y)<u>", "`a\n\n<img src=x>`", "# <b>",
)  # fmt: skip
OWN = re.compile(r"</?(?:details|summary|sub|br)>")


def read(text: str) -> list[Token]:
    """Return the tokens of a page, also those within lines."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def markdown_in(value: object) -> Iterator[str]:
    """Yield each text under a key `markdown` of a JSON document."""
    if isinstance(value, dict):
        yield from (item for key, item in value.items() if key == "markdown" and isinstance(item, str))
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from markdown_in(item)


def require_no_html(text: str) -> None:
    """Fail where CommonMark finds HTML that is not ours, a picture or a script address."""
    for token in read(text):
        if token.type in ("html_block", "html_inline"):
            assert "<" not in OWN.sub("", token.content), (token.content, text)
        assert token.type != "image", text
        assert not str(token.attrGet("href") or "").startswith("javascript"), text


@pytest.mark.parametrize("text", EVIL)
def test_no_html_of_a_rule_or_fact_in_markdown(project: Path, small_rulebook: Path, doctor: Doctor, text: str) -> None:  # noqa: F811
    folder = rules_folder(
        project,
        rule(
            message=f"{text} {{gpu.name}}", why=text, summary=text, no_pin=text, myth=text, references=[f"https://h/{text}", text],
            fix=[{"note": text}, {"call": text}, {"require": {"torch": ">=2.7"}, "note": text}], signatures=["x y z"],
        ),
    )  # fmt: skip
    facts = {"torch.version": {"value": "2.6.0", "source": text, "raw": text}, "gpu.name": text, "gpu.sm": "9.0"}
    (project / "facts.json").write_text(json.dumps({"facts": facts}))
    (project / "other.json").write_text(json.dumps({"facts": {"torch.version": "2.5.0", "gpu.name": "H100"}}))
    outputs = [
        doctor("check", "--no-run", "--facts", "facts.json", "--rules", folder, "--format", "markdown").out,
        doctor("fix", "--facts", "facts.json", "--rules", folder, "--format", "markdown").out,
        doctor("rules", "show", "X001", "--rules", folder, "--format", "markdown").out,
        doctor("diff", "facts.json", "other.json", "--rules", folder, "--format", "markdown").out,
        *markdown_in(doctor("check", "--no-run", "--facts", "facts.json", "--rules", folder, "--format", "sarif").json),
    ]
    assert all(outputs) and len(outputs) > 4
    for output in outputs:
        require_no_html(output)


@pytest.mark.parametrize("text", [text for text in EVIL if "/" not in text and "\n" not in text])
def test_no_html_of_a_file_name_in_markdown(project: Path, doctor: Doctor, text: str) -> None:
    name = f"requirements-{text}.txt"
    (project / name).write_text("torch==2.6.0\nflash-attn==2.5.0\n")
    (project / "facts.yaml").write_bytes(FACTS.read_bytes())
    (project / "facts.yaml").rename(f"{text}.yaml")
    for command in (
        ("check", "--no-run", "--requirements", name, "--gpu", "h100"),
        ("check", "--no-run", "--facts", f"{text}.yaml", "--workload", WORKLOAD),
    ):
        output = doctor(*command, "--format", "markdown").out
        assert "attn-doctor" in output
        require_no_html(output)


def test_ordinary_code_stays_code() -> None:
    from doctor.report.markdown_text import paragraph, prose

    for text in ("use `torch==2.6.0` and `a|b`", "`x`", "a `b c` d"):
        code = re.findall("`([^`]+)`", text)
        for shown in (prose(text), paragraph(text)):
            assert [token.content for token in read(shown) if token.type == "code_inline"] == code
    assert [token.type for token in read(paragraph("- a")) if token.type == "bullet_list_open"] == []
