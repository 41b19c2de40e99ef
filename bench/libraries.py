"""Time and memory of judging compiled files: cold, and with what an earlier run remembered.

    python bench/libraries.py SITE_PACKAGES … [--python PATH]

The folders make up one environment: torch with its CUDA wheels first, then extensions. Each measurement runs in a fresh
interpreter. Targets: 3 GB of libraries in at most 2 s cold and 0.3 s remembered, with at most 300 MB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"cold_s": 2.0, "remembered_s": 0.3, "memory_mb": 300}

_CHILD = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from doctor.sources.probes import compiled
from doctor.sources.probes.target import Target, TargetKind
from doctor.sources.watch import Watch
python, *folders = sys.argv[2:]
site = tuple(Path(folder) for folder in folders)
version = "%d.%d.%d" % sys.version_info[:3]
target = Target(python, site[0], site, TargetKind.INTERPRETER, version, "cpython", "Linux", "x86_64", "2.36", {})
started = time.perf_counter(), time.process_time()
facts = list(compiled.collect(target, Watch()))
wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
print(json.dumps({"wall": wall, "cpu": cpu, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                  "facts": len(facts), "loads": sum(fact.key.endswith(".loads") for fact in facts)}))
"""


def measure(python: str, folders: list[Path], cache: str) -> dict[str, float]:
    """Return what one run of the probe costs in a fresh interpreter."""
    command = [sys.executable, "-c", _CHILD, str(ROOT), python, *map(str, folders)]
    environ = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return dict(json.loads(done.stdout))


def main() -> int:
    """Print the figures, and return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="SITE_PACKAGES")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    libraries = [path for folder in options.folders for path in folder.rglob("*.so*") if path.is_file()]
    size = sum(path.stat().st_size for path in libraries)
    cold, warm = [], []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(measure(options.python, options.folders, cache))
            warm.append(measure(options.python, options.folders, cache))
    figures = {
        "cold_s": min(run["cpu"] for run in cold),
        "remembered_s": min(run["cpu"] for run in warm),
        "memory_mb": max(run["memory"] for run in cold + warm),
    }
    print(f"{len(libraries)} libraries, {size / 1e9:.1f} GB; {int(cold[0]['loads'])} packages judged")
    for name, target in TARGETS.items():
        print(f"{name:14} {figures[name]:8.2f}  (target {target})")
    print(f"wall clock: cold {min(run['wall'] for run in cold):.2f} s, remembered {min(r['wall'] for r in warm):.2f} s")
    return int(any(figures[name] > target for name, target in TARGETS.items()))


if __name__ == "__main__":
    sys.exit(main())
