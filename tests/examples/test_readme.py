"""What README shows is what its first command prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def without_counts(text: str) -> str:
    """The text without the number of skipped checks, which grows with the rules."""
    return re.sub(r"\d+ checks skipped", "checks skipped", text).strip()


def test_the_sample_is_what_the_command_prints(tmp_path: Path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^cd (examples/\S+)\n\S+attn-doctor (check .*)\n```\n\n```text\n(.*?)^```", readme, re.S | re.M)
    assert shown is not None
    folder, command, sample = shown.groups()
    done = subprocess.run(
        [sys.executable, "-m", "doctor", *command.split()],
        cwd=ROOT / folder, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert without_counts(done.stdout) == without_counts(sample)
