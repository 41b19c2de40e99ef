"""Dockerfile: the last stage, its base, and the packages its commands install; nothing is built.

No small maintained library reads the format with heredocs and line numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from doctor.errors import fault
from doctor.model import Fact
from doctor.sources.manifests.base import DeclaredRequirement, Manifest
from doctor.sources.variables import UNKNOWN
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .compilers import NINJA, NVCC, carried
from .instructions import HEREDOC, Instruction, arguments, exec_form, flat, instructions, pairs
from .interpreter import Script
from .jobs import job_facts
from .serving import add_job, default_command
from .shell import commands, substituted

_FLAG = re.compile(r"\s*--[a-z][a-z-]*(?:=\S*)?(?=\s)")
#: Folders that hold installed packages: copied from another stage, they bring its packages.
_PACKAGES = re.compile(
    r"venv|site-packages|dist-packages|conda|\.local|^/usr(/local)?(/lib.*|/bin)?/?$|^/opt(/[\w.-]+)?/?$|^/$|python"
)
MAX_STAGES = 200


@dataclass(frozen=True)
class Stage:
    """The instructions from one FROM to the next."""

    base: str
    name: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return what the image of the last stage holds."""
    return read_stage(path, text, "", watch)


def read_stage(path: Path, text: str, name: str, watch: Watch) -> Manifest:
    """Return what the image of a stage holds, as built by `docker build --target NAME`; without a name, of the last."""
    file = _Stages(path, text, watch)
    script = file.built(file.number(name))
    installs = script.installs
    entries: list[DeclaredRequirement] = [entry for found in installs.entries.values() for entry in found]
    served = file.served(file.number(name), script)
    facts = (*installs.facts.values(), *script.environment.values(), *served)
    notes = tuple(dict.fromkeys(installs.notes))
    return Manifest(tuple(entries), facts, False, "", notes, tuple(sorted(installs.included)))


