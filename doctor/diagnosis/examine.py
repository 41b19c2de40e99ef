"""What is examined: the request of a command line becomes the facts of an environment and a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.model import ABSENT, Facts
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.project.config import Defaults

if TYPE_CHECKING:
    from doctor.sources.manifests.read import Declaration
    from doctor.sources.probes.interpreter import Question

#: Reads what installed distributions require; opens every metadata file, so it is called late.
Requirements = Callable[[], Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Request:
    """What the user wants to know: about which environment, which job, by which rules."""

    python: str | None = None
    site_packages: str | None = None
    facts: str | None = None
    declared: tuple[str, ...] = ()  # files that declare the environment
    gpu: str | None = None
    settings: tuple[str, ...] = ()
    given: Facts = field(default_factory=Facts)  # what a calling program states outright, as `settings` does in text
    model: str | None = None
    workload: str | None = None
    rules: tuple[str, ...] = ()
    defaults: Defaults = field(default_factory=Defaults)  # what the project says once for all
    fixes: bool = True
    thorough: bool = True  # of fixes: whether fewer packages would do, and what each way loses
    run: bool = True
    timeout: float = 120.0
    gpus: tuple[str, ...] = ()  # several of these, or of the next two: each combination is a case of its own (`gate`)
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    held: Mapping[tuple[str, str], Facts] = field(default_factory=dict)  # what stands behind a name that is no file
    project: bool = False  # the project's own matrix counts where this request says nothing
    baseline: str | None = None  # a report: what it has already is not told again
    hold: tuple[str, ...] = ()  # packages a fix leaves alone
    allow: tuple[str, ...] = ()  # the only packages a fix may change; none named: all
    constraints: tuple[str, ...] = ()  # files of ranges that a fix keeps to

    @property
    def several(self) -> bool:
        """Whether this may ask for more than one case."""
        own, of_project = (self.gpus, self.models, self.workloads), self.defaults
        more: list[Sequence[str]] = []
        if self.project:
            job = self.model or self.workload or self.models or self.workloads
            target = self.python or self.site_packages or self.facts or self.declared
            more += [] if self.gpu or self.gpus else [of_project.gpus]
            more += [] if job else [of_project.models, of_project.workloads]
            more += [] if target else [tuple(of_project.environments)]
        return any(len(axis) > 1 for axis in (*own, *more))


@dataclass(frozen=True)
class Patient:
    """What is known before any rule is asked, and the interpreter in which a kernel can be run."""

    facts: Facts
    python: str | None = None
    why_not: str = ""  # nothing can be run
    requirements: Requirements | None = None  # Requires-Dist of what is installed
    declaration: Declaration | None = None  # where files declare the environment

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the report should know of the declared files."""
        return () if self.declaration is None else self.declaration.notes

    @property
    def unread(self) -> tuple[str, ...]:
        """Declared files that could not be read: file, line and reason of each."""
        return () if self.declaration is None else tuple(fault.message for fault in self.declaration.faults)


class Shelf:
    """What GPU names, model configs and workload files say, each looked up once for all cases."""

    def __init__(self, rulebook: Rulebook, held: Mapping[tuple[str, str], Facts] | None = None) -> None:
        self._rulebook = rulebook
        self._read: dict[tuple[str, str], Facts] = dict(held or {})

    def gpu(self, name: str) -> Facts:
        """The facts of a GPU by its name."""
        from doctor.sources.probes.gpu_table import gpu_facts

        nvidia = self._rulebook.libraries.get("nvidia")
        return self._once("gpu", name, lambda: Facts(gpu_facts(name, nvidia.body["gpus"] if nvidia else None)))

    def model(self, name: str) -> Facts:
        """The workload of a model config."""
        from doctor.sources.workload.huggingface import read_model_config

        return self._once("model", name, lambda: read_model_config(Path(name)))

    def workload(self, name: str) -> Facts:
        """The workload of a workload file."""
        from doctor.sources.workload.files import read_workload

        return self._once("workload", name, lambda: read_workload(Path(name)))

    def _once(self, kind: str, name: str, read: Callable[[], Facts]) -> Facts:
        found = self._read.get((kind, name))
        if found is None:
            found = self._read[kind, name] = read()
        return found


