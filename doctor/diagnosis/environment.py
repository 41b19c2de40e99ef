"""The environment of a request: installed, declared and stated in files of facts, in any combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.model import ABSENT, Fact, Facts, ReadInput
from doctor.packages.gpus import with_capability
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.files import parse_settings
from doctor.util.redact import tilde

from .diagnosis_input import DiagnosisInput
from .merge import Contradiction, notes_of, of_job, over, under
from .request import Request
from .watch import watch_of

if TYPE_CHECKING:
    from doctor.sources.manifests.resolve import Declaration
    from doctor.sources.probes.interpreter import InterpreterQuery

_OF_MACHINE = ("python.", "platform.")  # decide markers of declared files


def environment_of(request: Request, rulebook: Rulebook, query: InterpreterQuery | None = None) -> DiagnosisInput:
    """Return the facts of what is examined, without GPU or job that the request names."""
    stated = _stated_in_files(request, rulebook) if request.facts else None
    installed = _installed(request, rulebook, query) if request.examines_installed else None
    declared = _declared(request, rulebook, stated or installed) if request.declared else None
    if declared is not None and request.loose and not (stated or installed or states_release(declared.facts, rulebook)):
        active = _installed(request, rulebook, query)
        installed = active if states_release(active.facts, rulebook) else None
    only = [item for item in (stated, installed, declared) if item is not None]
    return only[0] if len(only) == 1 else _together(stated, installed, declared)


def states_release(facts: Facts, rulebook: Rulebook) -> bool:
    """Return whether an input speaks of the release of any library that rules are about."""
    found = (facts.get(f"{name}.version") for name in rulebook.watched_distributions)
    return any(fact is not None and fact.value != ABSENT for fact in found)


def _installed(request: Request, rulebook: Rulebook, query: InterpreterQuery | None) -> DiagnosisInput:
    from .target import examine_target  # door: probes

    return examine_target(request, rulebook, query)


def _stated_in_files(request: Request, rulebook: Rulebook) -> DiagnosisInput:
    facts, differing = _merged_facts(request.facts, parse_settings(request.settings))
    return DiagnosisInput(
        with_capability(facts, rulebook.gpus),
        None,
        "the facts come from a file",
        target=f"facts in {', '.join(request.facts)}",
        remarks=differing,
        read=tuple(ReadInput(name, "facts", _from(f"facts file {tilde(name)}", facts)) for name in request.facts),
    )


def _declared(request: Request, rulebook: Rulebook, known: DiagnosisInput | None) -> DiagnosisInput:
    from doctor.sources.manifests.read import read_manifests  # door: manifests

    said = parse_settings(request.settings)
    if known is not None:
        decisive = (fact for key, fact in known.facts.items() if key.startswith(_OF_MACHINE) and fact.known)
        said = Facts(decisive).with_(*said.values())
    with request.defaults.naming(request.declared):
        declaration = read_manifests(request.declared, said, watch_of(rulebook))
    launch = Facts(fact for key, fact in declaration.facts.items() if key.startswith("workload."))
    return DiagnosisInput(
        declaration.facts, None, "the environment is only declared", None, declaration,
        f"declared in {', '.join(request.declared)}", launch=launch,
        read=tuple(ReadInput(name, "declared", _from(name, declaration.facts)) for name in request.declared),
    )  # fmt: skip


def _from(start: str, facts: Facts) -> tuple[str, ...]:
    """Return the keys of the facts whose source begins so."""
    return tuple(key for key, fact in facts.items() if fact.source.startswith(start))


def _together(
    stated: DiagnosisInput | None, installed: DiagnosisInput | None, declared: DiagnosisInput | None
) -> DiagnosisInput:
    """Return several inputs as one: facts in files count before what is installed, and that before declared files."""
    parts = [item for item in (stated, installed, declared) if item is not None]
    facts, found, ranges = parts[0].facts, list[Contradiction](), list[str]()
    for part in parts[1:]:
        own = Facts(fact for key, fact in part.facts.items() if part is not declared or not of_job(key))
        before, (facts, differing) = facts, under(facts, own)
        found += differing
        if part is declared and part.declaration is not None:
            named = {item.key for item in differing}
            ranges = list(part.declaration.unmet(before, named))
    variables: dict[str, str | None] = {}
    declaration = None
    if declared is not None and declared.declaration is not None:
        job = Facts(fact for key, fact in declared.facts.items() if of_job(key))
        facts, differing = over(facts, job)
        found += differing
        variables = {key[4:]: str(fact.value) for key, fact in job.items() if key.startswith("env.") and fact.known}
        declaration = _left_open(declared.declaration, facts, is_installed=installed is not None)
    other = next((fact for key, fact in (stated.facts if stated else Facts()).items() if _of_machine(key)), None)
    base = installed or parts[0]
    why_not = base.why_not if other is None else f"{other.source} describes another machine than this one"
    return base._replace(
        facts=facts,
        python=base.python if other is None else None,
        why_not=why_not,
        declaration=declaration,
        target=" + ".join(part.target for part in parts),
        variables={**base.variables, **variables},
        site_dirs=base.site_dirs if other is None else (),
        launch=declared.launch if declared is not None else Facts(),
        remarks=(*notes_of(found, ranges), *(note for part in parts for note in _own_notes(part, declaration))),
        read=tuple(item for part in parts for item in part.read),
        faults=() if declaration is not None else tuple(fault for part in parts for fault in part.unread),
    )


def _of_machine(key: str) -> bool:
    return not key.startswith(("workload.", "env."))


def _own_notes(part: DiagnosisInput, kept: Declaration | None) -> tuple[str, ...]:
    return part.notes if kept is None or part.declaration is None else part.remarks


def _left_open(declaration: Declaration, facts: Facts, *, is_installed: bool) -> Declaration | None:
    """Return what declared ranges leave open where no stronger input states a release."""
    if is_installed:
        return None
    opened = tuple(item for item in declaration.open if facts.value(f"{item.name}.version") is None)
    return replace(declaration, facts=facts, open=opened)


def _merged_facts(files: Sequence[str], decided: Facts) -> tuple[Facts, tuple[str, ...]]:
    """Return several files of facts as one; what two of them state differently, and no setting decides, is unknown."""
    merged: dict[str, Fact] = {}
    stated_in: dict[str, str] = {}
    differing = []
    for name in files:
        for key, fact in read_facts(Path(name)).items():
            known = merged.setdefault(key, fact)
            before = stated_in.setdefault(key, name)
            if known.value == fact.value or key in decided:
                merged[key] = fact
                continue
            problem = f"`{before}` states {known.value}, `{name}` states {fact.value}"
            merged[key] = Fact(key, None, f"facts file {name}", problem=problem)
            differing.append(f"`{key}` is unknown: {problem}; `--set {key}=VALUE` decides")
    return Facts(merged.values()), tuple(differing)
