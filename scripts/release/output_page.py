"""Write docs/output.md: what `check` prints for the six incidents, a healthy environment and a matrix of 12 cases.

    python scripts/release/output_page.py

The terminal has 80 columns.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
INPUTS = "examples/output"
GPUS = ("a100", "h100", "b200", "rtx4090")
JOBS = ("dense", "longctx", "gemma")


class Case(NamedTuple):
    """One command line, and what the line with the right fix contains (a regular expression; empty: no fix)."""

    title: str
    arguments: tuple[str, ...]
    fix: str


def incident(letter: str, title: str, fix: str) -> Case:
    """Return the case of one incident."""
    folder = f"examples/incidents/{letter}"
    return Case(f"{letter}: {title}", ("--facts", f"{folder}/facts.yaml", "--workload", f"{folder}/workload.yaml"), fix)


CASES = (
    incident("a", "a call without `softcap`", r"NVTE_FLASH_ATTN"),
    incident("b", "cuDNN 9.1 with all-gather", r"NVTE_FUSED_ATTN|nvidia-cudnn-cu12"),
    incident("c", "XTuner and transformers 4.44", r"transformers.*4\.42\.4|use_varlen_attn.*true"),
    incident(
        "d",
        "no backend for head dims 192 and 128",
        r"[Cc]hange.*torch|pip install.*torch==2\.8\.0|torch\.nn\.functional\.pad",
    ),
    incident("e", "wrong numbers without an error", r"NVTE_FUSED_ATTN|contiguous"),
    incident("f", "two cuDNNs in one process", r"CUDNN_HOME"),
    Case("a healthy environment", ("--facts", f"{INPUTS}/healthy.yaml"), ""),
    Case(
        "a matrix: 4 GPUs, 3 jobs",
        (
            "--requirements", f"{INPUTS}/requirements.txt", "--gpu", ",".join(GPUS),
            *(word for job in JOBS for word in ("--workload", f"{INPUTS}/{job}.yaml")),
        ),
        r"torch|flash-attn|NVTE",
    ),
)  # fmt: skip


def main() -> int:
    """Write the page."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows, blocks = [], []
    for case in CASES:
        shown = output(case)
        rows.append(f"| {case.title} | {len(shown)} | {words(shown)} | {line_of(case, shown)} |")
        command = "attn-doctor check --no-run " + " ".join(case.arguments)
        blocks += [f"## {case.title[:1].upper()}{case.title[1:]}", "", "```text", f"$ {command}", *shown, "```", ""]
    head = [
        "# Output", "",
        "What the default report of `check` prints in a terminal of 80 columns; `--verbose` shows more. *Fix* is "
        "the first line", "that shows the recommended fix. Written by `scripts/release/output_page.py`.", "",
        "| | lines | words | fix |", "|---|---|---|---|",
    ]  # fmt: skip
    text = "\n".join([*head, *rows, "", *blocks]).rstrip() + "\n"
    (ROOT / "docs" / "output.md").write_text(text, "utf-8")
    print("\n".join(rows))
    return 0


def output(case: Case) -> list[str]:
    """Return the lines that the program prints."""
    arguments = [str(ROOT / word) if word.startswith("examples/") else word for word in case.arguments]
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    reader, terminal = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "doctor", "check", "--no-run", *arguments],
        cwd=ROOT / "examples" / "output", env=environment, stdout=terminal, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(terminal)
    text = b"".join(iter(lambda: _read(reader), b"")).decode()
    os.close(reader)
    problem = program.communicate()[1]
    if program.returncode not in (0, 1):
        raise SystemExit(f"{case.title}: exit {program.returncode}: {problem.strip()}")
    return text.replace("\r\n", "\n").replace(f"{ROOT}/", "").rstrip().splitlines()


def _read(terminal: int) -> bytes:
    """Return what the program wrote, empty once it has ended."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def words(lines: list[str]) -> int:
    """Return the number of words."""
    return len(" ".join(lines).split())


def line_of(case: Case, lines: list[str]) -> str:
    """Return the number of the first line with the right fix."""
    if not case.fix:
        return "none needed"
    offered = next((number for number, line in enumerate(lines) if re.match(r"\s*([Ff]ix\b|what to do)", line)), None)
    if offered is None:
        return "not shown"
    found = (number for number, line in enumerate(lines) if number >= offered and re.search(case.fix, line))
    return str(next(found, -1) + 1 or "not shown")


if __name__ == "__main__":
    sys.exit(main())
