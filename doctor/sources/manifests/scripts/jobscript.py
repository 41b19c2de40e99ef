"""Shell and batch scripts (Slurm, PBS): the variables a job sets, the packages it installs, the GPU it requests."""

from __future__ import annotations

import re
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import Fact
from doctor.packages.gpus import gpu_facts
from doctor.sources.manifests.base import Manifest
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .interpreter import Script

_DIRECTIVE = re.compile(r"^[ \t]*#(?:SBATCH|PBS|BSUB|\$)[ \t]+(?P<rest>[^\n]*)", re.MULTILINE)
_GRES = re.compile(
    r"(?:--gres(?:=|\s+)(?:gres/)?gpu|--gpus(?:-per-(?:node|task|socket))?(?:=|\s+))[:=]?(?P<name>[A-Za-z][\w.-]*)?"
    r"(?::(?P<count>[0-9]+))?"
)
_CONSTRAINT = re.compile(r"(?:-C|--constraint)(?:=|\s+)[\"']?(?P<what>[^\s\"']+)")
_IMAGE = re.compile(r"--container-image(?:=|\s+)[\"']?(?P<image>[^\s\"']+)")
_EXPORT = re.compile(r"--export(?:=|\s+)[\"']?(?P<what>[^\s\"']+)")

#: Name of a GPU in lower case -> (line, how many).
_Requested = dict[str, tuple[int, "str | None"]]


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return what the script says about the job it starts."""
    script = Script(path, text, watch)
    gpus = _directives(script, text)
    script.run(text, 1)
    script.take_listed_options()
    installs = script.installs
    entries = tuple(entry for found in installs.entries.values() for entry in found)
    facts = (*installs.facts.values(), *script.environment.values(), *script.served.values(), *gpus)
    return Manifest(entries, facts, False, "", tuple(dict.fromkeys(installs.notes)))


def _directives(script: Script, text: str) -> list[Fact]:
    """Apply image and variables of the batch directives to the script; return the facts of the GPU they request."""
    requested: _Requested = {}
    for match in _DIRECTIVE.finditer(text):
        line, rest = text.count("\n", 0, match.start("rest")) + 1, match["rest"]
        for gres in _GRES.finditer(rest):
            if gres["name"]:
                requested.setdefault(gres["name"].lower(), (line, gres["count"]))
        if found := _CONSTRAINT.search(rest):
            for word in re.split(r"[&|,\[\]()*]+", found["what"]):
                name = re.sub(r"^gpu[-_:]?", "", word.lower())
                if _gpu(name, script.watch):
                    requested.setdefault(name, (line, None))
        if found := _IMAGE.search(rest):
            script.base(found["image"], line)
        if found := _EXPORT.search(rest):
            for part in found["what"].split(","):
                name, equals, value = part.partition("=")
                if equals:
                    script.set(name, value, line)
    return _gpus(script, requested)


def _gpus(script: Script, requested: _Requested) -> list[Fact]:
    known = {name: facts for name in requested if (facts := _gpu(name, script.watch))}
    for name in requested.keys() - known.keys():
        script.installs.notes.append(f"{script.path}:{requested[name][0]}: unknown GPU `{shortened(name, 40)}`")
    if len({facts[0].value for facts in known.values()}) > 1:
        names = ", ".join(f"{name} (line {requested[name][0]})" for name in known)
        script.installs.notes.append(f"{script.path}: several GPUs are possible: {names}; choose one with `--gpu`")
        return []
    if not known:
        return []
    name, facts = next(iter(known.items()))
    line, count = requested[name]
    place = f"{script.path}:{line}"
    found = [Fact(fact.key, fact.value, place) for fact in facts if fact.known]
    if count and len(count) < 5:
        found.append(Fact("gpu.count", int(count), place))
    return found


def _gpu(name: str, watch: Watch) -> tuple[Fact, ...]:
    try:
        return gpu_facts(name, watch.gpus)
    except DoctorError:
        return ()
