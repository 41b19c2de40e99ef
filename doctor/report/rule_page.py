"""One rule as a page for readers: the same sections in a terminal and, as Markdown, in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.rulebook.authoring.tests import RuleTest, in_file_tests
from doctor.rulebook.proofs import (
    BINARY,
    CONSTANT,
    IMPORT,
    LACKS,
    MEASURED,
    METADATA,
    PROVEN,
    SOURCE,
    STATED,
    WHEEL,
    Proof,
    Record,
    proofs_of,
    record_of,
    shipped_records,
)
from doctor.rulebook.rule import Rule, as_tuple, is_built_in
from doctor.rulebook.schema import read_sources

from .fix_text import alternative_lines, safety_text
from .markdown_text import with_code
from .page import Page
from .style import Style

TEXT, ITEMS, CODE = "text", "items", "code"
_EXAMPLES = ("fires", "silent", "undetermined")  # one of each is enough to see where the border runs
#: Further lines of a signature → how they relate to the one that matches.
_NEXT_TO = {"near": "near", "anywhere": "in a log with", "not_near": "not near", "frame": "raised in"}
_OUTCOMES = {"fires": "fires", "silent": "is silent", "undetermined": "is skipped"}


@dataclass(frozen=True)
class Block:
    """A paragraph, a list (two blanks of indent a level) or lines to paste."""

    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A heading and the text below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class RulePage:
    """All that a reader may want to know of one rule."""

    id: str
    kind: str  # error, warning, note, support, run time, import, explain
    summary: str
    subtitle: str
    sections: tuple[Section, ...]


def kind_of(rule: Rule) -> str:
    """The severity of a finding rule; what else a rule is for."""
    if not rule.is_checked:
        return "explain"
    return rule.severity or ("import" if rule.import_error else "run time" if rule.fails_at_run else "support")


def page_of(rule: Rule) -> RulePage:
    """The page of `rule`; its examples are the tests in its file."""
    sections = [
        _section("Why", _text(rule.why)),
        _section("What happens", *_effects(rule)),
        _section("When", Block(ITEMS, tuple(_condition(rule.condition, 0)))),
        _section("Evidence", _evidence(rule)),
        _section("Examined", _text(_examined(rule.examined_to))),
        _section("Message", _text(re.sub(r"\{([^{}]+)\}", r"`\1`", rule.message))),
        _section("Error messages", _code([_message(item) for item in _items(rule.signatures)])),
        _section("Fixes", *_cures(rule)),
        _section("Common wrong fix", _text(rule.myth)),
        _section("How a GPU confirms it", _text(_confirmed(rule.confirm))),
        _section("Examples", *_examples(rule)),
        _section("Former ids", _text(", ".join(rule.replaces))),
        _section("Sources", Block(ITEMS, rule.references) if rule.references else None),
    ]
    path = Path(rule.path)
    place = f"rules/{path.parent.name}/{path.name}" if is_built_in(rule.path) else rule.path
    return RulePage(rule.id, kind_of(rule), rule.summary, f"{rule.name}, {place}", tuple(filter(None, sections)))


def as_text(page: RulePage, style: Style) -> str:
    """The page for a terminal."""
    out = Page(style)
    out.say(
        page.summary, lead=f"{page.id} ({page.kind}):", look=page.kind if page.kind in ("error", "warning") else None
    )
    out.line(f"  {page.subtitle}")
    for section in page.sections:
        out.gap()
        out.line(f"{section.title}:", "label")
        for block in section.blocks:
            for line in block.lines:
                if block.kind == TEXT:
                    out.say(line, indent=2, hang=2)
                else:
                    out.line(
                        f"    {line}" if block.kind == CODE else f"  {line}", "command" if block.kind == CODE else None
                    )
    return out.text()


def as_markdown(page: RulePage) -> str:
    """The page for the documentation."""
    lines = [f"# {page.id}: {escaped(page.summary)}", "", f"**{page.kind}** · {escaped(page.subtitle)}"]
    for section in page.sections:
        lines += ["", f"## {section.title}"]
        for block in section.blocks:
            lines.append("")
            if block.kind == TEXT:
                lines += [escaped(line) for line in block.lines]
            elif block.kind == CODE:
                fence = "`" * (2 + max(2, *(len(run) for line in block.lines for run in re.findall("`+", line)), 1))
                lines += [f"{fence[1:]}text", *block.lines, fence[1:]]
            else:
                lines += [_item(line) for line in block.lines]
    return "\n".join(lines) + "\n"


def _section(title: str, *blocks: Block | None) -> Section | None:
    found = tuple(block for block in blocks if block is not None and block.lines)
    return Section(title, found) if found else None


def _text(value: Any) -> Block | None:
    return Block(TEXT, (" ".join(str(value).split()),)) if value else None


def _code(value: Any) -> Block | None:
    lines = (value,) if isinstance(value, str) else tuple(value or ())
    return Block(CODE, tuple(str(line) for line in lines)) if lines else None


def _items(value: Any) -> list[Any]:
    """Return one signature or several as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value] if value else []


