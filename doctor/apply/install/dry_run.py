"""Resolve pins together with everything that stays, for the Python and platform of the target."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from doctor.packages.index import ReleaseIndex
from doctor.packages.platform import Platform
from doctor.packages.specifiers import normalized
from doctor.runner.command import Ran, run_child

from .installer_output import Verdict, of_wheels, verdict
from .installers import UV, Installer

#: C libraries that uv knows wheels for, oldest first.
_GLIBC = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
_UNOBTAINABLE = re.compile(
    r"[Bb]ecause (?P<a>[\w.-]+) was not found in the package registry"
    r"|there is no version of (?P<b>[\w.-]+)(?:\[[^\]]*\])?=="
    r"|[Bb]ecause (?P<c>[\w.-]+)==\S+ (?:has no (?:usable )?wheels|was yanked|has no usable|requires Python)"
    r"|No matching distribution found for (?P<d>[\w.-]+)"
    r"|[Ff]ailed to (?:download and )?build `(?P<e>[\w.-]+)=="
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_LEFT_OUT = 16
#: No source is built to read what it requires: that would run its `setup.py`.
ONLY_WHEELS = ("--only-binary", ":all:")


@dataclass(frozen=True)
class Question:
    """What is to be resolved together."""

    pins: tuple[str, ...]  # requirements of the fix
    held: tuple[str, ...] = ()  # companions that stay as they are installed
    others: Mapping[str, str] = field(default_factory=dict)  # what else is installed: it may move if it must
    needs: tuple[str, ...] = ()  # requirements of what no registry has, and that is installed all the same
    built: tuple[str, ...] = ()  # pins that are compiled on the spot: no resolver reads them without help
    overrides: tuple[str, ...] = ()  # requirements that replace a pin of their owner
    stays: tuple[str, ...] = ()  # held or built, and as it is installed: not what the fix is answerable for
    firm: frozenset[str] = frozenset()  # of those, what may not move at all
    constraints: tuple[str, ...] = ()  # files of the user's own ranges
    platform: Platform = field(default_factory=Platform)
    glibc: str | None = None
    index_url: str | None = None
    builds: bool = False  # whether a source may be built to read what it requires: that runs its code
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)  # installed → what it requires
    described: frozenset[str] = frozenset()  # of those, what has no wheel and is described to the resolver


@dataclass(frozen=True)
class Resolution:
    """The answer; `versions` is what would be installed."""

    outcome: bool | None
    reason: str
    command: str = ""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # installed, and not in the registry


def resolve(
    question: Question, installer: Installer, index: ReleaseIndex, *, timeout: float, python: str | None = None
) -> Resolution:
    """Run the resolver with everything held where it is, then with what may move. `python` is the target's interpreter.

    What is installed and no longer available, with the fix or without, is left out and named.
    """
    why_not = _cannot_ask(question, installer, python)
    if why_not:
        return Resolution(None, why_not)
    left_out: list[str] = []
    current, seconds = question, 0.0
    held = True
    while True:
        ran, found, versions = _ask(current, installer, index, timeout, python, held)
        seconds += ran.seconds
        if found.outcome or not found.reached:
            break
        gone = _unobtainable(ran, current)
        if found.outcome is None and not gone:
            break
        if fresh := {name for name in gone if name in current.known} - current.described:
            current = replace(current, described=current.described | fresh)
            continue
        if not gone and held and set(current.others) - current.firm:
            held = False
            continue
        if not gone:
            gone = [
                line for line in _named(current, found.reason)
                if _ask(_alone(current, line), installer, index, timeout, python, True)[1].outcome is False
            ]  # fmt: skip
        if not gone or len(left_out) >= _MOST_LEFT_OUT:
            break
        left_out += gone
        current = _without(current, gone)
    reason = found.reason
    if found.outcome:
        moved = [
            f"{name} {before} → {versions[name]}"
            for name, before in sorted(current.others.items())
            if name in versions and versions[name] != before.partition("+")[0]
        ]
        reason = f"also changes: {', '.join(moved)}" if moved else ""
    return Resolution(found.outcome, reason, shown(ran.command), round(seconds, 3), versions, tuple(left_out))


def _cannot_ask(question: Question, installer: Installer, python: str | None) -> str | None:
    """Why this installer cannot answer for that target."""
    if installer.kind == UV or python is not None:
        return None
    wanted = question.platform.python
    if wanted is not None and installer.runs_on and not f"{wanted}.".startswith(f"{installer.runs_on}."):
        return f"pip resolves only for its own Python {installer.runs_on}, and the target has {wanted}; install uv"
    return None


def _ask(
    question: Question, installer: Installer, index: ReleaseIndex, timeout: float, python: str | None, held: bool
) -> tuple[Ran, Verdict, dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="attn-doctor-") as place:
        folder = Path(place)
        lines = [*question.pins, *question.held, *question.needs]
        if installer.kind == UV:
            lines += question.built
        lines += [
            f"{name}=={version}" if held or name in question.firm or name in question.described else name
            for name, version in question.others.items()
        ]
        (folder / "pins.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        if installer.kind == UV:
            kept = "".join(f"{name}=={version}\n" for name, version in question.others.items())
            (folder / "resolved.txt").write_text(kept, "utf-8")  # uv stays with what it finds there, if it can
            text = metadata((*question.pins, *question.held, *question.built), question.platform, index)
            (folder / "uv.toml").write_text(f"{text}\n{_described(question)}", "utf-8")
            stated = sorted({json.loads(name) for name in re.findall(r"(?m)^name = (.*)$", text)} | question.described)
            (folder / "overrides.txt").write_text("".join(f"{line}\n" for line in question.overrides), "utf-8")
            command = _compile(question, installer, stated)
        else:
            command = _dry_run(question, installer, python, folder)
        ran = run_child(command, timeout=timeout, cwd=folder)
        found = verdict(ran) if question.builds else of_wheels(ran)
        return ran, found, _versions(installer, folder, ran) if found.outcome else {}


def _compile(question: Question, installer: Installer, stated: Sequence[str]) -> list[str]:
    """`stated`: packages whose sources are described in uv.toml, so that none of them is built."""
    command = [*installer.program, "pip", "compile", "pins.txt", "--output-file", "resolved.txt", "--no-header",
               "--no-annotate", "--color", "never"]  # fmt: skip
    if question.platform.python is not None:
        command += ["--python-version", question.platform.python]
    command += ["--python-platform", platform_tag(question.platform, question.glibc)]
    if not question.builds:
        command += [*ONLY_WHEELS, *(word for name in stated for word in ("--no-binary", name))]
    if question.overrides:
        command += ["--overrides", "overrides.txt"]
    if question.index_url:
        command += ["--extra-index-url", question.index_url, "--index-strategy", "unsafe-best-match"]
    return command + [word for path in question.constraints for word in ("--constraint", path)]


def _dry_run(question: Question, installer: Installer, python: str | None, folder: Path) -> list[str]:
    arguments = ["--dry-run", "--report", str(folder / "report.json"), "-r", "pins.txt"]
    if not question.builds:
        arguments += ONLY_WHEELS
    if python is None:
        arguments.append("--ignore-installed")  # what is installed with pip itself is another environment's
    arguments += [word for path in question.constraints for word in ("--constraint", path)]
    if question.index_url:
        arguments += ["--extra-index-url", question.index_url]
    return installer.install(python or installer.program[0], arguments)


def platform_tag(platform: Platform, glibc: str | None) -> str:
    """The target's platform in uv's words; the newest C library that uv knows and the target serves."""
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine, platform.machine)
    if platform.system == "Darwin":
        return f"{machine}-apple-darwin"
    if platform.system == "Windows":
        return f"{machine}-pc-windows-msvc"
    minor = re.match(r"2\.(\d+)", glibc or "")
    served = [known for known in _GLIBC if minor and known <= int(minor[1])]
    return f"{machine}-manylinux_2_{served[-1]}" if served else f"{machine}-unknown-linux-gnu"


def metadata(lines: Sequence[str], platform: Platform, index: ReleaseIndex) -> str:
    """uv's settings file with what pinned sources need, for no resolver can read it off them without a torch."""
    return "\n".join(_entries(lines, platform, index))


