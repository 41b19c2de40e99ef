"""Compare predicted and real loads: compiled files of extension wheels next to several torch releases.

    python scripts/oracles/load_binaries.py --torch DIR … --extension DIR … [--python PATH] [--output FILE]

Each DIR is a folder made by `pip install --target DIR torch==X` or `pip install --no-deps --target DIR xformers==Y`.
For each torch, one child imports torch and forks for each file, which it then opens as the package would. The verdict
is that of `check`: the files that the package opens at import, where that is known, else each of its own.

Files that need the NVIDIA driver cannot be decided where there is none; they are listed apart. `--stubs DIR` compiles
libraries there that define what these files need of the driver, so that the rest of each file is decided as well.
`--record FILE` keeps what decided each outcome, as tests/captures/real-loads.json.gz.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.packages.records import UNKNOWN_PACKAGE  # noqa: E402
from doctor.packages.torch_symbols import load_torch_symbols  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402
from doctor.sources.binaries.elf import BadElf, ElfFile  # noqa: E402
from doctor.sources.binaries.fit import of_torch  # noqa: E402
from doctor.sources.binaries.layout import has_new_layout, registers_operators  # noqa: E402
from doctor.sources.binaries.packages import OF_DRIVER, opening_of  # noqa: E402
from doctor.sources.binaries.survey import Installed, Place, Survey, labelled  # noqa: E402
from doctor.sources.probes.compiled import _compiled_files  # noqa: E402

_CHILD = r"""
import json, os, sys
request = json.loads(sys.stdin.read())
sys.path[:0] = request["path"]
import torch, ctypes, importlib.machinery, importlib.util

def attempt(item):
    for first in item["after"]:
        ctypes.CDLL(first, mode=ctypes.RTLD_GLOBAL)
    for _ in range(16):
        try:
            library = ctypes.CDLL(item["file"])
            break
        except OSError as problem:  # a library of the same package, which its own code loads first
            sibling = item["siblings"].get(str(problem).partition(":")[0])
            if sibling is None:
                raise
            ctypes.CDLL(sibling)
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


_DRIVER_CALL = re.compile(r"cu[A-Z]\w+|nvml[A-Z]\w+|cuvid\w+|cudbg\w+")


def packages_in(folder: Path) -> list[Installed]:
    """Return the distributions of one folder with the compiled files that they list."""
    records = load_rulebook().packages
    found = []
    for info in sorted(folder.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        files = _compiled_files(str(info / "RECORD"))
        if files:
            name = canonicalize_name(name)
            found.append(Installed(name, version, str(folder), files, records.get(name, UNKNOWN_PACKAGE)))
    return found


def make_stubs(extensions: list[Path], folder: Path) -> None:
    """Compile libraries of the driver that define every function that a file of the extensions calls in them."""
    needed: set[str] = set()
    calls: set[str] = set()
    for package in (one for extension in extensions for one in packages_in(extension)):
        for file in package.files:
            try:
                with ElfFile(f"{package.base}/{file}") as elf:
                    own = [name for name in elf.summary().needed if name.startswith(OF_DRIVER)]
                    names = [one.name for one in elf.undefined()] if own else []
            except (BadElf, OSError, ValueError):
                continue
            needed.update(own)
            calls.update(name for name in names if _DRIVER_CALL.fullmatch(name))
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(calls)), "utf-8")
    for name in sorted(needed):
        command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)]
        subprocess.run(command, check=True)


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
        work = Survey(Place(**{**vars(place), "site_dirs": (str(torch), str(folder))}))
        for package in packages_in(folder):
            judged = work.judge(package)
            if judged is None:
                continue
            opening = opening_of(package.record.opens, place.torch_cuda, place.environ)
            after = (
                [str(path) for one in opening.after for path in torch.glob(one.replace("\\", ""))] if opening else []
            )
            siblings = {Path(name).name: f"{package.base}/{name}" for name in package.files}
            for verdict in judged.verdicts:
                path = f"{package.base}/{verdict.file}"
                rows.append({
                    "package": f"{package.name}-{package.version}", "file": verdict.file,
                    "torch": place.torch_version, "predicted": verdict.loads, "problem": verdict.problem,
                    "kind": verdict.kind.name.lower() if verdict.kind else "", "path": path,
                })  # fmt: skip
                stem = Path(verdict.file).name.partition(".")[0]
                first = [*first_of(package.name, torch), *after]
                items.append({"file": path, "modules": [stem], "after": first, "siblings": siblings})
        work.close()
    request = json.dumps({"path": [str(torch)], "items": items})
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run = subprocess.run(
        [python, "-c", _CHILD], input=request, capture_output=True, text=True, check=False, env=environ
    )
    real = {one["file"]: one["real"] for one in map(json.loads, run.stdout.splitlines())}
    if not real:
        sys.exit(f"torch in {torch} does not import: {run.stderr[-600:]}")
    for row in rows:
        row["real"] = real.get(row["path"], "not run")
    return rows


def outcome_of(row: dict[str, Any]) -> str:
    """Return one word for what happened to a file."""
    if row["real"] == "ok":
        return "loads"
    symbol = re.search(r"undefined symbol: (\S+)", row["real"])
    if symbol is not None:
        return "torch_symbol" if of_torch(symbol[1]) else "other_symbol"
    return row["kind"] or "another_failure"


def recorded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what decided the outcomes: of each file what it needs, of each torch whether it loads and why not."""
    files: dict[str, Any] = {}
    loads: dict[str, dict[str, str]] = {}
    every = len(load_torch_symbols().builds)
    for row in rows:
        key = f"{row['package']}/{row['file']}"
        loads.setdefault(key, {})[row["torch"]] = outcome_of(row)
        if key in files:
            continue
        with ElfFile(row["path"]) as elf:
            needed, names = elf.summary().needed, [one.name for one in elf.undefined() if not one.weak]
            layout = has_new_layout(elf) if registers_operators(names) else None
        sets: dict[tuple[str, ...], str] = {}
        for name in filter(of_torch, names):
            builds = tuple(labelled(build) for build in load_torch_symbols().exporters([name]))
            if len(builds) < every:
                sets.setdefault(builds, name)
        files[key] = {"needed": needed, "symbols": sorted(sets.values()), "new_layout": layout}
    return {"files": files, "loads": loads}


def main() -> int:
    """Print how many verdicts agree, and those that do not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", type=Path, nargs="+", required=True)
    parser.add_argument("--extension", type=Path, nargs="+", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=Path, help="all rows, as JSON Lines")
    parser.add_argument("--stubs", type=Path, help="compile stubs of the driver's libraries here")
    parser.add_argument("--record", type=Path, help="what decided each outcome, as a table for tests")
    options = parser.parse_args()
    if options.stubs:
        make_stubs(options.extension, options.stubs)
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (str(options.stubs), os.environ.get("LD_LIBRARY_PATH")))
        )
    rows = [row for torch in options.torch for row in compare(torch, options.extension, options.python)]
    if options.output:
        options.output.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    if options.record:
        table = json.dumps(recorded(rows), separators=(",", ":"), sort_keys=True)
        options.record.write_bytes(gzip.compress(table.encode(), mtime=0))
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