def _message(signature: Any) -> str:
    """Return what a signature matches, with the lines that it needs in addition."""
    if isinstance(signature, str):
        return signature
    more = [f"{word} {text}" for key, word in _NEXT_TO.items() for text in as_tuple(signature.get(key)) if text]
    return ", ".join((str(signature["match"]), *more))


def _effects(rule: Rule) -> Iterator[Block | None]:
    if rule.disables:
        yield _text(f"{', '.join(f'`{name}`' for name in rule.disables)} will be unavailable.")
    if rule.fails_at_run:
        names = ", ".join(f"`{name}`" for name in rule.fails_at_run)
        yield _text(f"{names} is selected and then fails at run time.")
    if rule.import_error:
        yield _text(f"`{rule.import_error}` refuses to import, or to build the module.")


def _condition(when: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The condition tree, one line a leaf."""
    margin = "  " * depth
    for key, wanted in when.items():
        if key in ("all", "any"):
            yield f"{margin}{'all of these hold' if key == 'all' else 'at least one of these holds'}:"
            for part in wanted:
                yield from _condition(part, depth + 1)
        elif key == "not":
            yield f"{margin}this does not hold:"
            yield from _condition(wanted, depth + 1)
        else:
            values = ", ".join(wanted) if isinstance(wanted, (list, tuple)) else wanted
            yield f"{margin}`{key}` is `{values}`"


def _cures(rule: Rule) -> Iterator[Block | None]:
    for number, item in enumerate(rule.alternatives):
        yield _text("or" if number else "")
        yield _code(alternative_lines(item))
        yield _text((item.note or "") + safety_text(item))
    if rule.no_pin:
        yield _text(f"No version change fixes this: {rule.no_pin}")


def _examined(newest: Mapping[str, Any] | None) -> str:
    if not newest:
        return ""
    releases = ", ".join(f"`{name}` {version}" for name, version in newest.items())
    return f"Up to {releases}. A later release may have fixed it: a finding there says so, and is no error."


def _evidence(rule: Rule) -> Block | None:
    """One line for each proof: what it rests on, and when a machine last checked it."""
    records = shipped_records() if is_built_in(rule.path) else {}
    lines = [_proof_line(proof, record_of(rule.id, proof, records)) for proof in proofs_of(rule.stated)]
    return Block(ITEMS, tuple(lines)) if lines else None


def _proof_line(proof: Proof, record: Record | None) -> str:
    if proof.kind == STATED:
        return f"reported by users: {proof.body['url']}"
    if proof.kind == MEASURED:
        origin = f"measured on a GPU: `{proof.body['capture']}`"
    else:
        kinds = {
            SOURCE: "sources",
            BINARY: "compiled files",
            METADATA: "metadata",
            CONSTANT: "constants",
            IMPORT: "imports",
            LACKS: "names",
            WHEEL: "wheels",
        }
        origin = f"the {kinds[proof.kind]} of {proof.origin} {', '.join(as_tuple(proof.body['in']))}"
    if record is None:
        return f"{origin}: not verified yet"
    if record.outcome != PROVEN:
        return f"{origin}: {record.outcome} on {record.date} ({record.reason})"
    if proof.kind == MEASURED:
        return f"{origin}, checked on {record.date}"
    first, last = record.shown_in[0], record.shown_in[-1]
    releases = first if first == last else f"{first} to {last}"
    return f"proven by the {kinds[proof.kind]} of {proof.origin} {releases} on {record.date}"


def _confirmed(confirm: Mapping[str, Any] | None) -> str:
    if not confirm:
        return ""
    request = ", ".join(f"{key} {value}" for key, value in (confirm.get("request") or {}).items())
    return f"The kernel program `{confirm['kernel']}` runs the job's attention" + (
        f" with {request}." if request else "."
    )


def _examples(rule: Rule) -> Iterator[Block | None]:
    """From the tests in the rule's file: the first that fires, the first that is silent, the first undetermined."""
    tests = _tests(rule)
    for outcome in _EXAMPLES:
        test = next((test for test in tests if test.expect == outcome), None)
        if test is None:
            continue
        yield _text(f"It {_OUTCOMES[outcome]} with")
        yield _code([f"{key}: {_shown(value)}" for key, value in test.given.items()])


def _tests(rule: Rule) -> Sequence[RuleTest]:
    sources = read_sources(Path(rule.path))
    return tuple(test for source in sources if source.content.get("id") == rule.id for test in in_file_tests(source))


def _shown(value: Any) -> str:
    return "unknown" if value is None else str(value)


def escaped(text: str) -> str:
    """Return Markdown that shows `text` as it is; text in backticks is left alone."""
    return with_code(text, lambda part: re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", part))


_LINK = r"https://[^\s<>\"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]+"


def _item(line: str) -> str:
    text = line.lstrip()
    margin = " " * 2 * (len(line) - len(text))  # Markdown wants four blanks a level
    return f"{margin}- " + (f"<{text}>" if re.fullmatch(_LINK, text) else escaped(text))
