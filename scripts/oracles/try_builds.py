"""Compare how the set-up of source archives really ends with what the reader predicts.

    python scripts/oracles/try_builds.py --work DIR --torch SITE_PACKAGES [--output FILE] PACKAGE==VERSION …

Each archive comes from the registry, is unpacked below DIR, and its build backend prepares the metadata in up to five
environments: `isolated` (what `[build-system]` requires, for archives that do not require torch), `tools` (packaging,
wheel, ninja, psutil, numpy; no torch), `torch` (torch alone), `both`, and `skip` (both, and the variable that leaves
the CUDA part out). This runs the set-up scripts: use it in a container. The last line says how many agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.errors import DoctorError  # noqa: E402
from doctor.packages.archives import fetch_archive  # noqa: E402
from doctor.sources.builds.archive import read_archive, reader_of  # noqa: E402
from doctor.sources.builds.project import LEGACY, build_system, isolated_modules, stop_of  # noqa: E402
from doctor.sources.builds.scenario import Scenario  # noqa: E402

TOOLS = ("packaging", "wheel", "ninja", "psutil", "numpy")
_PREPARE = """
import importlib, os, sys, tempfile
name, _, member = sys.argv[1].partition(":")
sys.path[:0] = [path for path in sys.argv[2].split(os.pathsep) if path]
backend = importlib.import_module(name)
backend = getattr(backend, member) if member else backend
backend.prepare_metadata_for_build_wheel(tempfile.mkdtemp())
"""
_ENDS = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exit|Exception|Version)\w*)(?::\s*(.*))?$")


def fetched(spec: str, work: Path) -> Path | None:
    """Return the source archive of a release, from an earlier run or from the registry."""
    name, _, version = spec.partition("==")
    kept = work / "archives"
    kept.mkdir(parents=True, exist_ok=True)
    pattern = f"{name.replace('-', '_')}-{version}"
    found = [path for path in kept.iterdir() if path.name.lower().startswith(pattern.lower())]
    if not found:
        try:
            found = [fetch_archive(name, version, kept)]
        except DoctorError:
            return None
    return found[0] if found[0].name.endswith(".tar.gz") else None


def environment(work: Path, name: str, packages: tuple[str, ...]) -> Path:
    """Return the interpreter of an environment with setuptools and these packages alone."""
    folder = work / "environments" / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", "--upgrade", "setuptools", *packages]
        subprocess.run(command, check=False, capture_output=True)
        subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", "pip"], check=False, capture_output=True)
    return python


def really(python: Path, project: Path, backend: str, paths: str, environ: Mapping[str, str]) -> str:
    """Return how the set-up of a project ends: `ok`, or the exception, with the module that is missing."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA", "PIP", "TORCH", "PYTHON"))}
    command = [str(python), "-c", _PREPARE, backend, paths]
    try:
        ended = subprocess.run(
            command, cwd=project, env={**clean, **environ}, capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if ended.returncode == 0:
        return "ok"
    matches = [match for line in ended.stderr.splitlines() if (match := _ENDS.match(line.strip()))]
    return shown(matches[-1][1], matches[-1][2] or "") if matches else "SystemExit"


def shown(kind: str, message: str) -> str:
    """Return an exception in short: of a missing module its name."""
    module = re.search(r"No module named '([\w]+)", message)
    return f"{kind} {module[1]}" if module and kind == "ModuleNotFoundError" else kind


def tries(archive: Path, work: Path, torch: Path) -> Iterator[dict[str, str]]:
    """Yield outcome and prediction of each environment."""
    with tarfile.open(archive) as opened:
        top = opened.getnames()[0].partition("/")[0]
        project = work / "projects" / top
        if not project.exists():
            opened.extractall(work / "projects", filter="data")
    read, build = reader_of(archive), read_archive(archive)
    system = build_system(read)
    requires, backend, own = system or (("setuptools",), LEGACY, ())
    if read("setup.py") is None or not backend.startswith("setuptools"):
        return
    paths = os.pathsep.join(str(project / path) for path in own)
    known = {"python": sys.version_info[:2]}
    tool_modules = frozenset(TOOLS)
    with_torch = {"torch": "2.13.0+cpu", "torch_cuda": None}
    torch_modules = isolated_modules(("torch",)) - {"numpy"}
    skip = {build.skip_cuda: "TRUE"} if build.skip_cuda else {}
    plans = {
        "tools": (TOOLS, Scenario(modules=tool_modules, **known), False, {}),
        "torch": ((), Scenario(modules=torch_modules, **with_torch, **known), True, {}),
        "both": (TOOLS, Scenario(modules=tool_modules | torch_modules, **with_torch, **known), True, {}),
    }
    if skip:
        scenario = Scenario(modules=tool_modules | torch_modules, environ=skip, **with_torch, **known)
        plans["skip"] = (TOOLS, scenario, True, skip)
    if "torch" not in requires:
        plans["isolated"] = (tuple(requires), Scenario(modules=isolated_modules(requires), **known), False, {})
    for name, (packages, scenario, needs_torch, environ) in plans.items():
        python = environment(work, "-".join(sorted(packages)) or "bare", packages)
        more = {"PYTHONPATH": str(torch)} if needs_torch else {}
        outcome = really(python, project, backend, paths, {**environ, **more})
        stop = stop_of(read, scenario)
        predicted = "ok" if stop is None else shown(stop.kind, stop.message)
        yield {"release": top, "environment": name, "outcome": outcome, "predicted": predicted}


def main() -> int:
    """Try every archive; print each difference and the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("releases", nargs="+", metavar="PACKAGE==VERSION")
    options = parser.parse_args()
    rows = []
    for spec in options.releases:
        archive = fetched(spec, options.work)
        if archive is None:
            print(spec, "has no source archive", flush=True)
            continue
        for row in tries(archive, options.work, options.torch):
            rows.append(row)
            mark = "" if row["outcome"] == row["predicted"] else "   <-- differs"
            print(row["release"], row["environment"], row["outcome"], "|", row["predicted"], mark, flush=True)
    alike = sum(row["outcome"] == row["predicted"] for row in rows)
    print(f"{alike} of {len(rows)} set-ups of {len({row['release'] for row in rows})} archives end as predicted")
    if options.output is not None:
        options.output.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return int(alike < len(rows))


if __name__ == "__main__":
    sys.exit(main())
