#!/usr/bin/env python3
"""Check the environments that real projects declare in local checkouts.

The list has one environment per line: a folder, `commit=`, `gpu=`, `model=` and `workload=` where they are known, and
the files in it that declare the environment; without files, what attn-doctor finds in the folder by itself.

    ~/src/trainer  commit=1a2b3c4  gpu=h100  model=examples/models/llama-3-8b.json  requirements.txt
    ~/src/server   gpu=a100

Each goes through the real program. What is printed is a Markdown table: how many requirements were read, which files
or lines were not, which findings came, in how many seconds. `--json` keeps the messages, to be judged by hand.

    python scripts/oracles/ask_projects.py projects.lst --json answers.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NO_DIAGNOSIS = 3  # exit code: among others where nothing of the stack is declared
sys.path.insert(0, str(ROOT))

from doctor.diagnosis.watch import watch_of  # noqa: E402 (the script runs from anywhere)
from doctor.errors import DoctorError  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402
from doctor.sources.manifests.detect import kind_of  # noqa: E402
from doctor.sources.manifests.discover import discover  # noqa: E402


class Asked(NamedTuple):
    """One line of the list."""

    folder: Path
    commit: str
    gpu: str
    model: str
    workload: str
    files: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        """The files that declare the environment; those named, else those that are found."""
        if self.files:
            return [self.folder / name for name in self.files]
        return [item.path for item in discover(self.folder, watch_of(load_rulebook())) if item.used]


def main() -> int:
    """Check all, print the table; 1 if anything crashed or was not read."""
    options = read_options()
    answers = [answer(asked) for asked in read_list(options.list)]
    print("| project | commit | GPU | files | requirements read | not read | findings | seconds |")
    print("|---|---|---|---|---:|---|---|---:|")
    for item in answers:
        print(row(item))
    whole = sum(not item["unread"] and not item["crash"] for item in answers)
    read = sum(item["requirements"] for item in answers)
    findings = [finding for item in answers for finding in item["findings"]]
    errors = sum(finding["severity"] == "error" for finding in findings)
    print(
        f"\n{whole} of {len(answers)} environments read whole, {read} requirements, {len(findings)} findings, ", end=""
    )
    print(f"{errors} of them errors, {sum(item['crash'] is not None for item in answers)} crashes")
    if options.json:
        Path(options.json).write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    return int(whole < len(answers))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("list", type=Path, help="the list of environments")
    parser.add_argument("--json", metavar="FILE", help="keep every answer with its messages")
    return parser.parse_args()


def read_list(path: Path) -> list[Asked]:
    """The environments of the list; empty lines and those that begin with # count for nothing."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        said = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        files = tuple(word for word in words[1:] if "=" not in word)
        folder = Path(words[0]).expanduser()
        known = (said.get("commit", ""), said.get("gpu", "h100"), said.get("model", ""), said.get("workload", ""))
        found.append(Asked(folder, *known, files))
    return found


def answer(asked: Asked) -> dict[str, Any]:
    """What the program says of one environment."""
    command = [sys.executable, "-m", "doctor", "check", "--no-run", "--format", "json", "--gpu", asked.gpu]
    command += [word for path in asked.paths for word in ("--requirements", str(path))]
    command += ["--model", str(Path(asked.model).resolve())] if asked.model else []
    command += ["--workload", str(Path(asked.workload).resolve())] if asked.workload else []
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    seconds = time.perf_counter() - began
    counts, unread = count(asked.paths)
    report: dict[str, Any] = {}
    crash = None
    try:
        report = json.loads(done.stdout) if done.stdout else {}
    except ValueError:
        crash = "the answer is no JSON"
    nothing = done.returncode == NO_DIAGNOSIS and "no attention libraries" in done.stderr
    if "Traceback" in done.stderr or (done.returncode not in (0, 1, 2) and not nothing):
        crash = done.stderr[-2000:]
    elif done.returncode == 2 and not unread:
        unread = [done.stderr.strip().removeprefix("error: ").splitlines()[0]]
    return {
        "project": asked.folder.name, "commit": asked.commit, "gpu": asked.gpu, "model": Path(asked.model).stem,
        "files": [str(path.relative_to(asked.folder)) for path in asked.paths], "requirements": counts,
        "unread": [text.replace(f"{asked.folder}/", "") for text in unread], "crash": crash,
        "nothing": nothing,
        "findings": report.get("findings", []), "backends": report.get("backends", []),
        "notes": report.get("notes", []), "seconds": round(seconds, 2),
        "facts": {
            key: fact.get("value") for key, fact in report.get("facts", {}).items() if key.endswith(".version")
        },
    }  # fmt: skip


def count(paths: list[Path]) -> tuple[int, list[str]]:
    """(requirements that were understood, what could not be read)."""
    from importlib import import_module

    number, unread = 0, []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8-sig")
            number += len(import_module(f"doctor.declared.{kind_of(path, text)}").read(path, text).entries)
        except DoctorError as problem:
            unread.append(problem.message)
    return number, unread


def row(item: dict[str, Any]) -> str:
    """One line of the table."""
    found = ", ".join(f"{finding['id']} ({finding['severity']})" for finding in item["findings"])
    unread = "crashed" if item["crash"] else "; ".join(item["unread"]).replace("|", "\\|")
    found = found or ("nothing of the stack" if item["nothing"] else "none")
    cells = (
        item["project"].replace("+", "/", 1), item["commit"][:7], item["gpu"], ", ".join(item["files"]),
        str(item["requirements"]), unread, found, f"{item['seconds']:.2f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
