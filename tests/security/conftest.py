"""A project that somebody else wrote, and the program run on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli

ROOT = Path(__file__).parents[2]
INCIDENT_B = ROOT / "examples" / "incidents" / "b"
FACTS = INCIDENT_B / "facts.yaml"
WORKLOAD = INCIDENT_B / "workload.yaml"
SECRET = "hunter2SECRET"


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the answer, parsed."""
        return json.loads(self.out)


Doctor = Callable[..., Ran]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, which is the current folder, next to a home with a secret in it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".netrc").write_text(f"machine github.com login bob password {SECRET}\n")
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return folder


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str]) -> Doctor:
    """Run a command line in this process."""

    def run(*arguments: object) -> Ran:
        capfd.readouterr()
        code = cli.run([str(word) for word in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err and "this is a fault of attn-doctor" not in err, err
        return Ran(code, out, err)

    return run


def rule(identity: str = "X001", **more: Any) -> str:
    """Return a rule file that fires on incident B."""
    body = {
        "id": identity, "name": "made-up-rule", "severity": "error", "summary": "Made up", "why": "A reason.",
        "references": ["https://example.org/a"], "when": {"torch.version": ">=1.0"}, "message": "made up", **more,
    }  # fmt: skip
    return json.dumps(body)


def rules_folder(project: Path, text: str) -> Path:
    """Write a rules folder with one rule."""
    path = project / "r" / "madeup" / "X001.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return project / "r"
