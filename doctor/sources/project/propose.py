"""Propose the `[tool.attn-doctor]` section of a project from its files, and insert it into its pyproject.toml."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from doctor.errors import DoctorError
from doctor.packages.gpus import gpu_facts
from doctor.sources.manifests.base import FileRole, ManifestKind
from doctor.sources.manifests.discover import discover
from doctor.sources.watch import Watch
from doctor.util.reading import read_bytes

from .config import SECTION, read_defaults, section_of

MOST_FOLDERS, MOST_MODELS, MOST_CONFIGS = 400, 12, 2000
_SKIPPED = {
    "node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env", "wandb", "outputs", "checkpoints",
}  # fmt: skip
_LARGEST = 1 << 20  # bytes of a model config
#: How jobs request a kind of GPU: Slurm, PBS, Kubernetes (labels of the GPU operator, GKE and others).
_REQUESTED_GPU = re.compile(
    r"(?:--gres|--gpus(?:-per-\w+)?|-G)[= ]\s*(?:gres/)?(?:gpu:)?(?P<slurm>[A-Za-z][\w-]*)(?::\d+)?"
    r"|#SBATCH\s+(?:-C|--constraint)[= ]\s*[\"']?(?P<constraint>[\w|&,-]+)"
    r"|gpu_(?:type|model)=(?P<pbs>[\w-]+)"
    r"|(?:gpu\.product|accelerator|gpu-type|gpu_type)[\"']?:\s*[\"']?(?P<label>[\w-]+)",
)
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".job", ".srun", ".sub", ".yaml", ".yml")


@dataclass(frozen=True)
class ProjectFiles:
    """What the files of a project folder declare."""

    folder: Path
    requirements: tuple[tuple[str, str], ...]  # file, why it counts
    left_out: tuple[tuple[str, str], ...]  # file, why it does not
    scripts: tuple[str, ...]  # job scripts that set variables
    variables: tuple[str, ...]  # other files that set variables; they count where the section names them
    models: tuple[str, ...]
    more_models: int
    gpus: tuple[tuple[str, str], ...]  # GPU, the file that requests it


def inspect_project(folder: Path, watch: Watch) -> ProjectFiles:
    """Return the declared files, the model configs, and the GPUs that job scripts request."""
    files = discover(folder, watch)
    setting = [item for item in files if item.role == FileRole.VARIABLES]
    models = sorted(path for path in _walk(folder, (".json",)) if _is_model(path))
    gpus: dict[str, str] = {}
    scripts = [item.path for item in files if item.kind in (ManifestKind.JOBSCRIPT, ManifestKind.WORKFLOW)]
    for path in dict.fromkeys((*scripts, *_walk(folder, _SCRIPTS))):
        for name in _requested_gpus(path, watch):
            gpus.setdefault(name, _inside(folder, path))
    return ProjectFiles(
        folder,
        tuple((_inside(folder, item.path), item.why) for item in files if item.role == FileRole.ENVIRONMENT),
        tuple((_inside(folder, item.path), item.why) for item in files if item.role == FileRole.LEFT_OUT),
        tuple(_inside(folder, item.path) for item in setting if item.kind == ManifestKind.JOBSCRIPT),
        tuple(_inside(folder, item.path) for item in setting if item.kind != ManifestKind.JOBSCRIPT),
        tuple(_inside(folder, path) for path in models[:MOST_MODELS]),
        max(0, len(models) - MOST_MODELS),
        tuple(gpus.items()),
    )


def _inside(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _walk(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of a project with one of these endings."""
    found = 0
    for seen, (place, folders, files) in enumerate(os.walk(folder)):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        if seen >= MOST_FOLDERS:
            return
        for name in sorted(files):
            if name.endswith(endings):
                found += 1
                if found > MOST_CONFIGS:
                    return
                yield Path(place, name)


