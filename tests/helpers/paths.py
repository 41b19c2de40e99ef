"""Folders that tests read from."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
HELPERS = TESTS / "helpers"
CAPTURES = TESTS / "captures"
DATA = TESTS / "data"
EXAMPLES = ROOT / "examples"
KERNELS = ROOT / "kernels"
RULES = ROOT / "rules"
