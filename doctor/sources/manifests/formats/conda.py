"""environment.yml of conda: match specifications, and a list of requirements under `pip:`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier
from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.model import ABSENT, TORCH, Fact
from doctor.packages.specifiers import specifier
from doctor.sources.manifests.base import PLAIN_RANGE, DeclaredRequirement, Manifest, pin_of
from doctor.sources.watch import Watch
from doctor.util.redact import shortened
from doctor.util.yaml_text import parse_yaml

from .requirements import Reader, logical_lines

_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_][\w.-]*)\s*(?:\[(?P<bracket>[^\]]*)\])?\s*(?P<rest>.*)")
_NAMES = {
    "pytorch": TORCH, "pytorch-gpu": TORCH, "pytorch-cpu": TORCH, "libtorch": TORCH, "torchtriton": "triton",
}  # fmt: skip
_NO_LIST = "an environment.yml of conda has one; the config of a training names a model, an optimizer and a batch size"
_CUDA = ("pytorch-cuda", "cuda-version", "cudatoolkit")  # the first one present says what torch was built for
_CUDNN = "cudnn"
_OPERATORS = re.compile(r"(==|>=|<=|!=|~=|>|<|=)?\s*([\w.*+!-]+)")


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of conda and of pip; what conda's torch brings with it is unknown."""
    content, lines = parse_yaml(text, str(path))
    listed = content.get("dependencies") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise fault(path, 1, "it has no list `dependencies`", _NO_LIST)
    reader = Reader(path.resolve().parent)
    rows = text.split("\n")
    found: dict[str, tuple[str, int, str]] = {}  # name -> (range, line, build)
    for index, item in enumerate(listed):
        line = lines.get(("dependencies", str(index)), 1)
        if isinstance(item, dict):
            _pip(item, path, line, lines, index, rows, reader)
            continue
        name, ranges, build = _spec(item, path, line)
        if name in found:
            raise fault(path, line, f"`{name}` is declared twice (also in line {found[name][1]})")
        found[name] = (ranges, line, build)
    reader.entries += _entries(path, found, rows)
    manifest = reader.manifest(watch)
    return Manifest(manifest.entries, (*manifest.facts, *_facts(path, found)), False, "", manifest.notes)


def specified(path: Path, specifications: Sequence[tuple[int, str]], rows: Sequence[str]) -> Manifest:
    """Return the packages of `conda install`; `specifications` are (line, match specification)."""
    found = {}
    for line, text in specifications:
        name, ranges, build = _spec(text, path, line)
        found[name] = (ranges, line, build)
    return packages(path, found, rows)


def packages(path: Path, found: dict[str, tuple[str, int, str]], rows: Sequence[str]) -> Manifest:
    """Return these packages; `found` maps a name to (PEP 440 range, line, build)."""
    return Manifest(tuple(_entries(path, found, rows)), tuple(_facts(path, found)))


def locked_packages(path: Path, locked: Sequence[tuple[str, str, str, int]], rows: Sequence[str]) -> Manifest:
    """Return the packages of a lock file; `locked` are (name, version, build, line)."""
    found = {name: (f"=={version}", line, build) for name, version, build, line in locked}
    if "pytorch" in found:  # libtorch and pytorch-gpu are parts of it
        found = {name: value for name, value in found.items() if _NAMES.get(name) != TORCH or name == "pytorch"}
    entries = (replace(entry, locked=True) for entry in _entries(path, found, rows))
    return Manifest(tuple(entries), tuple(_facts(path, found)))


def _entries(path: Path, found: dict[str, tuple[str, int, str]], rows: Sequence[str]) -> Iterator[DeclaredRequirement]:
    for name, (ranges, line, _) in found.items():
        own = _NAMES.get(name, canonicalize_name(name))
        if name not in (*_CUDA, "python", _CUDNN, "pip"):
            raw = rows[line - 1].rstrip("\r")
            if ranges and not _is_range(ranges):
                problem = f"`{shortened(ranges, 60)}` is a version of conda, not one of PEP 440"
                yield DeclaredRequirement(own, str(path), line, raw=raw, problem=problem)
                continue
            yield DeclaredRequirement(own, str(path), line, ranges, pin_of(ranges, path, line), raw=raw)


def _pip(item: dict[str, Any], path: Path, line: int, lines: Any, index: int, rows: list[str], reader: Reader) -> None:
    for key, listed in item.items():
        if key != "pip" or not isinstance(listed, list):
            raise fault(
                path, line, f"unexpected `{shortened(key, 40)}` in `dependencies`", "only `pip:` with a list is allowed"
            )
        for number, text in enumerate(listed):
            here = lines.get(("dependencies", str(index), "pip", str(number)), line)
            if not isinstance(text, str):
                raise fault(path, here, "a requirement needs to be text")
            for _, _, logical in logical_lines(text):
                reader.line(logical, path, here, rows[here - 1].rstrip("\r"), (path.resolve(),))


