"""A uv that does what a plan says, an environment it can change, and a rule that requires a change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_UV = r'''#!{python} -S
"""Fakes uv: each call takes the next step of its verb's plan (the last one over and over) and is noted in a log."""
import json, os, pathlib, re, shutil, subprocess, sys, time
HERE = pathlib.Path(__file__).parent
args = sys.argv[1:]
verb = "version" if args == ["--version"] else args[1] if args[0] == "pip" else args[0]
verb = "foresee" if verb == "install" and "--dry-run" in args else verb
with (HERE / "log").open("a") as log:
    log.write(json.dumps([verb, *args]) + "\n")
    log.flush()
plan = json.loads((HERE / "plan.json").read_text()).get(verb, [{{}}])
number = sum(1 for line in (HERE / "log").read_text().splitlines() if verb == json.loads(line)[0]) - 1
step = plan[min(max(number, 0), len(plan) - 1)]
if verb == "version":
    print("uv 0.9.9 (fake)")

def site(python):
    return next(pathlib.Path(python).parent.parent.glob("lib/python3*/site-packages"))

def put(place, name, version):
    for old in place.glob(re.sub("[-.]", "_", name) + "-*.dist-info"):
        shutil.rmtree(old)
    if version:
        new = place / (re.sub("[-.]", "_", name) + "-" + version + ".dist-info")
        new.mkdir()
        (new / "METADATA").write_text("Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version))
        (new / "INSTALLER").write_text("uv\n")

if verb in ("install", "uninstall"):
    place = site(args[args.index("--python") + 1])
    pairs = [re.fullmatch(r"([\w.-]+?)(?:\[.*\])?(?:==(\S+))?", arg) for arg in args[args.index("--python") + 2 :]]
    pairs = [(m[1], m[2]) for m in pairs if m and not m[1].startswith("-") and (m[2] or verb == "uninstall")]
    for name, version in pairs[: step.get("only")]:
        put(place, name, version if verb == "install" else None)
elif verb == "venv":
    shutil.copytree("{template}", args[-1], symlinks=True)
elif verb == "compile" and not step.get("code"):
    text = step.get("resolved")
    lines = pathlib.Path("pins.txt").read_text().splitlines()
    pathlib.Path("resolved.txt").write_text(text or "".join(line + "\n" for line in lines if "==" in line))
    (HERE / "asked.txt").write_text("\n".join(lines))
    (HERE / "uv.toml").write_text(pathlib.Path("uv.toml").read_text())
if step.get("spawn"):
    child = subprocess.Popen(["sleep", "60"])
    (HERE / "child").write_text(str(child.pid))
(HERE / ("in-" + verb)).write_text(str(os.getpid()))
time.sleep(step.get("sleep", 0))
sys.stdout.write(step.get("out", ""))
sys.stderr.write(step.get("err", ""))
sys.exit(step.get("code", 0))
'''

_LIBRARY = """
name: small
title: small packages
distributions: [six, iniconfig]
import_name: six
references: [made up]
"""
_RULE = """
id: SM001
name: six-is-old
severity: error
summary: six before 1.16 is too old
why: Made up for a test.
references: [made up]
when: {six.version: "<1.16"}
message: "six {six.version} is too old"
fix:
  - require: {six: "==1.16.0", iniconfig: "==2.0.0"}
"""


class FakeUv:
    """The fake program: its plan, and the commands that it got."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.program = folder / "uv"
        self.program.write_text(_UV.format(python=sys.executable, template=template))
        self.program.chmod(0o755)
        self.plan()

    def plan(self, **verbs: list[dict[str, Any]]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(verbs))
        (self.folder / "log").write_text("")

    def calls(self, verb: str) -> list[list[str]]:
        lines = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        return [words[1:] for words in lines if words[0] == verb]


@pytest.fixture(scope="session")
def venv_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without packages, made once and copied by each test that needs one."""
    folder = tmp_path_factory.mktemp("template") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return folder


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv_template: Path, cache_of_its_own: Path) -> FakeUv:
    """A fake uv, first on the PATH."""
    fake = FakeUv(tmp_path / "programs", venv_template)
    monkeypatch.setenv("PATH", str(fake.folder), prepend=":")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for what a killed child leaves behind
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    return fake


class Environment:
    """A virtual environment whose packages are metadata and nothing else."""

    def __init__(self, folder: Path, template: Path) -> None:
        shutil.copytree(template, folder, symlinks=True)
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.site = next(folder.glob("lib/python3*/site-packages"))

    def put(self, name: str, version: str, **files: str) -> None:
        place = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for file, text in files.items():
            (place / file.replace("__", ".")).write_text(text)

    @property
    def versions(self) -> dict[str, str]:
        pairs = (path.name.removesuffix(".dist-info").split("-") for path in self.site.glob("*.dist-info"))
        return {name: version for name, version in pairs}

    @property
    def freezes(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / ".attn-doctor").glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def old(tmp_path: Path, venv_template: Path) -> Environment:
    """An environment in which the rule fires."""
    made = Environment(tmp_path / "env", venv_template)
    made.put("six", "1.15.0")
    made.put("iniconfig", "1.1.1")
    made.put("attrs", "23.1.0")
    return made


@pytest.fixture(scope="session")
def small_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rule, the same for all tests: its rulebook is parsed once."""
    folder = tmp_path_factory.mktemp("rules") / "small"
    folder.mkdir()
    (folder / "library.yaml").write_text(_LIBRARY)
    (folder / "SM001.yaml").write_text(_RULE)
    return folder.parent


@pytest.fixture
def fix(old: Environment, small_rules: Path) -> Callable[..., list[str]]:
    """The command line of `fix` for that environment, with the rule."""
    return lambda *more: ["fix", "--python", old.python, "--rules", str(small_rules), *more]
