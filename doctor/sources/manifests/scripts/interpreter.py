"""Follow the commands of a script: the packages and variables they leave, and hints at modules, images and GPUs."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from pathlib import Path, PurePosixPath

from doctor.errors import DoctorError
from doctor.model import Fact
from doctor.sources.manifests.base import MAX_BYTES, ManifestKind
from doctor.sources.manifests.formats.conda import read, specified
from doctor.sources.manifests.formats.requirements import project_top
from doctor.sources.manifests.readers import reader_of
from doctor.sources.variables import UNKNOWN, is_read, variable
from doctor.sources.watch import Watch
from doctor.util.reading import read_text
from doctor.util.redact import shortened

from .base_images import image
from .compilers import of_command
from .installs import Installs, LineWord
from .jobs import STARTS_JOB, job_facts
from .serving import add_job, default_command
from .shell import LONGEST_VALUE, Command, commands
from .training import listed_facts

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PIP = re.compile(r"pip(?:3(?:\.[0-9]+)?)?")
_CONDA = ("conda", "mamba", "micromamba")
_QUIET = ("echo", "printf", "#", "cat", "grep", "sed", "true", ":", "which", "command", "type")
_BUILDERS = ("pip", "pip3", "uv", *_CONDA, "make", "cmake", "python setup.py", "apt-get", "apt")
_STARTS = ("srun", "docker", "podman", "singularity", "apptainer", "enroot", "torchrun", "sbatch", "mpirun")
_IMAGE = re.compile(
    r"(?:--container-image=)?((?:docker://)?(?:(?:nvcr\.io[/#]nvidia|pytorch)/pytorch|vllm/vllm-openai|lmsysorg/sglang):\S+)"
)
_MODULE = re.compile(r"(?i)(?:^|/)(cudatoolkit|cuda|cudnn|nccl|pytorch|torch)[/-]v?([0-9][\w.]*)")
#: A command that installs what a lock file of the project lists -> that file and its format.
_SYNCS = {
    ("uv", "sync"): ("uv.lock", ManifestKind.UV), ("poetry", "install"): ("poetry.lock", ManifestKind.POETRY),
    ("pdm", "install"): ("pdm.lock", ManifestKind.PDM), ("pdm", "sync"): ("pdm.lock", ManifestKind.PDM),
    ("pixi", "install"): ("pixi.lock", ManifestKind.PIXI),
    ("pipenv", "install"): ("Pipfile.lock", ManifestKind.PIPFILE_LOCK),
    ("pipenv", "sync"): ("Pipfile.lock", ManifestKind.PIPFILE_LOCK),
}  # fmt: skip
_CONTEXTS = ("docker", "dockerfiles", ".devcontainer", "containers", "container", "build", "scripts", "slurm", "jobs")
_SHELLS = ("bash", "sh")
_SCRIPT_FILE = re.compile(r"[^=]+\.(?:sh|bash)")
MOST_SOURCED = 20  # files


def _inner(words: Sequence[LineWord]) -> str | None:
    """Return the text of `bash -c TEXT`, where it may start a job."""
    if len(words) < 2 or re.fullmatch(r"-\w*c", words[0][1]) is None or STARTS_JOB.search(words[1][1]) is None:
        return None
    return words[1][1]


def _is_known(value: str) -> bool:
    """Return whether a value is known, or lists options of which some are."""
    return UNKNOWN not in value or re.search(r"(?:^|\s)--\w", value) is not None


class Script:
    """The state after the commands of one file that were followed so far."""

    def __init__(self, path: Path, text: str, watch: Watch) -> None:
        self.path, self.top, self.watch = path, project_top(path), watch
        self.rows = text.split("\n")
        self.variables: MutableMapping[str, str | None] = {}
        self.exported: MutableMapping[str, bool] = {}
        self.environment: MutableMapping[str, Fact] = {}
        self.served: dict[str, Fact] = {}  # what the command of a server or training states of its workload
        self.sourced: list[str] = []  # files that the script reads into its own shell
        self.copied: dict[str, str] = {}  # name in the image -> path in the project
        self.written: dict[
            str, str
        ] = {}  # name of a file that the script writes -> its text, at the line numbers of the script
        self.installs = Installs(path, self.top, self.find, self.rows, watch)

    def copy(self) -> Script:
        """Return a copy that later commands can change."""
        other = Script(self.path, "", self.watch)
        other.rows = self.rows
        other.variables, other.exported = dict(self.variables), dict(self.exported)
        other.environment, other.copied = dict(self.environment), dict(self.copied)
        other.written, other.served = dict(self.written), dict(self.served)
        other.installs = self.installs.copy()
        other.installs.find = other.find
        return other

    def run(self, text: str, first_line: int) -> None:
        """Follow every command of a text that begins in this line."""
        for command in commands(text, first_line):
            self._command(command)

    def run_in_subshell(self, text: str, first_line: int) -> None:
        """Follow commands in a shell of their own: variables end with it, installed packages stay."""
        outer = self.variables, self.exported, self.environment
        self.variables, self.exported = ChainMap({}, outer[0]), ChainMap({}, outer[1])
        self.environment = ChainMap({}, outer[2])
        try:
            self.run(text, first_line)
        finally:
            self.variables, self.exported, self.environment = outer

    def set(self, name: str, value: str | None, line: int, *, certain: bool = True) -> None:
        """Set a variable that the job will see."""
        self.variables[name] = value if certain else None
        self.exported[name] = True
        if is_read(name, self.watch):
            fact = variable(name, value, f"{self.path}:{line}", certain=certain)
            self.environment[fact.key] = fact

    def find(self, name: str) -> tuple[Path, str] | None:
        """Return (path, text) of a file that a command names: written by the script, copied, or the project's."""
        wanted = PurePosixPath(name)
        for known, text in self.written.items():
            if known == name or PurePosixPath(known).name == wanted.name:
                return self.path, text
        copied = next((self.copied[known] for known in (name, wanted.name) if known in self.copied), None)
        tails = ["/".join(wanted.parts[index:]) for index in range(len(wanted.parts))]
        folders = [self.path.parent, self.top]
        if self.path.resolve().parent.name in _CONTEXTS:
            folders.append(self.path.parent / "..")
        for folder in dict.fromkeys(folders):
            for tail in filter(None, (copied, *tails)):
                found = self._inside(folder / tail.lstrip("/"))
                if found is not None:
                    return found
        return None

    def _inside(self, path: Path) -> tuple[Path, str] | None:
        """Return (path, text) of a file inside the project, else None."""
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
        first = next((at for at, word in enumerate(command.words) if not word.assigns), len(command.words))
        words = [
            (word.line, text)
            for at, word in enumerate(command.words)
            for text in word.expanded(self.variables, leads=at < first)
        ]
        if command.array is not None:
            self._array(command.array, " ".join(text for _, text in words), certain=command.certain)
            return
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
                    self.variables[name] = value if command.certain and _is_known(value) else None
            return
        name = words[0][1].rpartition("/")[2]
        if self._shell_builtin(name, words, command):
            return
        if name in _QUIET:
            self._write_file(name, words, command)
            return
        if name == "env":
            for line, text in words[1:]:
                if match := _ASSIGNED.fullmatch(text):
                    own.append((line, match[1], match[3]))
        if command.after == "||" and not command.certain:
            return  # runs only if the command before it fails
        place = f"{self.path}:{words[0][0]}"
        of_command((text for _, text in words), self.installs.facts, place, certain=command.certain)
        if self._install(words, own, certain=command.certain):
            return
        if name in _STARTS:
            self._start(words)
        if self.run_file(words, certain=command.certain):
            return
        self.serve(words, certain=command.certain)
        for line, key, value in own:
            if is_read(key, self.watch) and name not in _BUILDERS:
                fact = variable(key, value, f"{self.path}:{line}", certain=command.certain)
                self.environment[fact.key] = fact

    def _array(self, assigned: str, items: str, *, certain: bool) -> None:
        """Set an array, of which the items are joined: an item with blanks becomes several words."""
        key = f"{assigned.rstrip('+=')}[@]"
        if assigned.endswith("+="):
            before = self.variables.get(key, "")
            certain, items = certain and before is not None, f"{before} {items}".strip()
        self.variables[key] = items if certain and len(items) <= LONGEST_VALUE else None

    def _shell_builtin(self, name: str, words: list[LineWord], command: Command) -> bool:
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
        elif name == "read" and command.heredoc is not None:
            text = re.sub(r"\\\n", " ", command.heredoc).strip()
            self.variables[words[-1][1]] = text if command.certain and len(text) <= LONGEST_VALUE else None
        elif name in ("module", "ml"):
            self._modules(words)
        elif name in ("source", ".") and len(words) > 1:
            self._source(words[1][1], certain=command.certain)
        else:
            return False
        return True

    def _source(self, name: str, *, certain: bool) -> None:
        """Take the variables and commands of a project's file that a script reads into its own shell."""
        found = self.find(name)
        if not certain or found is None or len(self.sourced) >= MOST_SOURCED or str(found[0]) in self.sourced:
            return
        self.sourced.append(str(found[0]))
        inner = Script(*found, self.watch)
        inner.variables, inner.exported, inner.environment = self.variables, self.exported, self.environment
        inner.served, inner.sourced, inner.top = self.served, self.sourced, self.top
        inner.run(found[1], 1)

    def run_file(self, words: Sequence[LineWord], *, certain: bool) -> bool:
        """Take the job of a project's script that a command runs in a shell of its own: `bash train.sh 8`."""
        texts = [text for _, text in words]
        shell = next((at for at, text in enumerate(texts) if text.rpartition("/")[2] in _SHELLS), None)
        at = 0 if shell is None else shell + 1
        while shell is not None and at < len(texts) and re.fullmatch(r"-[a-bd-zA-Z]+", texts[at]):
            at += 1  # `bash -x`; `-c` takes a text
        found = self.find(texts[at]) if at < len(texts) and _SCRIPT_FILE.fullmatch(texts[at]) else None
        if found is None or len(self.sourced) >= MOST_SOURCED or str(found[0]) in self.sourced:
            return False
        self.sourced.append(str(found[0]))
        inner = Script(*found, self.watch)
        given = {str(number): text for number, text in enumerate(texts[at + 1 :], 1)}
        inner.variables, inner.exported = ChainMap(dict(given), self.variables), ChainMap({}, self.exported)
        inner.environment, inner.sourced, inner.top = self.environment, self.sourced, self.top
        inner.run(found[1], 1)
        inner.take_listed_options()
        add_job(self.served, inner.served.values(), certain=certain)
        return True

    def _modules(self, words: list[LineWord]) -> None:
        for line, text in words[1:]:
            if match := _MODULE.search(text):
                self.installs.notes.append(
                    f"{self.path}:{line}: the module `{shortened(text, 60)}` may bring {match[1]} {match[2]}; "
                    "a torch from a wheel brings its own CUDA, cuDNN and NCCL"
                )

    def _write_file(self, name: str, words: list[LineWord], command: Command) -> None:
        target = command.to_file
        if target is None:
            return
        if name == "cat" and command.heredoc is not None:
            self.written[target] = "\n" * (command.heredoc_line - 1) + command.heredoc
        elif target.strip("\"'").lstrip("$").strip("{}") == "GITHUB_ENV":
            for line, text in words[1:]:
                if match := _ASSIGNED.fullmatch(text):
                    self.set(match[1], match[3], line, certain=command.certain)

    def _install(self, words: list[LineWord], own: list[tuple[int, str, str]], *, certain: bool) -> bool:
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
                    self.installs.pip_install(
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

    def _sync(self, line: int, name: str, kind: ManifestKind, *, certain: bool) -> None:
        found = self.find(name)
        if found is None:
            self.installs.notes.append(
                f"{self.path}:{line}: `{name}` is not in the project, so its locked packages are unknown"
            )
            return
        try:
            self.installs.add_manifest(reader_of(kind)(*found, self.watch), certain=certain)
        except DoctorError as problem:
            self.installs.notes.append(f"{self.path}:{line}: {problem.message}")

    def _conda(self, words: list[LineWord], *, certain: bool) -> bool:
        texts = [text for _, text in words]
        if texts[0] == "env" or "--file" in texts or "-f" in texts:
            named = next((texts[at + 1] for at, text in enumerate(texts[:-1]) if text in ("-f", "--file")), "")
            found = self.find(named) if named else None
            if found is None:
                self.installs.notes.append(f"{self.path}:{words[0][0]}: `{shortened(named, 60)}` is not in the project")
                return True
            try:
                self.installs.add_manifest(read(*found, self.watch), certain=certain)
            except DoctorError as problem:
                self.installs.notes.append(f"{self.path}:{words[0][0]}: {problem.message}")
            return True
        if texts[0] not in ("install", "create", "update"):
            return False
        packages: list[LineWord] = []
        skip = False
        for line, text in words[1:]:
            if skip or text.startswith("-"):
                skip = not skip and text in ("-c", "--channel", "-n", "--name", "-p", "--prefix", "--solver")
            elif UNKNOWN in text:
                self.installs.notes.append(
                    f"{self.path}:{line}: `{shortened(text.replace(UNKNOWN, '…'), 60)}` was not read "
                    "(its value is unknown)"
                )
            else:
                packages.append((line, text))
        try:
            self.installs.add_manifest(specified(self.path, packages, self.rows), certain=certain)
        except DoctorError as problem:
            self.installs.notes.append(f"{problem.message}: skipped")
        return True

    def serve(self, words: Sequence[LineWord], *, certain: bool = True) -> None:
        """Take the options of the server or training that a command starts; an image's own command counts too."""
        for at, (line, text) in enumerate(words):
            if default := default_command(text):
                words = [*((line, word) for word in default), *words[at + 1 :]]
                break
            if text.rpartition("/")[2] in _SHELLS and (inner := _inner(words[at + 1 :])) is not None:
                for command in commands(inner, line):
                    own = [(line, word) for each in command.words for word in each.expanded(self.variables)]
                    self.serve(own, certain=certain and command.certain)
                return
        add_job(self.served, job_facts(words, self.path, self.find, self.watch), certain=certain)

    def take_listed_options(self) -> None:
        """Take the options that variables list, where the script itself starts no job: others read it for them."""
        words = [
            (self._line_of(name.removesuffix("[@]")), word)
            for name, value in self.variables.items()
            if value is not None and value.lstrip().startswith("--")
            for word in value.split()
        ]
        if words and not self.served:
            add_job(self.served, listed_facts(words, self.path, self.find, self.watch.trainers))

    def _line_of(self, name: str) -> int:
        assigned = re.compile(rf"\s*(?:export\s+)?{re.escape(name)}\+?=")
        return next((number for number, row in enumerate(self.rows, 1) if assigned.match(row)), 1)

    def _start(self, words: Sequence[LineWord]) -> None:
        """Take the images and variables from the arguments of a launcher."""
        for index, (line, text) in enumerate(words):
            following = words[index + 1][1] if index + 1 < len(words) else ""
            if reference := _IMAGE.fullmatch(text):
                self.base(reference[1], line)
            given = re.fullmatch(r"--(?:env|export)=(.*)", text)
            variables = given[1] if given else following if text in ("-e", "--env", "--export") else ""
            for part in variables.split(","):
                if match := _ASSIGNED.fullmatch(part.strip("\"'")):
                    self.set(match[1], match[3], line)

    def base(self, reference: str, line: int) -> None:
        """Start from the content of an image."""
        held = image(reference, self.watch.images, str(self.path), line, self.installs.raw(line))
        for entry in held.entries:
            self.installs.entries.setdefault(entry.name, [entry])
        for fact in held.facts:
            self.installs.facts.setdefault(fact.key, fact)
        self.installs.notes += [note for note in held.notes if note not in self.installs.notes]
        self.installs.notes_of_base = len(self.installs.notes)
