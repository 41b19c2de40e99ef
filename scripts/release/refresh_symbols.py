"""Rebuild rules/index/torch_symbols.gz: which symbols each public torch release exports.

    python scripts/release/refresh_symbols.py --cache DIR [--release 2.8.0 …] [--first 2.0.0]

Each wheel comes from pip (`pip download --no-deps`); nothing is installed. One wheel at a time is on disk; what it
exports stays in the cache folder, so that an interrupted run goes on where it stopped. `torch/__init__.py` is kept
there too, as it decides which libraries are loaded first.
"""

from __future__ import annotations

import argparse
import gzip
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

from doctor.packages.torch_symbols import TorchBuild, packed  # noqa: E402
from doctor.sources.binaries.elf import ElfFile  # noqa: E402

OUTPUT = ROOT / "rules" / "index" / "torch_symbols.gz"
#: What extensions link against. Their union counts: an extension names them all in its NEEDED entries.
LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch.so")
_CUDA = re.compile(r"^cuda\s*(?::[^=\n]*)?=\s*(?:None|'([\d.]+)')", re.MULTILINE)
_NEW_ABI = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def releases(first: str) -> list[str]:
    """Return the releases that the index offers, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line = next(item for item in ended.stdout.splitlines() if item.startswith("Available versions:"))
    found = [Version(item.strip()) for item in line.partition(":")[2].split(",")]
    return [str(item) for item in sorted(found) if item >= Version(first) and not item.is_prerelease]


def exports_of(version: str, cache: Path) -> None:
    """Put what one release exports into the cache."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
        subprocess.run([*command, f"torch=={version}"], check=True, timeout=1800)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            assigned = _CUDA.search(archive.read("torch/version.py").decode())
            (cache / f"init-{version}.py").write_bytes(archive.read("torch/__init__.py"))
            found: set[str] = set()
            for library in LIBRARIES:
                if (member := f"torch/lib/{library}") in names:
                    with ElfFile(archive.extract(member, folder)) as elf:
                        found.update(elf.exported())
        cuda = assigned[1] if assigned else None
        body = {"build": [version, cuda, _NEW_ABI in found], "wheel": wheel.name, "symbols": sorted(found)}
        target = cache / f"{version}.json.gz"
        target.with_suffix(".part").write_bytes(gzip.compress(json.dumps(body).encode(), 6))
        target.with_suffix(".part").rename(target)
        print(f"{version}: CUDA {cuda}, {len(found)} symbols", flush=True)


def main() -> int:
    """Fill the cache, then write the index from all that is in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--release", nargs="*", help="only these; none: write the index from the cache alone")
    parser.add_argument("--first", default="2.0.0", help="the oldest release (default 2.0.0)")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for version in releases(options.first) if options.release is None else options.release:
        if not (options.cache / f"{version}.json.gz").exists():
            exports_of(version, options.cache)
    bodies = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(options.cache.glob("*.json.gz"))]
    content = packed({TorchBuild(*body["build"]): body["symbols"] for body in bodies})
    OUTPUT.write_bytes(content)
    print(f"{OUTPUT.relative_to(ROOT)}: {len(bodies)} releases, {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
