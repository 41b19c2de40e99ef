"""What is not examined: releases after the records, packages that no rule knows, jobs without a known path."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from packaging.version import InvalidVersion

from doctor.facts.derived.shapes import framework_of
from doctor.facts.libraries.frameworks import caller_named
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, Facts, NewRelease, Prediction
from doctor.packages.index_file import index_head
from doctor.rulebook.rulebook import Rulebook
from doctor.util.patterns import pattern

#: Parts of the name of a package that computes attention.
_ATTENTION = pattern(r"attn|attention|sdpa|flash-?mla|flash-?infer")
_OWN = "attn-doctor"
_NOT_UNDERSTOOD = "workload.not_understood"
_OF_JOB = (_NOT_UNDERSTOOD, "workload.given", "workload.batch_size", "workload.qkv_layout")  # assumed for every job


def records_date() -> str:
    """Return the date of the newest release on record, as 2026-11-13."""
    return str(index_head().get("refreshed", ""))


def unrecorded(cases: Iterable[Facts]) -> tuple[NewRelease, ...]:
    """Return the releases in these environments that are newer than the newest on record of their package."""
    found = (item for facts in cases for item in _of(facts))
    return tuple(dict.fromkeys(found))


def _of(facts: Facts) -> Iterable[NewRelease]:
    for package, newest in index_head().get("newest", {}).items():
        version = facts.value(f"{package}.version")
        if not isinstance(version, str) or version == ABSENT:
            continue
        try:
            is_newer = parse_version(version.partition("+")[0]) > parse_version(newest)
        except InvalidVersion:
            continue
        if is_newer:
            yield NewRelease(package, version, newest)


def unexamined(cases: Iterable[tuple[Facts, Sequence[Prediction]]], rulebook: Rulebook) -> tuple[str, ...]:
    """Return what no rule was applied to, a part of a sentence each: packages by their names, and the job's path."""
    found = (item for facts, predictions in cases for item in _unexamined(facts, predictions, rulebook))
    return tuple(dict.fromkeys(found))


def _unexamined(facts: Facts, predictions: Sequence[Prediction], rulebook: Rulebook) -> Iterator[str]:
    watched: Collection[str] = rulebook.watched_distributions
    names = [key.removesuffix(".version") for key, fact in facts.items() if key.endswith(".version") and fact.known]
    for name in names:
        version = facts.value(f"{name}.version")
        if version != ABSENT and name not in watched and name != _OWN and _ATTENTION.search(name):
            yield f"no rule knows {name} {version}"
    for option in facts.value(_NOT_UNDERSTOOD) or ():
        if facts.value(_NOT_UNDERSTOOD) != ABSENT:
            yield f"`{option}` is not understood"
    job = [key for key in facts if key.startswith("workload.") and key not in _OF_JOB]
    if job and framework_of(facts) is None:
        yield "who computes the attention of this job is unknown (hint: `--set workload.framework=…`)"
    elif job and not predictions and not caller_named(framework_of(facts)).without_attention:
        yield "which kernel computes the attention of this job is not predicted"
    trainer = rulebook.libraries.get(str(facts.value("workload.trainer")))
    if trainer is not None and all(facts.value(f"{name}.version") == ABSENT for name in trainer.distributions):
        yield f"{trainer.title}, which runs this job, is not installed here"