def _is_model(path: Path) -> bool:
    """Return whether a JSON file is a Hugging Face model config: it has a `model_type`."""
    try:
        data = read_bytes(path, "model config", _LARGEST)
        content = json.loads(data)
    except (DoctorError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        return False
    return "architectures" in content or any(key.endswith(("hidden_size", "n_embd", "_config")) for key in content)


def _requested_gpus(path: Path, watch: Watch) -> Iterator[str]:
    """Yield the GPUs that a job script or manifest requests from a scheduler by name."""
    try:
        text = read_bytes(path, "job script", _LARGEST).decode("utf-8", "replace")
    except DoctorError:
        return
    for match in _REQUESTED_GPU.finditer(text):
        for name in re.split(r"[|&,]", str(match[match.lastgroup or 0]).lower()):
            try:
                gpu_facts(name, watch.gpus)
            except DoctorError:
                continue  # the name of a partition or of another vendor
            yield name


def section(files: ProjectFiles) -> str:
    """Return the section with comments, in TOML."""
    lines = [
        f"[{SECTION}]",
        "# What `attn-doctor check` checks by default: the environment below, on each GPU, with each workload.",
        "# Options on the command line override these values.",
        "",
    ]
    if files.requirements:
        named = (*files.requirements, *((name, "it sets variables that rules read") for name in files.scripts))
        lines += [f"# `{name}`: {why}" for name, why in named]
        lines.append(f"requirements = {_toml_list([name for name, _ in named])}")
    else:
        lines += ["# files that declare the environment (default: the active environment)",
                  '# requirements = ["requirements.txt"]']  # fmt: skip
    lines += [f"# `{name}` sets variables that rules read; name it above to check them too" for name in files.variables]
    lines.append("")
    if files.gpus:
        lines += [*(f"# `{where}` requests {gpu}" for gpu, where in files.gpus),
                  f"gpu = {_toml_list([gpu for gpu, _ in files.gpus])}"]  # fmt: skip
    else:
        lines += ["# GPUs of the jobs, for machines without one, such as CI runners; also capabilities such as sm90",
                  '# gpu = ["a100", "h100"]']  # fmt: skip
    lines.append("")
    if files.models:
        lines += ["# Hugging Face model configs; each is checked on each GPU", f"model = {_toml_list(files.models)}"]
        if files.more_models:
            lines.append(f"# and {files.more_models} more")
    else:
        lines += ["# Hugging Face model configs; each is checked on each GPU", '# model = ["configs/config.json"]']
    lines += [
        "",
        "# how attention is used: library, dtype, mask, parallelism; files, or keys in a table",
        '# workload = {framework = "megatron", dtype = "bfloat16", cp_size = 2}',
        "",
        "# minimum severity that fails the check: error, warning, note, never",
        'fail-on = "error"',
        "",
        "# Accepted rules with owner and expiry; an expired entry is reported as a finding.",
        "# [[tool.attn-doctor.ignore]]",
        '# rule = "TE104"',
        '# reason = "the cluster is upgraded in spring"',
        '# owner = "@platform"',
        "# until = 2027-03-31",
    ]
    return "\n".join(lines) + "\n"


def _toml_list(names: tuple[str, ...] | list[str]) -> str:
    quoted = [json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f") for name in names]
    line = f"[{', '.join(quoted)}]"
    return line if len(line) < 90 else "[\n" + "".join(f"    {name},\n" for name in quoted) + "]"


def insert_section(path: Path, text: str, section: str, *, force: bool) -> str:
    """Return the text of a pyproject.toml with the section in it; every other byte stays.

    Raise DoctorError where it has such a section, unless `force` replaces it.
    """
    ending = "\r\n" if "\r\n" in text else "\n"
    section = section.replace("\n", ending)
    lines = text.splitlines(keepends=True)
    own = _own_lines(lines)
    if _has_section(path, text):
        if not force:
            first = f":{min(own) + 1}" if own else ""
            raise DoctorError(f"{path}{first}: `[{SECTION}]` exists already", "`--force` replaces it")
        if not own:
            raise DoctorError(
                f"{path}: the section is not written as `[{SECTION}]`, so it cannot be replaced", "remove it by hand"
            )
        start = min(own)
        before = "".join(line for number, line in enumerate(lines[:start]) if number not in own)
        after = "".join(line for number, line in enumerate(lines[start:], start) if number not in own)
        gap = ending if after and not re.match(r"\s*\n", after) else ""
        whole = before + section + gap + after
    else:
        gap = "" if not text or text.endswith(("\n\n", "\r\n\r\n")) else ending
        gap = ending + gap if text and not text.endswith("\n") else gap
        whole = text + gap + section
    read_defaults(path, whole)  # raises where it could not be read back
    return whole


def _has_section(path: Path, text: str) -> bool:
    """Return whether the file has such a section, however written; DoctorError where it is not TOML."""
    return bool(text.strip()) and section_of(path, text) is not None


def _own_lines(lines: list[str]) -> set[int]:
    """Return the line numbers of the section's tables, without comments right before the next table."""
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
    """Return the numbers without trailing comments, which belong to the next table."""
    kept = list(numbers)
    while kept and lines[kept[-1]].lstrip().startswith("#"):
        kept.pop()
    return set(kept)
