#!/usr/bin/env python3
"""Write docs/h200.md again: run its commands on a machine with a GPU, and put down what they print.

    python3 scripts/gpu/capture_session.py [--python PATH] [--te DIR] [--session FILE] [--output FILE|-]

`scripts/gpu/h200_session.yaml` holds the text, the commands, and the environment of each. `--te` is a folder with an
unpacked TransformerEngine; without it the sections that need one cannot be made, and nothing is written unless
`--without-te` leaves them out. Folders of this machine are replaced by `~/venv`, `<site-packages>`, `~/te` and the
like; if one is left over, nothing is written either. Needs what attn-doctor needs, and Python 3.10.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

#: (arguments behind `attn-doctor`, variables) → (what it printed, exit code)
Run = Callable[[list[str], Mapping[str, str]], "tuple[str, int]"]
Places = list[tuple[str, str]]  # a folder of this machine, and what is written in its place

ASK = """
import json, sys, sysconfig
try:
    import nvidia.cudnn as cudnn
    home = list(cudnn.__path__)[0]
except ImportError:
    home = None
print(json.dumps({"prefix": sys.prefix, "site": sysconfig.get_path("purelib"), "cudnn": home}))
"""


def places(prefix: str, site: str, te: str | None, cudnn: str | None, home: str) -> Places:
    """Placeholder of each folder of this machine; the longest is replaced first."""
    known = [(str(ROOT), "~/attn-doctor"), (home, "~")]
    shared = prefix in ("/usr", "/usr/local")
    known += [] if shared else [(prefix, "~/venv")]
    known += [(site, "<site-packages>")] if shared or not _within(site, prefix) else []
    known += [(te, "~/te")] if te else []
    known += [(cudnn, "~/cudnn")] if cudnn else []
    both = {(str(form), name) for path, name in known for form in (path, pathlib.Path(path).resolve())}
    return sorted(((path, name) for path, name in both if len(path) > 1), key=lambda item: (-len(item[0]), item))


def _within(path: str, folder: str) -> bool:
    return pathlib.Path(folder) in (pathlib.Path(path), *pathlib.Path(path).parents)


def scrubbed(text: str, known: Places) -> str:
    """The text with the folders of this machine replaced, where a whole name of a folder ends."""
    for path, name in known:
        text = re.sub(r"(?<![\w/~.-])" + re.escape(path) + r"(?![\w-]|\.\w)", name, text)
    return text


def leaks(text: str, known: Places) -> list[str]:
    """Lines that still name a folder of this machine, or one that only this run had."""
    marks = [path for path, _ in known] + [tempfile.gettempdir() + "/", "/root/", "/home/"]
    return [line for line in text.splitlines() if any(mark in line for mark in marks)]


def machine(facts: Mapping[str, Any]) -> dict[str, str]:
    """What the text says of this machine, from a snapshot's facts."""

    def value(key: str) -> Any:
        fact = facts.get(key)
        return fact.get("value") if isinstance(fact, Mapping) else fact

    if not value("gpu.name"):
        raise SystemExit("no GPU is seen here: these captures are of one")
    parts = [f"torch {value('torch.version')}"]
    if value("transformers.version") not in (None, "absent"):
        parts.append(f"transformers {value('transformers.version')}")
    copies = sorted({str(copy).split()[0] for copy in value("cudnn.copies") or ()}, reverse=True)
    one = value("cudnn.version")
    several = f"It has more than one cuDNN: {', '.join(copies)}." if len(copies) > 1 else f"It has one cuDNN, {one}."
    about = f"one {value('gpu.name')} (driver {value('driver.version')}) with {', '.join(parts)} and cuDNN {one}"
    return {"machine": about, "copies": several}


def filled(text: str, about: Mapping[str, str]) -> str:
    """The text with its {names}; other braces stay."""
    for name, value in about.items():
        text = text.replace("{" + name + "}", value)
    return text.rstrip("\n")


