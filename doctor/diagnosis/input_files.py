"""The files that a request names, for reports that must show every finding at a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from doctor.model import InputFile
from doctor.sources.workload.files import split_part

from .request import Request

_CONFIG = "config.json"  # of a model that is named by its folder


def input_files(request: Request) -> tuple[InputFile, ...]:
    """Return the files that `request` and the project's section name; those that are no files are left out."""
    return tuple(dict.fromkeys(_existing(request)))


def _existing(request: Request) -> Iterator[InputFile]:
    for item in _named(request):
        if item.kind == "model":
            named = Path(split_part(item.path)[0])
            item = InputFile(item.kind, str(named / _CONFIG if named.is_dir() else named))
        if item.kind == "rules" or Path(item.path).is_file():
            yield item


def _named(request: Request) -> Iterator[InputFile]:
    defaults = request.defaults
    target = request.python or request.site_packages or request.facts
    declared = request.declared
    if not declared and not target:
        declared = (*defaults.requirements, *(file for files in defaults.environments.values() for file in files))
    for path in declared:
        yield InputFile("declared", path)
    models = request.models or ((request.model,) if request.model else ())
    workloads = request.workloads or ((request.workload,) if request.workload else ())
    if not models and not workloads:
        models, workloads = defaults.models, defaults.workloads
    for path in models:
        yield InputFile("model", path)
    for path in workloads:
        yield InputFile("workload", path)
    if defaults.folder is not None:
        yield InputFile("project", str(defaults.folder / "pyproject.toml"))
    for path in request.facts:
        yield InputFile("facts", path)
    for path in request.rules:
        yield InputFile("rules", path)