def _spec(item: Any, path: Path, line: int) -> tuple[str, str, str]:
    """Return (name, PEP 440 range, build) of a match specification: `pytorch=2.4.0=py3.11_cuda12.1`, `cudnn >=9`."""
    text = item.partition("#")[0].strip().rpartition("::")[2] if isinstance(item, str) else ""
    match = _SPEC.fullmatch(text)
    if match is None:
        raise fault(path, line, f"`{shortened(str(item), 60)}` is not a package specification")
    rest = re.sub(r"\s*([=<>!~,|]+)\s*", r"\1", match["rest"])
    version, _, build = rest.partition(" ")
    three = re.fullmatch(r"(={0,2}[^=<>!~,|]+)=([^=]+)", version)
    if three:
        version, build = three[1], three[2]
    if match["bracket"]:
        inner = re.search(r"version\s*=\s*['\"]?([^'\"]*)", match["bracket"])
        built = re.search(r"build\s*=\s*['\"]?([^'\",]*)", match["bracket"])
        version, build = (inner[1] if inner else version), (built[1] if built else build)
    return match["name"].lower(), specification(version, path, line), build


def specification(version: str, path: Path, line: int) -> str:
    """Return conda's `=2.4` and `2.4.0` as a PEP 440 range; alternatives (`|`) allow every release."""
    if "|" in version or version.strip() in ("", "*"):
        return ""
    clauses = []
    for part in version.split(","):
        match = _OPERATORS.fullmatch(part.strip())
        if match is None:
            raise fault(path, line, f"`{shortened(version, 60)}` is not a version range")
        operator, bound = match[1] or "==", match[2]
        if operator == "=" and not bound.endswith("*"):
            bound = bound if bound.count(".") > 1 else f"{bound}.*"  # `=2.4` is any 2.4, `=2.4.0` is that release
        clauses.append(("==" if operator == "=" else operator) + bound)
    return ",".join(clauses)


def _is_range(ranges: str) -> bool:
    """Return whether the bounds are versions by PEP 440; those of `tzdata=2023c` and `openssl=1.1.1k` are not."""
    if PLAIN_RANGE.fullmatch(ranges):
        return True

    try:
        specifier(ranges)
    except InvalidSpecifier:
        return False
    return True


def _facts(path: Path, found: dict[str, tuple[str, int, str]]) -> list[Fact]:
    facts = []
    python = _fixed(found, "python")
    if python:
        facts.append(Fact("python.version", python, f"{path}:{found['python'][1]}"))
    torch = next((name for name, own in _NAMES.items() if own == TORCH and name in found), None)
    if torch is None:
        return facts
    _, line, build = found[torch]
    at = f"{path}:{line}"
    cuda = next(((_fixed(found, name), found[name][1]) for name in _CUDA if _fixed(found, name)), None)
    built = re.search(r"cuda_?([0-9]+)\.?([0-9])", build)
    if built:
        facts.append(Fact("torch.cuda", f"{built[1]}.{built[2]}", at))
    elif build.startswith("cpu") or torch == "pytorch-cpu":
        facts.append(Fact("torch.cuda", ABSENT, at))
    elif cuda:
        facts.append(Fact("torch.cuda", cuda[0], f"{path}:{cuda[1]}"))
    else:
        problem = "the file does not determine the CUDA of conda's torch"
        facts.append(Fact("torch.cuda", None, at, problem=problem))
    own, bundled = _fixed(found, _CUDNN), re.search(r"cudnn([0-9]+\.[0-9]+(?:\.[0-9]+)?)", build)
    if own and own.count(".") > 1:
        facts.append(Fact("cudnn.version", own, f"{path}:{found[_CUDNN][1]}"))
    elif bundled:
        facts.append(Fact("cudnn.version", bundled[1], at))
    else:
        problem = "conda's torch uses the cuDNN of its channel, and the file does not pin one"
        facts.append(Fact("cudnn.version", None, at, problem=problem))
    wheels = ("nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
    facts += [Fact(f"{name}.version", ABSENT, f"{at}, conda's torch needs no wheel for it") for name in wheels]
    return facts


def _fixed(found: dict[str, tuple[str, int, str]], name: str) -> str | None:
    """Return the version that a specification fixes, as far as it goes: `=3.11` is 3.11."""
    match = re.fullmatch(r"==([0-9]+(?:\.[0-9]+)*)(\.\*)?", found[name][0]) if name in found else None
    return match[1] if match else None
