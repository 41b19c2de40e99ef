"""What a named path is: an interpreter, an unpacked tree, facts, declared files, a model config, a job or a program."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.libraries.record import Trainer
from doctor.facts.training.recipes import trainer_of
from doctor.model import TextEnum
from doctor.sources.manifests.detect import is_manifest, is_project_file, kind_of
from doctor.sources.printed_form import is_report
from doctor.sources.workload.files import split_part
from doctor.sources.workload.huggingface import workloads_of
from doctor.sources.workload.recipes import job_config, read_job
from doctor.util.reading import read_text

_FACTS_SUFFIXES = (".json", ".yaml", ".yml")
_REPORT_SUFFIXES = ("", ".txt", ".md", ".log")
_LOG_SUFFIXES = (".log", ".out", ".err")
_PROGRAMS = (".py", ".ipynb")
_DECLARES = re.compile(r"requirements.*\.txt|environment.*\.ya?ml|(?:docker-)?compose.*\.ya?ml")
_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?")
_FACTS = re.compile(r"^[\"']?(facts|workload|[a-z0-9-]+\.[a-z_]+)[\"']?\s*:", re.MULTILINE)


class PathKind(TextEnum):
    """What a path adds to a request; the value is the option that takes it, `script` has none."""

    PYTHON = "python"
    SITE_PACKAGES = "site-packages"
    FACTS = "facts"
    DECLARED = "requirements"
    MODEL = "model"
    WORKLOAD = "workload"
    SCRIPT = "script"


def kind_of_path(path: Path, trainers: Mapping[str, Trainer]) -> PathKind | None:
    """Return what an existing path is, None for a log; DoctorError where nothing reads such a file."""
    if path.is_dir():
        is_model = _holds_model(path) and not _holds_project(path)
        return PathKind.MODEL if is_model else PathKind(_kind_of_folder(path))
    if _PYTHON.fullmatch(path.name):
        return PathKind.PYTHON
    suffix = path.suffix.lower()
    if suffix in _PROGRAMS and path.name != "setup.py":
        return PathKind.SCRIPT
    if suffix == ".json" and _is_read(workloads_of, path):
        return PathKind.MODEL
    if suffix == ".toml" and not is_manifest(path) and _is_trainers(path, trainers):
        return PathKind.WORKLOAD
    if suffix in _FACTS_SUFFIXES and (
        _is_trainers(path, trainers) or (not _holds_facts(path) and _is_read(read_job, path))
    ):
        return PathKind.WORKLOAD
    if _holds_facts(path):
        return PathKind.FACTS
    if suffix in _LOG_SUFFIXES:
        return None
    kind_of(path, read_text(path, "file"))
    return PathKind.DECLARED


def sort_paths(paths: Iterable[str], trainers: Mapping[str, Trainer]) -> Mapping[str, tuple[str, ...]]:
    """Return the paths by the option that takes them; `script` has none. DoctorError for what nothing reads."""
    found: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(paths):
        path = Path(split_part(name)[0])
        if not _exists(path):
            raise DoctorError(f"there is no file `{name}`")
        is_part = str(path) != str(Path(name)) and path.suffix == ".json"
        kind = PathKind.MODEL if is_part else kind_of_path(path, trainers)
        if kind is None:
            reader = f"attn-doctor explain {shlex.quote(name)}"
            raise DoctorError(f"`{name}` is a log", f"`{reader}` names the cause of an error in a log")
        found[kind] = (*found.get(kind, ()), name)
        if kind == PathKind.DECLARED and path.is_dir() and _holds_model(path):  # a project with its model
            found[PathKind.MODEL] = (*found.get(PathKind.MODEL, ()), str(path / "config.json"))
    return {str(kind): named for kind, named in found.items()}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name of a file
        return False


def target_of(path: Path) -> str:
    """Return the target that an existing path is: python, site-packages, facts or requirements."""
    if path.is_dir():
        return _kind_of_folder(path)
    if _PYTHON.fullmatch(path.name):
        return "python"
    return "facts" if _holds_facts(path) else "requirements"


def option_of(path: Path, trainers: Mapping[str, Trainer]) -> str | None:
    """Return the option that takes an existing path, None for a log; DoctorError where no option reads such a file."""
    kind = kind_of_path(path, trainers)
    return None if kind is None else f"--{kind}"


def _holds_model(path: Path) -> bool:
    return (path / "config.json").is_file() and _is_read(workloads_of, path / "config.json")


def _holds_project(path: Path) -> bool:
    """Return whether a folder has a file that declares an environment or starts a job."""
    return any(_DECLARES.fullmatch(item.name.lower()) or is_project_file(item) for item in path.iterdir())


def _is_read(read: Any, path: Path) -> bool:
    try:
        read(path)
    except DoctorError:
        return False
    return True


def _is_trainers(path: Path, trainers: Mapping[str, Trainer]) -> bool:
    """Return whether a file is the config of a trainer or launcher: such a JSON file holds no facts."""
    try:
        content = job_config(path)
    except DoctorError:
        return False
    return isinstance(content, dict) and trainer_of(content, trainers) is not None


def _kind_of_folder(path: Path) -> str:
    if any((path / name).exists() for name in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")):
        return "python"
    return "site-packages" if next(path.glob("*.dist-info"), None) is not None else "requirements"


def _holds_facts(path: Path) -> bool:
    """Return whether a file holds facts: by its content, as lock files are JSON and YAML too."""
    if path.suffix.lower() in _REPORT_SUFFIXES:
        return is_report(read_text(path, "file"))
    if path.suffix.lower() not in _FACTS_SUFFIXES:
        return False
    text = read_text(path, "facts file")
    if path.suffix.lower() == ".json":
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return True  # the reader of facts says what is wrong with it
        return isinstance(content, dict) and not {"_meta", "default"} <= set(content)
    return _FACTS.search(text) is not None
