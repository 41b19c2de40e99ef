"""Compare the predicted and the real libraries of torch, and of torch and TransformerEngine, under many environments.

    python compare_loads.py OUTPUT [--te SITE]

Runs on a machine with a GPU, in the interpreter that has torch. For each combination of CUDNN_HOME, CUDNN_PATH,
LD_LIBRARY_PATH and LD_PRELOAD one child imports torch (one more TransformerEngine's common part after it), runs a
convolution, and reads /proc/self/maps. OUTPUT receives the description of the machine and one row for each child.
`--te` names a folder with the packages transformer-engine and transformer-engine-cu13.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.sources.binaries.families import FAMILIES, Job, Outcome, one_cudnn, predict  # noqa: E402
from doctor.sources.binaries.files import Disk, described  # noqa: E402
from doctor.sources.binaries.torch_import import TorchFiles, read_text  # noqa: E402

_CHILD = r"""
import json, sys
steps = []
def step(name, call):
    try:
        steps.append([name, str(call())])
    except BaseException as problem:
        steps.append([name, "%s: %s" % (type(problem).__name__, str(problem)[:400])])
import torch
if "te" in sys.argv[1:]:
    def te():
        import transformer_engine.common
        return "ok"
    step("te", te)
step("cudnn", lambda: torch.backends.cudnn.version())
def convolve():
    x = torch.randn(2, 8, 32, 32, device="cuda", dtype=torch.float16)
    w = torch.randn(16, 8, 3, 3, device="cuda", dtype=torch.float16)
    return float(torch.nn.functional.conv2d(x, w).float().abs().mean()) > 0
step("convolution", convolve)
paths = sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if ".so" in line})
print(json.dumps({"steps": steps, "maps": paths}))
"""


class Recorder(Disk):
    """The files of this machine; remembers every question, so that another machine can answer the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, Any] = {"files": {}, "links": {}, "folders": {}, "cache": {}, "below": {}}

    def summary(self, path: str) -> Any:
        """Return and remember a summary."""
        found = super().summary(path)
        if found is not None:
            real = os.path.realpath(path)
            self.asked["files"][real] = described(found)
            if real != path:
                self.asked["links"][path] = real
        return found

    def listing(self, folder: str) -> tuple[str, ...]:
        """Return and remember a folder."""
        found = super().listing(folder)
        if found:
            self.asked["folders"][folder] = [name for name in found if ".so" in name]
        return found

    def below(self, folder: str, prefix: str) -> tuple[str, ...]:
        """Return and remember a search."""
        found = super().below(folder, prefix)
        self.asked["below"][f"{folder} {prefix}"] = list(found)
        return found

    def cached_path(self, name: str) -> str | None:
        """Return and remember an entry of ldconfig's cache."""
        found = super().cached_path(name)
        if found is not None:
            self.asked["cache"][name] = found
        return found


def run(environ: dict[str, str], site: str | None, te: bool) -> dict[str, Any]:
    """Return what one child saw."""
    full = {key: value for key, value in os.environ.items() if key not in NAMES}
    full.update(environ)
    if site:
        full["PYTHONPATH"] = site
    command = [sys.executable, "-c", _CHILD, *(["te"] if te else [])]
    done = subprocess.run(command, env=full, capture_output=True, text=True, check=False, timeout=240)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"steps": [["exit", f"{done.returncode}: {done.stderr[-500:]}"]], "maps": []}


def compare(outcome: Outcome, maps: list[str]) -> list[str]:
    """Return how prediction and reality differ: a file of a family that was loaded from elsewhere, or not at all."""
    real: dict[str, set[str]] = {}
    for path in maps:
        name = os.path.basename(path).partition(".so")[0] + ".so"  # noqa: PTH119
        if name.startswith(tuple(FAMILIES.values())):
            real.setdefault(name, set()).add(path)
    predicted = {name: set(paths) for names in outcome.families.values() for name, paths in names.items()}
    return [
        f"{name}: predicted {sorted(predicted[name])}, real {sorted(real[name])}"
        for name in sorted(predicted.keys() & real.keys())
        if predicted[name] != real[name]
    ] + [f"{name}: real {sorted(real[name])}, not predicted" for name in sorted(real.keys() - predicted.keys())]


NAMES = ("CUDNN_HOME", "CUDNN_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")


def main() -> int:
    """Run all combinations, and the change of variables that the model proposes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--te")
    options = parser.parse_args()
    site = sysconfig.get_path("purelib")
    wheel = f"{site}/nvidia/cudnn"
    disk = Recorder()
    system = os.path.dirname(disk.cached_path("libcudnn.so.9") or "/usr/lib/x86_64-linux-gnu/-")  # noqa: PTH120
    values = {
        "CUDNN_HOME": (None, wheel), "CUDNN_PATH": (None, system), "LD_LIBRARY_PATH": (None, f"{wheel}/lib", system),
        "LD_PRELOAD": (None, f"{wheel}/lib/libcudnn.so.9"),
    }  # fmt: skip
    import torch

    job = Job(
        os.path.realpath(sys.executable),
        TorchFiles(f"{site}/torch", (*([options.te] if options.te else []), site), torch.version.cuda.partition(".")[0],
                   f"cpython-{sys.version_info[0]}{sys.version_info[1]}"),
        read_text(f"{site}/torch/__init__.py"),
        te_core=f"{options.te}/transformer_engine/wheel_lib/libtransformer_engine.so" if options.te else None,
        te_version="2.20.2",
    )  # fmt: skip
    combinations = [
        {name: value for name, value in zip(NAMES, chosen, strict=True) if value}
        for chosen in itertools.product(*(values[name] for name in NAMES))
    ]
    rest = {key: value for key, value in os.environ.items() if key.startswith(("CUDA_HOME", "CUDA_PATH"))}
    cases = [(environ, te) for environ in combinations for te in ((False, True) if options.te else (False,))]
    proposals = [one_cudnn(disk, {**environ, **rest}, job) for environ in combinations]
    change = next((found for found in proposals if found), None)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda case: run(case[0], options.te, case[1]), cases))
    rows, wrong = [], 0
    for (environ, te), seen in zip(cases, results, strict=True):
        outcome = predict(disk, {**environ, **rest}, job, te=te)
        differs = compare(outcome, seen["maps"])
        wrong += bool(differs)
        rows.append({
            "environ": environ, "te": te, "steps": seen["steps"], "differs": differs,
            "mixed": outcome.folders("cudnn") if outcome.mixed("cudnn") else [],
            "maps": [path for path in seen["maps"] if os.path.basename(path).startswith(tuple(FAMILIES.values()))],  # noqa: PTH119
            "failure": str(outcome.failure or ""),
        })  # fmt: skip
        print(environ, "te" if te else "torch", seen["steps"], "mixed" if outcome.mixed("cudnn") else "one", differs)
    print(f"{len(rows) - wrong} of {len(rows)} predicted alike")
    for environ, proposal in zip(combinations, proposals, strict=True):
        if proposal:
            changed = {name: value for name, value in {**environ, **proposal}.items() if value is not None}
            print("proposal", environ, "->", proposal, run(changed, options.te, True)["steps"])
    job_body = {**vars(job), "torch": vars(job.torch)}
    body = {"files": disk.asked, "job": job_body, "rest": rest, "rows": rows, "change": change}
    options.output.write_text(json.dumps(body), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
