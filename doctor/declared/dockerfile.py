"""Dockerfile: the last stage, what it is built from, and what its commands install.

No light library that is kept up reads the format with heredocs and line numbers, so this does; nothing is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, MutableMapping
from pathlib import Path

from ..records import dataclass, field
from .interface import Entry, Sheet, fault
from .script import Script
from .shell import UNKNOWN, commands, substituted

_INSTRUCTION = re.compile(r"\s*(?P<name>[A-Za-z]+)(?:[ \t]+|(?=\\?$)|(?=<<))(?P<rest>.*)", re.DOTALL)
_NAMES = {
    "FROM", "RUN", "CMD", "LABEL", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER", "WORKDIR", "ARG",
    "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL", "MAINTAINER", "INCLUDE", "IMPORT",
}  # fmt: skip
_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_FLAG = re.compile(r"\s*--[a-z][a-z-]*(?:=\S*)?(?=\s)")
_PAIR = re.compile(r"""\s*([^\s=]+)=((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'\\])*)""", re.DOTALL)
#: Copied from another stage, these bring the packages that were installed there.
_PACKAGES = re.compile(
    r"venv|site-packages|dist-packages|conda|\.local|^/usr(/local)?(/lib.*|/bin)?/?$|^/opt(/[\w.-]+)?/?$|^/$|python"
)
_PREDEFINED = ("TARGETARCH", "TARGETPLATFORM", "TARGETOS", "BUILDPLATFORM", "BUILDARCH")
MAX_STAGES = 200

Variables = MutableMapping[str, str | None]


@dataclass(frozen=True)
class Instruction:
    """One instruction, with its text as it stands so that lines can be counted."""

    name: str
    rest: str
    line: int
    heredocs: tuple[tuple[str, str, int], ...] = ()  # tag, text, first line


@dataclass(frozen=True)
class Stage:
    """From one FROM to the next."""

    base: str
    name: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)


def read(path: Path, text: str) -> Sheet:
    """What the image of the last stage holds."""
    file = _File(path, text)
    script = file.built(len(file.stages) - 1)
    installs = script.installs
    entries: list[Entry] = [entry for found in installs.entries.values() for entry in found]
    facts = (*installs.facts.values(), *script.environment.values())
    notes = tuple(dict.fromkeys(installs.notes))
    return Sheet(tuple(entries), facts, False, "", notes, tuple(sorted(installs.included)))


class _File:
    """The stages of one file, each built when it is needed."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.globals: dict[str, str | None] = {}
        self.stages: list[Stage] = []
        self._built: dict[int, Script] = {}
        for instruction in instructions(path, text):
            if instruction.name == "FROM":
                self._from(instruction)
            elif self.stages:
                self.stages[-1].instructions.append(instruction)
            elif instruction.name == "ARG":
                _arguments(instruction, self.globals, {})
            else:
                raise fault(path, instruction.line, f"`{instruction.name}` stands before the first `FROM`")
        if not self.stages:
            raise fault(path, None, "it has no `FROM`", "is this a Dockerfile?")

    def _from(self, instruction: Instruction) -> None:
        words = substituted(_flat(instruction.rest), self.globals).split()
        words = [word for word in words if not word.startswith("--")]
        if not words or len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise fault(
                self.path, instruction.line, "`FROM` needs an image, and may name its stage: `FROM image AS name`"
            )
        if len(self.stages) >= MAX_STAGES:
            raise fault(self.path, instruction.line, f"more than {MAX_STAGES} stages")
        self.stages.append(Stage(words[0], words[2].lower() if len(words) == 3 else "", instruction.line))

    def _earlier(self, name: str, before: int) -> int | None:
        """The number of an earlier stage by name or number."""
        for number in range(before - 1, -1, -1):
            if self.stages[number].name == name.lower():
                return number
        return int(name) if name.isdecimal() and len(name) < 5 and int(name) < before else None

    def built(self, number: int) -> Script:
        """The state at the end of a stage."""
        chain = [number]  # stages that this one goes on from, so that a long chain is no deep recursion
        while (before := self._earlier(self.stages[chain[-1]].base, chain[-1])) is not None:
            if before in self._built or self.stages[chain[-1]].base.isdecimal():
                break
            chain.append(before)
        for here in reversed(chain):
            if here not in self._built:
                self._built[here] = self._build(here)
        return self._built[number]

    def _build(self, number: int) -> Script:
        stage = self.stages[number]
        before = self._earlier(stage.base, number) if not stage.base.isdecimal() else None
        if before is not None:
            script = self.built(before).copy()
            for name in [name for name in script.variables if name not in script.exported]:
                del script.variables[name]  # build arguments end with their stage
        else:
            script = Script(self.path, self.text)
            if UNKNOWN in stage.base:
                shown = stage.base.replace(UNKNOWN, "…")[:60]
                script.installs.notes.append(
                    f"{self.path}:{stage.line}: what the image `{shown}` holds was not read: its name is the build's"
                )
            else:
                script.base(stage.base, stage.line)
        for instruction in stage.instructions:
            self._obey(instruction, script, number)
        return script

    def _obey(self, instruction: Instruction, script: Script, number: int) -> None:
        if instruction.name == "ARG":
            _arguments(instruction, script.variables, self.globals, script.exported)
        elif instruction.name == "ENV":
            for name, value, line in _pairs(instruction, script.variables):
                script.set(name, value, line)
        elif instruction.name in ("COPY", "ADD"):
            self._copy(instruction, script, number)
        elif instruction.name == "RUN":
            self._run(instruction, script)

    def _run(self, instruction: Instruction, script: Script) -> None:
        text, line = instruction.rest, instruction.line
        while flag := _FLAG.match(text):
            line += flag[0].count("\n")
            text = text[flag.end() :]
            joined = re.match(r"\s*\\\r?\n", text)
            if joined:
                line += 1
                text = text[joined.end() :]
        if text.lstrip().startswith("[") and not instruction.heredocs:
            script.apart(_exec_form(text), line)
        elif instruction.heredocs and not _HEREDOC.sub("", text).strip():
            for _, body, first in instruction.heredocs:
                script.apart(body, first)
        else:
            whole = "".join(f"\n{body}{tag}" for tag, body, _ in instruction.heredocs)
            script.apart(text + whole, line)

    def _copy(self, instruction: Instruction, script: Script, number: int) -> None:
        words = substituted(_flat(instruction.rest), script.variables).split()
        if words and words[0].startswith("["):
            words = _exec_form(" ".join(words)).split()
        flags = [word for word in words if word.startswith("--")]
        paths = [word for word in words if not word.startswith("--")]
        for tag, body, first in instruction.heredocs:
            if paths and f"<<{tag}" in re.sub(r"[-\"']", "", instruction.rest):
                script.written[paths[-1]] = "\n" * (first - 1) + body
        source = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), None)
        if len(paths) < 2:
            return
        if source is not None:
            earlier = self._earlier(source, number)
            if earlier is not None and any(_PACKAGES.search(path) for path in paths[:-1]):
                other = self.built(earlier)
                script.installs.notes += other.installs.notes
                script.installs.add(
                    (entry for found in other.installs.entries.values() for entry in found),
                    facts=other.installs.facts.values(),
                )
            return
        target = paths[-1]
        for path in paths[:-1]:
            name = path.rstrip("/").rpartition("/")[2]
            script.copied[name] = path
            script.copied[target.rstrip("/") + (f"/{name}" if target.endswith(("/", ".")) else "")] = path


def instructions(path: Path, text: str) -> Iterator[Instruction]:
    """Every instruction with its continuation lines; comments between them are blank."""
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
            shown = whole.split()[0][:30] if whole.split() else ""
            raise fault(path, first + 1, f"unknown instruction `{shown}`")
        heredocs = []
        if name in ("RUN", "COPY", "ADD"):
            for found in _HEREDOC.finditer(match["rest"]):
                end = next((at for at in range(number, len(rows)) if rows[at].strip() == found[2]), None)
                if end is None:
                    raise fault(path, first + 1, f"the text up to `{found[2]}` does not end")
                heredocs.append((found[2], "".join(f"{row}\n" for row in rows[number:end]), number + 1))
                number = end + 1
        before = whole[: match.start("rest")].count("\n")
        yield Instruction(name, match["rest"], first + 1 + before, tuple(heredocs))


def _flat(text: str) -> str:
    """Continuation lines joined, quotes dropped."""
    return re.sub(r"\\\r?\n|\\$", " ", text).replace('"', "").replace("'", "")


def _arguments(
    instruction: Instruction, variables: Variables, outer: Variables, exported: Collection[str] = ()
) -> None:
    """`ARG NAME=default`, several at once; without default the one before the first FROM."""
    for command in commands(instruction.rest.replace("\\\n", " ")):
        for word in command.words:
            for text in word.said(variables):
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


def _pairs(instruction: Instruction, variables: Variables) -> Iterator[tuple[str, str, int]]:
    """(name, value, line) of `ENV A=1 B=2` and of the old `ENV A 1`."""
    text = instruction.rest
    old = re.match(r"\s*([^\s=]+)[ \t]+(.*)", text, re.DOTALL)
    if old and not _PAIR.match(text):
        yield old[1], substituted(_flat(old[2]).strip(), variables), instruction.line
        return
    position, line = 0, instruction.line
    text = re.sub(r"\\(\r?\n)", r"\1", text)
    before = dict(variables)  # all of one ENV see what was set before it
    while match := _PAIR.match(text, position):
        line = instruction.line + text.count("\n", 0, match.start(1))
        raw = match[2]
        single = raw.startswith("'")
        value = re.sub(r"\\(.)", r"\1", raw.replace('"', "").replace("'", "")) if not single else raw.strip("'")
        yield match[1], value if single else substituted(value, before), line
        position = match.end()


def _exec_form(text: str) -> str:
    """`["pip", "install", "x"]` as a shell would be told it."""
    try:
        words = json.loads(re.sub(r"\\\r?\n", " ", text).strip())
    except (ValueError, RecursionError):
        return text
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return ""
    if len(words) == 3 and words[1] in ("-c", "-lc", "-ec"):
        return str(words[2])
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
