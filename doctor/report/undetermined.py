"""Skipped checks: rules that could not be evaluated because facts are missing."""

from __future__ import annotations

from collections.abc import Sequence

from doctor.model import Report, Undetermined

_MOST_NAMES = 6  # rules by name in a line that is shortened


def relevant(report: Report) -> tuple[Undetermined, ...]:
    """Return the skipped rules, without those of libraries that are neither installed nor named."""
    return tuple(item for item in report.undetermined if not _of_unnamed_library(item, report))


def _of_unnamed_library(item: Undetermined, report: Report) -> bool:
    return any(key.endswith(".version") and key not in report.facts for key in item.missing)


def count(skipped: Sequence[Undetermined]) -> str:
    """Return `1 check`, `26 checks`."""
    number = len({rule for item in skipped for rule in item.rules})
    return f"{number} check{'s' if number != 1 else ''}"


def lines(report: Report, most: int | None = None) -> list[str]:
    """A line for the rules that lack a workload, and one for each combination of facts that others lack.

    With `most`, only so many of the latter, those of most rules first, and no more names in any than can be read.
    """
    without_job: list[Undetermined] = []
    others: list[Undetermined] = []
    for item in relevant(report):
        no_job = any(key.startswith("workload.") for key in item.missing) and "no workload" in item.problem
        (without_job if no_job else others).append(item)
    shown = []
    if without_job:
        number = len({rule for item in without_job for rule in item.rules})
        shown.append(
            f"{number} need a workload, and none was given: describe the job with `--model config.json`, "
            "`--workload FILE` or `--set workload.KEY=VALUE`"
        )
    others.sort(key=lambda item: (-len(item.rules), item.missing))
    shown += [f"{_names(item, most)}: {item.problem or ', '.join(item.missing)}" for item in others[:most]]
    if most is not None and len(others) > most:
        shown.append(f"and {len(others) - most} more combinations (`--format json` lists them all)")
    return shown


def _names(item: Undetermined, most: int | None) -> str:
    if most is None or len(item.rules) <= _MOST_NAMES:
        return ", ".join(item.rules)
    return f"{', '.join(item.rules[: _MOST_NAMES - 1])} and {len(item.rules) - _MOST_NAMES + 1} more"
