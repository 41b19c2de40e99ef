"""From the verdicts on compiled files to facts, with what an earlier run found out."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

from doctor._version import __version__
from doctor.model import TORCH
from doctor.util.cache_file import cache_folder, read_cache, write_cache
from doctor.util.deep_search import SearchTooLarge

from . import elf, fatbin, files, fit, layout, ldso, loader, packages, survey
from .families import Job, conda_copies, one_cudnn, predict, shell_commands
from .loader import Failure, FailureKind
from .ownership import Owner, changed_files, shared_files
from .repair import find_change, in_words
from .survey import Installed, PackageVerdict, Place, Survey
from .te_import import CUDNN
from .torch_import import NO_EXTENSION

__all__ = ["Installed", "Owner", "PackageFacts", "Place", "judge"]

FORMAT = 2  # of the cache file
#: Packages whose Python files are compared by content, not by size alone.
_HASHED = re.compile(r"flash-attn|transformer-engine|xformers")
_MAX_CHANGED = 4  # packages for which changes of variables are tried
_CXX_VERSIONS = ("GLIBCXX_", "CXXABI_")
_TE_CORE = re.compile(r"transformer-engine-cu1[23]")
PackageFacts = Iterable[tuple[str, Any, str]]  # fact key, value, source


def judge(place: Place, packages: Iterable[Installed], owners: Iterable[Owner] = ()) -> PackageFacts:
    """Return the facts about these packages, and about files of the owners that others overwrote."""
    cache, key = _cache_file(place), _key()
    remembered = _remembered(cache, key)
    work = Survey(place, remembered)
    packages = list(packages)
    try:
        verdicts = [verdict for package in packages if (verdict := work.judge(package)) is not None]
        changes = _changes(work, packages, verdicts)
    finally:
        work.close()
    try:
        loaded = list(_loaded(work, packages))
    except SearchTooLarge:  # unknown which libraries a folder of the toolkit holds
        loaded = []
    fresh = work.to_remember()
    if cache is not None and fresh != remembered:
        write_cache(cache, key, json.dumps(fresh, separators=(",", ":")).encode())
    ruled = {package.name for package in packages if package.record.has_load_rule}
    return [*_facts(work, verdicts, changes, ruled), *loaded, *_owned(list(owners))]


def _changes(work: Survey, packages: list[Installed], verdicts: list[PackageVerdict]) -> dict[str, str]:
    """Return package -> the change of variables after which it loads, as the end of a sentence; `torch` among them."""
    if work.place.program is None:
        return {}
    failures = {verdict.name: verdict.failure for verdict in verdicts if verdict.loads is False and verdict.failure}
    if work.torch_failure is not None:
        failures = {TORCH: work.torch_failure}
    installed = {package.name: package for package in packages}
    found = {}
    for name, failure in list(failures.items())[:_MAX_CHANGED]:
        loads = partial(_loads, work, installed.get(name))
        change = find_change(failure, work.place.environ, work.places(), loads)
        if change:
            found[name] = f"; it loads with `{in_words(change)}`"
    return found


def _loads(work: Survey, package: Installed | None, environ: Mapping[str, str]) -> bool:
    """Return whether torch, and a package after it, load under these variables."""
    other = work.with_environ(environ)
    try:
        verdict = None if package is None else other.judge(package)
        return other.torch_failure is None and (verdict is None or verdict.loads is True)
    finally:
        other.close()


def _too_old(failures: Iterable[Failure | None]) -> str | None:
    """Return which C++ library comes first and lacks a version, None where none does."""
    for failure in failures:
        if failure and failure.kind == FailureKind.SYMBOL_VERSION and failure.missing[0].startswith(_CXX_VERSIONS):
            newest = _newest(failure.provider, failure.missing[0].partition("_")[0])
            own = f", which ends at {newest}" if newest else ""
            return f"`{os.path.basename(failure.file)}` needs {failure.missing[0]}, and `{failure.provider}`{own}, comes first"  # noqa: PTH119, E501
    return None


def _newest(path: str, family: str) -> str | None:
    summary = files.read_summary(path)
    versions = summary.provides if isinstance(summary, elf.Summary) else ()
    numbered = [name for name in versions if re.fullmatch(rf"{family}_[\d.]+", name)]
    return max(numbered, key=lambda name: [int(part) for part in name.partition("_")[2].split(".")], default=None)


def _facts(
    work: Survey, verdicts: list[PackageVerdict], changes: dict[str, str], ruled: Set[str]
) -> Iterator[tuple[str, Any, str]]:
    """Yield what was found of each package; what packages without a rule of their own do not load is one list."""
    old = _too_old((work.torch_failure, *(verdict.failure for verdict in verdicts if verdict.loads is False)))
    if old:
        yield "loader.old_libstdcxx", old, "version tables of the files"
    if work.torch_failure is not None and work.torch_failure.missing != NO_EXTENSION:
        problem = work.sentence(work.torch_failure) + changes.get(TORCH, "")
        yield "binaries.torch_problem", problem, f"files of {work.place.torch_folder}"
    others = []
    for verdict in verdicts:
        if not verdict.verdicts:
            continue
        source = f"file {verdict.source}"
        if verdict.loads is not None:
            yield f"{verdict.name}.loads", verdict.loads, source
        if verdict.problem:
            yield f"{verdict.name}.load_problem", verdict.problem + changes.get(verdict.name, ""), source
        if verdict.gpu_code:
            yield f"{verdict.name}.gpu_code", verdict.gpu_code, source
        if verdict.torch_fits is not None:
            yield f"{verdict.name}.fitting_torch", verdict.torch_fits or ("none",), source
        if verdict.name not in ruled:
            bad = [one for one in verdict.verdicts if one.loads is False and one.about_torch]
            if verdict.loads is False:
                others += [f"{verdict.name}: {one.problem}{changes.get(verdict.name, '')}" for one in bad]
    yield "binaries.unloadable", tuple(others), "the compiled files of installed packages"


def _loaded(work: Survey, packages: list[Installed]) -> Iterator[tuple[str, Any, str]]:
    """Yield which cuDNN files torch loads and which TransformerEngine adds, where they come from several folders."""
    if work.place.program is None or work.torch is None or work.torch_failure is not None:
        return
    core = next((package for package in packages if _TE_CORE.fullmatch(package.name)), None)
    files = [name for name in core.files if name.endswith("/libtransformer_engine.so")] if core else []
    te_core = f"{core.base}/{files[0]}" if core and files else None
    job = Job(
        work.place.program, work.torch, work.torch_text, work.place.machine, te_core, core.version if core else None
    )
    source = "the loader's search for the imports of the job"
    torch = predict(work.files, work.place.environ, job, te=False)
    if not torch.families.get(CUDNN):
        return
    yield "loader.torch_cudnn_folders", torch.folders(CUDNN), source
    if work.place.conda and (copies := conda_copies(work.files, torch, work.place.conda, job.torch.site_dirs)):
        yield "loader.conda_copies", copies, source
    if te_core is None and not torch.mixed(CUDNN):
        return
    both = predict(work.files, work.place.environ, job, te=True)
    if both.failure is None and te_core is not None:
        yield "loader.te_cudnn_folders", both.folders(CUDNN), source
    change = one_cudnn(work.files, work.place.environ, job)
    if change:
        yield "loader.one_cudnn", shell_commands(change), source + ", repeated with this change"


def _owned(owners: list[Owner]) -> Iterator[tuple[str, Any, str]]:
    """Yield which files two distributions claim, and which differ from what their one owner lists."""
    shared = list(shared_files(owners))
    twice = []
    for found in shared:
        held = f"; on disk are those of {found.holder}" if found.holder else ""
        twice.append(f"{' and '.join(found.owners)} both own {_named(found.paths)}{held}")
    claimed = {label for found in shared for label in found.owners}
    changed = []
    for owner in owners:
        differs = changed_files(owner, hashed=_HASHED.match(owner.name) is not None)
        if differs is None or differs.owner in claimed:
            continue
        for paths, words in ((differs.paths, "not as in its RECORD"), (differs.missing, "missing")):
            if paths:
                changed.append(f"{differs.owner}: {_named(paths)} {words}")
    source = "the RECORD files of installed distributions"
    yield "files.owned_twice", tuple(twice), source
    yield "files.changed", tuple(changed), source


def _named(paths: tuple[str, ...]) -> str:
    return f"`{paths[0]}`" if len(paths) == 1 else f"{len(paths)} files such as `{paths[0]}`"


def _key() -> str:
    """Return the digest of the code whose results are kept."""
    digest = hashlib.sha256(repr((FORMAT, __version__)).encode())
    for module in (elf, fatbin, files, fit, layout, ldso, loader, packages, survey):
        status = Path(str(module.__file__)).stat()
        digest.update(repr((module.__name__, status.st_mtime_ns, status.st_size)).encode())
    return digest.hexdigest()


def _cache_file(place: Place) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    name = hashlib.sha256(repr(place.site_dirs).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return folder / f"binaries-{name}.json"


def _remembered(cache: Path | None, key: str) -> dict[str, Any]:
    found = read_cache(cache, key) if cache is not None else None
    if found is None:
        return {}
    try:
        body = json.loads(found[1])
    except (ValueError, RecursionError):
        return {}
    whole = isinstance(body, dict) and all(
        isinstance(body.get(part), dict) for part in ("symbols", "files", "summaries")
    )
    return body if whole else {}
