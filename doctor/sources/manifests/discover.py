"""Find the files of a project folder that declare an environment, and decide which of them count together.

A lock is preferred to the files it was resolved from; an image counts together with the files it installs. Files for
other machines (`requirements-cpu.txt`) or for development tools are reported and left out. Files that contradict each
other are common: a list was frozen long ago, or an image starts with a torch that the project does not use. Those that
an install of the project does not use are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.sources.manifests.scripts.jobs import STARTS_JOB
from doctor.sources.variables import is_read
from doctor.sources.watch import Watch
from doctor.util.reading import contained, is_trusted, project_top, read_text, regular_bytes

from .base import DiscoveredFile, FileRole, Manifest, ManifestKind, most_bytes
from .detect import kind_of
from .readers import reader_of
from .resolve import resolve

MOST_FILES = 400  # whose beginning is read
_MOST_BYTES = 4 * 1024 * 1024  # of each
_MOST_TOTAL, _LEAST_BYTES = 32 * 1024 * 1024, 16 * 1024  # of all; what each has beyond that
_NAMED = re.compile(
    r".*\.(txt|in|toml|lock|ya?ml|sh|bash|zsh|sbatch|slurm|pbs|job|srun|sub)|pipfile|setup\.(py|cfg)|.*(docker|container)file.*",
    re.IGNORECASE,
)
_LOCKS = (
    "pylock.toml", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pixi.lock", "conda-lock.yml",
    "conda-lock.yaml",
)  # fmt: skip
#: A lock -> the files it was resolved from.
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
_SERVES = re.compile(
    r"\bvllm\s+serve\b|\bsglang\.launch_server\b|\bvllm\.entrypoints\b|vllm/vllm-openai|lmsysorg/sglang"
)
_PROJECT = re.compile(r"^\s*\[(project|dependency-groups|tool\.(poetry|pixi|pdm))\b", re.MULTILINE)
_DYNAMIC = re.compile(r"""^dynamic\s*=[^\]]*['"]dependencies['"]""", re.MULTILINE)
_FROM_FILE = re.compile(r"^dependencies\s*=\s*\{\s*file\b", re.MULTILINE)
_SET = re.compile(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\s*[:= ]")
#: Words in a file name that mean another environment than the one that runs on NVIDIA GPUs.
_OTHER = {
    "cpu": "for machines without a GPU", "rocm": "for AMD GPUs", "amd": "for AMD GPUs", "hip": "for AMD GPUs",
    "tpu": "for TPUs", "xla": "for TPUs", "hpu": "for Gaudi", "gaudi": "for Gaudi", "xpu": "for Intel GPUs",
    "npu": "for NPUs", "ascend": "for NPUs", "neuron": "for Neuron", "mac": "for macOS", "macos": "for macOS",
    "osx": "for macOS", "mps": "for macOS", "win": "for Windows", "windows": "for Windows",
    "dev": "tools for development", "develop": "tools for development", "lint": "tools for development",
    "test": "tools for tests", "tests": "tools for tests", "ci": "tools for tests", "doc": "tools for documentation",
    "docs": "tools for documentation", "build": "tools for the build", "rtd": "tools for documentation",
}  # fmt: skip
_JOBS = (ManifestKind.WORKFLOW, ManifestKind.JOBSCRIPT, ManifestKind.CONTAINERS)
_PROJECTS = (ManifestKind.PYPROJECT, ManifestKind.PIXI_PROJECT, ManifestKind.PIPFILE)
_INSTALLS_HERE = r"\bpip3?\s+install\b[^\n]*?(-e\s*|\s)[\"']?\.(\[|[\"'/\s]|$)"
_BUILD_ONLY = "only its build knows the dependencies, and it is not run"
_FIRST = ("train", "training", "gpu", "cuda", "base", "common", "main", "core", "requirements")


def discover(folder: Path, watch: Watch) -> tuple[DiscoveredFile, ...]:
    """Return every file in a project folder that declares an environment or its variables, those that count first."""
    if not folder.is_dir():
        raise DoctorError(f"`{folder}` is not a folder")
    texts, left = {}, _MOST_TOTAL
    for path in _candidates(folder):
        texts[path] = _beginning(path, min(_MOST_BYTES, max(left, _LEAST_BYTES)))
        left -= len(texts[path])
    kinds = {path: kind for path, text in texts.items() if (kind := _kind(path, text))}
    environments = [path for path, kind in kinds.items() if kind not in _JOBS]
    files = list(_environments(folder, environments, kinds, texts, watch))
    for path, kind in kinds.items():
        if kind in _JOBS:
            sets = any(is_read(name, watch) for name in set(_SET.findall(texts[path])))
            if kind == ManifestKind.WORKFLOW and path.parent.name != "workflows":
                continue
            if sets or (kind != ManifestKind.WORKFLOW and _starts_job(path, kind, texts[path], watch)):
                why = "it sets variables" if sets else "it starts a server or a training"
                files.append(DiscoveredFile(path, kind, FileRole.VARIABLES, why))
            elif _STACK.search(texts[path]) and "install" in texts[path]:
                why = "the packages of a job are not the project's environment"
                files.append(DiscoveredFile(path, kind, FileRole.LEFT_OUT, why))
    return tuple(sorted(files, key=lambda item: tuple(FileRole).index(item.role)))


def _starts_job(path: Path, kind: ManifestKind, text: str, watch: Watch) -> bool:
    """Return whether a script states the workload of a server or training."""
    if not (_SERVES.search(text) or STARTS_JOB.search(text)):
        return False
    manifest = _manifest(DiscoveredFile(path, kind, FileRole.VARIABLES, ""), watch)
    return manifest is not None and any(fact.key == "workload.framework" for fact in manifest.facts)


def notes_of(files: Sequence[DiscoveredFile]) -> tuple[str, ...]:
    """Return notes for a report: the files that were read, and each skipped one with the reason."""
    read = ", ".join(f"`{item.path}`" for item in files if item.used)
    return (f"read: {read}", *(f"skipped `{item.path}`: {item.why}" for item in files if not item.used))


def _environments(
    folder: Path, paths: Sequence[Path], kinds: dict[Path, ManifestKind], texts: dict[Path, str], watch: Watch
) -> Iterator[DiscoveredFile]:
    images = [path for path in paths if kinds[path] == ManifestKind.DOCKERFILE]
    rest = [path for path in paths if path not in images]
    relevant = [path for path in rest if _names_stack(path, texts)]
    unread = [path for path in relevant if kinds[path] == ManifestKind.SETUPTOOLS and not _declares(path, watch)]
    chosen, verdicts = _choose(folder, [path for path in relevant if path not in unread], kinds, texts)
    verdicts.update(dict.fromkeys(unread, _BUILD_ONLY))
    image, passed = _image(images, texts)
    installed = [path for path in chosen if image is not None and _installs(texts[image], path, kinds[path])]
    if image is not None and chosen and not installed:
        verdicts[image] = f"it does not install `{chosen[0].name}`, so it is another environment"
        image = None
    count = [DiscoveredFile(path, kinds[path], FileRole.ENVIRONMENT, verdicts.pop(path)) for path in chosen]
    of_image = [item for item in count if item.path in installed]
    if image is not None:
        why = f"it installs `{installed[0].name}`" if chosen else "no other file declares attention libraries"
        count.insert(0, DiscoveredFile(image, ManifestKind.DOCKERFILE, FileRole.ENVIRONMENT, why))
    if len(count) > 1:
        count = _without_clashes(count, of_image, watch)
    yield from count
    for path in rest:
        if path not in relevant:
            verdicts[path] = "it names no attention library"
    for path, why in {**verdicts, **passed}.items():
        yield DiscoveredFile(path, kinds[path], FileRole.LEFT_OUT, why)


def _choose(
    folder: Path, paths: Sequence[Path], kinds: dict[Path, ManifestKind], texts: dict[Path, str]
) -> tuple[list[Path], dict[Path, str]]:
    """Return the files that count together, and why each file counts or does not."""
    why: dict[Path, str] = {}
    locks = [path for path in paths if path.name in _LOCKS or kinds[path] == ManifestKind.PYLOCK]
    if locks:
        locks.sort(key=lambda path: (path.parent != folder, _rank_of_lock(path, folder)))
        first = locks[0]
        why[first] = "a lock lists what is installed"
        for path in paths:
            if path != first:
                why[path] = f"`{first.name}` is preferred; name this file to check it"
        return [first], why
    for path in paths:
        word = _other_word(path)
        if word:
            why[path] = f"by its name it is {_OTHER[word]}"
        elif (
            kinds[path] == ManifestKind.PYPROJECT
            and _DYNAMIC.search(texts[path])
            and not _FROM_FILE.search(texts[path])
        ):
            why[path] = _BUILD_ONLY
    left = [path for path in paths if path not in why]
    project = [path for path in left if kinds[path] in _PROJECTS]
    lists = [path for path in left if kinds[path] == ManifestKind.REQUIREMENTS]
    condas = [path for path in left if kinds[path] == ManifestKind.CONDA]
    chosen: list[Path] = []
    if project:
        project.sort(key=lambda path: path.parent != folder)
        chosen.append(project[0])
        why[project[0]] = "the project's own dependencies"
        _skip_others(project[1:], project[0], why)
    if lists:
        lists.sort(key=lambda path: (path.parent != folder, path.name != "requirements.txt", _rank_of_name(path)))
        first = lists[0]
        if not project or first.name == "requirements.txt":
            chosen.append(first)
            why[first] = "installed together with the project" if project else "the packages to install"
            for path in lists[1:]:
                if _includes(texts[first], path, first):
                    why[path] = f"`{first.name}` includes it"
        _skip_others([path for path in lists if path not in why], chosen[0], why)
    setups = [path for path in left if kinds[path] == ManifestKind.SETUPTOOLS]
    for paths, because in ((condas, "the packages to install"), (setups, "the project's own dependencies")):
        if not paths:
            continue
        paths.sort(key=lambda path: (path.parent != folder, _rank_of_name(path)))
        if not chosen:
            chosen.append(paths[0])
            why[paths[0]] = because
        _skip_others([path for path in paths if path not in why], chosen[0], why)
    return chosen, why


def _declares(path: Path, watch: Watch) -> bool:
    """Return whether the text of a setup.py or setup.cfg states requirements."""
    manifest = _manifest(DiscoveredFile(path, ManifestKind.SETUPTOOLS, FileRole.ENVIRONMENT, ""), watch)
    return manifest is not None and bool(manifest.entries)


def _skip_others(paths: Sequence[Path], chosen: Path, why: dict[Path, str]) -> None:
    for path in paths:
        why[path] = f"it may be another environment than `{chosen.name}`; name it to check it"


def _image(images: Sequence[Path], texts: dict[Path, str]) -> tuple[Path | None, dict[Path, str]]:
    """Return the image that counts, and why the others do not."""
    why = {path: f"by its name it is {_OTHER[word]}" for path in images if (word := _other_word(path))}
    left = [path for path in images if path not in why]
    why.update({path: "it names no attention library" for path in left if not _STACK.search(texts[path])})
    left = [path for path in left if path not in why]
    if not left:
        return None, why
    left.sort(key=lambda path: (len(path.parts), path.name.lower() != "dockerfile", _rank_of_name(path)))
    why.update({path: f"`{left[0]}` is preferred; name this file to check it" for path in left[1:]})
    return left[0], why


def _installs(image: str, path: Path, kind: ManifestKind) -> bool:
    """Return whether a Dockerfile installs what a file declares."""
    if path.name in image:
        return True
    command = {
        ManifestKind.UV: r"\buv\s+(sync|run)\b",
        ManifestKind.POETRY: r"\bpoetry\s+install\b",
        ManifestKind.PDM: r"\bpdm\s+(install|sync)\b",
        ManifestKind.PIPFILE_LOCK: r"\bpipenv\s+(install|sync)\b",
        ManifestKind.PIXI: r"\bpixi\s+install\b",
        ManifestKind.PYPROJECT: _INSTALLS_HERE,
        ManifestKind.SETUPTOOLS: _INSTALLS_HERE,
    }.get(kind)
    return bool(command and re.search(command, image, re.MULTILINE))


def _names_stack(path: Path, texts: dict[Path, str], behind: tuple[Path, ...] = ()) -> bool:
    """Return whether the file, or one that it includes, names an attention library."""
    if _STACK.search(texts[path]):
        return True
    if "-r" not in texts[path]:
        return False
    behind = (*behind, path)
    return any(
        _includes(texts[path], other, path) and _names_stack(other, texts, behind)
        for other in texts
        if other not in behind
    )


def _includes(text: str, path: Path, by: Path) -> bool:
    name = re.escape(os.path.relpath(path, by.parent))
    return bool(re.search(rf"^\s*(-r|--requirement|-c|--constraint)[\s=]*(\./)?{name}\s*(#.*)?$", text, re.MULTILINE))


def _rank_of_lock(path: Path, folder: Path) -> tuple[bool, int]:
    """Rank a lock whose project file exists first, then by the order of `_LOCKS`."""
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


def _kind(path: Path, text: str) -> ManifestKind | None:
    """Return the format, None for a file that by its name or content declares nothing."""
    try:
        kind = kind_of(path, text)
    except DoctorError:
        return None
    name = path.name.lower()
    if kind == ManifestKind.REQUIREMENTS and not (
        name.endswith((".txt", ".in")) and ("req" in name or path.parent.name in ("requirements", "reqs"))
    ):
        return None
    if kind == ManifestKind.REQUIREMENTS and name.endswith(".in") and path.with_suffix(".txt").is_file():
        return None  # the .txt of the same name was compiled from it
    if kind == ManifestKind.CONDA and not re.search(r"^dependencies:", text, re.MULTILINE):
        return None
    if kind == ManifestKind.PYPROJECT and not _PROJECT.search(text):
        return None  # settings of tools
    return kind


def _candidates(folder: Path) -> Iterator[Path]:
    count = 0
    top = project_top(folder) or folder
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
                if path.is_symlink() and not is_trusted() and not contained(path, top):
                    continue
                count += 1
                yield path


def _beginning(path: Path, most: int) -> str:
    """Return the beginning of a file as text, empty where it cannot be read: `read_manifests` reports that."""
    try:
        return regular_bytes(path, most).decode("utf-8", "replace")
    except OSError:
        return ""


def _without_clashes(
    files: Sequence[DiscoveredFile], installed: Sequence[DiscoveredFile], watch: Watch
) -> list[DiscoveredFile]:
    """Return the files, with those left out that contradict the ones that an install of the project uses.

    `files` count as one environment, an image first; `installed` are those that the image installs.
    """
    manifests = {item.path: manifest for item in files if (manifest := _manifest(item, watch)) is not None}
    image = next((item for item in files if item.kind == ManifestKind.DOCKERFILE and item.path in manifests), None)
    seen = set(manifests[image.path].included) if image else set()
    apart = (item for item in files if item is not image and item.path in manifests)
    result = {item.path: item for item in files}
    kept: list[DiscoveredFile] = []
    for item in apart:  # the project's own file first
        if str(item.path.resolve()) in seen:
            continue
        if kept and (clash := _clash([manifests[one.path] for one in kept], manifests[item.path])):
            first = kept[0].path.name
            why = f"it contradicts `{first}`, which an install of the project uses: {clash}; name it to check it"
            result[item.path] = replace(item, role=FileRole.LEFT_OUT, why=why)
        else:
            kept.append(item)
    if image is None:
        return list(result.values())
    for item in kept:
        clash = _clash([manifests[image.path]], manifests[item.path])
        if clash and item in installed:
            why = f"could not parse how it installs `{item.path.name}`; its earlier pins are ignored: {clash}"
            result[image.path] = replace(image, role=FileRole.LEFT_OUT, why=why)
            break
        if clash:
            why = f"`{image.path.name}` does not install it, and {clash}"
            result[item.path] = replace(item, role=FileRole.LEFT_OUT, why=why)
    return list(result.values())


def _clash(before: Sequence[Manifest], new: Manifest) -> str | None:
    """Return how a file contradicts others, without the faults that each has by itself."""
    alone = {message for manifests in (before, [new]) for message in _faults(manifests)}
    return next((message for message in _faults([*before, new]) if message not in alone), None)


def _faults(manifests: Sequence[Manifest]) -> Iterator[str]:
    return (fault.message for fault in resolve(manifests, Facts()).faults)


def _manifest(item: DiscoveredFile, watch: Watch) -> Manifest | None:
    """Return what a file declares, None where it cannot be read: `read_manifests` reports that."""
    try:
        text = read_text(item.path, "declared environment", most_bytes(item.path))
        return reader_of(item.kind)(item.path, text, watch)
    except DoctorError:
        return None