def _entries(lines: Sequence[str], platform: Platform, index: ReleaseIndex) -> Iterator[str]:
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", line)
        release = index.release(normalized(match[1]), match[2]) if match else None
        if match is None or release is None or release.has_wheel(platform) or not release.requires:
            continue
        yield "[[dependency-metadata]]"
        yield f"name = {json.dumps(match[1])}"
        yield f"version = {json.dumps(match[2])}"
        yield f"requires-dist = {json.dumps(list(release.requires))}"
        if release.requires_python:
            yield f"requires-python = {json.dumps(release.requires_python)}"


def _described(question: Question) -> str:
    """Return uv's settings for what is installed and has no wheel: its installed metadata says what it requires."""
    entries = [
        f"[[dependency-metadata]]\nname = {json.dumps(name)}\nversion = {json.dumps(question.others[name])}\n"
        f"requires-dist = {json.dumps(list(question.known[name]))}\n"
        for name in sorted(question.described & set(question.others))
    ]
    return "\n".join(entries)


def _versions(installer: Installer, folder: Path, ran: Ran) -> dict[str, str]:
    """Package → version of what the resolver chose."""

    try:
        if installer.kind == UV:
            text = (folder / "resolved.txt").read_text("utf-8")
            found = re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
            return {normalized(name): version for name, version in found}
        report = json.loads((folder / "report.json").read_text("utf-8"))
        return {normalized(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _unobtainable(ran: Ran, current: Question) -> list[str]:
    """Packages other than those of the fix that the registry does not have: from elsewhere, or withdrawn since."""
    text = " ".join(ran.said.split())
    names = {normalized(next(filter(None, match.groups()))) for match in _UNOBTAINABLE.finditer(text)}
    return sorted(names & set(current.others))


def _named(current: Question, reason: str) -> list[str]:
    """The held requirements that the refusal names."""
    return [line for line in current.stays if re.search(rf"(?<![\w.-]){re.escape(_package(line))}(?![\w-])", reason)]


def _alone(question: Question, line: str) -> Question:
    return replace(question, pins=(), held=(line,), others={}, needs=(), built=(), stays=())


def _package(line: str) -> str:
    match = _NAME.match(line)
    return match[0] if match else line


def _without(question: Question, gone: Collection[str]) -> Question:
    """The question without these packages (those installed, by name) and these held lines."""
    return replace(
        question,
        held=tuple(line for line in question.held if line not in gone),
        built=tuple(line for line in question.built if line not in gone),
        stays=tuple(line for line in question.stays if line not in gone),
        others={name: text for name, text in question.others.items() if name not in gone},
    )


def shown(command: Sequence[str]) -> str:
    """A command as one would type it: the program by its name, our own temporary folders left out."""

    first = Path(command[0]).name if command else ""
    words = [word if "/attn-doctor-" not in word else Path(word).name for word in command[1:]]
    return " ".join([first, *map(shlex.quote, words)])
