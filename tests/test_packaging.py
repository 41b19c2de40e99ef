"""What a user installs is what git holds: the package is built and compared, file by file."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.rulebook.tables import row_ids

ROOT = Path(__file__).resolve().parents[1]
PLACES = {"doctor": "doctor", "rules": "doctor/_rules", "kernels": "doctor/_kernels"}
COMPILED = {"doctor/_rules/compiled.jsonl"}
SDIST = "from setuptools.build_meta import build_sdist; print(build_sdist('..'))"
EDITABLE = "from setuptools.build_meta import build_editable; build_editable('..')"
BUILD = ("setup.py", "build", "--build-lib", "lib")


def tracked() -> list[Path]:
    """Every file git knows and the working tree has."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed if name and (ROOT / name).is_file()]


def ran(command, folder, **settings):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300, **settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The tracked files alone."""
    if importlib.util.find_spec("setuptools") is None:  # not imported here: a look at pip before may be in its way
        pytest.skip("no setuptools")
    source = tmp_path_factory.mktemp("packaging") / "source"
    for path in tracked():
        if path.parts[0] in (*PLACES, "share") or len(path.parts) == 1:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, source / path)
    return source


@pytest.fixture(scope="module")
def built(source):
    """The tree that a wheel would hold, made by setuptools from the sdist; no network."""
    archive = source.parent / ran(["-c", SDIST], source).splitlines()[-1]
    shutil.unpack_archive(archive, source.parent / "unpacked")
    (unpacked,) = (source.parent / "unpacked").iterdir()
    ran(BUILD, unpacked)
    return unpacked / "lib"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_package_holds_every_tracked_file_and_no_other(built):
    wanted = {"/".join((PLACES[path.parts[0]], *path.parts[1:])) for path in tracked() if path.parts[0] in PLACES}
    assert names(built) == wanted | COMPILED


def test_no_name_of_another_distribution_is_taken(built):
    assert {path.name for path in built.iterdir()} == {"doctor"}
    for place in ("doctor/_rules", "doctor/_kernels"):
        assert not list((built / place).rglob("__init__.py"))


def test_rules_in_folders_of_any_depth_are_shipped(built):
    rules = [path for path in tracked() if path.parts[0] == "rules" and path.suffix == ".yaml"]
    assert rules and all((built / "doctor" / "_rules" / path.relative_to("rules")).is_file() for path in rules)


LOADED = """
import doctor.rulebook.cache as cache
import doctor.rulebook.schema as schema
def refuse(path):
    raise SystemExit(f"parsed {path} although the package brings the compiled rules")
schema.parsed_file = refuse
print(sum(len(section.rules) for section in cache.load_compiled(cache.rule_folders()).sections))
"""


def rules_of_check():
    """The rules that `check` reads, in git."""
    found = (path for path in tracked() if path.parts[0] == "rules" and path.suffix == ".yaml")
    files = [path for path in found if path.name != "library.yaml" and not path.name.startswith("LOG")]
    rows = [row for path in files if path.parts[1] == "tables" for row in row_ids(ROOT / path)]
    return [path.stem for path in files if path.parts[1] != "tables"] + rows


def of_built(built, home):
    """The environment of a program that has the built package, and no cache of an earlier run."""
    return {"PYTHONPATH": os.pathsep.join([str(built), *site.getsitepackages()]), "HOME": str(home), "PATH": ""}


def test_the_first_check_after_an_install_parses_no_rule_file(built, tmp_path):
    assert int(ran(["-c", LOADED], tmp_path, env=of_built(built, tmp_path))) == len(rules_of_check())


def test_an_editable_install_compiles_no_rules_into_the_checkout(source):
    ran(["-c", EDITABLE], source)
    assert not list(source.rglob("compiled.jsonl"))


def test_the_built_package_works_by_itself(built, tmp_path):
    """Rules and kernels are found where a wheel puts them, without the checkout."""
    program = (
        "import doctor, doctor.util.resources as assets; from doctor.rulebook.rulebook import load_rulebook; "
        "print(doctor.__file__); print(assets.rules_dir()); print(assets.kernels_dir()); "
        "print(len(load_rulebook().rules))"
    )
    package, rules, kernels, count = ran(["-c", program], tmp_path, env=of_built(built, tmp_path)).splitlines()
    assert Path(package).parent == built / "doctor"
    assert (Path(rules), Path(kernels)) == (built / "doctor" / "_rules", built / "doctor" / "_kernels")
    assert int(count) == len(rules_of_check())


def test_the_step_that_compiles_rules_needs_what_the_build_declares_and_no_more():
    """An isolated build has the build requirements only; the tests' own interpreter has everything."""
    section = (ROOT / "pyproject.toml").read_text().partition("requires = [")[2].partition("]")[0]
    declared = re.findall(r'"([^"]+)"', section)
    allowed = {"pyyaml": "yaml"}.items() | {(name, name) for name in ("packaging", "setuptools")}
    named = {re.match(r"[\w-]+", text)[0] for text in declared}
    modules = {module for name, module in allowed if name in named}
    code = f"""
import sys
class Deny:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {sorted(modules | {"doctor"})!r} + list(sys.stdlib_module_names):
            raise ImportError(f"{{name}} is no build requirement")
sys.meta_path.insert(0, Deny())
from doctor.rulebook.cache import write_shipped
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
