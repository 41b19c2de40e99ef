"""What a user installs is what git holds: the package is built and compared, file by file."""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = {"doctor": "doctor", "rules": "doctor/_rules", "kernels": "doctor/_kernels"}
BUILD = "import sys; from setuptools import setup; sys.argv = ['setup.py', 'build', '--build-lib', 'lib']; setup()"


def tracked() -> list[Path]:
    """Every file git knows and the working tree has."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The tree that a wheel would hold, made by setuptools from the tracked files alone; no network."""
    if importlib.util.find_spec("setuptools") is None:  # not imported here: a look at pip before may be in its way
        pytest.skip("no setuptools")
    source = tmp_path_factory.mktemp("source")
    for path in tracked():
        if path.parts[0] in PLACES or len(path.parts) == 1:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, source / path)
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return source / "lib"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_package_holds_every_tracked_file_and_no_other(built):
    wanted = {"/".join((PLACES[path.parts[0]], *path.parts[1:])) for path in tracked() if path.parts[0] in PLACES}
    assert names(built) == wanted


def test_no_name_of_another_distribution_is_taken(built):
    assert {path.name for path in built.iterdir()} == {"doctor"}
    for place in ("doctor/_rules", "doctor/_kernels"):
        assert not list((built / place).rglob("__init__.py"))


def test_rules_in_folders_of_any_depth_are_shipped(built):
    rules = [path for path in tracked() if path.parts[0] == "rules" and path.suffix == ".yaml"]
    assert rules and all((built / "doctor" / "_rules" / path.relative_to("rules")).is_file() for path in rules)


def test_the_built_package_works_by_itself(built, tmp_path):
    """Rules and kernels are found where a wheel puts them, without the checkout."""
    program = (
        "import doctor, doctor.util.resources as assets; from doctor.rulebook.rulebook import load_rulebook; "
        "print(doctor.__file__); print(assets.rules_dir()); print(assets.kernels_dir()); "
        "print(len(load_rulebook().rules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": os.pathsep.join([str(built), *site.getsitepackages()]), "HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    package, rules, kernels, count = done.stdout.splitlines()
    assert Path(package).parent == built / "doctor"
    assert (Path(rules), Path(kernels)) == (built / "doctor" / "_rules", built / "doctor" / "_kernels")
    assert int(count) == len([path for path in tracked() if path.parts[0] == "rules" and path.suffix == ".yaml"
                              and path.name != "library.yaml" and not path.name.startswith("LOG")])  # fmt: skip
