"""The same diagnosis for a program: `from doctor import diagnose` at the top of a training script.

Stable: the names in `__all__`, their parameters, and the fields of `Report` and `Finding`. Nothing is printed, no
torch is imported, and the rest of the package is loaded only when one of them is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from doctor.diagnosis.examine import examine
from doctor.diagnosis.pipeline import diagnose as of_request
from doctor.diagnosis.ranks import Gather, exchange, process_group, ranks_facts
from doctor.diagnosis.request import Request, in_project, require_one_target, with_axes
from doctor.diagnosis.watch import rulebook_of
from doctor.facts.workload import workload_facts
from doctor.report.style import Style
from doctor.rulebook.matrix import with_matrices
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.project.config import project_defaults, split_names
from doctor.sources.workload.files import stated_settings
from doctor.sources.workload.huggingface import model_facts, model_layers
from doctor.sources.workload.layers import LayerKind

from .errors import DoctorError
from .model import Facts, Report

__all__ = ["diagnose", "diagnose_ranks", "render"]

#: A file, what it holds, or an object that can say it (`model.config` of transformers has `to_dict`); or several.
Source = Any


def diagnose(
    model: Source = None,
    *,
    workload: Source = None,
    settings: Mapping[str, Any] | None = None,
    python: str | None = None,
    facts: str | os.PathLike[str] | None = None,
    requirements: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    gpu: str | Sequence[str] | None = None,
    rules: Iterable[str | os.PathLike[str]] = (),
    run: bool = False,
    fixes: bool = True,
    timeout: float = 120.0,
) -> Report:
    """Will this job's attention work here, and if not, why and what helps?

    model: a Hugging Face `config.json`, its content as a mapping, or a config object with `to_dict`.
    workload: a workload file, or a mapping such as `{"dtype": "bfloat16", "cp_size": 8}`; it wins over `model`.
    settings: further facts by their keys, `{"env.NVTE_FLASH_ATTN": "0"}`; they win over everything.
    python, facts, requirements: what is examined, one of them: an interpreter, a facts file, declared files, which
        together are one environment: `"."` or another folder, `"pyproject.toml[train]"`. Default: the interpreter
        that runs this.
    gpu: diagnose for this GPU instead of the one here. rules: folders with further rules.

    Lists of `gpu`, `model` and `workload` are judged in every combination, as `attn-doctor check` does: the report has
    them in `cases`, and each finding names those in which it triggers.

    run: also run small kernels on the GPU, in processes of their own; `timeout` is the longest wait for one, in
        seconds. Off by default: at the top of a training script the GPU is wanted for something else.
    fixes: also search for what helps.

    DoctorError for bad input, its subclass NoDiagnosis where nothing could be examined.
    """

    report = of_request(
        _request(
            model,
            workload=workload,
            settings=settings,
            python=python,
            facts=facts,
            requirements=requirements,
            gpu=gpu,
            rules=rules,
            run=run,
            fixes=fixes,
            timeout=timeout,
        )
    )
    return NotebookReport(*report)


class NotebookReport(Report):
    """A report that a notebook shows as its HTML page, in a frame of its own without scripts."""

    def _repr_html_(self) -> str:
        page = escape(render(self, "html"), quote=True)
        return f'<iframe sandbox srcdoc="{page}" style="width:100%;height:32rem;border:0" title="attn-doctor"></iframe>'


def diagnose_ranks(
    model: Source = None, *, gather: Gather | None = None, rank: int | None = None, **options: Any
) -> Report:
    """`diagnose` on every rank of a job; the report of rank 0 also says where ranks differ from each other.

    Collective: every rank must call it. The ranks exchange their facts through `gather` (called with a string, it
    returns those of all ranks in their order); without it through the process group that torch.distributed has set
    up. A job of one rank is diagnosed alone. `options` are those of `diagnose`.
    """

    group = (rank, gather) if rank is not None and gather is not None else process_group()
    if group is None:
        return diagnose(model, **options)
    own, gather = group
    mine: Facts | DoctorError
    try:
        request = _request(model, **options)
        if request.several:
            raise DoctorError("the ranks of a job share one GPU and one job", "`diagnose` judges several at once")
        examined = examine(request, rulebook_of(request))
        mine = examined.facts
    except DoctorError as problem:  # sent to the others before it is raised: they wait for this rank
        mine = problem
    everyone, notes = exchange(mine, gather)
    if isinstance(mine, DoctorError):
        raise mine
    if own != 0:
        return of_request(request, examined=examined)
    compared = examined._replace(facts=mine.with_(*ranks_facts(everyone).values()))
    report = of_request(request, examined=compared)
    return report._replace(notes=(*report.notes, *notes))


def render(report: Report, form: str = "text", *, rules: Iterable[str | os.PathLike[str]] = ()) -> str:
    """Return a report as `attn-doctor check --format FORM` prints it; `rules` as for `diagnose`."""
    from doctor.report.formats import renderer

    if form == "html":
        folders = (*project_defaults().rules, *(os.fspath(folder) for folder in rules))
        report = with_matrices(load_rulebook(folders), report)
    text: str = renderer(form, "diagnosis")(report, Style(False, 100))
    return text


def _request(
    model: Source = None,
    *,
    workload: Source = None,
    settings: Mapping[str, Any] | None = None,
    python: str | None = None,
    facts: str | os.PathLike[str] | None = None,
    requirements: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    gpu: str | Sequence[str] | None = None,
    rules: Iterable[str | os.PathLike[str]] = (),
    run: bool = False,
    fixes: bool = True,
    timeout: float = 120.0,
) -> Request:
    files = (requirements,) if isinstance(requirements, (str, os.PathLike)) else requirements
    if not timeout > 0:
        raise DoctorError(f"`timeout` needs a positive number of seconds, found `{timeout}`")
    declared = tuple(os.fspath(name) for name in files)
    require_one_target({"python": python, "facts": facts, "requirements": declared})
    gpus = split_names((gpu,) if isinstance(gpu, str) else gpu or ())
    if isinstance(gpu, str) and not gpus:
        raise DoctorError("`gpu` names no GPU", 'for example `gpu="h100"`')
    models, workloads = _each(model), _each(workload)
    several = max(len(gpus), len(models), len(workloads)) > 1
    held: dict[tuple[str, str], Facts] = {}
    layers: dict[str, Sequence[LayerKind]] = {}
    named = [
        [_name(kind, number, source, held, layers) for number, source in enumerate(axis, 1)]
        for kind, axis in (("model", models), ("workload", workloads))
    ]
    request = Request(
        python=python or (None if facts or declared else sys.executable),
        facts=() if facts is None else (os.fspath(facts),),
        declared=declared,
        given=stated_settings(settings or {}, "stated by the program"),
        rules=tuple(os.fspath(folder) for folder in rules),
        defaults=project_defaults(),
        fixes=fixes,
        run=run,
        timeout=timeout,
        thorough=not several,  # as `check` does with several cases
        held=held,
        held_layers=layers,
    )
    return in_project(with_axes(request, gpus, *named), whole=False)


def _each(source: Source) -> tuple[Source, ...]:
    return tuple(source) if isinstance(source, (list, tuple)) else () if source is None else (source,)


def _name(
    kind: str,
    number: int,
    source: Source,
    held: dict[tuple[str, str], Facts],
    layers: dict[str, Sequence[LayerKind]],
) -> str:
    """What a model or workload is called in the report; what is no file is held under that name."""

    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    content = _mapping(source, kind)
    name = str(content.get("_name_or_path") or f"{kind} {number}")
    name = name if (kind, name) not in held else f"{name} ({number})"
    held[kind, name] = model_facts(content) if kind == "model" else workload_facts(content)
    if kind == "model":
        layers[name] = model_layers(content)
    return name


def _mapping(source: Source, what: str) -> Mapping[str, Any]:
    """The content of a config object or mapping."""

    content = source.to_dict() if callable(getattr(source, "to_dict", None)) else source
    if not isinstance(content, Mapping):
        raise DoctorError(
            f"`{what}` needs a file, a mapping or an object with `to_dict`, found {type(source).__name__}",
            "for a model on a hub, pass `model.config`",
        )
    return content
