"""What the libraries of the rulebook say of single distributions: `packages` of their `library.yaml`, as records.

This module knows the kinds of statements and no package. Sources are handed the records, as they load no rulebook.
"""

# No postponed annotations: a named tuple would compile each of them again, at every start.

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Opens(NamedTuple):
    """Which of its compiled files a package opens at import: patterns of paths below site-packages."""

    files: str  # the CUDA release of torch replaces `{cuda}`: 128 for 12.8
    without_cuda: str = ""  # what it opens next to a torch without CUDA
    cuda_variable: str = ""  # the variable whose value replaces `{cuda}` instead
    any_one: bool = False  # the first group that loads is enough
    after: tuple[str, ...] = ()  # files of other packages that it loads first, with symbols visible to all
    alternatives: str = ""  # part of the name of each file of which it opens one
    folders: Mapping[str, str] = {}  # folder -> the architecture of its files, `!9.0` for all others


class AtRun(NamedTuple):
    """What a package compiles with while a job runs."""

    needs: tuple[str, ...]  # of nvcc, ninja, c_compiler
    called_by: tuple[str, ...]  # frameworks whose jobs reach it
    unless: tuple[str, ...] = ()  # distributions that bring its kernels compiled


class PackageRecord(NamedTuple):
    """What is known of one distribution, whatever its version."""

    opens: Opens | None = None
    modules: tuple[str, ...] = ()  # installed at the top level: Python code first, then compiled ones
    modules_also_in: tuple[str, ...] = ()  # other distributions that install the same modules
    has_load_rule: bool = False  # a rule of its own says that it does not load
    has_gpu_rule: bool = False  # one says that it has no code for a GPU, or its code is for some GPUs alone
    has_label_rule: bool = False  # one compares torch and the C++ ABI with the label of its wheel
    has_cuda_rule: bool = False  # one compares torch's CUDA with that label
    has_build_rule: bool = False  # one reports that it cannot be built in isolation
    wrong_on: Mapping[str, tuple[str, ...]] = {}  # releases -> beginnings of the GPUs on which they are wrong
    wheel_names_build: bool = False  # its wheel files name what they were built for
    conda: tuple[str, ...] = ()  # its names in conda
    held_with_torch: bool = False  # its newer releases need a newer torch: left open, a resolver would change torch
    compiles_at_run: AtRun | None = None
    chooses_by_modules: bool = False  # it chooses attention by which of its compiled modules are there
    usual_modules: tuple[tuple[str, ...], ...] = ()  # that its usual builds hold, each with the names that it had
    role: str = ""  # one of ROLES, where it calls other packages of the stack or is called by them


ATTENTION, TRAINER, OTHER = "attention", "trainer", "other"
#: `attention`: a job of the stack that has it runs it. `trainer`: it trains transformers' models.
ROLES = (ATTENTION, TRAINER, OTHER)
#: Distribution -> its record.
PackageRecords = Mapping[str, PackageRecord]
UNKNOWN_PACKAGE = PackageRecord()


def records_of(tables: Iterable[Mapping[str, Mapping[str, Any]]]) -> PackageRecords:
    """Return the records that the libraries give, in the order of the names."""
    found = {name: _record(body) for table in tables for name, body in table.items()}
    return dict(sorted(found.items()))


def names_with(records: PackageRecords, *roles: str) -> frozenset[str]:
    """Return the distributions that have one of these roles."""
    return frozenset(name for name, record in records.items() if record.role in roles)


def _record(body: Mapping[str, Any]) -> PackageRecord:
    opens = body.get("opens")
    return PackageRecord(
        opens=None if opens is None else _opens(opens),
        modules=tuple(body.get("modules", ())),
        modules_also_in=tuple(body.get("modules_also_in", ())),
        has_load_rule=_flag(body, "has_load_rule"),
        has_gpu_rule=_flag(body, "has_gpu_rule"),
        has_label_rule=_flag(body, "has_label_rule"),
        has_cuda_rule=_flag(body, "has_cuda_rule"),
        has_build_rule=_flag(body, "has_build_rule"),
        wrong_on={spec: tuple(gpus) for spec, gpus in body.get("wrong_on", {}).items()},
        wheel_names_build=_flag(body, "wheel_names_build"),
        conda=tuple(body.get("conda", ())),
        held_with_torch=_flag(body, "held_with_torch"),
        compiles_at_run=_at_run(body["compiles_at_run"]) if "compiles_at_run" in body else None,
        chooses_by_modules=_flag(body, "chooses_by_modules"),
        usual_modules=tuple(map(tuple, body.get("usual_modules", ()))),
        role=body.get("role", ""),
    )


def _opens(body: Mapping[str, Any]) -> Opens:
    texts = {key: body.get(key, "") for key in ("files", "without_cuda", "cuda_variable", "alternatives")}
    return Opens(
        **texts, any_one=_flag(body, "any_one"), after=tuple(body.get("after", ())), folders=body.get("folders", {})
    )


def _at_run(body: Mapping[str, Any]) -> AtRun:
    return AtRun(*(tuple(body.get(key, ())) for key in AtRun._fields))


def _flag(body: Mapping[str, Any], key: str) -> bool:
    return str(body.get(key)).lower() == "true"
