"""A project's `[tool.attn-doctor]` section: proposed after a look at its files, and put into its pyproject.toml."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from doctor.errors import DoctorError
from doctor.sources.manifests.base import ENVIRONMENT, LEFT_OUT, VARIABLES
from doctor.sources.manifests.discover import discover
from doctor.sources.probes.gpu_table import gpu_facts

from .config import SECTION, read_defaults, section_of

MOST_FOLDERS, MOST_MODELS = 400, 12
_SKIPPED = {
    "node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env", "wandb", "outputs", "checkpoints",
}  # fmt: skip
_LARGEST = 1 << 20  # bytes of a model config
_ASKED_GPU = re.compile(r"(?:gres|gpus(?:-per-\w+)?)[= ](?:gpu:)?([A-Za-z][\w-]*):\d+|(?:gres=)gpu:([A-Za-z][\w-]*)")


@dataclass(frozen=True)
class Found:
    """What a project's folder says of itself."""

    folder: Path
    requirements: tuple[tuple[str, str], ...]  # file, why it counts
    left_out: tuple[tuple[str, str], ...]  # file, why it does not
    scripts: tuple[str, ...]  # of jobs, which set variables
    variables: tuple[str, ...]  # other files that set some, which count where they are named
    models: tuple[str, ...]
    more_models: int
    gpus: tuple[tuple[str, str], ...]  # GPU, the file that asks for it


def look(folder: Path) -> Found:
    """The declared files, the model configs and the GPUs that job scripts ask for."""

    files = discover(folder)
    setting = [item for item in files if item.role == VARIABLES]
    models = sorted(_models(folder))
    asked: dict[str, str] = {}
    for item in files:
        if item.kind in ("jobscript", "workflow") or item.role == VARIABLES:
            for name in _asked(item.path):
                asked.setdefault(name, _inside(folder, item.path))
    return Found(
        folder,
        tuple((_inside(folder, item.path), item.why) for item in files if item.role == ENVIRONMENT),
        tuple((_inside(folder, item.path), item.why) for item in files if item.role == LEFT_OUT),
        tuple(_inside(folder, item.path) for item in setting if item.kind == "jobscript"),
        tuple(_inside(folder, item.path) for item in setting if item.kind != "jobscript"),
        tuple(_inside(folder, path) for path in models[:MOST_MODELS]),
        max(0, len(models) - MOST_MODELS),
        tuple(asked.items()),
    )


