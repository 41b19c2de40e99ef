"""Run one command line on one mutated input in a forked child, and check what must hold whatever the input is.

The invariants: exit code 0 to 3; no traceback; an error message names the file or the option, and the reason; no control
character and no credential in any output; JSON, SARIF, JUnit and HTML parse; no markup and no workflow command of the
input in them; at most 5 s of processor time and 440 MiB more than at its start; nothing is written outside the named
output, and nothing of the input runs.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import html.parser
import inspect
import io
import json
import lzma
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .mutate import mutated

CORPUS = Path(__file__).parent / "corpus"
MOST_SECONDS = 5.0  # of processor time
MOST_MEMORY = 440 << 20  # bytes beyond those of the process that forks, about 60 MiB for a new one
_HANG = 60  # seconds of wall-clock time, on a busy machine
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SECRET = "hunter2SECRET"
_CHECKS = ("text", "json", "sarif", "junit", "github", "gitlab", "markdown", "html")
_FIXES = ("text", "json", "shell", "docker", "uv", "conda")
FACTS = CORPUS / "facts_yaml" / "facts.yaml"
WORKLOAD = CORPUS / "workload" / "job.yaml"


@dataclass(frozen=True)
class Case:
    """One execution: the command line, the mutated file's kind and name, and the format of the output."""

    kind: str
    name: str
    data: bytes
    arguments: tuple[str, ...]
    format: str = "text"
    stdin: bytes = b""


@dataclass
class Outcome:
    """What an execution did."""

    code: int | None
    out: str
    err: str
    seconds: float
    memory: int
    hung: bool = False
    written: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)


_SLOW = ("rule", "library")  # each execution compiles rules
DECLARED = (
    "requirements", "pyproject", "poetry_project", "pylock", "uv_lock", "poetry_lock", "pdm_lock", "pipfile",
    "pipfile_lock", "pixi_lock", "pixi_project", "conda", "conda_lock", "conda_explicit", "dockerfile", "workflow",
    "jobscript", "compose", "kubernetes",
)  # fmt: skip
_TREE = ("metadata", "torch_version", "library_file", "record")  # files of an unpacked tree of packages
_COMPARED = ("text", "json", "markdown", "html")
_TEXT_OR_JSON = ("text", "json")


def kinds() -> tuple[str, ...]:
    """Return every kind of input."""
    own = tuple(sorted(path.name for path in CORPUS.iterdir() if path.is_dir()))
    return (*own, "folder", "metadata", "torch_version", "library_file", "cache", "packed_log")


