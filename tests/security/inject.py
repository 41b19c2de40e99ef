"""Run commands that write, with a fault at each call that changes a file: `inject.py FOLDER [NAME …]`, under the shim.

For each command the calls are counted once; then it runs again in a forked child for each call and each kind of fault.
Afterwards every file holds its old or its new content, whole; nothing else is left behind an error. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from doctor.apply.edit.files import Edited, SourceFile
from doctor.errors import DoctorError
from doctor.util.atomic_write import write_atomically

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "examples" / "incidents" / "b" / "facts.yaml"
REQUIREMENTS = "torch==2.6.0\nflash-attn==2.7.4.post1\nxformers==0.0.35\n"
PROJECT = '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch==2.6.0", "xformers==0.0.35"]\n'
#: name -> command line; each works in a fresh copy of the same folder.
COMMANDS = {
    "pin": f"fix --facts {FACTS} --pin pins.txt", "pin again": f"fix --facts {FACTS} --pin old.txt --force",
    "write": "fix --requirements requirements.txt --gpu h100 --write",
    "write project": "fix --requirements pyproject.toml --gpu h100 --write",
    "write link": "fix --requirements link.txt --gpu h100 --write",
    "snapshot": f"snapshot --facts {FACTS} --output facts.json", "snapshot again": f"snapshot --facts {FACTS} -o old.txt",
    "json": f"check --facts {FACTS} --no-run --format json=a.json --format sarif=b.sarif --format html=c.html",
    "init": "init", "cold cache": f"check --facts {FACTS} --no-run --rules rules",
}  # fmt: skip
#: How long a run took, in a report; it differs from run to run.
_DURATION = re.compile(rb"\d+\.\d+(?= s</footer>)|(?<=: )\d+\.\d+(?=,?$)", re.MULTILINE)
FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EDQUOT": errno.EDQUOT, "EROFS": errno.EROFS, "kill": 0, "torn": -1}


def main() -> None:
    """Inject every fault and print what was tried and what was wrong."""
    place = Path(sys.argv[1])
    shim = ctypes.CDLL(None)
    shim.fault_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
    shim.fault_calls.restype = ctypes.c_long
    os.environ["XDG_CACHE_HOME"] = str(place / "warm")
    import doctor.cli.main

    template = place / "template"
    _template(template)
    chosen = {name: command for name, command in COMMANDS.items() if not sys.argv[2:] or name in sys.argv[2:]}
    for command in chosen.values():  # imports what the children need
        with _copy(template, place) as folder, contextlib.redirect_stdout(io.StringIO()):
            os.chdir(folder)
            doctor.cli.main.run(command.split())
            os.chdir(place)
    tried, wrong = _writers(shim, template, place) if not sys.argv[2:] or "writers" in sys.argv[2:] else (0, [])
    for name, command in chosen.items():
        with _copy(template, place) as folder:
            before = _files(folder)
            calls = _child(shim, folder, command, 0, 0, count=True)[1]
            after = _files(folder)
            if name != "cold cache" and before == after:
                wrong.append(f"{name}: writes nothing")
        for at in range(1, calls + 1):
            for fault, number in FAULTS.items():
                with _copy(template, place) as folder:
                    tried += 1
                    status, _, err = _child(shim, folder, command, at, number)
                    wrong += [
                        f"{name}, {fault} at {at}: {text}"
                        for text in _judged(folder, before, after, status, err, fault)
                    ]
                    if name == "cold cache":
                        again = _child(shim, folder, command, 0, 0)
                        if again[0] not in (0, 1):
                            wrong.append(f"{name}, {fault} at {at}: the next run ends with {again[0]}")
    print(json.dumps({"tried": tried, "wrong": wrong}))
    assert doctor


def _writers(shim: ctypes.CDLL, template: Path, place: Path) -> tuple[int, list[str]]:
    """Inject every fault into the functions that write, with contents of several sizes; no command line around them."""
    tried, wrong = 0, []
    for size in (0, 10, 70_000, 3_000_000):
        for name, action in _actions(b"n" * size).items():
            with _copy(template, place) as folder:
                before = _files(folder)
                calls = _child(shim, folder, action, 0, 0, count=True)[1]
                after = _files(folder)
            for at in range(1, calls + 1):
                for fault, number in FAULTS.items():
                    with _copy(template, place) as folder:
                        tried += 1
                        status, _, err = _child(shim, folder, action, at, number)
                        found = _judged(folder, before, after, status, err, fault)
                        wrong += [f"{name} of {size}, {fault} at {at}: {text}" for text in found]
    return tried, wrong


def _actions(data: bytes) -> dict[str, Callable[[], None]]:
    def edit(name: str) -> None:
        SourceFile.read(Path(name))
        Edited(SourceFile.read(Path(name)), data.decode()).write()

    def snapshot() -> None:
        from doctor.cli.output import write

        write(data.decode(), "facts.json")

    return {
        "new": lambda: write_atomically(Path("new.txt"), data),
        "replaced": lambda: write_atomically(Path("old.txt"), data),
        "not forced": lambda: write_atomically(Path("new.txt"), data, force=False),
        "link": lambda: write_atomically(Path("link.txt"), data),
        "like": lambda: write_atomically(Path("new.txt"), data, like=Path("requirements.txt")),
        "edited": lambda: edit("requirements.txt"), "edited link": lambda: edit("link.txt"), "output": snapshot,
    }  # fmt: skip


def _template(folder: Path) -> None:
    (folder / ".git").mkdir(parents=True)
    (folder / "requirements.txt").write_text(REQUIREMENTS)
    (folder / "requirements.txt").chmod(0o640)
    (folder / "linked.txt").write_text(REQUIREMENTS)
    (folder / "link.txt").symlink_to("linked.txt")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "old.txt").write_text("old\n")
    rule = folder / "rules" / "madeup" / "X001.yaml"
    rule.parent.mkdir(parents=True)
    body = {
        "id": "X001", "name": "made-up", "severity": "note", "summary": "Made up", "references": ["https://example.org"],
        "when": {"torch.version": ">=1.0"}, "message": "made up",
    }  # fmt: skip
    rule.write_text(json.dumps(body))


@contextlib.contextmanager
def _copy(template: Path, place: Path):  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name) / "project"
        shutil.copytree(template, folder, symlinks=True)
        yield folder


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): _DURATION.sub(b"T", path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def _child(
    shim: ctypes.CDLL, folder: Path, command: str | Callable[[], None], at: int, fault: int, count: bool = False
) -> tuple[int, int, str]:
    """Run a command in a fork with one fault; return its wait status, the number of calls and its messages."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.chdir(folder)
        if isinstance(command, str) and "--rules" in command:
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        err = io.StringIO()
        sys.stdout, sys.stderr = io.StringIO(), err
        shim.fault_arm(str(folder).encode(), at if not count else -1, fault)
        code = _run(command)
        calls = shim.fault_calls()
        shim.fault_arm(b"", 0, 0)
        os.write(writer, json.dumps([calls, err.getvalue()]).encode())
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(pid, 0)
    calls, text = json.loads(said) if said else (0, "")
    return os.waitstatus_to_exitcode(status), calls, text


