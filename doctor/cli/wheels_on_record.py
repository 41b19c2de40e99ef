"""`attn-doctor wheels NAME`: which releases of a compiled package fit an environment, by the records of its files."""

from __future__ import annotations

import json
from typing import Any

from doctor.errors import DoctorError
from doctor.model import ABSENT
from doctor.packages.compiled_fit import Answer, CompiledFit, Wanted, fit_of
from doctor.packages.compiled_records import load_compiled_records
from doctor.packages.compiled_remedies import build_command, is_wrong
from doctor.packages.records import PackageRecord
from doctor.packages.release_wheels import Wheel, WheelMatch

from .answer import Forms

_MOST = 4  # releases shown
_WORDS = {True: "fits", False: "does not fit", None: "not certain"}


def judged_releases(
    package: str, version: str | None, wanted: Wanted, record: PackageRecord, match: WheelMatch | None = None
) -> tuple[Forms, bool]:
    """Return the verdict on the releases on record in each format, and whether one fits; DoctorError without any.

    `match`: what the workflow of its release pages builds for this environment.
    """
    records = load_compiled_records()
    if package not in records.packages:
        raise DoctorError(
            f"the wheels of `{package}` are not on record",
            "`attn-doctor wheels FILE.whl` reads one; once it is installed, `attn-doctor check` reads its files",
        )
    releases = records.releases(package) or records.source_releases(package)
    if version is not None:
        if not records.wheels(package, version) and records.source(package, version) is None:
            shown = ", ".join(releases[-_MOST:])
            raise DoctorError(f"{package} {version} is not on record", f"on record: {shown}")
        releases = (version,)
    rows = [_row(package, release, wanted, record) for release in reversed(releases)]
    rows.sort(key=lambda row: {True: 0, None: 1, False: 2}[row["fits"]])
    build = build_command(package, version or releases[-1], wanted, record)
    pages = None if match is None else _of_pages(match, wanted, record)
    found = {"schema": 1, "package": package, "place": wanted._asdict(), "releases": rows, "build": build}
    found |= {"release_pages": pages} if pages is not None else {}
    forms: Forms = {"text": lambda style: _as_text(found), "json": lambda style: json.dumps(found, indent=2) + "\n"}
    return forms, any(row["fits"] is True for row in rows) or bool(pages and pages["wheels"])


def _of_pages(match: WheelMatch, wanted: Wanted, record: PackageRecord) -> dict[str, Any]:
    """Return the wheels of release pages that fit and have code for the GPU, else the nearest ones, and why."""

    def serves(wheel: Wheel) -> bool:
        has_code = fit_of(wheel.package, wheel.version, wanted).gpu.answer is not False
        return has_code and not is_wrong(record, wheel.version, wanted.sm)

    fitting = [wheel.url for wheel in match.fitting if serves(wheel)]
    why = match.why_not or ("none has code for this GPU" if match.fitting and not fitting else "")
    if match.missing and not why:
        why = f"cannot choose one: {', '.join(match.missing)} unknown"
    return {"wheels": fitting, "why_not": None if fitting else why, "nearest": [wheel.url for wheel in match.nearest]}


def _row(package: str, release: str, wanted: Wanted, record: PackageRecord) -> dict[str, Any]:
    records = load_compiled_records()
    fit = fit_of(package, release, wanted)
    wheel = records.wheel(package, release, wanted.machine, wanted.python)
    wrong = is_wrong(record, release, wanted.sm)
    return {
        "version": release, "fits": False if wrong else _verdict(fit, wanted), "file": wheel.file if wheel else None,
        "gpu_code": list(wheel.gpu_code) if wheel else [], "torch": list(wheel.torch or ()) if wheel else [],
        "cuda": list(wheel.cuda) if wheel else [], "size": wheel.size if wheel else None,
        "reasons": (["computes wrong results on this GPU"] if wrong else []) + list(_reasons(fit)),
    }  # fmt: skip


def _verdict(fit: CompiledFit, wanted: Wanted) -> bool | None:
    """Return whether every known part of the environment is served."""
    if fit.fails:
        return False
    needed = [fit.gpu] if wanted.sm not in (None, ABSENT) else []
    needed += [fit.cuda] if wanted.cuda not in (None, ABSENT) and fit.cuda.found else []
    return (fit.on_record and all(one.answer is True for one in needed)) or None


def _reasons(fit: CompiledFit) -> list[str]:
    titles = {"GPU": fit.gpu, "CUDA": fit.cuda, "torch": fit.torch, "C++ ABI": fit.abi}
    return [f"{title}: {_shown(one)}" for title, one in titles.items() if one.found]


def _shown(one: Answer) -> str:
    words = {True: one.how or "yes", False: "no", None: "not certain"}[one.answer]
    return f"{words} ({one.found}; {one.source})"


def _as_text(found: dict[str, Any]) -> str:
    named = {key: value for key, value in found["place"].items() if value not in (None, ABSENT)}
    lines = ["for " + (", ".join(f"{key} {value}" for key, value in named.items()) or "an unknown environment")]
    for row in found["releases"][:_MOST]:
        size = f", {row['size'] / 1e6:.0f} MB" if row["size"] else ""
        lines += ["", f"{found['package']} {row['version']}: {_WORDS[row['fits']]}{size}"]
        lines += [f"  {reason}" for reason in row["reasons"]]
        lines += [f"  pip install {found['package']}=={row['version']}"] if row["fits"] else []
    rest = len(found["releases"]) - _MOST
    lines += ["", f"… and {rest} more on record: `--format json` lists them"] if rest > 0 else []
    if (pages := found.get("release_pages")) is not None:
        lines += [
            "",
            *(["on its release pages, by the workflow that builds them"] if pages["wheels"] else [pages["why_not"]]),
        ]
        lines += [f'  pip install "{found["package"]} @ {url}"' for url in pages["wheels"][:1]]
        lines += [f"  nearest: {url}" for url in pages["nearest"]]
    lines += ["", found["build"]] if found["build"] else []
    return "\n".join(lines) + "\n"
