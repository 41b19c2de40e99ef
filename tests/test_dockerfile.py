"""The Dockerfile, carried out without a daemon: its COPY and RUN lines, in a folder that holds what git holds."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from doctor._version import __version__

ROOT = Path(__file__).resolve().parents[1]
HEALTHY = ROOT / "examples" / "output" / "healthy.yaml"


class Image(NamedTuple):
    """What the build left: the folder in place of `/`, the arguments, and the instructions."""

    root: Path
    arguments: dict[str, str]
    instructions: list[tuple[str, str]]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, with continued lines joined."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in plain.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def is_ignored(name: str, patterns: list[str]) -> bool:
    """Whether .dockerignore leaves a file out: patterns start at the root, and a folder takes its content along."""
    path = PurePosixPath(name)
    places = [str(path), *map(str, path.parents)]
    for pattern in patterns:
        regex = re.escape(pattern.strip("/")).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(regex, place) for place in places):
            return True
    return False


def context() -> list[str]:
    """The files that `docker build` sends from a fresh clone."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    patterns = [
        line.strip()
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert not any(pattern.startswith("!") for pattern in patterns), "exceptions are not read by this test"
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file() and not is_ignored(name, patterns)]


def copy(rest: str, root: Path, files: list[str]) -> None:
    """Carry out one COPY."""
    assert not rest.startswith(("-", "[")), f"COPY {rest}: this form is not read by this test"
    *sources, target = rest.split()
    for source in sources:
        taken = {
            name: PurePosixPath(name).relative_to(source).as_posix()
            for name in files
            if PurePosixPath(name).is_relative_to(source)
        }
        assert taken, f"COPY {rest}: the context has no `{source}`"
        for name, below in taken.items():
            base = root / target.lstrip("/")
            to = base / PurePosixPath(source).name if below == "." and target.endswith("/") else base / below
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to)


def carried_out(command: str, root: Path) -> str:
    """A RUN, with paths below `root`; packages of the registry are taken from this interpreter."""
    text = re.sub(r"(?<![\w.-])(/opt/|/usr/local/)", lambda match: f"{root}{match[1]}", command)
    first = f"import sys; sys.path.insert(0, {sysconfig.get_path('purelib')!r})"  # before the old setuptools of `venv`
    site = f"{root}/opt/attn-doctor/bin/python -c 'import site; print(site.getsitepackages()[0])'"
    there = f'echo {shlex.quote(first)} > "$({site})/registry.pth"'
    return re.sub(r"\$pip --require-hashes --only-binary :all: -r (\S+)", rf"test -s \1 && {there}", text)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("image")
    (root / "usr" / "local" / "bin").mkdir(parents=True)
    files = context()
    found = list(instructions((ROOT / "Dockerfile").read_text("utf-8")))
    arguments = {"DOCTOR_PYTHON": sys.executable}
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    for word, rest in found:
        if word == "ARG":
            name, _, default = rest.partition("=")
            arguments.setdefault(name, default)
        elif word == "COPY":
            copy(rest, root, files)
        elif word == "RUN":
            done = subprocess.run(
                ["sh", "-c", carried_out(rest, root)], capture_output=True, text=True, timeout=300, cwd=root,
                env={**environment, **arguments, "PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1"},
            )  # fmt: skip
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return Image(root, arguments, found)


def run(image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    (entry,) = json.loads(next(rest for word, rest in image.instructions if word == "ENTRYPOINT"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(image.root), "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    return subprocess.run(
        [str(image.root / entry.lstrip("/")), *arguments], capture_output=True, text=True, timeout=120,
        env=environment, cwd=image.root,
    )  # fmt: skip


def test_the_image_has_a_doctor_that_checks(image: Image) -> None:
    version = run(image, "--version")
    assert version.stdout == f"attn-doctor {__version__}\n", version.stderr
    healthy = run(image, "check", "--no-run", "--facts", str(HEALTHY))
    assert healthy.returncode == 0 and ": no known problems" in healthy.stdout.partition("\n")[0], healthy.stderr
    (home,) = (image.root / "opt" / "attn-doctor").glob("lib/python*/site-packages/doctor")
    assert (home / "_rules").is_dir() and (home / "_kernels").is_dir()
    assert (image.root / "opt" / "attn-doctor" / "share" / "man" / "man1" / "attn-doctor.1").is_file()


def test_the_image_keeps_no_source(image: Image) -> None:
    assert not (image.root / "opt" / "attn-doctor-src").exists()


def test_the_labels_and_the_user(image: Image) -> None:
    labels = next(rest for word, rest in image.instructions if word == "LABEL")
    assert image.arguments["VERSION"] == __version__ and 'licenses="Apache-2.0"' in labels
    user = next(rest for word, rest in image.instructions if word == "USER")
    assert user == "${DOCTOR_USER}" and image.arguments["DOCTOR_USER"].split(":")[0] not in ("0", "root")


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("tests/test_x.py", True), ("doctor/__pycache__/a.pyc", True), (".venv-3.10/bin/python", True),
        ("doctor/build/a.py", False), ("share/man/man1/attn-doctor.1", False), ("docs", True), ("docsx/a", False),
    ],
)  # fmt: skip
def test_patterns_of_dockerignore(name: str, ignored: bool) -> None:
    patterns = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert is_ignored(name, patterns) is ignored