def _run(command: str | Callable[[], None]) -> int:
    if isinstance(command, str):
        from doctor.cli.main import run

        return run(command.split())
    try:
        command()
    except DoctorError as problem:
        sys.stderr.write(problem.message)
        return problem.exit_code
    return 0


def _judged(folder: Path, before: dict[str, bytes], after: dict[str, bytes], status: int, err: str, fault: str):  # type: ignore[no-untyped-def]
    killed = status == -signal.SIGKILL
    if not killed and status not in (0, 1, 2, 3):
        yield f"ended with {status}"
    if "fault of attn-doctor" in err or "Traceback" in err:
        yield f"says {err!r}"
    for name, content in _files(folder).items():
        if name.startswith("cache") or content in (before.get(name), after.get(name)):
            continue
        if killed and Path(name).name.startswith(".") and name.endswith(".tmp"):
            continue  # a half-written copy under a name that nothing reads
        yield f"`{name}` is neither old nor new ({len(content)} bytes)"
    for name, content in before.items():
        found = folder / name
        if not found.is_file():
            yield f"`{name}` is lost"
        elif found.read_bytes() != content and name + ".bak" in after and not (folder / (name + ".bak")).is_file():
            yield f"`{name}` was edited without a backup"
    if os.stat(folder / "requirements.txt").st_mode & 0o777 != 0o640:
        yield "the mode of requirements.txt changed"
    if not killed and status == 0 and fault in ("ENOSPC", "EIO") and "cannot write" in err:
        yield f"ends with 0 and says {err!r}"


if __name__ == "__main__":
    main()
