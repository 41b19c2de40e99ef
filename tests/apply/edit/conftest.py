"""What a text becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.apply.edit.edits import edits_of
from doctor.model import Change
from tests.helpers.onefix import TORCH, report


@pytest.fixture
def rewrite(tmp_path: Path) -> Callable[..., str]:
    """What becomes of a text under a name, by default with torch moved to 2.7.1."""

    def run(text: str, *changes: Change, name: str = "requirements.txt", **more: str) -> str:
        path = tmp_path / name
        path.write_bytes(text.encode())
        wanted = report(*(changes or (TORCH,)), **more)
        edits = edits_of(wanted, [str(path)])
        after = next((file.text for file in edits.files if file.source.path == path), text)
        path.write_bytes(after.encode())
        assert edits_of(wanted, [str(path)]).diff == "", "a second run changes something"
        return after

    return run
