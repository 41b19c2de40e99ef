"""What is examined: the request of a command line becomes the facts of an environment and a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.errors import DoctorError
from doctor.model import ABSENT, Fact, Facts
from doctor.packages.gpus import gpu_facts, with_capability
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload, lay_over
from doctor.sources.workload.files import parse_settings

from .diagnosis_input import DiagnosisInput
from .request import Request, Requirements
from .watch import watch_of

if TYPE_CHECKING:
    from doctor.sources.probes.interpreter import InterpreterQuery


class InputCache:
    """What GPU names, model configs and workload files say, each looked up once for all cases."""

    def __init__(self, rulebook: Rulebook, held: Mapping[tuple[str, str], Facts] | None = None) -> None:
        self._rulebook = rulebook
        self._read: dict[tuple[str, str], Facts] = dict(held or {})

    def gpu(self, name: str) -> Facts:
        """The facts of a GPU by its name."""

        return self._once("gpu", name, lambda: Facts(gpu_facts(name, self._rulebook.gpus)))

    def model(self, name: str) -> Facts:
        """The workload of a model config."""

        from doctor.sources.workload.huggingface import read_model_config  # door: manifest reader

        return self._once("model", name, lambda: read_model_config(Path(name)))

    def workload(self, name: str) -> Facts:
        """The workload of a workload file, or of a trainer's config."""

        from doctor.sources.workload.recipes import read_job  # door: manifest reader

        return self._once("workload", name, lambda: read_job(Path(name)))

    def _once(self, kind: str, name: str, read: Callable[[], Facts]) -> Facts:
        found = self._read.get((kind, name))
        if found is None:
            found = self._read[kind, name] = read()
        return found


def examine(request: Request, rulebook: Rulebook, query: InterpreterQuery | None = None) -> DiagnosisInput:
    """Gather the facts: the environment, then the job, then what the user says outright. Later ones win."""
    return with_job(environment_of(request, rulebook, query), request, InputCache(rulebook, request.held))


def with_job(examined: DiagnosisInput, request: Request, inputs: InputCache) -> DiagnosisInput:
    """Return what was examined in an environment, with the job and the GPU that the request names."""

    facts = examined.facts
    model, workload = request.model, request.workload
    if names_no_job(request, examined.job_facts):
        model, workload = request.defaults.model, request.defaults.workload
        facts = facts.with_(*request.defaults.workload_facts.values())
    with request.defaults.naming(filter(None, (model, workload))):
        if model is not None:
            facts = lay_over(facts, inputs.model(model))
        if workload is not None:
            facts = facts.with_(*inputs.workload(workload).values())
    said = request.given.with_(*parse_settings(request.settings).values())
    gpu = request.gpu or (request.defaults.gpu if takes_project_gpus(request, examined) else None)
    if gpu:
        said = inputs.gpu(gpu).with_(*said.values())
    facts = complete_workload(facts.with_(*said.values()))
    other = next((fact for key, fact in said.items() if not key.startswith("workload.")), None)
    same = not any(key.endswith(".version") for key in said)  # else the sources are of other releases
    site_dirs = examined.site_dirs if same else ()
    if examined.python and other:
        why_not = f"{other.source} describes another machine than this one"
        required = _but(examined.requirements, said)
        return DiagnosisInput(facts, None, why_not, required, target=examined.target, site_dirs=site_dirs)
    return replace(examined, facts=facts, requirements=_but(examined.requirements, said), site_dirs=site_dirs)


def names_no_job(request: Request, facts: Facts) -> bool:
    """Whether neither the request nor the facts of its environment describe a job, so that the project's counts."""
    if request.model is not None or request.workload is not None:
        return False
    return not any(key.startswith("workload.") for key in (*facts, *request.given))


def takes_project_gpus(request: Request, examined: DiagnosisInput) -> bool:
    """Whether the project's GPUs count: none is stated, and none found except what a declared job script requests."""
    if any(said.startswith("gpu.") for said in (*request.settings, *request.given)):
        return False
    return examined.declaration is not None or examined.facts.value("gpu.sm") in (None, ABSENT)


def _but(requirements: Requirements | None, said: Facts) -> Requirements | None:
    """The requirements without those of packages whose version the user says outright: they are another release's."""
    if requirements is None:
        return None
    other = {key.removesuffix(".version") for key in said if key.endswith(".version")}
    return lambda: {name: lines for name, lines in requirements().items() if name not in other}


def environment_of(request: Request, rulebook: Rulebook, query: InterpreterQuery | None = None) -> DiagnosisInput:
    """The facts of what is examined, without GPU or job that the request names."""
    if request.facts:
        return DiagnosisInput(
            with_capability(_merged_facts(request.facts, parse_settings(request.settings)), rulebook.gpus),
            None,
            "the facts come from a file",
            target=f"facts in {', '.join(request.facts)}",
        )
    if request.declared:
        from doctor.sources.manifests.read import read_manifests  # door: manifests

        stated = parse_settings(request.settings)
        with request.defaults.naming(request.declared):
            declaration = read_manifests(request.declared, stated, watch_of(rulebook))
        return DiagnosisInput(
            declaration.facts, None, "the environment is only declared", None, declaration,
            f"declared in {', '.join(request.declared)}",
        )  # fmt: skip

    from .target import examine_target  # door: probes

    return examine_target(request, rulebook, query)


def _merged_facts(files: Sequence[str], decided: Facts) -> Facts:
    """Read several files of facts as one; DoctorError where two of them differ in a key that no setting decides."""
    merged: dict[str, Fact] = {}
    stated_in: dict[str, str] = {}
    for name in files:
        for key, fact in read_facts(Path(name)).items():
            known = merged.setdefault(key, fact)
            before = stated_in.setdefault(key, name)
            if known.value != fact.value and key not in decided:
                raise DoctorError(
                    f"`{before}` and `{name}` state different values of `{key}`: {known.value} and {fact.value}",
                    f"`--set {key}=VALUE` decides",
                )
            merged[key] = fact
    return Facts(merged.values())
