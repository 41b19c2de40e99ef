"""The command line as a request of the pipeline; the project's own defaults fill what is not given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.sources.project.config import Defaults, project_defaults, split_names

from . import options
from .options import KERNEL_TIMEOUT

#: Parameters of every command that examines an environment, and of those that take a workload too.
_TARGET: Mapping[str, Any] = {
    "python": options.Python, "site_packages": options.SitePackages, "facts": options.FactFiles,
    "requirements": options.Requirements, "gpu": options.Gpu, "settings": options.Settings, "rules": options.Rules,
}  # fmt: skip
_WORKLOAD: Mapping[str, Any] = {"model": options.Model, "workload": options.WorkloadFile}


@dataclass(frozen=True)
class TargetOptions:
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
    ) -> TargetOptions:
        """Return the options; DoctorError where two of them name different targets."""
        named = {"--python": python, "--site-packages": site_packages, "--facts": facts, "--requirements": requirements}
        given = [name for name, value in named.items() if value]
        if len(given) > 1:
            raise DoctorError(f"`{given[0]}` and `{given[1]}` exclude each other", "name one environment")
        lists = (facts, requirements, gpu, settings, rules, model, workload)
        return cls(python, site_packages, *(tuple(item or ()) for item in lists))

    def given(self) -> list[str]:
        """Return the options that were used, as typed."""
        names = {"settings": "--set", "site_packages": "--site-packages"}
        return [names.get(name, f"--{name}") for name, value in vars(self).items() if value and name != "rules"]


def examines(*, workload: bool = True) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that gives a command the options of target and workload in place of its `target` parameter."""
    shared = {**_TARGET, **(_WORKLOAD if workload else {})}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in shared.items()
    ]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            values = (given.pop(name) for name in shared)
            return command(target=TargetOptions.of(*values), **given)

        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            parameters += added if name == "target" else [own]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def request_of(
    target: TargetOptions,
    *,
    run: bool = False,
    fixes: bool = False,
    timeout: float = KERNEL_TIMEOUT,
    hold: Sequence[str] = (),
    allow: Sequence[str] = (),
    constraints: Sequence[str] = (),
) -> Request:
    """Return the request of a command that examines one environment, one GPU and one workload."""
    gpus = split_names(target.gpu)
    if target.gpu and not gpus:
        raise DoctorError("`--gpu` names no GPU", "for example `--gpu h100`, or `--gpu sm90`")
    return Request(
        python=target.python,
        site_packages=target.site_packages,
        facts=target.facts,
        declared=target.requirements,
        gpu=_one("--gpu", gpus),
        settings=target.settings,
        model=_one("--model", target.model),
        workload=_one("--workload", target.workload),
        rules=target.rules,
        defaults=project_defaults(),
        fixes=fixes,
        run=run,
        timeout=timeout,
        hold=tuple(hold),
        allow=tuple(allow),
        constraints=tuple(constraints),
    )


def matrix_request_of(target: TargetOptions, *, run: bool, timeout: float, baseline: str | None) -> Request:
    """Return the request of `check`: several GPUs and workloads form a matrix; project defaults fill the rest."""
    axes = split_names(target.gpu), tuple(dict.fromkeys(target.model)), tuple(dict.fromkeys(target.workload))
    gpu, model, workload = (
        () if len(axis) > 1 else given
        for axis, given in zip(axes, (target.gpu, target.model, target.workload), strict=True)
    )
    single = replace(target, gpu=gpu, model=model, workload=workload)
    request = request_of(single, run=run, fixes=True, timeout=timeout)
    gpus, models, workloads = (axis if len(axis) > 1 else () for axis in axes)
    if _is_project_folder(request.declared, request.defaults):
        request = replace(request, declared=())
    named = request.python or request.site_packages or request.facts or request.declared
    return replace(
        request,
        gpus=gpus,
        models=models,
        workloads=workloads,
        project=True,
        baseline=baseline,
        thorough=False,
        declared=request.declared if named else request.defaults.requirements,
    )


def _is_project_folder(declared: tuple[str, ...], defaults: Defaults) -> bool:
    """Return whether the project's own folder is examined, and its section says which files of it that means."""
    if len(declared) != 1 or defaults.folder is None or not (defaults.requirements or defaults.environments):
        return False
    return Path(declared[0]).is_dir() and Path(declared[0]).samefile(defaults.folder)


def _one(option: str, given: Sequence[str]) -> str | None:
    """Return the value of an option that a command takes once."""
    if len(dict.fromkeys(given)) > 1:
        raise DoctorError(
            f"`{option}` takes one value here, found {', '.join(given)}", "`attn-doctor check` takes several"
        )
    return given[-1] if given else None
