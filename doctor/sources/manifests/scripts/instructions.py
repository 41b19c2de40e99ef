"""The grammar of a Dockerfile: instructions with their lines, heredocs, pairs and words."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from doctor.errors import fault
from doctor.sources.variables import UNKNOWN
from doctor.util.redact import shortened

from .shell import commands, substituted

_INSTRUCTION = re.compile(r"\s*(?P<name>[A-Za-z]+)(?:[ \t]+|(?=\\?$)|(?=<<))(?P<rest>.*)", re.DOTALL)
_NAMES = {
    "FROM", "RUN", "CMD", "LABEL", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER", "WORKDIR", "ARG",
    "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "MAINTAINER", "INCLUDE", "IMPORT",
}  # fmt: skip
HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_PAIR = re.compile(r"""\s*([^\s=]+)=((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'\\])*)""", re.DOTALL)
_PREDEFINED = ("TARGETARCH", "TARGETPLATFORM", "TARGETOS", "BUILDPLATFORM", "BUILDARCH")

Variables = MutableMapping[str, str | None]


@dataclass(frozen=True)
class Instruction:
    """One instruction with its text as written, so that lines can be counted."""

    name: str
    rest: str
    line: int
    heredocs: tuple[tuple[str, str, int], ...] = ()  # tag, text, first line


def instructions(path: Path, text: str) -> Iterator[Instruction]:
    """Yield every instruction with its continuation lines; comments between them become blank."""
    rows = text.split("\n")
    escape = "\\"
    for row in rows[:10]:
        directive = re.fullmatch(r"#\s*(\w+)\s*=\s*(\S+)\s*", row.rstrip("\r"))
        if directive is None:
            break
        if directive[1].lower() == "escape":
            escape = directive[2]
    number = 0
    while number < len(rows):
        row = rows[number].rstrip("\r")
        if not row.strip() or row.lstrip().startswith("#"):
            number += 1
            continue
        first = number
        parts: list[str] = []
        while True:
            row = rows[number].rstrip("\r") if number < len(rows) else ""
            blank = bool(parts) and (not row.strip() or row.lstrip().startswith("#"))
            goes_on = blank or (row.rstrip().endswith(escape) and number < len(rows))
            parts.append("\\" if blank else row.rstrip()[: -len(escape)] + "\\" if goes_on else row)
            number += 1
            if not goes_on or number >= len(rows):
                break
        whole = "\n".join(parts).removesuffix("\\")
        match = _INSTRUCTION.fullmatch(whole)
        name = match["name"].upper() if match else ""
        if match is None or name not in _NAMES:
            shown = shortened(whole.split()[0], 30) if whole.split() else ""
            raise fault(path, first + 1, f"unknown instruction `{shown}`")
        heredocs = []
        if name in ("RUN", "COPY", "ADD"):
            for found in HEREDOC.finditer(match["rest"]):
                end = next((at for at in range(number, len(rows)) if rows[at].strip() == found[2]), None)
                if end is None:
                    raise fault(path, first + 1, f"the heredoc has no closing `{found[2]}`")
                heredocs.append((found[2], "".join(f"{row}\n" for row in rows[number:end]), number + 1))
                number = end + 1
        before = whole[: match.start("rest")].count("\n")
        yield Instruction(name, match["rest"], first + 1 + before, tuple(heredocs))


def flat(text: str) -> str:
    """Join continuation lines and drop quotes."""
    return re.sub(r"\\\r?\n|\\$", " ", text).replace('"', "").replace("'", "")


def arguments(instruction: Instruction, variables: Variables, outer: Variables, exported: Collection[str] = ()) -> None:
    """Apply `ARG NAME=default`; without a default, the value of the same `ARG` before the first FROM counts."""
    for command in commands(instruction.rest.replace("\\\n", " ")):
        for word in command.words:
            for text in word.expanded(variables):
                name, equals, value = text.partition("=")
                if name in exported:
                    continue  # ENV wins over ARG
                if equals:
                    variables[name] = None if UNKNOWN in value else value
                elif name in outer:
                    variables[name] = outer[name]
                elif name in _PREDEFINED:
                    variables[name] = {"TARGETARCH": "amd64", "TARGETOS": "linux"}.get(name)
                else:
                    variables[name] = None


def pairs(instruction: Instruction, variables: Variables) -> Iterator[tuple[str, str, int]]:
    """Yield (name, value, line) of `ENV A=1 B=2` and of the old form `ENV A 1`."""
    text = instruction.rest
    old = re.match(r"\s*([^\s=]+)[ \t]+(.*)", text, re.DOTALL)
    if old and not _PAIR.match(text):
        yield old[1], substituted(flat(old[2]).strip(), variables), instruction.line
        return
    position, line = 0, instruction.line
    text = re.sub(r"\\(\r?\n)", r"\1", text)
    found: list[tuple[str, str, int]] = []  # all before the first is taken: values see earlier instructions only
    while match := _PAIR.match(text, position):
        line = instruction.line + text.count("\n", 0, match.start(1))
        raw = match[2]
        single = raw.startswith("'")
        value = re.sub(r"\\(.)", r"\1", raw.replace('"', "").replace("'", "")) if not single else raw.strip("'")
        found.append((match[1], value if single else substituted(value, variables), line))
        position = match.end()
    yield from found


def exec_form(text: str) -> str:
    """Return `["pip", "install", "x"]` as a shell command."""
    try:
        words = json.loads(re.sub(r"\\\r?\n", " ", text).strip())
    except (ValueError, RecursionError):
        return text
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return ""
    if len(words) == 3 and words[1] in ("-c", "-lc", "-ec"):
        return str(words[2])
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
