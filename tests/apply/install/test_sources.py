"""A resolver builds no source to read what it requires: that would run its `setup.py`."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from doctor.apply.install.dry_run import ONLY_WHEELS, Question, resolve
from doctor.apply.install.installer_output import of_wheels
from doctor.apply.install.installers import PIP, Installer
from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.runner.command import Ran

LINUX = Platform("3.11.7")
NO_WHEELS = (
    "error: No solution found when resolving dependencies\n  cause: Because trapped==1.0 has no usable wheels and you "
    "require trapped==1.0, we can conclude that your requirements are unsatisfiable.\n\nhint: Wheels are required for "
    "`trapped` because building from source is disabled for all packages (i.e., with `--no-build`)\n"
)


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one package, which has only a source; its setup.py leaves a trace."""
    links = tmp_path / "links"
    links.mkdir()
    trace = str(tmp_path / "RAN")
    script = f"open({trace!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='trapped', version='1.0')\n"
    with tarfile.open(links / "trapped-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("setup.py", script), ("PKG-INFO", "Metadata-Version: 2.1\nName: trapped\nVersion: 1.0\n")):
            entry = tarfile.TarInfo(f"trapped-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads this as: no isolation
    return tmp_path


@pytest.mark.parametrize("builds", [False, True])
def test_a_dry_run_builds_no_source(trapped: Path, builds: bool) -> None:
    pip = Installer(PIP, (sys.executable, "-m", "pip"))
    question = Question(("trapped==1.0",), platform=LINUX, builds=builds)
    answer = resolve(question, pip, load_index(), timeout=120, python=sys.executable)
    assert (trapped / "RAN").exists() is builds
    if not builds:
        assert answer.outcome is None and "--allow-builds" in answer.reason, "unknown, and no refusal"


def test_uv_builds_nothing_but_what_is_described(uv) -> None:
    refused = {"code": 1, "err": NO_WHEELS.replace("trapped", "antlr4-python3-runtime")}
    uv.plan(compile=[refused, {}])
    question = Question(
        ("a==2",), others={"antlr4-python3-runtime": "4.9.3"}, built=("flash-attn==2.6.3",), platform=LINUX,
        known={"antlr4-python3-runtime": ()},
    )  # fmt: skip
    answer = resolve(question, Installer("uv", (str(uv.program),)), load_index(), timeout=30)
    first, second = uv.calls("compile")
    assert answer.outcome is True and answer.left_out == (), "what is installed says itself what it requires"
    for words in (first, second):
        assert tuple(words[words.index("--only-binary") :][:2]) == ONLY_WHEELS
    allowed = [{words[at + 1] for at, word in enumerate(words) if word == "--no-binary"} for words in (first, second)]
    assert allowed == [{"flash-attn"}, {"flash-attn", "antlr4-python3-runtime"}]
    described = (uv.folder / "uv.toml").read_text()
    assert all(f'name = "{name}"' in described for name in allowed[1])


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (NO_WHEELS, None),
        ("ERROR: No matching distribution found for trapped==1.0\n", None),
        ("error: No solution found when resolving dependencies\n  cause: Because a==1 and b needs a==2 .\n", False),
        ("ERROR: Cannot install a and b because these package versions have conflicting dependencies.\n", False),
    ],
)
def test_what_has_no_wheel_is_unknown_and_a_conflict_is_a_refusal(text: str, outcome: bool | None) -> None:
    ran = Ran(("uv", "pip", "compile"), 1, "", text, 0.1)
    found = of_wheels(ran)
    assert found.outcome is outcome and ("--allow-builds" in found.reason) is (outcome is None)


def test_the_option_goes_with_a_resolution(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "doctor", "fix", "--allow-builds", "--facts", "x"],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "`--allow-builds` goes with" in done.stderr
