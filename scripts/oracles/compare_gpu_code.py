"""Compare the GPU code that the reader finds in wheels with what `cuobjdump --list-elf --list-ptx` prints.

    python scripts/oracles/compare_gpu_code.py --cuobjdump PROGRAM --work DIR PACKAGE==VERSION …

Each wheel comes from pip, one after the other, and is deleted. For each library the architectures of machine code
and of PTX are compared. `cuobjdump` prints `sm_100` for code of the family `100f`, and stops at some libraries of
CUDA 12.0 to 12.2: those are listed apart. `pip download nvidia-cuda-cuobjdump` brings the program.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.packages.records import UNKNOWN_PACKAGE  # noqa: E402
from doctor.sources.binaries.elf import BadElf, ElfFile  # noqa: E402
from doctor.sources.binaries.fatbin import GpuCode, read_gpu_code  # noqa: E402
from doctor.sources.binaries.wheel_file import unpacked  # noqa: E402

_LISTED = re.compile(r"^(ELF|PTX) file\s+\d+: .*\.sm_(\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)


def listed(cuobjdump: Path, library: str) -> tuple[set[str], set[str]] | None:
    """Return the architectures of machine code and of PTX that the program lists; None where it stops."""
    found: dict[str, set[str]] = {"ELF": set(), "PTX": set()}
    for option in ("--list-elf", "--list-ptx"):
        ended = subprocess.run([cuobjdump, option, library], capture_output=True, text=True, timeout=600)
        if ended.returncode and "No " not in ended.stdout + ended.stderr:
            return None
        for kind, arch in _LISTED.findall(ended.stdout):
            found[kind].add(arch)
    return found["ELF"], found["PTX"]


def names_of(code: GpuCode) -> tuple[set[str], set[str]]:
    """Return what the reader found, as the program prints it: without the letter of a family."""
    return tuple({arch.rstrip("f") for arch, _ in part} for part in (code.sass, code.ptx))  # type: ignore[return-value]


def compare(wheel: Path, cuobjdump: Path) -> tuple[int, int, list[str]]:
    """Return how many libraries with GPU code agree, for how many the program stops, and the differences."""
    equal = stopped = 0
    different = []
    with unpacked(wheel, UNKNOWN_PACKAGE) as package:
        for name in package.files:
            path = f"{package.base}/{name}"
            try:
                with ElfFile(path) as elf:
                    own = names_of(read_gpu_code(elf))
            except (BadElf, OSError):
                continue
            if own == (set(), set()):
                continue
            theirs = listed(cuobjdump, path)
            if theirs is None:
                stopped += 1
            elif ({arch.rstrip("f") for arch in theirs[0]}, {arch.rstrip("f") for arch in theirs[1]}) == own:
                equal += 1
            else:
                different.append(f"{name}: read {own}, listed {theirs}")
    return equal, stopped, different


def main() -> int:
    """Compare each wheel; return 1 where a list differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cuobjdump", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("releases", nargs="+", metavar="PACKAGE==VERSION")
    options = parser.parse_args()
    wheels = libraries = 0
    failed = False
    for release in options.releases:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
            python = ["--python-version", "3.12"]
            if subprocess.run([*command, *python, release], check=False, capture_output=True).returncode:
                print(release, "has no wheel", flush=True)
                continue
            equal, stopped, different = compare(next(Path(folder).glob("*.whl")), options.cuobjdump)
        wheels += equal > 0 and not different
        libraries += equal
        failed |= bool(different)
        print(release, f"{equal} libraries equal, {stopped} not read by cuobjdump", *different, flush=True)
    print(f"{wheels} wheels agree, {libraries} libraries")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