def needs_te(session: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    """Whether the section's commands run with a TransformerEngine."""
    variables = session["environments"].get(section.get("environment", "stock"), {})
    return any("{te}" in value for value in variables.values())


def document(session: Mapping[str, Any], about: Mapping[str, str], known: Places, run: Run) -> str:
    """The page: headings and text as the session has them, each command with what it printed."""
    lines = [f"# {session['title']}", "", filled(session["text"], about)]
    for section in session["sections"]:
        if needs_te(session, section) and "te" not in about:
            continue
        lines += ["", f"## {section['heading']}"]
        if section.get("text"):
            lines += ["", filled(section["text"], about)]
        wanted = session["environments"].get(section.get("environment", "stock"), {})
        variables = {name: filled(value, about) for name, value in wanted.items()}
        for capture in section.get("captures", ()):
            if capture.get("text"):
                lines += ["", filled(capture["text"], about)]
            program, *arguments = shlex.split(capture["command"])
            if program != "attn-doctor":
                raise SystemExit(f"`{capture['command']}` is no command of attn-doctor")
            printed, code = run(arguments, variables)
            if code not in (0, 1):
                raise SystemExit(f"`{capture['command']}` ended with {code}:\n{printed}")
            said = scrubbed(printed, known).rstrip("\n")
            lines += ["", "```console", f"$ {capture['command']}", said, f"exit code {code}", "```"]
    return "\n".join(lines) + "\n"


def runner(python: str, timeout: float) -> Run:
    """The doctor of this tree; the `python3` of a command is the interpreter that is examined."""

    def run(arguments: list[str], variables: Mapping[str, str]) -> tuple[str, int]:
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
        for name, value in variables.items():  # a path goes before what is there, as a user would have it
            there = environment.get(name) if name.endswith("PATH") else None
            environment[name] = os.pathsep.join([value, there] if there else [value])
        given = [python if option == "--python" else text for option, text in zip(["", *arguments], arguments)]  # noqa: B905
        print("$ attn-doctor", *arguments, file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "doctor", *given], cwd=ROOT, env={**environment, "NO_COLOR": "1"}, timeout=timeout,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        said = done.stdout.decode("utf-8", "replace")
        return (said if done.returncode in (0, 1) else said + done.stderr.decode("utf-8", "replace")), done.returncode

    return run


def linked_cudnn(wheel: str, folder: pathlib.Path) -> str:
    """A home for cuDNN: every library of the wheel in lib/, also without its version, as the fix requires."""
    (folder / "lib").mkdir(parents=True)
    for library in sorted((pathlib.Path(wheel) / "lib").glob("libcudnn*.so.*")):
        (folder / "lib" / library.name).symlink_to(library)
        plain = folder / "lib" / (library.name.split(".so.")[0] + ".so")
        if not plain.is_symlink():
            plain.symlink_to(library)
    return str(folder)


def program() -> str:
    """The version of this tree, with its commit where git knows it."""
    from doctor import __version__

    done = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False)  # fmt: skip
    commit = done.stdout.decode().strip()
    return f"attn-doctor {__version__}" + (f", commit {commit}" if commit else "")


def main() -> int:
    """Run all, write the page at the end."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    made.add_argument("--te", help="a folder with an unpacked TransformerEngine")
    made.add_argument("--without-te", action="store_true", help="leave out what needs a TransformerEngine")
    made.add_argument("--session", type=pathlib.Path, default=ROOT / "scripts" / "gpu" / "h200_session.yaml")
    made.add_argument("--output", help="the page, `-` for standard output (default: what the session says)")
    made.add_argument("--timeout", type=float, default=300.0, help="seconds for one command")
    options = made.parse_args()
    session = yaml.safe_load(options.session.read_text("utf-8"))
    if options.te is None and not options.without_te and any(needs_te(session, item) for item in session["sections"]):
        made.error("sections of this session need --te DIR, or --without-te to leave them out")
    python = shutil.which(options.python) or made.error(f"`{options.python}` cannot be started")
    told = json.loads(subprocess.run([python, "-c", ASK], check=True, stdout=subprocess.PIPE).stdout)
    with tempfile.TemporaryDirectory(prefix="capture-cudnn-") as folder:
        about = {"program": program()}
        if options.te is not None:
            if told["cudnn"] is None:
                made.error("that interpreter has no wheel of cuDNN, so the fix cannot be shown")
            about["te"] = str(pathlib.Path(options.te).resolve())
            about["cudnn"] = linked_cudnn(told["cudnn"], pathlib.Path(folder) / "home")
        known = places(told["prefix"], told["site"], about.get("te"), about.get("cudnn"), str(pathlib.Path.home()))
        run = runner(python, options.timeout)
        printed, code = run(["snapshot", "--python", "python3", "-o", "-"], {})
        if code:
            raise SystemExit(f"no snapshot of this machine: {printed}")
        about.update(machine(json.loads(printed)["facts"]))
        page = document(session, about, known, run)
    left = leaks(page, known)
    if left:
        print("folders of this machine are left over, nothing is written:", *left, sep="\n  ", file=sys.stderr)
        return 1
    if options.output == "-":
        print(page, end="")
    else:
        from doctor.util.atomic_write import write_atomically

        write_atomically(pathlib.Path(options.output) if options.output else ROOT / session["output"], page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
