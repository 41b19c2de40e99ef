"""The commands that the documents, the program and the rules show."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SPAN = re.compile(r"`(?:salloc [^`]*?)?(attn-doctor [^`]+)`")
#: A line of a block: a prompt, a word that starts the program or a pipe into it, and the command.
IN_BLOCK = re.compile(r"\s*(?:\$ |run: |salloc .*?|[^#|]*\| )?(?:\S+/)?(attn-doctor .+)")
#: Documents of the past, or of other programs' commands.
LEFT_OUT = ("docs/stress/", "docs/incidents", "docs/adr/")


class Command(NamedTuple):
    """One command, where it is written, and whether a reader types it as it is (a mention may lack its arguments)."""

    where: str
    text: str
    typed: bool


def in_documents() -> Iterator[Command]:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    for page in pages:
        where = page.relative_to(ROOT).as_posix()
        if where.startswith(LEFT_OUT):
            continue
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                if found := IN_BLOCK.match(line):
                    yield Command(where, found[1], True)
        prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.S | re.M)
        yield from (Command(where, " ".join(found.split()), False) for found in SPAN.findall(prose))


def in_program() -> Iterator[Command]:
    for path in sorted((ROOT / "doctor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "WORD" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            where = f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
            yield from (Command(where, " ".join(found.split()), False) for found in SPAN.findall(text))


def in_rules() -> Iterator[Command]:
    for path in sorted((ROOT / "rules").rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if "attn-doctor" in text:
            for found in re.findall(r"call: (attn-doctor .+)|`(attn-doctor [^`]+)`", text):
                yield Command(path.relative_to(ROOT).as_posix(), " ".join("".join(found).split()), True)


#: A line of grammar, of which a reader types one form.
GRAMMAR = re.compile(r"\bTARGET\b|\bCOMMAND\b|\bWORD …|\[|\S\|\S")


def words_of(text: str) -> list[str]:
    """The words that the shell passes on."""
    text = re.sub(r"\$\([^)]*\)", "computed", text)
    text = re.split(r"\s(?:\||\|\||&&|>|2>|#|;)\s?", text)[0]
    return [word for word in shlex.split(text, comments=True)[1:] if word not in ("…", "...")]