def _inside(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _models(folder: Path) -> Iterator[Path]:
    """Hugging Face model configs: JSON files that name a `model_type`."""
    for seen, (place, folders, files) in enumerate(os.walk(folder)):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        if seen >= MOST_FOLDERS:
            return
        for name in sorted(files):
            path = Path(place, name)
            if name.endswith(".json") and _is_model(path):
                yield path


def _is_model(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return False
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        return False
    return "architectures" in content or any(key.endswith(("hidden_size", "n_embd", "_config")) for key in content)


def _asked(path: Path) -> Iterator[str]:
    """GPUs that a job script asks a scheduler for by name."""

    try:
        text = path.read_text("utf-8", "replace")[:_LARGEST]
    except OSError:
        return
    for match in _ASKED_GPU.finditer(text):
        name = (match[1] or match[2]).lower()
        try:
            gpu_facts(name)
        except DoctorError:
            continue  # a partition's own word
        yield name


def section(found: Found) -> str:
    """The section with comments, in TOML."""
    lines = [
        f"[{SECTION}]",
        "# What `attn-doctor check` judges where its command line names nothing else: the environment below, on each",
        "# GPU, with each job. A value of the command line takes the place of the one here.",
        "",
    ]
    if found.requirements:
        named = (*found.requirements, *((name, "it sets variables of the stack") for name in found.scripts))
        lines += [f"# `{name}`: {why}" for name, why in named]
        lines.append(f"requirements = {_listed([name for name, _ in named])}")
    else:
        lines += ["# files that declare the environment; without them the active environment is examined",
                  '# requirements = ["requirements.txt"]']  # fmt: skip
    lines += [
        f"# `{name}` sets variables of the stack: name it above, and they are judged too" for name in found.variables
    ]
    lines.append("")
    if found.gpus:
        lines += [*(f"# `{where}` asks for {gpu}" for gpu, where in found.gpus),
                  f"gpu = {_listed([gpu for gpu, _ in found.gpus])}"]  # fmt: skip
    else:
        lines += ["# GPUs the jobs run on, judged where there is none, such as on a CI runner; also sm90 and the like",
                  '# gpu = ["a100", "h100"]']  # fmt: skip
    lines.append("")
    if found.models:
        lines += ["# model configs of Hugging Face, each judged on each GPU", f"model = {_listed(found.models)}"]
        if found.more_models:
            lines.append(f"# and {found.more_models} more were found")
    else:
        lines += ["# model configs of Hugging Face, each judged on each GPU", '# model = ["configs/config.json"]']
    lines += [
        "",
        "# what the training does with them: library, dtype, mask, parallelism; files, or keys in a table",
        '# workload = {framework = "megatron", dtype = "bfloat16", cp_size = 2}',
        "",
        "# the mildest finding that fails the check: error, warning, note, never",
        'fail-on = "error"',
        "",
        "# A rule that is known and accepted, with whoever answers for it; after its day it is a finding itself.",
        "# [[tool.attn-doctor.ignore]]",
        '# rule = "TE104"',
        '# reason = "the cluster is upgraded in spring"',
        '# owner = "@platform"',
        "# until = 2027-03-31",
    ]
    return "\n".join(lines) + "\n"


def _listed(names: tuple[str, ...] | list[str]) -> str:
    quoted = [json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f") for name in names]
    line = f"[{', '.join(quoted)}]"
    return line if len(line) < 90 else "[\n" + "".join(f"    {name},\n" for name in quoted) + "]"


def place(path: Path, text: str, made: str, *, force: bool) -> str:
    """The text of a pyproject.toml with the section in it; every other byte stays. DoctorError where one is there."""
    ending = "\r\n" if "\r\n" in text else "\n"
    made = made.replace("\n", ending)
    lines = text.splitlines(keepends=True)
    own = _own_lines(lines)
    if _has_section(path, text):
        if not force:
            first = f":{min(own) + 1}" if own else ""
            raise DoctorError(f"{path}{first}: `[{SECTION}]` is there already", "`--force` writes it anew")
        if not own:
            raise DoctorError(
                f"{path}: the section is not written as `[{SECTION}]`, and is left alone", "take it out by hand"
            )
        start = min(own)
        before = "".join(line for number, line in enumerate(lines[:start]) if number not in own)
        after = "".join(line for number, line in enumerate(lines[start:], start) if number not in own)
        gap = ending if after and not re.match(r"\s*\n", after) else ""
        whole = before + made + gap + after
    else:
        gap = "" if not text or text.endswith(("\n\n", "\r\n\r\n")) else ending
        gap = ending + gap if text and not text.endswith("\n") else gap
        whole = text + gap + made
    read_defaults(path, whole)  # what cannot be read back is not written
    return whole


def _has_section(path: Path, text: str) -> bool:
    """Whether the file has such a section, however it is written; DoctorError for what is no TOML."""
    return bool(text.strip()) and section_of(path, text) is not None


def _own_lines(lines: list[str]) -> set[int]:
    """The lines of the section's tables, up to the header of another; comments before that one are its own."""
    own: set[int] = set()
    current: list[int] = []
    inside = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("[") and re.match(r"\s*\[\[?[^\[\]]+\]\]?\s*(#.*)?$", line.rstrip("\r\n")):
            if inside:
                own |= _without_tail(lines, current)
            header = re.sub(r"[\s'\"]", "", line.partition("#")[0]).strip("[]")
            inside = header == SECTION or header.startswith(f"{SECTION}.")
            current = []
        if inside:
            current.append(number)
    return own | (set(current) if inside else set())


def _without_tail(lines: list[str], numbers: list[int]) -> set[int]:
    """Comments right before the next table belong to that one."""
    kept = list(numbers)
    while kept and lines[kept[-1]].lstrip().startswith("#"):
        kept.pop()
    return set(kept)
