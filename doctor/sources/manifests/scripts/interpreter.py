"""What the commands of a script leave behind: packages, variables, and hints at modules, images and GPUs."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from pathlib import Path, PurePosixPath

from doctor.errors import DoctorError
from doctor.model import Fact
from doctor.sources.manifests.base import MAX_BYTES
from doctor.sources.manifests.formats.conda import read, specified
from doctor.sources.manifests.formats.requirements import project_top
from doctor.sources.manifests.readers import reader_of
from doctor.util.yaml_text import read_text

from .base_images import image
from .installs import Installs, Said
from .shell import UNKNOWN, Command, commands
from .variables import variable, watched

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PIP = re.compile(r"pip(?:3(?:\.\d+)?)?")
_CONDA = ("conda", "mamba", "micromamba")
_QUIET = ("echo", "printf", "#", "cat", "grep", "sed", "true", ":", "which", "command", "type")
_BUILDERS = ("pip", "pip3", "uv", "conda", "mamba", "micromamba", "make", "cmake", "python setup.py", "apt-get", "apt")
_STARTS = ("srun", "docker", "podman", "singularity", "apptainer", "enroot", "torchrun", "sbatch", "mpirun")
_IMAGE = re.compile(r"(?:--container-image=)?((?:docker://)?(?:nvcr\.io[/#]nvidia|pytorch)/pytorch:\S+)")
#: A command that installs what lies in a file beside it → that file and its format.
_SYNCS = {
    ("uv", "sync"): ("uv.lock", "uv"), ("poetry", "install"): ("poetry.lock", "poetry"),
    ("pdm", "install"): ("pdm.lock", "pdm"), ("pdm", "sync"): ("pdm.lock", "pdm"),
    ("pixi", "install"): ("pixi.lock", "pixi"), ("pipenv", "install"): ("Pipfile.lock", "pipfile_lock"),
    ("pipenv", "sync"): ("Pipfile.lock", "pipfile_lock"),
}  # fmt: skip
_CONTEXTS = ("docker", "dockerfiles", ".devcontainer", "containers", "container", "build", "scripts", "slurm", "jobs")


class Script:
    """A running account of one file's commands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.top = path, project_top(path)
        self.rows = text.split("\n")
        self.variables: MutableMapping[str, str | None] = {}
        self.exported: MutableMapping[str, bool] = {}
        self.environment: MutableMapping[str, Fact] = {}
        self.copied: dict[str, str] = {}  # name in the image → path in the project
        self.written: dict[str, str] = {}  # files that the script itself writes, with lines kept
        self.installs = Installs(path, self.top, self.find, self.rows)

    def copy(self) -> Script:
        """The same state, to go on from."""
        other = Script(self.path, "")
        other.rows = self.rows
        other.variables, other.exported = dict(self.variables), dict(self.exported)
        other.environment, other.copied = dict(self.environment), dict(self.copied)
        other.written = dict(self.written)
        other.installs = self.installs.copy()
        other.installs.find = other.find
        return other

    def run(self, text: str, first_line: int) -> None:
        """Every command of a text that begins in this line."""
        for command in commands(text, first_line):
            self._command(command)

    def apart(self, text: str, first_line: int) -> None:
        """The same for a shell of its own: what it sets ends with it, what it installs stays."""
        kept = self.variables, self.exported, self.environment
        self.variables, self.exported = ChainMap({}, kept[0]), ChainMap({}, kept[1])
        self.environment = ChainMap({}, kept[2])
        try:
            self.run(text, first_line)
        finally:
            self.variables, self.exported, self.environment = kept

    def set(self, name: str, value: str | None, line: int, *, certain: bool = True) -> None:
        """A variable that the job will see."""
        self.variables[name] = value if certain else None
        self.exported[name] = True
        if watched(name):
            fact = variable(name, value, f"{self.path}:{line}", certain=certain)
            self.environment[fact.key] = fact

    def find(self, name: str) -> tuple[Path, str] | None:
        """A file that a command names: one the script wrote, one copied into the image, or one of the project."""
        wanted = PurePosixPath(name)
        for known, text in self.written.items():
            if known == name or PurePosixPath(known).name == wanted.name:
                return self.path, text
        mapped = next((self.copied[known] for known in (name, wanted.name) if known in self.copied), None)
        tails = ["/".join(wanted.parts[index:]) for index in range(len(wanted.parts))]
        folders = [self.path.parent, self.top]
        if self.path.resolve().parent.name in _CONTEXTS:
            folders.append(self.path.parent / "..")
        for folder in dict.fromkeys(folders):
            for tail in filter(None, (mapped, *tails)):
                found = self._inside(folder / tail.lstrip("/"))
                if found is not None:
                    return found
        return None

    def _inside(self, path: Path) -> tuple[Path, str] | None:
        """The file, where it lies in the project."""
        try:
            real = path.resolve()
            around = self.top if self.path.resolve().parent.name not in _CONTEXTS else self.top.parent
            if not real.is_relative_to(self.top) and real.parent != around:
                return None
            if not real.is_file():
                return None
            shown = path if ".." not in path.parts else Path(re.sub(r"[^/]+/\.\./", "", str(path), count=1))
            text = read_text(path, "named file", MAX_BYTES)
            self.installs.included.add(str(real))
            return shown, text
        except (OSError, ValueError, RuntimeError, DoctorError):
            return None

    def _command(self, command: Command) -> None:
        words = [(word.line, text) for word in command.words for text in word.said(self.variables)]
        own: list[tuple[int, str, str]] = []
        while words and (match := _ASSIGNED.fullmatch(words[0][1])):
            value = (self.variables.get(match[1]) or "") + match[3] if match[2] else match[3]
            own.append((words[0][0], match[1], value))
            words = words[1:]
        if not words:
            for line, name, value in own:
                if name in self.exported:
                    self.set(name, value, line, certain=command.certain)
                else:
                    self.variables[name] = value if command.certain and UNKNOWN not in value else None
            return
        name = words[0][1].rpartition("/")[2]
        if self._shell_builtin(name, words, command):
            return
        if name in _QUIET:
            self._written(name, words, command)
            return
        if name == "env":
            for line, text in words[1:]:
                if match := _ASSIGNED.fullmatch(text):
                    own.append((line, match[1], match[3]))
        if command.after == "||" and not command.certain:
            return  # taken only if what comes before it fails
        if self._install(words, own, certain=command.certain):
            return
        if name in _STARTS:
            self._start(words)
        for line, key, value in own:
            if watched(key) and name not in _BUILDERS:
                fact = variable(key, value, f"{self.path}:{line}", certain=command.certain)
                self.environment[fact.key] = fact

    def _shell_builtin(self, name: str, words: list[Said], command: Command) -> bool:
        if name in ("export", "declare", "typeset", "readonly", "local"):
            for line, text in words[1:]:
                match = _ASSIGNED.fullmatch(text)
                if match and name != "local":
                    self.set(match[1], match[3], line, certain=command.certain)
                elif text in self.variables and name == "export":
                    self.set(text, self.variables[text] or UNKNOWN, line, certain=command.certain)
        elif name == "setenv" and len(words) > 1:
            self.set(words[1][1], words[2][1] if len(words) > 2 else "", words[1][0], certain=command.certain)
        elif name == "unset":
            for line, text in words[1:]:
                self.variables.pop(text, None)
                if f"env.{text}" in self.environment:
                    self.environment[f"env.{text}"] = variable(
                        text, None, f"{self.path}:{line}", certain=command.certain
                    )
        elif name in ("module", "ml"):
            self._modules(words)
        else:
            return False
        return True

    def _modules(self, words: list[Said]) -> None:
        for line, text in words[1:]:
            match = re.search(r"(?i)(?:^|/)(cudatoolkit|cuda|cudnn|nccl|pytorch|torch)[/-]v?(\d[\w.]*)", text)
            if match:
                self.installs.notes.append(
                    f"{self.path}:{line}: the module `{text[:60]}` may bring {match[1]} {match[2]}; "
                    "a torch from a wheel brings its own CUDA, cuDNN and NCCL"
                )

    def _written(self, name: str, words: list[Said], command: Command) -> None:
        target = command.to_file
        if target is None:
            return
        if name == "cat" and command.heredoc is not None:
            self.written[target] = "\n" * (command.heredoc_line - 1) + command.heredoc
        elif target.strip("\"'").lstrip("$").strip("{}") == "GITHUB_ENV":
            for line, text in words[1:]:
                if match := _ASSIGNED.fullmatch(text):
                    self.set(match[1], match[3], line, certain=command.certain)

    def _install(self, words: list[Said], own: list[tuple[int, str, str]], *, certain: bool) -> bool:
        texts = [text for _, text in words]
        for index, text in enumerate(texts[:12]):
            base = text.rpartition("/")[2]
            rest = texts[index + 1 :]
            if _PIP.fullmatch(base):
                verb = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
                if verb is None:
                    return False
                after = words[index + 2 + verb :]
                if rest[verb] == "install":
                    self.installs.pip(
                        after, ChainMap({key: value for _, key, value in own}, self.variables), certain=certain
                    )
                elif rest[verb] == "uninstall" and certain:
                    self.installs.remove((word for _, word in after if not word.startswith("-")), words[index][0])
                return True
            if base in _CONDA and rest:
                return self._conda(words[index + 1 :], certain=certain)
            synced = _SYNCS.get((base, next((word for word in rest if not word.startswith("-")), "")))
            if synced:
                self._sync(words[index][0], *synced, certain=certain)
                return True
        return False

    def _sync(self, line: int, name: str, kind: str, *, certain: bool) -> None:
        found = self.find(name)
        if found is None:
            self.installs.notes.append(
                f"{self.path}:{line}: `{name}` is not in the project: what it locks was not read"
            )
            return
        try:
            self.installs.sheet_of(reader_of(kind)(*found), certain=certain)
        except DoctorError as fault:
            self.installs.notes.append(f"{self.path}:{line}: {fault.message}")

    def _conda(self, words: list[Said], *, certain: bool) -> bool:
        texts = [text for _, text in words]
        if texts[0] == "env" or "--file" in texts or "-f" in texts:
            named = next((texts[at + 1] for at, text in enumerate(texts[:-1]) if text in ("-f", "--file")), "")
            found = self.find(named) if named else None
            if found is None:
                self.installs.notes.append(f"{self.path}:{words[0][0]}: `{named[:60]}` is not in the project")
                return True
            try:
                self.installs.sheet_of(read(*found), certain=certain)
            except DoctorError as fault:
                self.installs.notes.append(f"{self.path}:{words[0][0]}: {fault.message}")
            return True
        if texts[0] not in ("install", "create", "update"):
            return False
        packages: list[Said] = []
        skip = False
        for line, text in words[1:]:
            if skip or text.startswith("-"):
                skip = not skip and text in ("-c", "--channel", "-n", "--name", "-p", "--prefix", "--solver")
            elif UNKNOWN in text:
                self.installs.notes.append(f"{self.path}:{line}: `{text.replace(UNKNOWN, '…')[:60]}` was not read")
            else:
                packages.append((line, text))
        try:
            self.installs.sheet_of(specified(self.path, packages, self.rows), certain=certain)
        except DoctorError as fault:
            self.installs.notes.append(f"{fault.message}: it was not read")
        return True

    def _start(self, words: Sequence[Said]) -> None:
        """Images and variables that a launcher is told."""
        for index, (line, text) in enumerate(words):
            following = words[index + 1][1] if index + 1 < len(words) else ""
            reference = re.fullmatch(
                r"(?:--container-image=)?((?:docker://)?(?:nvcr\.io[/#]nvidia|pytorch)/pytorch:\S+)", text
            )
            if reference:
                self.base(reference[1], line)
            given = re.fullmatch(r"--(?:env|export)=(.*)", text)
            told = given[1] if given else following if text in ("-e", "--env", "--export") else ""
            for part in told.split(","):
                if match := _ASSIGNED.fullmatch(part.strip("\"'")):
                    self.set(match[1], match[3], line)

    def base(self, reference: str, line: int) -> None:
        """The image that everything else is laid upon."""
        held = image(reference, str(self.path), line, self.installs.raw(line))
        for entry in held.entries:
            self.installs.entries.setdefault(entry.name, [entry])
        for fact in held.facts:
            self.installs.facts.setdefault(fact.key, fact)
        self.installs.notes += [note for note in held.notes if note not in self.installs.notes]
