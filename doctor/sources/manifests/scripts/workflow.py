"""GitHub workflows: the variables of jobs and steps, the images they run in, and the packages their steps install."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.model import Fact
from doctor.packages.index import load_index
from doctor.sources.manifests.base import Manifest, without_conflicts
from doctor.sources.variables import UNKNOWN
from doctor.sources.watch import Watch
from doctor.util.yaml_text import Lines, parse_yaml

from .interpreter import Script

_EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return what all jobs declare together; where two differ, the value is unknown."""
    content, lines = parse_yaml(text, str(path))
    if not isinstance(content, dict) or not ({"jobs", "runs"} & content.keys()):
        raise fault(path, 1, "it has no `jobs`", "is this a GitHub workflow?")
    jobs = content.get("jobs") or {}
    if not isinstance(jobs, dict):
        raise fault(path, lines.get(("jobs",), 1), "`jobs` needs a mapping")
    scripts = [_job(Script(path, text, watch), content, job, ("jobs", name), lines) for name, job in jobs.items()]
    if isinstance(content.get("runs"), dict):
        scripts.append(_job(Script(path, text, watch), content, content["runs"], ("runs",), lines))
    facts, notes = _together(scripts)
    entries = dict.fromkeys(
        entry for script in scripts for found in script.installs.entries.values() for entry in found
    )
    return Manifest(tuple(without_conflicts(entries, "the jobs of")), tuple(facts), False, "", notes)


def _job(script: Script, content: dict[str, Any], job: Any, at: tuple[str, ...], lines: Lines) -> Script:
    """Follow one job: its image, its variables, then its steps."""
    path = script.path
    if not isinstance(job, dict):
        raise fault(path, lines.get(at, 1), f"`{at[-1]}` needs a mapping")
    _variables(script, content.get("env"), ("env",), lines)
    container = job.get("container")
    named = container.get("image") if isinstance(container, dict) else container
    if isinstance(named, str) and named:
        reference = _EXPRESSION.sub(UNKNOWN, named)
        line = lines.get((*at, "container", "image"), lines.get((*at, "container"), 1))
        if UNKNOWN not in reference:
            script.base(reference, line)
    if isinstance(container, dict):
        _variables(script, container.get("env"), (*at, "container", "env"), lines)
    _variables(script, job.get("env"), (*at, "env"), lines)
    steps = job.get("steps")
    steps = [] if steps is None else steps
    if not isinstance(steps, list):
        raise fault(path, lines.get((*at, "steps"), 1), "`steps` needs a list")
    for number, step in enumerate(steps):
        here = (*at, "steps", str(number))
        if not isinstance(step, dict):
            raise fault(path, lines.get(here, 1), "a step needs a mapping")
        conditional = isinstance(step.get("if"), str) and step["if"].strip() not in ("always()", "success()", "true")
        _variables(script, step.get("env"), (*here, "env"), lines, certain=not conditional)
        if isinstance(step.get("run"), str) and not conditional:
            body = _EXPRESSION.sub(UNKNOWN, step["run"])
            script.run(body, _first_line(script, step["run"], lines.get((*here, "run"), 1)))
    return script


def _first_line(script: Script, body: str, line: int) -> int:
    """Return the line where the text begins: the key's own, or the next one after `|` or `>`."""
    row = script.installs.raw(line)
    return line + 1 if re.search(r":\s*(&\S+\s*)?[|>][-+0-9]*\s*(#.*)?$", row) else line


def _variables(script: Script, given: Any, at: tuple[str, ...], lines: Lines, *, certain: bool = True) -> None:
    if not isinstance(given, dict):
        return
    for name, value in given.items():
        if isinstance(value, (str, type(None))):
            text = _EXPRESSION.sub(UNKNOWN, value or "")
            script.set(name, text, lines.get((*at, name), 1), certain=certain)


def _together(scripts: list[Script]) -> tuple[Iterator[Fact], tuple[str, ...]]:
    """Return the facts of images, and the variables of the jobs that install attention libraries, else of all jobs."""
    index = load_index()
    counted, which = (
        [each for each in scripts if any(name in index for name in each.installs.entries)],
        "installing jobs",
    )
    if not counted:
        counted, which = scripts, "jobs"
    facts = [fact for script in scripts for fact in script.installs.facts.values()]
    for key in dict.fromkeys(key for script in counted for key in script.environment):
        found = [script.environment[key] for script in counted if key in script.environment]
        if len(found) == len(counted):
            facts += found
        else:
            problem = f"{found[0].source} sets it in {len(found)} of {len(counted)} {which}"
            facts.append(Fact(key, None, found[0].source, found[0].raw, problem))
    return iter(facts), tuple(dict.fromkeys(note for script in scripts for note in script.installs.notes))
