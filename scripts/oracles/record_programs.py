"""Run the programs of `tests/data/programs.yaml` and record what they print.

    python scripts/oracles/record_programs.py --python /path/to/python/with/torch [NAME ...]

The interpreter has torch and transformers. What a program `needs` beyond them is put into a folder of its own, with pip
and without dependencies. Paths of the machine are replaced. Give names to record only some programs again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS, LOGS = ROOT / "tests/data/programs.yaml", ROOT / "tests/data/logs/programs.jsonl"
LIMIT_SECONDS = 240
PATHS = "import sys, sysconfig; print(sysconfig.get_paths()['purelib'], sys.prefix, sys.base_prefix)"
SITE = "/opt/venv/lib/python3.11/site-packages"


def packages_of(needs: list[str], python: str, cache: Path) -> Path | None:
    """Return a folder with these packages; None where none is needed."""
    if not needs:
        return None
    folder = cache / re.sub(r"[^\w.=-]+", "_", "+".join(needs))[:120]
    if not folder.is_dir():
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *needs]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def record(case: Mapping[str, Any], python: str, cache: Path) -> str:
    """Run one program; return its output with the paths of a common installation."""
    packages = packages_of(case.get("needs", []), python, cache)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(case["program"], encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(packages or ""), "TMPDIR": folder, "HF_HUB_OFFLINE": "1"}
        if packages is not None:
            environment["PATH"] = f"{packages / 'bin'}{os.pathsep}{os.environ['PATH']}"
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={case['ranks']}"] if "ranks" in case else []
        command = [python, *launcher, "train.py"]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
        text = done.stdout.decode("utf-8", "replace")
        prefix = subprocess.run(
            [python, "-c", PATHS],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        for path, shown in (
            (str(packages or SITE), SITE),
            (prefix[0], SITE),
            (prefix[1], "/opt/venv"),
            (folder, "/srv/job"),
        ):
            text = text.replace(path, shown)
    return text


def main() -> int:
    """Record, and return 1 if a program that has to fail did not, or the other way round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--packages", type=Path, default=Path(tempfile.gettempdir(), "program-packages"))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    cases = yaml.safe_load(PROGRAMS.read_text(encoding="utf-8"))
    known = {}
    if LOGS.is_file():
        known = {item["name"]: item for item in map(json.loads, LOGS.read_text(encoding="utf-8").splitlines())}
    options.packages.mkdir(parents=True, exist_ok=True)
    for name in options.names or cases:
        try:
            known[name] = {"name": name, "log": record(cases[name], options.python, options.packages)}
            print(name, known[name]["log"].strip().splitlines()[-1:], flush=True)
        except (subprocess.SubprocessError, OSError) as problem:
            print(f"{name}: {problem}", file=sys.stderr, flush=True)
    lines = [json.dumps(known[name]) for name in cases if name in known]
    LOGS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
