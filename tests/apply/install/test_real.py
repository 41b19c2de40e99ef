"""The real uv and the real pip on small packages: applied, taken back, tried, refused. Queries the registry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from doctor.cli.main import run

pytestmark = [pytest.mark.network, pytest.mark.slow]

UV = shutil.which("uv") or (str(found) if (found := Path(sys.executable).parent / "uv").is_file() else None)
# Not `find_spec("pip")`: it switches setuptools' own distutils off, which another test needs.
PIP = any(True for _ in distributions(name="pip"))
INSTALLERS = [
    pytest.param("uv", marks=pytest.mark.skipif(UV is None, reason="no uv here")),
    pytest.param("pip", marks=pytest.mark.skipif(not PIP, reason="no pip here")),
]


@pytest.fixture
def real(old) -> Path:
    """The environment of the fake tests with real packages in it."""
    for path in old.site.glob("*.dist-info"):
        shutil.rmtree(path)
    subprocess.run([sys.executable, "-m", "venv", str(old.folder)], check=True, timeout=120)
    command = [old.python, "-m", "pip", "install", "--quiet", "six==1.15.0", "iniconfig==1.1.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"the registry cannot be asked: {done.stderr.strip().splitlines()[-1:]}")
    return old.folder


def imported(folder: Path) -> tuple[str, bool]:
    """(six's version as Python sees it, whether iniconfig has what came with 2.0)."""
    source = "import six, iniconfig; print(six.__version__, hasattr(iniconfig, 'ParseError'))"
    said = subprocess.run([str(folder / "bin" / "python"), "-c", source], capture_output=True, text=True, check=True)
    version, _, there = said.stdout.strip().partition(" ")
    return version, there == "True"


def versions(folder: Path) -> dict[str, str]:
    site = next(folder.glob("lib/python3*/site-packages"))
    return dict(path.name.removesuffix(".dist-info").split("-") for path in site.glob("*.dist-info"))


def proof(capsys) -> dict[str, dict[str, str]]:
    return {step["name"]: step for step in json.loads(capsys.readouterr().out)["proof"]["steps"]}


@pytest.mark.parametrize("installer", INSTALLERS)
def test_applied_and_taken_back(real, fix, capsys, installer):
    before = versions(real)
    assert run(fix("--apply", "--yes", "--installer", installer, "--format", "json")) == 0
    said = proof(capsys)
    assert said["installs"]["outcome"] == said["check"]["outcome"] == "yes"
    assert versions(real) == {**before, "six": "1.16.0", "iniconfig": "2.0.0"}
    assert imported(real)[0] == "1.16.0"
    assert run(fix("--rollback", "--yes", "--installer", installer, "--format", "json")) == 0
    assert proof(capsys)["state"]["outcome"] == "yes"
    assert versions(real) == before and imported(real)[0] == "1.15.0"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_tried_and_thrown_away(real, fix, capsys, installer, tmp_path, monkeypatch):
    import tempfile

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before = versions(real)
    run(fix("--verify", "--installer", installer, "--format", "json"))
    said = proof(capsys)
    assert [said[name]["outcome"] for name in ("resolves", "installs", "check")] == ["yes"] * 3
    assert versions(real) == before and not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("installer", INSTALLERS)
def test_what_stays_is_checked_about(real, fix, capsys, installer):
    """A release of its own that wants the old six: the fix is refused with the resolver's reason, and not applied."""
    site = next(real.glob("lib/python3*/site-packages"))
    place = site / "clinging-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: clinging\nVersion: 1.0\nRequires-Dist: six<1.16\n")
    (place / "direct_url.json").write_text('{"url": "file:///src/clinging", "dir_info": {"editable": true}}')
    code = run(fix("--apply", "--yes", "--installer", installer, "--format", "json"))
    captured = json.loads(capsys.readouterr().out)
    steps = {step["name"]: step["outcome"] for step in (captured["proof"] or {"steps": []})["steps"]}
    assert code == 1 and versions(real)["six"] == "1.15.0"
    assert not captured["fixes"] or steps["resolves"] == "no"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_an_old_conflict_is_no_fault_of_the_fix(real, fix, capsys, installer):
    site = next(real.glob("lib/python3*/site-packages"))
    place = site / "attrs-23.1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: attrs\nVersion: 23.1.0\nRequires-Dist: pluggy<0.5\n")
    run(fix("--dry-run", "--installer", installer, "--format", "json"))
    said = proof(capsys)
    assert said["resolves"]["outcome"] == "yes"
    assert "broken already: attrs needs pluggy<0.5, which is not there" in said["resolves"]["reason"]
