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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.version import Version  # noqa: E402

from doctor.packages.torch_symbols import load_torch_symbols  # noqa: E402
from doctor.sources.binaries.survey import labelled  # noqa: E402
from doctor.sources.binaries.wheel_file import read_wheel  # noqa: E402

#: Package -> its library in the rulebook, whose rows are those of this package.
LIBRARIES = {
    "xformers": "xformers", "torchvision": "torchvision", "torchaudio": "torchaudio", "torchao": "torchao",
    "autoawq-kernels": "autoawq_kernels", "vllm": "vllm", "sglang-kernel": "sglang_kernel",
}  # fmt: skip
#: Packages that are not the first distribution of their library.
IMPLIED = {"sgl-kernel": "sgl_kernel", "fa3-fwd": "flash_attn"}


def fits_of(package: str, version: str, cache: Path) -> list[str] | None:
    """Return the torch builds that a published wheel fits; None where it has no file that needs torch."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
        if subprocess.run([*command, f"{package}=={version}"], check=False, timeout=1800).returncode:
            return None
        (wheel,) = Path(folder).glob("*.whl")
        found = read_wheel(wheel).fitting_torch
        return None if found is None else list(found)


def with_implied(text: str, package: str, fits: dict[str, list[str]]) -> str:
    """Return a library file that says what each version of a package fits which is not its first distribution."""
    old = re.compile(rf"^  - \{{when: \{{{re.escape(package)}\.version: .*fitting_torch.*\n", re.MULTILINE)
    text = old.sub("", text)
    lines = ""
    for version in sorted(fits, key=Version):
        facts = f"{{{package}.fitting_torch: {' '.join(fits[version])}}}"
        lines += f'  - {{when: {{{package}.version: "=={version}"}}, facts: {facts}}}\n'
    if "\nimplies:\n" not in text:
        text = text.rstrip("\n") + "\nimplies:\n"
    return text.replace("\nimplies:\n", f"\nimplies:\n{lines}", 1)


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
    writers = {**dict.fromkeys(LIBRARIES, with_fits), **dict.fromkeys(IMPLIED, with_implied)}
    for package in sorted(fits.keys() & writers.keys()):
        releases = fits[package]
        path = ROOT / "rules" / {**LIBRARIES, **IMPLIED}[package] / "library.yaml"
        # One that fits none was built for another CUDA than the registry's torch: it may fit elsewhere.
        known = {version: found for version, found in releases.items() if found}
        path.write_text(writers[package](path.read_text("utf-8"), package, known), "utf-8")
    torch = ROOT / "rules" / "torch" / "library.yaml"
    torch.write_text(with_exports(torch.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
