"""What a project's folder declares: every file that does, which of them count together, and why the others do not.

A lock beats what it was resolved from; an image counts with the files it installs; files that look like another
machine's environment (`requirements-cpu.txt`) or like tools for development are named and left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from doctor.errors import DoctorError
from doctor.sources.manifests.scripts.variables import watched

from .base import ENVIRONMENT, LEFT_OUT, VARIABLES, Discovered
from .detect import kind_of
from .folder import settled

MOST_FILES = 400  # leafed through
_MOST_BYTES = 4 * 1024 * 1024  # of each
_NAMED = re.compile(
    r".*\.(txt|in|toml|lock|ya?ml|sh|bash|zsh|sbatch|slurm|pbs|job|srun|sub)|pipfile|.*(docker|container)file.*",
    re.IGNORECASE,
)
_LOCKS = (
    "pylock.toml", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pixi.lock", "conda-lock.yml",
    "conda-lock.yaml",
)  # fmt: skip
#: A lock → what it was resolved from.
_RESOLVED_FROM = {
    "Pipfile.lock": ("Pipfile",), "pixi.lock": ("pixi.toml", "pyproject.toml"),
    "conda-lock.yml": ("environment.yml", "environment.yaml"),
    "conda-lock.yaml": ("environment.yml", "environment.yaml"),
}  # fmt: skip
_FOLDERS = ("", "requirements", "reqs", "docker", "dockerfiles", "conda", "envs", "environments", ".devcontainer",
            ".github/workflows", "scripts", "slurm", "jobs")  # fmt: skip
_STACK = re.compile(
    r"(?<![\w.])(py)?torch\b(?!\.org)|flash[-_]attn|transformer[-_]engine|xformers|deepspeed|\bvllm\b"
    r"|megatron[-_]core|(?<![\w-])transformers\b|nvcr\.io/nvidia|nvidia/cuda|nvidia-cudnn",
    re.IGNORECASE,
)
_PROJECT = re.compile(r"^\s*\[(project|dependency-groups|tool\.(poetry|pixi|pdm))\b", re.MULTILINE)
_DYNAMIC = re.compile(r"""^dynamic\s*=[^\]]*['"]dependencies['"]""", re.MULTILINE)
_FROM_FILE = re.compile(r"^dependencies\s*=\s*\{\s*file\b", re.MULTILINE)
_SET = re.compile(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\s*[:= ]")
#: Words in a file's name that speak of another environment than the one that trains on NVIDIA GPUs.
_OTHER = {
    "cpu": "for machines without a GPU", "rocm": "for AMD GPUs", "amd": "for AMD GPUs", "hip": "for AMD GPUs",
    "tpu": "for TPUs", "xla": "for TPUs", "hpu": "for Gaudi", "gaudi": "for Gaudi", "xpu": "for Intel GPUs",
    "npu": "for NPUs", "ascend": "for NPUs", "neuron": "for Neuron", "mac": "for macOS", "macos": "for macOS",
    "osx": "for macOS", "mps": "for macOS", "win": "for Windows", "windows": "for Windows",
    "dev": "tools for development", "develop": "tools for development", "lint": "tools for development",
    "test": "tools for tests", "tests": "tools for tests", "ci": "tools for tests", "doc": "tools for documentation",
    "docs": "tools for documentation", "build": "tools for the build", "rtd": "tools for documentation",
}  # fmt: skip
_FIRST = ("train", "training", "gpu", "cuda", "base", "common", "main", "core", "requirements")


def discover(folder: Path) -> tuple[Discovered, ...]:
    """Every file in a project's folder that declares an environment or its variables; those that count come first."""
    if not folder.is_dir():
        raise DoctorError(f"`{folder}` is not a folder")
    texts = {path: _leafed(path) for path in _candidates(folder)}
    kinds = {path: kind for path, text in texts.items() if (kind := _kind(path, text))}
    environments = [path for path, kind in kinds.items() if kind not in ("workflow", "jobscript")]
    told = list(_environments(folder, environments, kinds, texts))
    for path, kind in kinds.items():
        if kind in ("workflow", "jobscript"):
            sets = any(watched(name) for name in set(_SET.findall(texts[path])))
            if kind == "workflow" and path.parent.name != "workflows":
                continue
            if sets:
                told.append(Discovered(path, kind, VARIABLES, "it sets variables"))
            elif _STACK.search(texts[path]) and "install" in texts[path]:
                told.append(Discovered(path, kind, LEFT_OUT, "what a job installs is not the project's environment"))
    return tuple(sorted(told, key=lambda item: (ENVIRONMENT, VARIABLES, LEFT_OUT).index(item.role)))


def told(found: Sequence[Discovered]) -> tuple[str, ...]:
    """The notes for a report: what was read, and what was not, with the reason."""
    read = ", ".join(f"`{item.path}`" for item in found if item.used)
    left = [item for item in found if not item.used]
    return (f"read: {read}", *(f"`{item.path}` was left out: {item.why}" for item in left))


def _environments(
    folder: Path, paths: Sequence[Path], kinds: dict[Path, str], texts: dict[Path, str]
) -> Iterator[Discovered]:
    images = [path for path in paths if kinds[path] == "dockerfile"]
    rest = [path for path in paths if path not in images]
    silent = [path for path in rest if not _speaks(path, texts)]
    speaking = [path for path in rest if path not in silent]
    chosen, verdicts = _choose(folder, speaking, kinds, texts)
    image, passed = _image(images, texts)
    installed = [path for path in chosen if image is not None and _installs(texts[image], path, kinds[path])]
    if image is not None and chosen and not installed:
        verdicts[image] = f"it does not install `{chosen[0].name}`: another environment"
        image = None
    count = [Discovered(path, kinds[path], ENVIRONMENT, verdicts.pop(path)) for path in chosen]
    of_image = [item for item in count if item.path in installed]
    if image is not None:
        why = f"it installs `{installed[0].name}`" if chosen else "nothing else declares the attention stack"
        count.insert(0, Discovered(image, "dockerfile", ENVIRONMENT, why))
    if len(count) > 1:
        count = settled(count, of_image)
    yield from count
    for path in silent:
        verdicts[path] = "it says nothing of the attention stack"
    for path, why in {**verdicts, **passed}.items():
        yield Discovered(path, kinds[path], LEFT_OUT, why)


def _choose(
    folder: Path, paths: Sequence[Path], kinds: dict[Path, str], texts: dict[Path, str]
) -> tuple[list[Path], dict[Path, str]]:
    """(the files that count together, why each counts or does not)."""
    why: dict[Path, str] = {}
    locks = [path for path in paths if path.name in _LOCKS or kinds[path] == "pylock"]
    if locks:
        locks.sort(key=lambda path: (path.parent != folder, _rank_of_lock(path, folder)))
        first = locks[0]
        why[first] = "a lock says what is installed"
        for path in paths:
            if path != first:
                one = path in locks
                why[path] = f"`{first.name}` was preferred" if one else f"`{first.name}` says what is installed"
        return [first], why
    for path in paths:
        word = _other_word(path)
        if word:
            why[path] = f"by its name it is {_OTHER[word]}"
        elif kinds[path] == "pyproject" and _DYNAMIC.search(texts[path]) and not _FROM_FILE.search(texts[path]):
            why[path] = "its dependencies are made by the build, which is not run"
    left = [path for path in paths if path not in why]
    project = [path for path in left if kinds[path] in ("pyproject", "pixi_project", "pipfile")]
    lists = [path for path in left if kinds[path] == "requirements"]
    condas = [path for path in left if kinds[path] == "conda"]
    chosen: list[Path] = []
    if project:
        project.sort(key=lambda path: path.parent != folder)
        chosen.append(project[0])
        why[project[0]] = "the project's own dependencies"
        _pass_over(project[1:], project[0], why)
    if lists:
        lists.sort(key=lambda path: (path.parent != folder, path.name != "requirements.txt", _rank_of_name(path)))
        first = lists[0]
        if not project or first.name == "requirements.txt":
            chosen.append(first)
            why[first] = "installed beside the project" if project else "what is to be installed"
            for path in lists[1:]:
                if _includes(texts[first], path, first):
                    why[path] = f"`{first.name}` includes it"
        _pass_over([path for path in lists if path not in why], chosen[0], why)
    if condas:
        condas.sort(key=lambda path: (path.parent != folder, _rank_of_name(path)))
        if not chosen:
            chosen.append(condas[0])
            why[condas[0]] = "what is to be installed"
        _pass_over([path for path in condas if path not in why], chosen[0], why)
    return chosen, why


def _pass_over(paths: Sequence[Path], chosen: Path, why: dict[Path, str]) -> None:
    for path in paths:
        why[path] = f"it may be another environment than that of `{chosen.name}`; name it to have it judged"


def _image(images: Sequence[Path], texts: dict[Path, str]) -> tuple[Path | None, dict[Path, str]]:
    """(the image that counts, why the others do not)."""
    why = {path: f"by its name it is {_OTHER[word]}" for path in images if (word := _other_word(path))}
    left = [path for path in images if path not in why]
    why.update({path: "it says nothing of the attention stack" for path in left if not _STACK.search(texts[path])})
    left = [path for path in left if path not in why]
    if not left:
        return None, why
    left.sort(key=lambda path: (len(path.parts), path.name.lower() != "dockerfile", _rank_of_name(path)))
    why.update({path: f"`{left[0]}` was preferred; name it to have it judged" for path in left[1:]})
    return left[0], why


def _installs(image: str, path: Path, kind: str) -> bool:
    """Whether a Dockerfile installs what a file declares."""
    if path.name in image:
        return True
    command = {
        "uv": r"\buv\s+(sync|run)\b", "poetry": r"\bpoetry\s+install\b", "pdm": r"\bpdm\s+(install|sync)\b",
        "pipfile_lock": r"\bpipenv\s+(install|sync)\b", "pixi": r"\bpixi\s+install\b",
        "pyproject": r"\bpip3?\s+install\b[^\n]*?(-e\s*|\s)[\"']?\.(\[|[\"'/\s]|$)",
    }.get(kind)  # fmt: skip
    return bool(command and re.search(command, image, re.MULTILINE))


def _speaks(path: Path, texts: dict[Path, str], behind: tuple[Path, ...] = ()) -> bool:
    """Whether the file or one that it includes names something of the stack."""
    if _STACK.search(texts[path]):
        return True
    if "-r" not in texts[path]:
        return False
    behind = (*behind, path)
    return any(
        _includes(texts[path], other, path) and _speaks(other, texts, behind) for other in texts if other not in behind
    )


def _includes(text: str, path: Path, by: Path) -> bool:
    name = re.escape(os.path.relpath(path, by.parent))
    return bool(re.search(rf"^\s*(-r|--requirement|-c|--constraint)[\s=]*(\./)?{name}\s*(#.*)?$", text, re.MULTILINE))


def _rank_of_lock(path: Path, folder: Path) -> tuple[bool, int]:
    """A lock whose project file is there comes first; among equals the order of `_LOCKS`."""
    sources = _RESOLVED_FROM.get(path.name, ("pyproject.toml",))
    orphan = not any((folder / source).is_file() for source in sources)
    return orphan, _LOCKS.index(path.name) if path.name in _LOCKS else 0


def _rank_of_name(path: Path) -> tuple[int, str]:
    words = _words(path)
    return min((_FIRST.index(word) for word in words if word in _FIRST), default=len(_FIRST)), path.name


def _other_word(path: Path) -> str | None:
    return next((word for word in _words(path) if word in _OTHER), None)


def _words(path: Path) -> list[str]:
    return re.findall(r"[a-z]+", path.name.lower().rpartition(".")[0] or path.name.lower())


def _kind(path: Path, text: str) -> str | None:
    """The format, None for a file that declares nothing by its name."""

    try:
        kind = kind_of(path, text)
    except DoctorError:
        return None
    name = path.name.lower()
    if kind == "requirements" and not (
        name.endswith((".txt", ".in")) and ("req" in name or path.parent.name in ("requirements", "reqs"))
    ):
        return None
    if kind == "requirements" and name.endswith(".in") and path.with_suffix(".txt").is_file():
        return None  # what the .txt beside it was compiled from
    if kind == "conda" and not re.search(r"^dependencies:", text, re.MULTILINE):
        return None
    if kind == "pyproject" and not _PROJECT.search(text):
        return None  # settings of tools
    return kind


def _candidates(folder: Path) -> Iterator[Path]:
    count = 0
    for name in _FOLDERS:
        place = folder / name
        try:
            entries = sorted(place.iterdir()) if place.is_dir() else []
        except OSError:
            continue
        for path in entries:
            if count >= MOST_FILES:
                return
            if _NAMED.fullmatch(path.name) and path.is_file():
                count += 1
                yield path


def _leafed(path: Path) -> str:
    """The beginning of a file, as text; what cannot be read is empty and told when it is read in earnest."""
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