def corpus() -> dict[str, list[tuple[str, bytes]]]:
    """Return the seeds: kind -> (name, content) of each file."""
    return {
        folder.name: [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
        for folder in sorted(CORPUS.iterdir())
        if folder.is_dir()
    }


def cases(seed: int, only: Sequence[str] = ()) -> Iterator[Case]:
    """Yield cases without end, the same for the same seed."""
    random_ = random.Random(seed)
    seeds = corpus()
    everything = [data for files in seeds.values() for _, data in files]
    names = list(only) or list(kinds())
    weights = [0.2 if name in _SLOW else 1.0 for name in names]
    while True:
        kind = random_.choices(names, weights)[0]
        source = {"folder": random_.choice(DECLARED), "cache": "facts_json", "packed_log": "log"}.get(kind, kind)
        name, data = random_.choice(seeds[source]) if source in seeds else ("file", _built(random_, kind))
        if kind == "packed_log":  # what is inside is mutated as a log
            data = random_.choice((gzip.compress, bz2.compress, lzma.compress))(data * random_.choice((1, 300)))
        if kind == "mcp":
            data = random_.choice(data.splitlines())
        content = mutated(random_, data, everything)
        yield _case(random_, kind, name, content)


def _built(random_: random.Random, kind: str) -> bytes:
    if kind == "metadata":
        return b"Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\nRequires-Dist: triton==3.2.0; platform_system == 'Linux'\n\n"
    if kind == "torch_version":
        return b"__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\ngit_version = 'abc'\n"
    small = sorted((Path(__file__).parents[1] / "data" / "fatbin").glob("*.so"))
    return random_.choice((*small, Path(shutil.which("true") or sys.executable))).read_bytes()[: 1 << 17]


def _case(random_: random.Random, kind: str, name: str, data: bytes) -> Case:
    check = random_.choice(_CHECKS) if random_.random() < 0.4 else random_.choice(("text", "json"))
    fix = random_.choice(_FIXES)
    gpu = ("--gpu", random_.choice(("h100", "a100", "sm90")))
    checked = ("check", "--no-run", "--format", check)
    job = ("--workload", str(WORKLOAD)) if random_.random() < 0.5 else ()
    if kind in DECLARED:
        if kind in ("requirements", "pyproject", "poetry_project") and random_.random() < 0.25:
            way = random_.choice((("--diff",), ("--write",), ("--pin",)))
            return Case(kind, name, data, ("fix", "--requirements", name, *gpu, *way))
        if random_.random() < 0.15:
            return Case(kind, name, data, ("fix", "--requirements", name, *gpu, *job, "--format", fix), fix)
        if random_.random() < 0.1:
            return Case(kind, name, data, ("snapshot", "--requirements", name, "--output", "-"), "json")
        return Case(kind, name, data, (*checked, "--requirements", name, *gpu, *job), check)
    if kind == "folder":
        if random_.random() < 0.5:
            return Case(kind, name, data, ("init",))
        return Case(kind, name, data, (*checked, "--requirements", "."), check)
    if kind in ("facts_yaml", "facts_json"):
        if random_.random() < 0.3:
            return Case(kind, name, data, ("fix", "--facts", name, "--format", fix), fix)
        if random_.random() < 0.15:
            form = random_.choice(_COMPARED)
            return Case(kind, name, data, ("diff", "--format", form, *_either(random_, name, str(FACTS))), form)
        if random_.random() < 0.3:
            command = random_.choice(
                ("snapshot --output -", "backends --format json", "matrix", "wheels flash-attn", "fix --pin")
            )
            shown = "json" if "snapshot" in command or "json" in command else "text"
            return Case(kind, name, data, (*command.split(), "--facts", name), shown)
        return Case(kind, name, data, (*checked, "--facts", name), check)
    facts = ("--facts", str(FACTS))
    others = {
        "workload": (*checked, *facts, "--workload", name),
        "model": (*checked, *facts, "--model", name),
        "baseline": (*checked, *facts, "--baseline", name),
        "section": checked + facts,
        "constraints": ("fix", *facts, "--constraint", name, "--pin"),
        "batch": ("backends", "--batch", name),
        "rule": random_.choice(
            (("rules", "test", name), (*checked, *facts, "--rules", "rules"), ("rules", "list", "X0", "--rules", "rules"),
             ("rules", "show", "X001", "--format", random_.choice(("text", "markdown", "json")), "--rules", "rules"),
             ("explain", str(CORPUS / "log" / "train.log"), "--rules", "rules"),
             ("fix", *facts, "--rules", "rules", "--format", fix))
        ),
        "library": random_.choice(((*checked, *facts, "--rules", "rules"), ("rules", "test", "rules"))),
        **dict.fromkeys(_TREE, random_.choice(((*checked, "--site-packages", "tree"),
             ("snapshot", "--output", "-", "--site-packages", "tree"), ("wheels", "flash-attn", "--site-packages", "tree"),
             ("diff", *_either(random_, "tree", str(FACTS)))))),
        "log": ("explain", "--format", random_.choice(_TEXT_OR_JSON), *(facts if random_.random() < 0.2 else ()), name),
        "packed_log": ("explain", name), "mcp": ("mcp",),
        "node": random_.choice((("fleet", "--snapshots", name, "--format", check), ("fleet", "--snapshots", name, "--expect", name))),
        "source": ("drift", "--no-cache", "--jobs", "1", "--site-packages", "tree", "--format", random_.choice(_TEXT_OR_JSON)),
        "cache": checked + facts,
    }  # fmt: skip
    if kind == "settings":
        lines = [text for text in data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n") if text]
        words = [word for text in random_.sample(lines, min(3, len(lines))) for word in ("--set", text[:100_000])]
        return Case(kind, name, data, (*checked, *facts, *words), check)
    if kind == "options":
        lines = [text for text in data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n") if text]
        line = random_.choice(lines or [""])
        with contextlib.suppress(ValueError):
            line = shlex.join(shlex.split(line))
        words = (
            shlex.split(line)
            if line.count("'") % 2 == 0 and "\\" not in line and line.count('"') % 2 == 0
            else line.split()
        )
        return Case(kind, name, data, tuple(word[:50_000] for word in words if word not in _KERNELS))
    arguments = others[kind]
    shown = arguments[arguments.index("--format") + 1] if "--format" in arguments else "text"
    shown = "json" if "snapshot" in arguments else shown
    lines = kind == "batch" or (kind == "log" and shown == "json")
    return Case(kind, name, data, tuple(arguments), "jsonl" if lines else shown)


def _either(random_: random.Random, one: str, two: str) -> tuple[str, str]:
    return (one, two) if random_.random() < 0.5 else (two, one)


#: Options that would start programs: the fuzzer runs none.
_KERNELS = ("--run", "--apply", "--verify", "--dry-run", "stress", "--python")


def _lay_out(case: Case, folder: Path) -> Path:
    """Write the files of a case into an empty folder and return the mutated one."""
    (folder / ".git").mkdir()
    if case.kind == "rule" or case.kind == "library":
        place = folder / "rules" / "madeup" / case.name
        place.parent.mkdir(parents=True)
        place.write_bytes(case.data)
        if "test" in case.arguments:
            shutil.copy(place, folder / case.name)
        return place
    if case.kind == "source":
        return _packages(case, folder / "tree")
    if case.kind in _TREE:
        tree = folder / "tree"
        for name, package in (("torch-2.6.0.dist-info", "torch"), ("flash_attn-2.7.4.post1.dist-info", "flash-attn")):
            (tree / name).mkdir(parents=True)
            (tree / name / "METADATA").write_text(
                f"Name: {package}\nVersion: {name.split('-')[1].removesuffix('.dist-info')}\n\n"
            )
        (tree / "torch" / "lib").mkdir(parents=True)
        (tree / "nvidia" / "cudnn" / "lib").mkdir(parents=True)
        place = {
            "metadata": tree / "torch-2.6.0.dist-info" / "METADATA", "torch_version": tree / "torch" / "version.py",
            "library_file": tree / "torch" / "lib" / "libtorch_cuda.so", "record": tree / "torch-2.6.0.dist-info" / "RECORD",
        }[case.kind]  # fmt: skip
        place.write_bytes(case.data)
        if case.kind == "library_file":
            for name in ("torch/lib/libc10.so", "nvidia/cudnn/lib/libcudnn.so.9", "torch/lib/libtorch_python.so"):
                (tree / name).write_bytes(case.data)
        return place
    if case.kind == "options":
        (folder / "facts.yaml").write_bytes(FACTS.read_bytes())
        return folder / "facts.yaml"
    place = folder / case.name
    place.write_bytes(case.data)
    return place


def _packages(case: Case, tree: Path) -> Path:
    """Write two packages of the stack; the mutated source calls the other, or is what the other calls."""
    for name, version in (("peft", "0.17.0"), ("flash_attn", "2.7.4")):
        (tree / name).mkdir(parents=True)
        (tree / name / "__init__.py").write_text(f"__version__ = '{version}'\nclass Kernel: pass\n")
        (tree / f"{name}-{version}.dist-info").mkdir()
        (tree / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n\n")
    seed = (CORPUS / "source" / "use.txt").read_bytes()
    (tree / "flash_attn" / "interface.py").write_bytes(case.data)
    (tree / "peft" / "seed.py").write_bytes(seed)
    (tree / "peft" / "use.py").write_bytes(case.data)
    return tree / "peft" / "use.py"


def execute(case: Case, debug: bool = False) -> Outcome:
    """Run a case in a forked child of its own."""
    return execute_all([case], debug)[0]


def execute_all(several: Sequence[Case], debug: bool = False) -> list[Outcome]:
    """Run cases one after the other in a forked child; behind one that ends the child, the rest run in another."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(several):
        with tempfile.TemporaryDirectory(prefix="attn-doctor-fuzz-") as name:
            rest = list(several[len(outcomes) :])
            folders = [Path(name) / str(number) for number in range(len(rest))]
            before = []
            for case, folder in zip(rest, folders, strict=True):
                (folder / "project").mkdir(parents=True)
                _lay_out(case, folder / "project")
                before.append(_state(folder))
            status, hung = _forked(rest, folders, debug)
            for case, folder, files in zip(rest, folders, before, strict=True):
                outcome = _outcome(folder, files, status, hung)
                if outcome is None:
                    break
                outcome.faults = list(faults_of(case, outcome))
                if outcome.faults and len(several) > 1:  # what earlier cases left behind is no fault of this one
                    outcome = execute(case)
                outcomes.append(outcome)
    return outcomes


_RESULT = "result.json"


def _outcome(folder: Path, before: dict[str, tuple[int, int]], status: int, hung: bool) -> Outcome | None:
    """Return what a case did; None if it was not reached."""
    if not (folder / "out").exists():
        return None
    streams = []
    for name in ("out", "err"):
        with (folder / name).open("rb") as stream:
            streams.append(stream.read(64 << 20).decode("utf-8", "replace"))
    after = _state(folder)
    written = tuple(sorted(path for path, state in after.items() if before.get(path) != state and path not in _OURS))
    try:
        done = json.loads((folder / _RESULT).read_text())
    except (OSError, ValueError):  # it ended the child
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        return Outcome(code if code else 98, *streams, 0.0, 0, hung, written)
    return Outcome(done["code"], *streams, done["seconds"], done["memory"], False, written)


_OURS = ("out", "err", _RESULT)


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for place, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(place, name))
            found[os.path.relpath(os.path.join(place, name), folder)] = (status.st_size, status.st_mtime_ns)
    return found


@functools.cache
def prepared() -> Callable[[Sequence[str]], int]:
    """Import what commands import, read the rulebook once, and return the function that runs a command line."""
    import doctor.cli.main
    from doctor.diagnosis import single
    from doctor.rulebook import rulebook

    cached = functools.lru_cache(maxsize=4)(rulebook.load_rulebook)
    cached(())

    def load(extra: Sequence[str] = ()) -> object:
        return cached(()) if not tuple(extra) else original(extra)

    original = rulebook.load_rulebook
    for module in list(sys.modules.values()):
        if module.__name__.startswith("doctor") and getattr(module, "load_rulebook", None) is original:
            module.load_rulebook = load  # type: ignore[attr-defined]
    assert single
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name) if hasattr(contextlib, "chdir") else _at(name):
        for command in (
            *(f"check --no-run --format {form} --facts {FACTS}" for form in _CHECKS),
            *(f"fix --format {form} --facts {FACTS}" for form in _FIXES),
            f"backends --facts {FACTS}", f"wheels flash-attn --facts {FACTS}", f"snapshot --facts {FACTS} -o -",
            f"matrix --facts {FACTS}", f"check --no-run --requirements {CORPUS / 'requirements'}", "rules list X",
            f"fix --diff --requirements {CORPUS / 'requirements' / 'requirements.txt'} --gpu h100",
            f"explain {CORPUS / 'log' / 'train.log'}", f"fleet --snapshots {CORPUS / 'node' / 'nodes.jsonl'}",
            f"diff {FACTS} {FACTS}", f"diff --format html {FACTS} {FACTS}",
        ):  # fmt: skip
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                doctor.cli.main.run(command.split())
    for module in list(sys.modules.values()):  # those that the commands have imported meanwhile
        if module.__name__.startswith("doctor") and getattr(module, "load_rulebook", None) is original:
            module.load_rulebook = load  # type: ignore[attr-defined]
    return doctor.cli.main.run


@contextlib.contextmanager
def _at(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _forked(several: Sequence[Case], folders: Sequence[Path], debug: bool) -> tuple[int, bool]:
    run = prepared()
    pid = os.fork()
    if pid == 0:
        _child(run, several, folders, debug)
    hung, last, reached = False, time.monotonic(), -1
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status, hung
        now = sum((folder / _RESULT).exists() for folder in folders[reached + 1 : reached + 3]) + reached
        if now > reached:
            reached, last = now, time.monotonic()
        if not hung and time.monotonic() - last > _HANG:
            hung = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _child(run: Callable[[Sequence[str]], int], several: Sequence[Case], folders: Sequence[Path], debug: bool) -> None:
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ.update({"GITHUB_ACTIONS": "true", "NO_COLOR": "1"})
        cache = os.environ.get("XDG_CACHE_HOME")
        if debug:
            os.environ["ATTN_DOCTOR_DEBUG"] = "1"
        null = os.open(os.devnull, os.O_RDONLY)
        held = resident()
        for case, folder in zip(several, folders, strict=True):
            os.environ["HOME"] = str(folder / "home")
            if case.kind == "cache":
                os.environ["XDG_CACHE_HOME"] = str(folder / "project")
            elif cache is not None:
                os.environ["XDG_CACHE_HOME"] = cache
            _one(run, case, folder, null, held)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def resident() -> int:
    """Return the bytes that this process holds now: a forked child starts with those of its parent."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _one(run: Callable[[Sequence[str]], int], case: Case, folder: Path, null: int, held: int) -> None:
    os.chdir(folder / "project")
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 30, resource.RLIM_INFINITY))
    os.dup2(null, 0)
    for target, name in ((1, "out"), (2, "err")):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
    began = time.process_time()
    code = _tools(run, case) if case.kind == "mcp" else run(list(case.arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    memory = max(0, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - held)
    done = {"code": code, "seconds": time.process_time() - began, "memory": memory}
    (folder / _RESULT).write_text(json.dumps(done))


#: What the options of a tool begin with; whatever else an agent passes must come behind `--`.
_TOOL_OPTIONS = tuple(f"--{name}=" for name in (
    "facts", "workload", "model", "python", "site-packages", "requirements", "gpu", "set", "format", "write",
))  # fmt: skip


def _tools(run: Callable[[Sequence[str]], int], case: Case) -> int:
    """Call the tool for agents that a file names, with the program in this process."""
    from doctor.cli import mcp

    def run_doctor(arguments: Sequence[str], text: str = "") -> str:
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        assert all(item.startswith(_TOOL_OPTIONS) or item == "--no-run" for item in options if item.startswith("-")), (
            options
        )
        if not any(item.startswith("--python=") for item in arguments):
            run(list(arguments))
        return ""

    mcp.run_doctor = run_doctor
    tools = {tool.__name__: tool for tool in mcp.TOOLS}
    try:
        call = json.loads(case.data)
        tool, given = tools[call["tool"]], call["arguments"]
        inspect.signature(tool).bind(**given)
    except (ValueError, TypeError, KeyError, RecursionError):  # the SDK refuses it
        return 0
    with contextlib.suppress(mcp.ToolError):
        tool(**given)
    return 0


def faults_of(case: Case, outcome: Outcome) -> Iterator[str]:
    """Yield each invariant that does not hold."""
    if outcome.hung:
        yield f"no end within {_HANG} s"
        return
    if outcome.code not in (0, 1, 2, 3):
        yield f"exit code {outcome.code}"
    if "Traceback (most recent call last)" in outcome.err + outcome.out:
        yield "a traceback"
    if "this is a fault of attn-doctor" in outcome.err:
        yield f"a fault: {outcome.err.splitlines()[0][:200]}"
    if outcome.seconds > MOST_SECONDS:
        yield f"{outcome.seconds:.1f} s of processor time"
    if outcome.memory > MOST_MEMORY:
        yield f"{outcome.memory >> 20} MiB"
    yield from _of_message(case, outcome)
    yield from _of_text(case, outcome)
    if outcome.code in (0, 1):
        yield from _of_format(case, outcome.out)
    allowed = {"project/out.sarif", f"project/{case.name}", f"project/{case.name}.bak", "project/pyproject.toml"}
    changes = "--write" in case.arguments or "init" in case.arguments or case.kind in ("options", "cache")
    for path in outcome.written:
        if case.kind in ("options", "cache") and "PWNED" not in path:
            continue  # a mutated `--output` names any file of the folder; a cache is written where it is said to be
        if "PWNED" in path or not changes or path not in allowed:
            yield f"wrote {path}"


def _of_message(case: Case, outcome: Outcome) -> Iterator[str]:
    if outcome.code != 2 or case.kind in ("options", "settings", "batch"):
        return
    first = outcome.err.partition("\n")[0]
    if not first.startswith("error: ") or len(first) < 15:
        yield f"exit code 2 without a message: {first[:100]!r}"
    elif case.kind in DECLARED and case.name.partition(".")[0] not in outcome.err:
        yield f"the message names no file: {first[:200]}"


def _of_text(case: Case, outcome: Outcome) -> Iterator[str]:
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        if case.kind == "options":  # the help has colors of its own
            text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        if found := _CONTROL.search(text):
            yield f"a control character in {name}: {text[max(0, found.start() - 40) : found.end() + 20]!r}"
        if _SECRET in text and re.search(rf"://[^/\s]*{_SECRET}|(?<![A-Za-z0-9_])hf_{_SECRET}", text):
            yield f"a credential in {name}"
        if case.format != "github" and (found := re.search(r"(?m)^\s*::[a-z-]+[ :].*::|##\[", text)):
            yield f"a workflow command in {name}: {found[0][:80]!r}"
        if case.format == "github":
            for line in text.splitlines():
                if line.lstrip().startswith("::") and not re.match(r"::(error|warning|notice) [^:]*::", line):
                    yield f"a workflow command in {name}: {line[:80]!r}"


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [
            name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "").lower()
        ]
        if tag in ("img", "iframe", "object"):
            self.handlers.append(tag)


def _of_format(case: Case, text: str) -> Iterator[str]:
    if not text.strip():
        return
    try:
        if case.format in ("json", "sarif", "gitlab"):
            json.loads(text)
        elif case.format == "jsonl":
            for line in text.splitlines():
                json.loads(line)
        elif case.format == "junit":
            ElementTree.fromstring(text)
        elif case.format == "html":
            page = _Page()
            page.feed(text)
            if page.scripts > 1 or page.handlers:
                yield f"markup of the input in the page: {page.scripts} scripts, {page.handlers[:3]}"
        elif case.format == "markdown":
            if found := re.search(r"(?i)<script|<img|\]\(javascript:", re.sub(r"(?s)```.*?```|`[^`]*`", "", text)):
                yield f"markup of the input: {found[0]!r}"
        elif case.format == "shell":
            shlex.split(text, comments=True)
            for line in text.splitlines():
                if not line.startswith("#") and re.search(r"(?<![\"'])(\$\(|`|; *touch)", line) and "'" not in line:
                    yield f"a command of the input in the script: {line[:100]!r}"
    except (ValueError, ElementTree.ParseError) as problem:
        yield f"invalid {case.format}: {str(problem)[:100]}"
