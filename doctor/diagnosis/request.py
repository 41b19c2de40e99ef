"""What the user wants to know: about which environment, which workload, by which rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from doctor.model import Facts
from doctor.sources.project.config import Defaults

#: Seconds for the analysis of installed sources: its cache keeps what is finished, so that the next one goes on.
DRIFT_LIMIT = 10.0
#: Reads what installed distributions require; opens every metadata file, so it is called late.
Requirements = Callable[[], Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Request:
    """What the user wants to know: about which environment, which job, by which rules."""

    python: str | None = None
    site_packages: str | None = None
    facts: tuple[str, ...] = ()  # files of facts, merged
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
    drift: bool = True  # analyze the installed sources for uses that the installed releases do not answer
    drift_limit: float = DRIFT_LIMIT  # seconds for what no earlier analysis knows; 0: none
    code: tuple[str, ...] = ()  # folders of the user's own code, analyzed with them
    timeout: float = 120.0
    gpus: tuple[str, ...] = ()  # several of these, or of the next two: each combination is a case of its own (`gate`)
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    held: Mapping[tuple[str, str], Facts] = field(default_factory=dict)  # the facts of a name that is no file
    project: bool = False  # the project's own matrix counts where this request says nothing
    baseline: str | None = None  # a report: what it has already is not reported again
    hold: tuple[str, ...] = ()  # packages a fix leaves alone
    allow: tuple[str, ...] = ()  # the only packages a fix may change; none named: all
    constraints: tuple[str, ...] = ()  # files of ranges that a fix keeps to

    @property
    def examines_installed(self) -> bool:
        """Whether an installed environment is examined, and no description of one."""
        return not self.facts and not self.declared

    @property
    def several(self) -> bool:
        """Whether this may describe more than one case."""
        own, of_project = (self.gpus, self.models, self.workloads), self.defaults
        more: list[Sequence[str]] = []
        if self.project:
            job = self.model or self.workload or self.models or self.workloads
            target = self.python or self.site_packages or self.facts or self.declared
            more += [] if self.gpu or self.gpus else [of_project.gpus]
            more += [] if job else [of_project.models, of_project.workloads]
            more += [] if target else [tuple(of_project.environments)]
        return any(len(axis) > 1 for axis in (*own, *more))
