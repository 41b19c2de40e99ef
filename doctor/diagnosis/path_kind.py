"""What a named path is: an interpreter, an unpacked tree, facts, declared files, a model config or a workload."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.sources.manifests.detect import kind_of
from doctor.sources.printed import is_report
from doctor.sources.workload.huggingface import workloads_of
from doctor.sources.workload.recipes import read_job
from doctor.util.reading import read_text

_FACTS_SUFFIXES = (".json", ".yaml", ".yml")
_REPORT_SUFFIXES = ("", ".txt", ".md", ".log")
_LOG_SUFFIXES = (".log", ".out", ".err")
_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?")
_FACTS = re.compile(r"^[\"']?(facts|workload|[a-z0-9-]+\.[a-z_]+)[\"']?\s*:", re.MULTILINE)


def target_of(path: Path) -> str:
    """Return the target that an existing path is: python, site-packages, facts or requirements."""
    if path.is_dir():
        return _kind_of_folder(path)
    if _PYTHON.fullmatch(path.name):
        return "python"
    return "facts" if _holds_facts(path) else "requirements"


def option_of(path: Path) -> str | None:
    """Return the option that takes an existing path, None for a log; DoctorError where no option reads such a file."""
    if path.is_dir() or _PYTHON.fullmatch(path.name):
        return f"--{target_of(path)}"
    if path.suffix.lower() == ".json" and _is_read(workloads_of, path):
        return "--model"
    if path.suffix.lower() in _FACTS_SUFFIXES and not _holds_facts(path) and _is_read(read_job, path):
        return "--workload"
    if (target := target_of(path)) == "requirements":
        if path.suffix.lower() in _LOG_SUFFIXES:
            return None
        kind_of(path, read_text(path, "file"))
    return f"--{target}"


def _is_read(read: Any, path: Path) -> bool:
    try:
        read(path)
    except DoctorError:
        return False
    return True


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