def ask_ahead(request: Request) -> Question | None:
    """The interpreter under examination, if it is another than ours: asked while the rules are read."""
    if request.facts is not None or request.declared or request.site_packages is not None:
        return None
    from doctor.sources.probes.collect import ask

    return ask(request.python)


def examine(request: Request, rulebook: Rulebook, asked: Question | None = None) -> Patient:
    """Gather the facts: the environment, then the job, then what the user says outright. Later ones win."""
    return with_job(environment_of(request, rulebook, asked), request, Shelf(rulebook, request.held))


def with_job(patient: Patient, request: Request, shelf: Shelf) -> Patient:
    """The patient of an environment with the job and the GPU that the request names."""
    from doctor.sources.workload.defaults import complete_workload, lay_over
    from doctor.sources.workload.files import parse_settings

    facts = patient.facts
    model, workload = request.model, request.workload
    if names_no_job(request, facts):
        model, workload = request.defaults.model, request.defaults.workload
        facts = facts.with_(*request.defaults.workload_facts.values())
    if model is not None:
        facts = lay_over(facts, shelf.model(model))
    if workload is not None:
        facts = facts.with_(*shelf.workload(workload).values())
    said = request.given.with_(*parse_settings(request.settings).values())
    gpu = request.gpu or (request.defaults.gpu if takes_project_gpus(request, patient) else None)
    if gpu:
        said = shelf.gpu(gpu).with_(*said.values())
    facts = complete_workload(facts.with_(*said.values()))
    other = next((fact for key, fact in said.items() if not key.startswith("workload.")), None)
    if patient.python and other:
        why_not = f"{other.source} describes another machine than this one"
        return Patient(facts, None, why_not, _but(patient.requirements, said))
    return Patient(facts, patient.python, patient.why_not, _but(patient.requirements, said), patient.declaration)


def names_no_job(request: Request, facts: Facts) -> bool:
    """Whether neither the request nor the facts of its environment speak of a job, so that the project's counts."""
    if request.model is not None or request.workload is not None:
        return False
    return not any(key.startswith("workload.") for key in (*facts, *request.given))


def takes_project_gpus(request: Request, patient: Patient) -> bool:
    """Whether the project's GPUs count: none is stated, and none found but what a declared job script asks for."""
    if any(said.startswith("gpu.") for said in (*request.settings, *request.given)):
        return False
    return patient.declaration is not None or patient.facts.value("gpu.sm") in (None, ABSENT)


def _but(requirements: Requirements | None, said: Facts) -> Requirements | None:
    """The requirements without those of packages whose version the user says outright: they are another release's."""
    if requirements is None:
        return None
    other = {key.removesuffix(".version") for key in said if key.endswith(".version")}
    return lambda: {name: lines for name, lines in requirements().items() if name not in other}


def environment_of(request: Request, rulebook: Rulebook, asked: Question | None = None) -> Patient:
    """The facts of what is examined, without GPU or job that the request names."""
    if request.facts is not None:
        from doctor.sources.snapshot import read_facts

        return Patient(read_facts(Path(request.facts)), None, "the facts come from a file")
    if request.declared:
        from doctor.sources.manifests.read import declare
        from doctor.sources.workload.files import parse_settings

        declaration = declare(request.declared, parse_settings(request.settings))
        return Patient(declaration.facts, None, "the environment is only declared", None, declaration)
    from doctor.sources.probes.collect import Watch, collect, find_target

    target = find_target(request.python, request.site_packages, asked)
    facts = collect(target, Watch(rulebook.watched_environment, rulebook.watched_distributions))

    def requirements() -> Mapping[str, Sequence[str]]:
        from doctor.sources.probes.distributions import installed_requirements

        return installed_requirements(target)

    return Patient(
        facts, target.python, "" if target.python else "a bare tree has no interpreter to run in", requirements
    )
