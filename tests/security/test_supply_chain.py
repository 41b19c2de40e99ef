"""What we publish and install is pinned, reproducible and listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from doctor.util.toml_text import parse_toml

ROOT = Path(__file__).parents[2]
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / "action.yml"]


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "examples/gate/github-workflow.yml"], ids=lambda path: path.name)
def test_workflows_pin_what_they_run(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: *(\S+)(.*)", text)
    for name, comment in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name
        assert re.match(r" # v[0-9]", comment), "the release in a comment"
    for line in re.findall(r".*\bpip\b.* install .*", text):
        assert "--require-hashes" in line or "--no-deps" in line, line
    if path.parent.name == "workflows":
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {} and all("permissions" in job for job in workflow["jobs"].values())


def test_the_image_installs_with_hashes() -> None:
    for line in re.findall(r"\$pip .*", (ROOT / "Dockerfile").read_text()):
        assert "--require-hashes" in line or "--no-deps" in line, line


@pytest.mark.parametrize("name", ["runtime.txt", "build.txt"])
def test_locks_have_hashes_and_name_no_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text and "index-url" not in text
    for entry in re.split(r"\n(?=[a-z])", text.partition("\n")[2]):
        assert re.match(r"[\w.-]+==\S+", entry) and "--hash=sha256:" in entry


def test_the_lock_has_what_the_package_requires() -> None:
    locked = dict(re.findall(r"(?m)^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements" / "runtime.txt").read_text()))
    project = parse_toml((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    for text in project["dependencies"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked[wanted.name]), text


def test_guides_install_no_unregistered_name() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*"), ROOT / "action.yml"]
    for page in pages:
        if page.is_file() and page.suffix in (".md", ".yml", ".yaml", ".sh", ".py"):
            found = re.search(
                r"(?:pip3? install|pipx (?:install|run)|uvx|uv (?:tool|pip) install)[^\n`]*\battn-doctor\b(?!-src)",
                page.read_text(),
            )
            assert not found or re.search(r"[@/.]", found[0].partition("install")[2]), f"{page}: {found and found[0]}"


def test_the_bill_of_materials(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts/release/sbom.py", "--output", tmp_path], check=True)
    document = json.loads((tmp_path / "attn-doctor.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX" and len(document["components"]) > 10
    assert all(item["hashes"] and item["purl"].startswith("pkg:pypi/") for item in document["components"])
    assert "pyyaml" in (tmp_path / "licences.md").read_text()


@pytest.mark.slow
def test_the_wheel_is_reproducible(tmp_path: Path) -> None:
    pytest.importorskip("build")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/release/build.py", "--output", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.whl"))
