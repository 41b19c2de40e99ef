"""The records of source builds agree with set-ups that really ran (`scripts/oracles/try_builds.py`)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from doctor.packages.compiled_records import load_compiled_records

ROWS = [json.loads(line) for line in Path(__file__).with_name("tried_builds.jsonl").read_text("utf-8").splitlines()]


def short(stop: str) -> str:
    """Return a recorded stop as the rows name it."""
    kind, _, message = stop.partition(":")
    module = re.search(r"No module named '(\w+)", message)
    return f"{kind} {module[1]}" if module else kind or "ok"


def test_what_is_on_record_of_isolated_builds_is_what_happened() -> None:
    records = load_compiled_records()
    compared = []
    for row in ROWS:
        name, _, version = row["release"].rpartition("-")
        build = records.source(name.replace("_", "-").lower(), version)
        if build is not None:
            compared.append((row["release"], short(build.isolated), row["outcome"]))
    assert len(compared) >= 10
    assert [item for item in compared if item[1] != item[2]] == []
