"""What a command line asks for, as the session's request: options, and the project's own defaults behind them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.sources.project.config import Defaults

from .options import TIMEOUT


def request_of(options: argparse.Namespace, *, run: bool = True, fixes: bool = True) -> Request:
    """The session's request, the project's own defaults included."""
    from doctor.diagnosis.request import Request
    from doctor.sources.project.config import project_defaults, split_names

    gpus = split_names(options.gpu or ())
    if options.gpu and not gpus:
        raise DoctorError("`--gpu` names no GPU", "for example `--gpu h100`, or `--gpu sm90`")
    return Request(
        python=options.python,
        site_packages=options.site_packages,
        facts=options.facts,
        declared=tuple(options.requirements),
        gpu=_one("--gpu", gpus),
        settings=tuple(options.settings),
        model=_one("--model", options.model),
        workload=_one("--workload", options.workload),
        rules=tuple(options.rules),
        defaults=project_defaults(),
        fixes=fixes,
        run=run and getattr(options, "run", True),
        timeout=getattr(options, "timeout", TIMEOUT),
        hold=tuple(getattr(options, "hold", ())),
        allow=tuple(getattr(options, "allow", ())),
        constraints=tuple(getattr(options, "constraint", ())),
    )


def matrix_request_of(options: argparse.Namespace) -> Request:
    """The request of `check`, which judges several GPUs and jobs at once, and the project's own where none is named."""

    from doctor.sources.project.config import split_names

    axes = split_names(options.gpu), tuple(dict.fromkeys(options.model)), tuple(dict.fromkeys(options.workload))
    options.gpu, options.model, options.workload = (
        () if len(axis) > 1 else given
        for axis, given in zip(axes, (options.gpu, options.model, options.workload), strict=True)
    )
    request = request_of(options)
    gpus, models, workloads = (axis if len(axis) > 1 else () for axis in axes)
    if _is_home(request.declared, request.defaults):
        request = replace(request, declared=())
    named = request.python or request.site_packages or request.facts or request.declared
    return replace(
        request, gpus=gpus, models=models, workloads=workloads, project=True, baseline=options.baseline,
        thorough=False,
        declared=request.declared if named else request.defaults.requirements,
    )  # fmt: skip


def _is_home(declared: tuple[str, ...], defaults: Defaults) -> bool:
    """Whether the project's own folder is examined, and the project says which files of it that means."""
    if len(declared) != 1 or defaults.folder is None or not (defaults.requirements or defaults.environments):
        return False

    return Path(declared[0]).is_dir() and Path(declared[0]).samefile(defaults.folder)


def _one(option: str, given: Sequence[str] | None) -> str | None:
    """The value of an option that a command takes once."""
    if len(dict.fromkeys(given or ())) > 1:
        told = ", ".join(given or ())
        raise DoctorError(f"`{option}` takes one here, found {told}", "`attn-doctor check` judges several at once")
    return given[-1] if given else None
