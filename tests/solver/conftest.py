"""Fixtures of the solver tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.schema import read_source
from tests.helpers.rulebook import builtin_rulebook


@pytest.fixture
def own_rules(tmp_path: Path) -> Callable[..., Rulebook]:
    """Return a function that makes a rulebook of a few rules written for the test."""

    def write(**rules: dict[str, Any]) -> Rulebook:
        folder = tmp_path / "own"
        folder.mkdir()
        for name, body in rules.items():
            whole = {"id": name, "name": name.lower(), "severity": "error", "summary": f"{name} strikes",
                     "references": ["https://example.org"], "message": name, **body}  # fmt: skip
            stated = {key: value for key, value in whole.items() if value is not None}
            (folder / f"{name}.yaml").write_text(json.dumps(stated))
        sources = [read_source(folder / f"{name}.yaml") for name in rules]  # checked as every rule is
        prefixes = {library.prefix: name for name, library in builtin_rulebook().libraries.items() if library.prefix}
        own = {}
        for source in sources:  # a rule about a backend belongs to the backend's library
            body = source.content
            library = prefixes.get(str(body.get("disables", "")).partition(".")[0], "own")
            own[body["id"]] = Rule(body["id"], library, body, source.path)
        return Rulebook(own, builtin_rulebook().libraries)

    return write
