"""Facts about the compiled files of every package of an environment, whether or not a rule names the package.

They follow from all versions and files that are given, so that no list of names bounds them: what the installed files
say, what labels of wheels say, and what is on record of the registry's wheels and source builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import InvalidVersion

from doctor.model import ABSENT, TORCH, Fact
from doctor.packages.compiled_fit import CompiledFit, Wanted, fit_of
from doctor.packages.compiled_records import load_compiled_records
from doctor.packages.compiled_remedies import remedies
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecord, PackageRecords
from doctor.packages.relations import owner_of

from .build_facts import BUILDS, build_fact

if TYPE_CHECKING:
    from .resolver import FactResolver

SOURCE = "labels and records of compiled packages"
_VERSION, _CODE = ".version", ".gpu_code"


class Item(NamedTuple):
    """One package with compiled files, and what is known of its fit."""

    package: str
    version: str
    record: PackageRecord
    fit: CompiledFit


def is_compiled(key: str) -> bool:
    """Return whether a key is answered here: one of `COMPILED` or `BUILDS`, or the GPU code of a package."""
    return key in COMPILED or key in BUILDS or key.endswith(_CODE)


def compiled_answer(key: str, known: FactResolver, packages: PackageRecords) -> Fact | None:
    """Return the fact of a key that is answered here; None for another, or where nothing is on record."""
    if key in BUILDS:
        return build_fact(key, known, packages)
    if key in COMPILED:
        return compiled_fact(key, known, packages)
    return recorded_code(key.removesuffix(_CODE), known) if key.endswith(_CODE) else None


def compiled_fact(key: str, known: FactResolver, packages: PackageRecords) -> Fact:
    """Return one of the facts of `COMPILED`; ABSENT where no package is concerned."""
    needs, compute = COMPILED[key]
    items = list(_items(known, packages))
    if items and needs is not None and known.value(needs) is None:
        return Fact(key, None, SOURCE, None, f"needs {needs}", lacks=(needs,))
    found = compute(items, known)
    return Fact(key, found or ABSENT, SOURCE)


def recorded_code(package: str, known: FactResolver) -> Fact | None:
    """Return for which GPUs a release has code by the records; None where they do not say."""
    version = known.value(f"{package}{_VERSION}")
    if version in (None, ABSENT) or package not in load_compiled_records().packages:
        return None
    try:
        found = fit_of(package, str(version), wanted_of(known)).gpu
    except InvalidVersion:
        return None
    if found.answer is None:
        return None
    return Fact(f"{package}{_CODE}", tuple(found.found.split(", ")), found.source)


def _items(known: FactResolver, packages: PackageRecords) -> Iterator[Item]:
    """Yield every package whose compiled files are judged."""
    if not any(True for _ in _named(known)):
        return
    wanted = wanted_of(known)
    built = known.value("declared.built")
    for package, version, code in _named(known):
        try:
            compiler = _compiler(package, version, known) if isinstance(built, tuple) and package in built else None
            fit = fit_of(package, version, wanted if compiler is None else wanted._replace(nvcc=compiler), code)
        except InvalidVersion:
            continue
        yield Item(package, version, packages.get(package, UNKNOWN_PACKAGE), fit)


def _compiler(package: str, version: str, known: FactResolver) -> str | None:
    """Return the release of nvcc that compiles a package in this environment; None where that is not known."""
    build = load_compiled_records().source(package, version)
    if build is None or not build.is_compiled(known.value(f"env.{build.force_build}") if build.force_build else None):
        return None
    return _text(known.value("toolkit.nvcc"))


def wanted_of(known: FactResolver) -> Wanted:
    """Return the environment that compiled files shall serve."""
    value = known.value
    abi, cuda = value("torch.cxx11_abi"), value("torch.cuda")
    return Wanted(
        sm=_text(value("gpu.sm")),
        torch=_text(value("torch.version")),
        cuda=None if cuda is None else str(cuda),
        cxx11_abi=abi if isinstance(abi, bool) else None,
        machine=_text(value("platform.machine")),
        python=_text(value("python.version")),
    )


def _text(value: Any) -> str | None:
    return None if value in (None, ABSENT) else str(value)


def _named(known: FactResolver) -> Iterator[tuple[str, str, tuple[str, ...] | None]]:
    """Yield name, version and the GPU code that was read, of the packages of which anything is known."""
    on_record = load_compiled_records().packages
    given = known.given
    for key, fact in given.items():
        name = key.removesuffix(_VERSION) if key.endswith(_VERSION) else ""
        if not name and key.endswith(_CODE) and f"{key.removesuffix(_CODE)}{_VERSION}" not in given:
            name = key.removesuffix(_CODE)
            yield name, "0", fact.value if isinstance(fact.value, tuple) else None
            continue
        version = fact.value
        if not name or version in (None, ABSENT) or (_is_torch(name) and f"{name}{_CODE}" not in given):
            continue
        code = given.value(f"{name}{_CODE}")
        if name in on_record or "+" in str(version) or isinstance(code, tuple):
            yield name, str(version), code if isinstance(code, tuple) else None


def _is_torch(name: str) -> bool:
    """Return whether a package is torch or comes along with it: rules of torch judge it."""
    return name == TORCH or owner_of(name) == TORCH


def _title(item: Item) -> str:
    return item.package if item.version == "0" else f"{item.package} {item.version}"


def _without_code(items: list[Item], known: FactResolver) -> tuple[str, ...]:
    return tuple(
        f"{_title(item)} (code for {item.fit.gpu.found}; {item.fit.gpu.source})"
        for item in items
        if item.fit.gpu.answer is False and not item.record.has_gpu_rule
    )


def _only_ptx(items: list[Item], known: FactResolver) -> tuple[str, ...]:
    return tuple(
        _title(item) for item in items if item.fit.gpu.how == "PTX" and item.fit.gpu.source == "the installed files"
    )


def _not_on_record(items: list[Item], known: FactResolver) -> tuple[str, ...]:
    """Return packages that are compiled for this GPU by some compilers only."""
    return tuple(
        f"{_title(item)} ({item.fit.gpu.found}, by {item.fit.gpu.source})" for item in items if _is_unclear(item)
    )


def _is_unclear(item: Item) -> bool:
    return item.fit.gpu.answer is None and bool(item.fit.gpu.found) and not item.fit.on_record


def _other_cuda(items: list[Item], known: FactResolver) -> tuple[str, ...]:
    return tuple(
        f"{_title(item)} was made for {item.fit.cuda.found}, by {item.fit.cuda.source}"
        for item in items
        if item.fit.cuda.answer is False
        and not _has_rule(item, "label" in item.fit.cuda.source, item.record.has_cuda_rule)
    )


def _other_torch(items: list[Item], known: FactResolver) -> tuple[str, ...]:
    """Return packages of another torch by their labels: whether a package needs its compiled files is not on record."""
    return tuple(
        f"{_title(item)} was made for {item.fit.torch.found}"
        for item in items
        if item.fit.torch.answer is False and "label" in item.fit.torch.source and not item.record.has_label_rule
    )


def _other_abi(items: list[Item], known: FactResolver) -> tuple[str, ...]:
    if known.value("platform.system") == "Windows":  # the two ABIs are those of libstdc++
        return ()
    return tuple(
        f"{_title(item)} was made for the other C++ ABI, by the label of its wheel ({item.fit.abi.found})"
        for item in items
        if item.fit.abi.answer is False and not item.record.has_label_rule
    )


def _has_rule(item: Item, by_label: bool, label_rule: bool) -> bool:
    return label_rule if by_label else item.record.has_load_rule


def _remedy(kind: str) -> Callable[[list[Item], FactResolver], str]:
    """Return a function that names, for the first package of a kind, the release or build that serves."""

    def named(items: list[Item], known: FactResolver) -> str:
        faulty = next((item for item in items if _is_faulty(item, kind)), None)
        return (
            ""
            if faulty is None
            else "; or ".join(remedies(faulty.package, faulty.version, wanted_of(known), faulty.record))
        )

    return named


def _is_faulty(item: Item, kind: str) -> bool:
    if kind == "unclear":
        return _is_unclear(item)
    answers = {"gpu": (item.fit.gpu,), "build": (item.fit.cuda, item.fit.torch, item.fit.abi)}[kind]
    return any(one.answer is False for one in answers) and not item.record.has_load_rule


Compute = Callable[[list[Item], "FactResolver"], Any]
#: Key -> the fact without which it is unknown, and how it follows from the packages.
COMPILED: Mapping[str, tuple[str | None, Compute]] = {
    "binaries.without_gpu_code": ("gpu.sm", _without_code),
    "binaries.only_ptx": ("gpu.sm", _only_ptx),
    "binaries.gpu_code_unclear": ("gpu.sm", _not_on_record),
    "binaries.other_cuda": ("torch.cuda", _other_cuda),
    "labels.other_torch": ("torch.version", _other_torch),
    "binaries.other_abi": (None, _other_abi),
    "binaries.gpu_remedy": (None, _remedy("gpu")),
    "binaries.build_remedy": (None, _remedy("build")),
    "binaries.unclear_remedy": (None, _remedy("unclear")),
}
