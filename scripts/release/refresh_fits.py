"""Renew which torch releases a published wheel fits, in the `releases:` rows of the rulebook.

    python scripts/release/refresh_fits.py --cache DIR [PACKAGE==VERSION …]

Each wheel comes from pip (`pip download --no-deps`), is read without being installed, and is deleted. What it needs of
torch is compared with `rules/index/torch_symbols.gz`. Without arguments the rows are written from the cache alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.version import Version  # noqa: E402

from doctor.packages.torch_symbols import load_torch_symbols  # noqa: E402
from doctor.sources.binaries.packages import opening_of  # noqa: E402
from doctor.sources.binaries.survey import fitting_builds, labelled  # noqa: E402

#: Package -> its library in the rulebook, whose rows are those of this package.
LIBRARIES = {
    "xformers": "xformers", "torchvision": "torchvision", "torchaudio": "torchaudio", "torchao": "torchao",
    "autoawq-kernels": "autoawq_kernels", "vllm": "vllm",
}  # fmt: skip


def fits_of(package: str, version: str, cache: Path) -> list[str] | None:
    """Return the torch builds that a published wheel fits; None where it has no file that needs torch."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
        if subprocess.run([*command, f"{package}=={version}"], check=False, timeout=1800).returncode:
            return None
        (wheel,) = Path(folder).glob("*.whl")
        common: set[str] | None = None
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".so")]
            opening = opening_of(package, names, None)
            for name in names:
                if opening is None or re.fullmatch(opening.files, name):
                    found = fitting_builds(archive.extract(name, folder))
                    if found is not None:
                        common = set(found) if common is None else common & set(found)
    if common is None:
        return None
    return [label for label in map(labelled, load_torch_symbols().builds) if label in common]


def with_fits(text: str, package: str, fits: dict[str, list[str]]) -> str:
    """Return a library file whose rows have these fits."""
    key = f"{package}.fitting_torch"
    for version in sorted(fits, key=Version):
        value = f"{key}: {' '.join(fits[version])}"
        row = re.compile(rf"^(  {re.escape(version)}:\s*\{{)(.*)\}}$", re.MULTILINE)
        found = row.search(text)
        if found is None:
            if "\nreleases:\n" not in text:
                text = text.rstrip("\n") + "\nreleases:\n"
            text = text.replace("\nreleases:\n", f"\nreleases:\n  {version}: {{{value}}}\n", 1)
            continue
        kept = [part for part in found[2].split(", ") if not part.startswith(f"{key}:")]
        text = text[: found.start()] + found[1] + ", ".join([*kept, value]) + "}" + text[found.end() :]
    return text


def with_exports(text: str) -> str:
    """Return torch's library file whose rows say which build's exports are on record."""
    key = "torch.exports_on_record"
    for build in load_torch_symbols().builds:
        if "+" in build.version:
            continue
        row = re.compile(rf"^(  {re.escape(build.version)}:\s*\{{)(.*)$", re.MULTILINE)
        found = row.search(text)
        if found is not None and key not in found[2]:
            text = text[: found.end(1)] + f"{key}: {labelled(build)}, " + text[found.end(1) :]
    return text


def main() -> int:
    """Fill the cache with the named wheels, then write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("wheels", nargs="*", metavar="PACKAGE==VERSION")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    store = options.cache / "fits.json"
    fits: dict[str, dict[str, list[str] | None]] = json.loads(store.read_text("utf-8")) if store.exists() else {}
    for wheel in options.wheels:
        package, _, version = wheel.partition("==")
        if version not in fits.setdefault(package, {}):
            fits[package][version] = fits_of(package, version, options.cache)
            print(wheel, fits[package][version], flush=True)
            store.write_text(json.dumps(fits), "utf-8")
    if options.wheels:
        return 0
    for package in sorted(fits.keys() & LIBRARIES.keys()):
        releases = fits[package]
        path = ROOT / "rules" / LIBRARIES[package] / "library.yaml"
        # One that fits none was built for another CUDA than the registry's torch: it may fit elsewhere.
        known = {version: found for version, found in releases.items() if found}
        path.write_text(with_fits(path.read_text("utf-8"), package, known), "utf-8")
    torch = ROOT / "rules" / "torch" / "library.yaml"
    torch.write_text(with_exports(torch.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
