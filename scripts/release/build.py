"""Build the wheel of a release twice and compare them: the same commit gives the same bytes.

python scripts/release/build.py [--tag vX.Y.Z] [--output dist]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Build; return 1 where the two builds differ, or the tag names another version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the release, as the tag names it")
    parser.add_argument("--output", default="dist")
    options = parser.parse_args()
    namespace: dict[str, str] = {}
    exec((ROOT / "doctor" / "_version.py").read_text("utf-8"), namespace)  # our own file, with one assignment
    if options.tag not in (None, f"v{namespace['__version__']}"):
        print(f"error: the tag is {options.tag}, the package is {namespace['__version__']}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        builds = [build(Path(folder)) for folder in (one, two)]
        if builds[0] != builds[1]:
            print(f"error: two builds differ: {builds[0]} and {builds[1]}", file=sys.stderr)
            return 1
        output = Path(options.output)
        output.mkdir(parents=True, exist_ok=True)
        for name, digest in builds[0].items():
            shutil.copyfile(Path(one) / name, output / name)
            print(f"{digest}  {name}")
    return 0


def build(folder: Path) -> dict[str, str]:
    """Build from a copy of what git tracks, with the time of the commit, and return file name -> SHA-256."""
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if not (ROOT / name).is_file():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
        (source / name).chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
    seconds = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": seconds.stdout.strip(), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    shutil.rmtree(source)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    sys.exit(main())
