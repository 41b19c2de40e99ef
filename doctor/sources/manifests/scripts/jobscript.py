"""Shell and batch scripts (Slurm, PBS): the variables a job sets, what it installs, and the GPU it asks for."""

from __future__ import annotations

import re
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import Fact
from doctor.sources.manifests.base import Manifest
from doctor.sources.probes.gpu_table import gpu_facts

from .interpreter import Script

_DIRECTIVE = re.compile(r"^[ \t]*#(?:SBATCH|PBS|BSUB|\$)[ \t]+(?P<rest>[^\n]*)", re.MULTILINE)
_GRES = re.compile(
    r"(?:--gres(?:=|\s+)(?:gres/)?gpu|--gpus(?:-per-(?:node|task|socket))?(?:=|\s+))[:=]?(?P<name>[A-Za-z][\w.-]*)?"
    r"(?::(?P<count>\d+))?"
)
_CONSTRAINT = re.compile(r"(?:-C|--constraint)(?:=|\s+)[\"']?(?P<what>[^\s\"']+)")
_IMAGE = re.compile(r"--container-image(?:=|\s+)[\"']?(?P<image>[^\s\"']+)")
_EXPORT = re.compile(r"--export(?:=|\s+)[\"']?(?P<what>[^\s\"']+)")


def read(path: Path, text: str) -> Manifest:
    """What the script says of the job it starts."""
    script = Script(path, text)
    gpus = directives(script, text)
    script.run(text, 1)
    return sheet(script, gpus)


def sheet(script: Script, gpus: list[Fact]) -> Manifest:
    """A script's account, in the form that all readers hand over."""
    installs = script.installs
    entries = tuple(entry for found in installs.entries.values() for entry in found)
    facts = (*installs.facts.values(), *script.environment.values(), *gpus)
    return Manifest(entries, facts, False, "", tuple(dict.fromkeys(installs.notes)))


def directives(script: Script, text: str) -> list[Fact]:
    """The lines for the batch system: image and variables for the script, and the facts of the GPU if they name one."""
    named: dict[str, tuple[int, str | None]] = {}
    for match in _DIRECTIVE.finditer(text):
        line, rest = text.count("\n", 0, match.start("rest")) + 1, match["rest"]
        for asked in _GRES.finditer(rest):
            if asked["name"]:
                named.setdefault(asked["name"].lower(), (line, asked["count"]))
        if found := _CONSTRAINT.search(rest):
            for word in re.split(r"[&|,\[\]()*]+", found["what"]):
                if _gpu(re.sub(r"^gpu[-_:]?", "", word.lower())):
                    named.setdefault(re.sub(r"^gpu[-_:]?", "", word.lower()), (line, None))
        if found := _IMAGE.search(rest):
            script.base(found["image"], line)
        if found := _EXPORT.search(rest):
            for part in found["what"].split(","):
                name, equals, value = part.partition("=")
                if equals:
                    script.set(name, value, line)
    return _gpus(script, named)


def _gpus(script: Script, named: dict[str, tuple[int, str | None]]) -> list[Fact]:
    known = {name: facts for name in named if (facts := _gpu(name))}
    for name in named.keys() - known.keys():
        script.installs.notes.append(f"{script.path}:{named[name][0]}: `{name[:40]}` is no GPU that is on record")
    if len({facts[0].value for facts in known.values()}) > 1:
        told = ", ".join(f"{name} (line {named[name][0]})" for name in known)
        script.installs.notes.append(f"{script.path}: it may run on several GPUs: {told}; name one with `--gpu`")
        return []
    if not known:
        return []
    name, facts = next(iter(known.items()))
    line, count = named[name]
    at = f"{script.path}:{line}"
    found = [Fact(fact.key, fact.value, at) for fact in facts if fact.known]
    if count and len(count) < 5:
        found.append(Fact("gpu.count", int(count), at))
    return found


def _gpu(name: str) -> tuple[Fact, ...]:
    try:
        return gpu_facts(name)
    except DoctorError:
        return ()
