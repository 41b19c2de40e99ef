"""The command line as a request of the pipeline; the project's own defaults fill what is not given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from doctor.diagnosis.request import Request, in_project, require_one_target, with_axes
from doctor.errors import DoctorError
from doctor.facts.libraries.record import Trainer
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.project.config import project_defaults, split_names

from . import options
from .options import KERNEL_TIMEOUT
from .shared_options import Command, OptionGroup, takes

#: Parameters of every command that examines an environment, and of those that take a workload too.
_TARGET: Mapping[str, Any] = {
    "python": options.Python, "site_packages": options.SitePackages, "facts": options.FactFiles,
    "requirements": options.Requirements, "gpu": options.Gpu, "settings": options.Settings, "rules": options.Rules,
}  # fmt: skip
_WORKLOAD: Mapping[str, Any] = {"model": options.Model, "workload": options.WorkloadFile}


class TargetOptions(NamedTuple):
    """What is examined, as given on the command line."""

    python: str | None = None
    site_packages: str | None = None
    facts: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    workload: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()  # files and folders of any kind
    script: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        python: str | None,
        site_packages: str | None,
        facts: Sequence[str] | None,
        requirements: Sequence[str] | None,
        gpu: Sequence[str] | None,
        settings: Sequence[str] | None,
        rules: Sequence[str] | None,
        model: Sequence[str] | None = None,
        workload: Sequence[str] | None = None,
        paths: Sequence[str] | None = None,
    ) -> TargetOptions:
        """Return the options; DoctorError where two name an installed tree."""
        lists = (facts, requirements, gpu, settings, rules, model, workload, paths)
        given = cls(python, site_packages, *(tuple(item or ()) for item in lists))
        require_one_target({"--python": given.python, "--site-packages": given.site_packages})
        return given

    def sorted(self, trainers: Mapping[str, Trainer]) -> TargetOptions:
        """Return these options, each path under the one that takes it; DoctorError where two name an installed tree."""
        from doctor.diagnosis.path_kind import sort_paths  # door: manifest readers

        changed: dict[str, Any] = {}
        for option, paths in sort_paths(self.paths, trainers).items():
            name = option.replace("-", "_")
            before = getattr(self, name)
            if isinstance(before, tuple):
                changed[name] = (*before, *paths)
            else:
                require_one_target(dict.fromkeys((*((before,) if before else ()), *paths), True))
                changed[name] = paths[0]
        return self._replace(**changed)

    def given(self) -> list[str]:
        """Return the options that were used, as typed."""
        names = {"settings": "--set", "site_packages": "--site-packages"}
        shown = (name for name, value in self._asdict().items() if value and name not in ("rules", "paths", "script"))
        return [names.get(name, f"--{name}") for name in shown]


def examines(*, workload: bool = True, paths: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of target and workload in place of its `target` parameter.

    paths: it takes files and folders of any kind without an option, too.
    """
    taken = {**_TARGET, **(_WORKLOAD if workload else {}), **({"paths": options.Paths} if paths else {})}
    shared = {name: (kind, None) for name, kind in taken.items()}
    return takes("target", OptionGroup(shared, TargetOptions.of))


def request_of(target: TargetOptions, *, several: bool = False, **more: Any) -> Request:
    """Return the request of a command; `several`: more than one GPU and workload form a matrix of cases.

    The project's section gives GPU, workload and rules where the options say nothing; `more` are fields of Request.
    """
    defaults, rulebook = project_defaults(), None
    if target.paths:
        rulebook = load_rulebook((*defaults.rules, *target.rules))
        target = target.sorted(rulebook.trainers)
    gpus = split_names(target.gpu)
    if target.gpu and not gpus:
        raise DoctorError("`--gpu` names no GPU", "for example `--gpu h100`, or `--gpu sm90`")
    axes = {"--gpu": gpus, "--model": target.model, "--workload": target.workload}
    for option, given in axes.items():
        if len(dict.fromkeys(given)) > 1 and not several:
            raise DoctorError(
                f"`{option}` takes one value here, found {', '.join(given)}", "`attn-doctor check` takes several"
            )
    plain = Request(
        python=target.python,
        site_packages=target.site_packages,
        facts=target.facts,
        declared=target.requirements,
        settings=target.settings,
        rules=target.rules,
        scripts=target.script,
        loose=bool(target.paths),
        defaults=defaults,
        rulebook=rulebook,
        **{"fixes": False, "run": False, "timeout": KERNEL_TIMEOUT, **more},
    )
    return with_axes(plain, *axes.values())


def project_request_of(target: TargetOptions, *, whole: bool = False, **more: Any) -> Request:
    """Return the request of a command that examines the project where no target is named.

    whole: all its environments, GPUs and jobs, as `check` does; else the first of each.
    """
    return in_project(request_of(target, several=whole, **more), whole=whole)
