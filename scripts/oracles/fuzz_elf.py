"""Feed damaged ELF files to the reader until the time is up: it may answer or raise `BadElf`, and nothing else.

    python scripts/oracles/fuzz_elf.py --seconds 600 SEED_FILE …

Each case takes one of the seed files and truncates it, overwrites header fields with extreme numbers, moves tables onto
each other, or flips bytes. The first failing case is written to `fuzz_failure.so`. A case must end within two seconds.
"""

from __future__ import annotations

import argparse
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.sources.binaries.elf import BadElf, ElfFile  # noqa: E402
from doctor.sources.binaries.fatbin import read_gpu_code  # noqa: E402

_EXTREME = (0, 1, 2, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 62) - 1, (1 << 63) - 1, (1 << 64) - 1)
LIMIT_S = 2.0


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a damaged copy."""
    body = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        kind = chance.randrange(6)
        if kind == 0:
            del body[chance.randrange(len(body) + 1) :]
        elif kind == 1 and len(body) >= 64:  # the ELF header
            width, form = chance.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
            at = chance.randrange(16, 64 - width + 1)
            struct.pack_into(form, body, at, chance.choice(_EXTREME) & ((1 << 8 * width) - 1))
        elif kind == 2 and len(body) >= 4096:  # program headers and the first tables
            at = chance.randrange(64, 4096 - 8) & ~3
            struct.pack_into("<Q", body, at, chance.choice((*_EXTREME, chance.randrange(len(body)))))
        elif kind == 3 and len(body) > 16:  # a word anywhere
            at = chance.randrange(len(body) - 8) & ~3
            struct.pack_into("<I", body, at, chance.choice(_EXTREME) & 0xFFFFFFFF)
        elif kind == 4 and len(body) > 64:  # one part onto another
            size = min(chance.randrange(8, 512), len(body) // 2)
            source, target = (chance.randrange(len(body) - size) for _ in range(2))
            body[target : target + size] = body[source : source + size]
        elif body:
            body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body)


def read_all(path: Path) -> bool:
    """Read everything that the doctor reads; return whether the file was accepted."""
    try:
        with ElfFile(str(path)) as elf:
            elf.summary()
            references = list(elf.undefined())
            for reference in references[:64]:
                elf.defines(reference.name, reference.version)
            elf.defines("_ZN3c1011SymBoolToBoolEv")
            sum(1 for _ in elf.exported())
            read_gpu_code(elf)
    except BadElf as problem:
        if "\n" in str(problem):
            raise AssertionError("the reason has more than one line") from None
        return False
    return True


def main() -> int:
    """Run until the time is up, or the first failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--random", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.random)
    seeds = [path.read_bytes() for path in options.seeds]
    cases = accepted = 0
    slowest = 0.0
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.so"
        while time.monotonic() < end:
            data = mutated(chance.choice(seeds), chance)
            path.write_bytes(data)
            started = time.process_time()
            try:
                accepted += read_all(path)
            except Exception:
                Path("fuzz_failure.so").write_bytes(data)
                traceback.print_exc()
                print(f"failed after {cases} cases; the file is `fuzz_failure.so`")
                return 1
            took = time.process_time() - started
            slowest = max(slowest, took)
            if took > LIMIT_S:
                Path("fuzz_failure.so").write_bytes(data)
                print(f"a case took {took:.1f} s; the file is `fuzz_failure.so`")
                return 1
            cases += 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{cases} cases, {accepted} accepted, slowest {slowest:.2f} s, {memory} MB, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
