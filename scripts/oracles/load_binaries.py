"""Compare predicted and real loads: compiled files of extension wheels next to several torch releases.

    python scripts/oracles/load_binaries.py --torch DIR … --extension DIR … [--python PATH] [--output FILE]

Each DIR is a folder made by `pip install --target DIR torch==X` or `pip install --no-deps --target DIR xformers==Y`.
For each torch, one child imports torch and forks for each file, which it then opens as the package would. Files that
need the NVIDIA driver cannot be decided where there is none; they are listed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.sources.binaries.survey import PYTHON_TAG, Installed, Place, Survey  # noqa: E402
from doctor.sources.probes.compiled import _compiled_files  # noqa: E402

_CHILD = r"""
import json, os, sys
request = json.loads(sys.argv[1])
sys.path[:0] = request["path"]
import torch, ctypes, importlib.machinery, importlib.util

def attempt(item):
    for first in item["after"]:
        ctypes.CDLL(first, mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(item["file"])
    for name in item["modules"]:
        if hasattr(library, "PyInit_" + name):
            loader = importlib.machinery.ExtensionFileLoader(name, item["file"])
            spec = importlib.util.spec_from_loader(name, loader, origin=item["file"])
            importlib.util.module_from_spec(spec)

for item in request["items"]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            attempt(item)
            text = "ok"
        except BaseException as problem:
            text = "%s: %s" % (type(problem).__name__, problem)
        os.write(writer, text.encode()[:3000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read().decode()
    _, status = os.waitpid(child, 0)
    print(json.dumps({"file": item["file"], "real": text or "killed by signal %d" % (status & 127)}), flush=True)
"""


def packages_in(folder: Path) -> list[Installed]:
    """Return the distributions of one folder with the compiled files that they list."""
    found = []
    for info in sorted(folder.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        files = _compiled_files(str(info / "RECORD"))
        if files:
            found.append(Installed(name.replace("_", "-").lower(), version, str(folder), files))
    return found


def place_of(torch: Path, python: str, extensions: list[Path]) -> Place:
    """Return the environment that the folders make up."""
    text = (torch / "torch" / "version.py").read_text("utf-8")
    version = re.search(r"__version__\s*(?::[^=]*)?=\s*'([^']+)'", text)
    cuda = re.search(r"^cuda\s*(?::[^=\n]*)?=\s*'([\d.]+)'", text, re.MULTILINE)
    assert version
    release = subprocess.run(
        [python, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"],
        capture_output=True,
        text=True,
        check=True,
    )
    environ = {key: value for key, value in os.environ.items() if key in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    return Place(
        tuple(str(path) for path in (torch, *extensions)), os.uname().machine, environ, os.path.realpath(python),
        release.stdout.strip(), str(torch / "torch"), version[1], cuda[1] if cuda else "",
    )  # fmt: skip


def first_of(package: str, torch: Path) -> list[str]:
    """Return what a package loads by its path before its own library: TransformerEngine the wheels of CUDA."""
    if not package.startswith("transformer-engine-cu"):
        return []
    folders = ("cudnn", "cuda_nvrtc", "curand", "cublas", "cuda_runtime")
    return [str(path) for name in folders for path in sorted((torch / "nvidia" / name / "lib").glob("lib*.so.*[0-9]"))]


def compare(torch: Path, extensions: list[Path], python: str) -> list[dict[str, Any]]:
    """Return one row for each compiled file of the extensions next to this torch."""
    place = place_of(torch, python, extensions)
    rows: list[dict[str, Any]] = []
    items = []
    for folder in extensions:
        work = Survey(Place(**{**vars(place), "site_dirs": (str(torch), str(folder))}), load_siblings=False)
        for package in packages_in(folder):
            for file in work.own_files(package):
                if (tagged := PYTHON_TAG.search(file)) and tagged[1] != "".join(str(place.python).split(".")[:2]):
                    continue  # `dlopen` takes it, an import of this Python does not find it
                verdict = work.verdict(package, file)
                path = f"{package.base}/{file}"
                rows.append({
                    "package": f"{package.name}-{package.version}", "file": file, "torch": place.torch_version,
                    "predicted": verdict.loads, "problem": verdict.problem, "path": path,
                })  # fmt: skip
                stem = Path(file).name.partition(".")[0]
                items.append({"file": path, "modules": [stem], "after": first_of(package.name, torch)})
        work.close()
    request = json.dumps({"path": [str(torch), *map(str, extensions)], "items": items})
    run = subprocess.run([python, "-c", _CHILD, request], capture_output=True, text=True, check=False)
    real = {one["file"]: one["real"] for one in map(json.loads, run.stdout.splitlines())}
    if not real:
        sys.exit(f"torch in {torch} does not import: {run.stderr[-600:]}")
    for row in rows:
        row["real"] = real.get(row.pop("path"), "not run")
    return rows


def main() -> int:
    """Print how many verdicts agree, and those that do not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", type=Path, nargs="+", required=True)
    parser.add_argument("--extension", type=Path, nargs="+", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=Path, help="all rows, as JSON Lines")
    options = parser.parse_args()
    rows = [row for torch in options.torch for row in compare(torch, options.extension, options.python)]
    if options.output:
        options.output.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    no_driver = [row for row in rows if "libcuda.so" in row["real"] or "libnvidia" in row["real"]]
    decided = [row for row in rows if row not in no_driver]
    wrong = [row for row in decided if row["predicted"] is not (row["real"] == "ok")]
    loads = sum(row["real"] == "ok" for row in decided)
    print(f"{len(decided)} files and releases decided by a real load: {loads} load, {len(decided) - loads} do not")
    print(f"{len(decided) - len(wrong)} predicted alike, {len(wrong)} not; {len(no_driver)} need the driver")
    pairs = {(row["package"], row["torch"]) for row in decided}
    bad = {(row["package"], row["torch"]) for row in wrong}
    names = {package.rpartition("-")[0] for package, _ in pairs}
    print(f"{len(pairs) - len(bad)} of {len(pairs)} pairs of a package and a torch, {len(names)} distributions")
    for row in wrong:
        print(f"  {row['package']} {row['file']} torch {row['torch']}: predicted {row['predicted']}")
        print(f"    {row['problem'][:150]} | real {row['real'][:250]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