class _Stages:
    """The stages of one file, each followed when it is needed."""

    def __init__(self, path: Path, text: str, watch: Watch) -> None:
        self.path, self.text, self.watch = path, text, watch
        self.globals: dict[str, str | None] = {}
        self.stages: list[Stage] = []
        self._built: dict[int, Script] = {}
        for instruction in instructions(path, text):
            if instruction.name == "FROM":
                self._add_stage(instruction)
            elif self.stages:
                self.stages[-1].instructions.append(instruction)
            elif instruction.name == "ARG":
                arguments(instruction, self.globals, {})
            else:
                raise fault(path, instruction.line, f"`{instruction.name}` comes before the first `FROM`")
        if not self.stages:
            raise fault(path, None, "it has no `FROM`", "is this a Dockerfile?")

    def _add_stage(self, instruction: Instruction) -> None:
        words = substituted(flat(instruction.rest), self.globals).split()
        words = [word for word in words if not word.startswith("--")]
        if not words or len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise fault(self.path, instruction.line, "`FROM` needs an image and an optional name: `FROM image AS name`")
        if len(self.stages) >= MAX_STAGES:
            raise fault(self.path, instruction.line, f"more than {MAX_STAGES} stages")
        self.stages.append(Stage(words[0], words[2].lower() if len(words) == 3 else "", instruction.line))

    def _earlier(self, name: str, before: int) -> int | None:
        """Return the number of an earlier stage by name or number."""
        for number in range(before - 1, -1, -1):
            if self.stages[number].name == name.lower():
                return number
        return int(name) if name.isdecimal() and len(name) < 5 and int(name) < before else None

    def number(self, name: str) -> int:
        """Return the stage of that name; without a name, the last that does not start from an empty file system."""
        last = len(self.stages)
        if name:
            found = self._earlier(name, last)
            if found is None:
                known = ", ".join(stage.name for stage in self.stages if stage.name) or "none"
                raise fault(self.path, None, f"it has no stage `{shortened(name, 40)}`", f"it has: {known}")
            return found
        full = (number for number in range(last - 1, -1, -1) if self._root(number) != "scratch")
        return next(full, last - 1)

    def _root(self, number: int) -> str:
        """Return the image on which a stage and its base stages are built."""
        while (before := self._earlier(self.stages[number].base, number)) is not None:
            number = before
        return self.stages[number].base

    def built(self, number: int) -> Script:
        """Return the state at the end of a stage."""
        chain = [number]  # base stages, collected first: a long chain would recurse too deeply
        while (before := self._earlier(self.stages[chain[-1]].base, chain[-1])) is not None:
            if before in self._built or self.stages[chain[-1]].base.isdecimal():
                break
            chain.append(before)
        for here in reversed(chain):
            if here not in self._built:
                self._built[here] = self._build(here)
        return self._built[number]

    def served(self, number: int, script: Script) -> tuple[Fact, ...]:
        """Return what the command of the image states, by the last ENTRYPOINT and CMD of the stage and its bases."""
        command: dict[str, list[tuple[int, str]]] = {}
        base, here = self.stages[number].base, number
        while True:
            for instruction in reversed(self.stages[here].instructions):
                if instruction.name in ("CMD", "ENTRYPOINT") and instruction.name not in command:
                    command[instruction.name] = self._words(instruction, script)
            base = self.stages[here].base
            before = self._earlier(base, here)
            if before is None:
                break
            here = before
        start = command.get("ENTRYPOINT", [(self.stages[here].line, word) for word in default_command(base)])
        words = [*start, *command.get("CMD", [])]
        runs = script.copy()
        if not runs.run_file(words, certain=True):
            add_job(runs.served, job_facts(words, self.path, script.find, script.watch))
        return tuple(runs.served.values())

    def _words(self, instruction: Instruction, script: Script) -> list[tuple[int, str]]:
        text = exec_form(instruction.rest) if instruction.rest.lstrip().startswith("[") else instruction.rest
        found = next(iter(commands(text, instruction.line)), None)
        words = [] if found is None else found.words
        return [(word.line, part) for word in words for part in word.expanded(script.variables)]

    def _build(self, number: int) -> Script:
        stage = self.stages[number]
        before = self._earlier(stage.base, number) if not stage.base.isdecimal() else None
        if before is not None:
            script = self.built(before).copy()
            for name in [name for name in script.variables if name not in script.exported]:
                del script.variables[name]  # build arguments end with their stage
        else:
            script = Script(self.path, self.text, self.watch)
            if UNKNOWN in stage.base:
                shown = shortened(stage.base.replace(UNKNOWN, "…"), 60)
                script.installs.notes.append(
                    f"{self.path}:{stage.line}: unknown content of the image `{shown}`: only the build knows its name"
                )
            else:
                script.base(stage.base, stage.line)
        for instruction in stage.instructions:
            self._apply(instruction, script, number)
        return script

    def _apply(self, instruction: Instruction, script: Script, number: int) -> None:
        if instruction.name == "ARG":
            arguments(instruction, script.variables, self.globals, script.exported)
        elif instruction.name == "ENV":
            for name, value, line in pairs(instruction, script.variables):
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
            script.run_in_subshell(exec_form(text), line)
        elif instruction.heredocs and not HEREDOC.sub("", text).strip():
            for _, body, first in instruction.heredocs:
                script.run_in_subshell(body, first)
        else:
            whole = "".join(f"\n{body}{tag}" for tag, body, _ in instruction.heredocs)
            script.run_in_subshell(text + whole, line)

    def _copy(self, instruction: Instruction, script: Script, number: int) -> None:
        words = substituted(flat(instruction.rest), script.variables).split()
        if words and words[0].startswith("["):
            words = exec_form(" ".join(words)).split()
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
            if earlier is None:
                return
            other = self.built(earlier)
            taken = carried(other.installs.facts.values(), paths[:-1])
            if any(_PACKAGES.search(path) for path in paths[:-1]):
                script.installs.notes += other.installs.notes
                script.installs.add(
                    (entry for found in other.installs.entries.values() for entry in found), facts=taken
                )
            script.installs.facts.update({fact.key: fact for fact in taken if fact.key in (NVCC, NINJA)})
            return
        target = paths[-1]
        for path in paths[:-1]:
            name = path.rstrip("/").rpartition("/")[2]
            script.copied[name] = path
            script.copied[target.rstrip("/") + (f"/{name}" if target.endswith(("/", ".")) else "")] = path
