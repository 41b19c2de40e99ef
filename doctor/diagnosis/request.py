"""What the user wants to know: about which environment, which workload, by which rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.sources.project.config import Defaults

if TYPE_CHECKING:
    from doctor.rulebook.rulebook import Rulebook
    from doctor.sources.workload.layers import LayerKind

#: Seconds for the analysis of installed sources: its cache keeps what is finished, so that the next one goes on.
DRIFT_LIMIT = 10.0
#: Reads what installed distributions require; opens every metadata file, so it is called late.
Requirements = Callable[[], Mapping[str, Sequence[str]]]


class Request(NamedTuple):
    """What the user wants to know: about which environment, which job, by which rules."""

    python: str | None = None
    site_packages: str | None = None
    facts: tuple[str, ...] = ()  # files of facts, merged
    declared: tuple[str, ...] = ()  # files that declare the environment
    loose: bool = False  # they were named without an option: where none states a release, the active environment counts
    gpu: str | None = None
    settings: tuple[str, ...] = ()
    given: Facts = Facts()  # what a calling program states outright, as `settings` does in text
    model: str | None = None
    workload: str | None = None
    rules: tuple[str, ...] = ()
    defaults: Defaults = Defaults()  # what the project says once for all
    fixes: bool = True
    thorough: bool = True  # of fixes: whether fewer packages would do, and what each way loses
    costs: bool = True  # report what every backend takes, not only one that is far better than the selected one
    run: bool = True
    drift: bool = True  # analyze the installed sources for uses that the installed releases do not answer
    drift_limit: float = DRIFT_LIMIT  # seconds for what no earlier analysis knows; 0: none
    scripts: tuple[str, ...] = ()  # programs that train or serve: what they state of the job
    code: tuple[str, ...] = ()  # folders of the user's own code, analyzed with them
    timeout: float = 120.0
    gpus: tuple[str, ...] = ()  # several of these, or of the next two: each combination is a case of its own (`gate`)
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    held: Mapping[tuple[str, str], Facts] = MappingProxyType({})  # the facts of a name that is no file
    held_layers: Mapping[str, Sequence[LayerKind]] = MappingProxyType({})  # the layers of such a model
    project: bool = False  # the project's own matrix counts where this request says nothing
    baseline: str | None = None  # a report: what it has already is not reported again
    hold: tuple[str, ...] = ()  # packages a fix leaves alone
    allow: tuple[str, ...] = ()  # the only packages a fix may change; none named: all
    constraints: tuple[str, ...] = ()  # files of ranges that a fix keeps to
    rulebook: Rulebook | None = None  # its rules, where they are loaded

    @property
    def examines_installed(self) -> bool:
        """Whether an installed environment is examined, alone or with descriptions of it."""
        return bool(self.python or self.site_packages) or not (self.facts or self.declared)

    @property
    def names_target(self) -> bool:
        """Whether the request itself says which environment is examined."""
        return bool(self.python or self.site_packages or self.facts or self.declared)

    @property
    def several(self) -> bool:
        """Whether this may describe more than one case."""
        own, of_project = (self.gpus, self.models, self.workloads), self.defaults
        more: list[Sequence[str]] = []
        if self.project:
            job = self.model or self.workload or self.models or self.workloads
            more += [] if self.gpu or self.gpus else [of_project.gpus]
            more += [] if job else [of_project.models, of_project.workloads]
            more += [] if self.names_target else [tuple(of_project.environments)]
        return any(len(axis) > 1 for axis in (*own, *more))


def require_one_target(named: Mapping[str, Any]) -> None:
    """DoctorError where two installed trees (name as the user writes it -> value) are given."""
    given = [name for name, value in named.items() if value]
    if len(given) > 1:
        raise DoctorError(f"`{given[0]}` and `{given[1]}` exclude each other", "name one environment")


def with_axes(request: Request, gpus: Sequence[str], models: Sequence[str], workloads: Sequence[str]) -> Request:
    """Return the request with one GPU, model and workload, or with several as axes of a matrix of cases."""
    axes = tuple(tuple(dict.fromkeys(axis)) for axis in (gpus, models, workloads))
    gpu, model, workload = (axis[0] if len(axis) == 1 else None for axis in axes)
    more = tuple(axis if len(axis) > 1 else () for axis in axes)
    return request._replace(gpu=gpu, model=model, workload=workload, gpus=more[0], models=more[1], workloads=more[2]
    )  # fmt: skip


def in_project(request: Request, *, whole: bool) -> Request:
    """Return the request with the environment that the project's section declares, where the request names none.

    whole: its environments, GPUs and jobs are a matrix of cases; else the first of each is examined.
    """
    defaults = request.defaults
    if _is_project_folder(request.declared, defaults):
        request = request._replace(declared=())
    request = request._replace(project=whole)
    if request.names_target:
        return request
    several = whole and len(defaults.environments) > 1  # then each is an environment of the matrix
    first = () if several else next(iter(defaults.environments.values()), ())
    return request._replace(declared=defaults.requirements or first)


def _is_project_folder(declared: tuple[str, ...], defaults: Defaults) -> bool:
    """Return whether the project's own folder is examined, and its section says which files of it that means."""
    if len(declared) != 1 or defaults.folder is None or not (defaults.requirements or defaults.environments):
        return False
    return Path(declared[0]).is_dir() and Path(declared[0]).samefile(defaults.folder)
