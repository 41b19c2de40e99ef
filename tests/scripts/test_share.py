"""The man page and the completion files are those of the commands as they are."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_files_are_current() -> None:
    script = ROOT / "scripts" / "release" / "make_share.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run scripts/release/make_share.py: {done.stdout}{done.stderr}"


def test_the_wheel_installs_them() -> None:
    spec = importlib.util.spec_from_file_location("make_share", ROOT / "scripts" / "release" / "make_share.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    project = (ROOT / "pyproject.toml").read_text()
    for name, content in made.files().items():
        assert f'["{name}"]' in project, name
        assert "attn-doctor" in content
    page = made.man_page()
    assert ".SS check" in page and r"\-\-fail\-on" in page and ".SH EXIT STATUS" in page
