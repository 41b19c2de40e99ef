"""Record what the compiled files of published wheels were made for: `rules/index/compiled.json.gz`.

    python scripts/release/record_wheels.py --cache DIR [PACKAGE[==VERSION][@MACHINE] …]

Each wheel comes from pip (`pip download --no-deps`), one after the other; it is read without being installed, and is
deleted. What was read stays in the cache folder, one file a wheel. A release without a wheel is read from its source
archive: which architectures, C++ standard and prebuilt wheels its build names. Without arguments the table is
written from the cache; rows that the cache lacks stay.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.utils import canonicalize_name  # noqa: E402
from packaging.version import Version  # noqa: E402

from doctor.errors import DoctorError  # noqa: E402
from doctor.packages.archives import PLATFORMS, fetch_archive, published_releases  # noqa: E402
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecord  # noqa: E402
from doctor.packages.torch_symbols import load_torch_symbols  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402
from doctor.sources.binaries.elf import BadElf, ElfFile  # noqa: E402
from doctor.sources.binaries.fatbin import read_gpu_code  # noqa: E402
from doctor.sources.binaries.packages import archs_for_pick, is_alternative, opening_of  # noqa: E402
from doctor.sources.binaries.survey import fitting_builds  # noqa: E402
from doctor.sources.binaries.wheel_file import name_of, unpacked  # noqa: E402
from doctor.sources.builds.archive import read_archive  # noqa: E402

TABLE = ROOT / "rules" / "index" / "compiled.json.gz"
MACHINES = ("x86_64", "aarch64")
_CUDART = re.compile(r"libcudart\.so\.(\d+)")
_CUBLAS = re.compile(r"lib(?:cublas|cublasLt)\.so\.(\d+)")
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")


def read_members(wheel: Path) -> dict[str, Any]:
    """Return what each compiled file of a wheel needs and holds."""
    name, version = name_of(wheel)
    members: dict[str, Any] = {}
    with unpacked(wheel, UNKNOWN_PACKAGE) as package:
        for file in package.files:
            path = f"{package.base}/{file}"
            try:
                with ElfFile(path) as elf:
                    summary, code = elf.summary(), read_gpu_code(elf)
            except (BadElf, OSError, ValueError) as problem:
                members[file] = {"problem": str(problem)}
                continue
            members[file] = {
                "needed": summary.needed, "requires": summary.requires, "sass": code.sass, "ptx": code.ptx,
                "fits": fitting_builds(path),
            }  # fmt: skip
    return {"name": name, "version": version, "file": wheel.name, "size": wheel.stat().st_size, "members": members}


def fetch_wheel(name: str, version: str, machine: str, folder: Path) -> Path | None:
    """Download the wheel of a release for a machine; None where the registry has none."""
    newer = [f"manylinux_2_{glibc}_{machine}" for glibc in range(39, 16, -1)]  # pip takes each tag as it is written
    platforms = [*newer, *(place.replace("x86_64", machine) for place in PLATFORMS)]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command += [part for place in platforms for part in ("--platform", place)]
    for python in ("3.12", "3.11", "3.10"):
        ended = subprocess.run(
            [*command, "--python-version", python, f"{name}=={version}"], check=False, capture_output=True, timeout=1800
        )
        if ended.returncode == 0:
            return next(folder.glob("*.whl"))
    return None


def record(spec: str, cache: Path) -> None:
    """Read one release into the cache: its wheel for a machine, or else its source archive."""
    spec, _, machine = spec.partition("@")
    name, _, version = spec.partition("==")
    name = canonicalize_name(name)
    version = version or next(one for one in reversed(published_releases(name)) if not Version(one).is_prerelease)
    kept = cache / f"{name}-{version}{f'-{machine}' if machine else ''}.json"
    if kept.exists():
        return
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wheel = fetch_wheel(name, version, machine or MACHINES[0], Path(folder))
        if wheel is not None:
            kept.write_text(json.dumps(read_members(wheel)), "utf-8")
        elif not machine:
            with suppress(DoctorError):
                needs = read_archive(fetch_archive(name, version, Path(folder)))
                kept.write_text(json.dumps({"name": name, "version": version, "source": needs.as_json()}), "utf-8")
    print(spec, machine, "recorded" if kept.exists() else "has no such wheel", flush=True)


def row_of(kept: Mapping[str, Any], opens: PackageRecord) -> dict[str, Any] | None:
    """Return one row of the table: what the files say that the package opens; None without compiled files for a GPU."""
    files = {name: body for name, body in kept["members"].items() if "needed" in body}
    opening = opening_of(opens.opens, None, {})
    if opening is not None and opening.files != "-":
        picked = [name for name in files if re.fullmatch(opening.files, name)]
    else:
        picked = [name for name in files if not is_alternative(opens.opens, name)] or list(files)
    archs: dict[str, None] = {}
    for name in picked:
        body = files[name]
        own = [*(_dotted(arch) for arch, _ in body["sass"]), *(_dotted(arch) + "+PTX" for arch, _ in body["ptx"])]
        archs.update(dict.fromkeys(archs_for_pick(opens.opens, name, own)))
    cuda = sorted({int(match[1]) for name in picked for match in _linked(files[name]["needed"])})
    fits = [set(files[name]["fits"]) for name in picked if files[name]["fits"] is not None]
    common = set.intersection(*fits) if fits else None
    if not archs and not cuda and common is None:
        return None
    glibc = max(_glibc(files[name]["requires"] for name in picked), default=None)
    return {
        "file": kept["file"], "size": kept["size"], "sm": sorted(archs, key=_by_number), "cuda": cuda,
        **({"torch": [one for one in next(f for f in _ordered(files, picked)) if one in common]} if common else {}),
        **({"torch": []} if common is not None and not common else {}),
        **({"glibc": f"{glibc[0]}.{glibc[1]}"} if glibc else {}),
    }  # fmt: skip


def _ordered(files: Mapping[str, Any], picked: Iterable[str]) -> Iterator[list[str]]:
    yield from (files[name]["fits"] for name in picked if files[name]["fits"] is not None)


def _linked(needed: Iterable[str]) -> Iterator[re.Match[str]]:
    """Yield the CUDA runtimes that a file needs; those of cuBLAS where it needs no runtime (linked statically)."""
    found = [match for one in needed if (match := _CUDART.match(one))]
    yield from found or [match for one in needed if (match := _CUBLAS.match(one))]


def _glibc(requires: Iterable[Iterable[tuple[str, str, bool]]]) -> Iterator[tuple[int, int]]:
    for versions in requires:
        for _, version, weak in versions:
            if not weak and (match := _GLIBC.fullmatch(version)):
                yield int(match[1]), int(match[2])


def _dotted(arch: str) -> str:
    digits = arch.rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}{arch[len(digits) :]}"


def _by_number(arch: str) -> tuple[float, str]:
    return float(re.sub(r"[af]?(\+PTX)?$", "", arch)), arch


def write_table(cache: Path, table: Path) -> int:
    """Write the table from the cache, and keep its rows that the cache lacks; return the number of rows."""
    records = load_rulebook().packages
    old = json.loads(gzip.decompress(table.read_bytes())) if table.exists() else {}
    wheels: dict[str, dict[str, list[Any]]] = old.get("wheels", {})
    sources: dict[str, dict[str, Any]] = old.get("sources", {})
    for file in sorted(cache.glob("*.json")):
        kept = json.loads(file.read_text("utf-8"))
        name, version = kept["name"], kept["version"]
        if "source" in kept:
            sources.setdefault(name, {})[version] = kept["source"]
        elif row := row_of(kept, records.get(name, UNKNOWN_PACKAGE)):
            rows = wheels.setdefault(name, {}).setdefault(version, [])
            rows[:] = [one for one in rows if one["file"] != row["file"]] + [row]
    newest = max((build.version.partition("+")[0] for build in load_torch_symbols().builds), key=Version)
    body = {"newest_torch": newest, "wheels": _sorted(wheels), "sources": _sorted(sources)}
    table.write_bytes(gzip.compress(json.dumps(body, separators=(",", ":"), sort_keys=True).encode(), mtime=0))
    return sum(len(rows) for releases in wheels.values() for rows in releases.values())


def _sorted(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(sorted(table[name].items(), key=lambda item: Version(item[0]))) for name in sorted(table)}


def main() -> int:
    """Fill the cache with the named releases, then write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("releases", nargs="*", metavar="PACKAGE[==VERSION][@MACHINE]")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for spec in options.releases:
        record(spec, options.cache)
    if not options.releases:
        print(f"{write_table(options.cache, options.table)} wheels on record")
    return 0


if __name__ == "__main__":
    sys.exit(main())
