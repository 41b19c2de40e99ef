"""`attn-doctor mcp`: a server of the Model Context Protocol for coding agents, on the official SDK.

Every tool runs this program in a process of its own with fixed options: no argument becomes an option, no output mixes
with the protocol, and a time limit holds. Nothing is written unless the server was started with --allow-apply, and no
interpreter of a target is started unless it was started with --allow-python.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from doctor._version import __version__
from doctor.errors import DoctorError
from doctor.runner.process_group import NO_INTERPRETER
from doctor.util.own_process import own_command
from doctor.util.redact import shortened

from .mcp_answer import page_of, short_answer

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

#: A path, or the content itself.
Content = str | dict[str, Any] | None
Files = str | list[str] | None
Settings = dict[str, Any] | None

LIMIT = 180.0  # seconds of one tool
LARGEST = 2 << 20  # characters of facts, workload or log
MOST_SETTINGS = 200
_RULE = re.compile(r"[A-Z][A-Z0-9_]{1,30}")
_SETTING = re.compile(r"[A-Za-z0-9_.-]{1,120}")

INSTRUCTIONS = (
    "Checks whether the attention of a training or inference job works in an environment (torch, CUDA, cuDNN, "
    "flash-attn, TransformerEngine, transformers, vLLM, SGLang). Name one environment: `facts` (an object or a file), "
    "`requirements` (files), `python` or `site_packages`; and a `workload`. `explain` reads a log. "
    "Answers are short: `detail` and `page` give the rest."
)
ALLOW_PYTHON = "start the server with `--allow-python`, or name `facts`, `requirements` or `site_packages`"


class ToolError(Exception):
    """What a tool could not do, in one line for the agent."""


class Permissions:
    """What the user allowed when the server was started; nothing else changes it."""

    python = False  # start an interpreter that a tool names, or that is active where the server runs


def run_doctor(arguments: Sequence[str], text: str = "") -> str:
    """Run this program with a text on stdin and return its output; ToolError for bad input and where no diagnosis
    can be made.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTN_DOCTOR_")}
    if not Permissions.python:
        environment[NO_INTERPRETER] = ALLOW_PYTHON
    try:
        done = subprocess.run(
            own_command(*arguments), input=text, capture_output=True, encoding="utf-8", errors="replace",
            timeout=LIMIT, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ToolError(f"no answer within {LIMIT:g} s") from None
    except ValueError as problem:  # a null byte in an argument
        raise ToolError(str(problem)) from None
    if done.returncode not in (0, 1):
        raise ToolError(shortened(" ".join(done.stderr.split()), 1000) or f"ended with status {done.returncode}")
    return done.stdout


class Target:
    """The environment and workload that a tool names, as options of the command line; files are temporary."""

    def __init__(self, folder: Path, arguments: Mapping[str, Any]) -> None:
        self._folder = folder
        self.options: list[str] = []
        for name in ("facts", "workload"):
            if arguments.get(name) is not None:
                self.options.append(f"--{name}={self._file(name, arguments[name])}")
        for name in ("model", "python", "site_packages"):
            if arguments.get(name) is not None:
                self.options.append(f"--{name.replace('_', '-')}={_path(name, arguments[name])}")
        for item in _list("requirements", arguments.get("requirements")):
            self.options.append(f"--requirements={_path('requirements', item)}")
        if arguments.get("gpu") is not None:
            self.options.append(f"--gpu={_text('gpu', arguments['gpu'])}")
        self.options += [f"--set={key}={value}" for key, value in _settings(arguments.get("settings"))]

    def _file(self, name: str, given: Any) -> str:
        """Return the path of a file, or of a temporary one with the given object."""
        if isinstance(given, str):
            return _path(name, given)
        if not isinstance(given, dict):
            raise ToolError(f"`{name}` needs a path or an object")
        text = json.dumps(given)
        if len(text) > LARGEST:
            raise ToolError(f"`{name}` is larger than {LARGEST >> 20} MiB")
        path = self._folder / f"{name}.json"
        path.write_text(text, "utf-8")
        return str(path)


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip() or "\0" in given or len(given) > 4096:
        raise ToolError(f"`{name}` needs a text")
    return given


def _path(name: str, given: Any) -> str:
    try:
        path = Path(_text(name, given)).expanduser()
        folder, special = path.is_dir(), path.exists() and not (path.is_file() or path.is_dir())
    except (OSError, ValueError, RuntimeError):  # too long, or the home of a user that does not exist
        raise ToolError(f"`{name}` is not a path") from None
    if name == "python" and not folder and not re.fullmatch(r"(python|pypy)[\d.]*", path.name):
        raise ToolError("`python` needs the path of a Python interpreter or of an environment")
    if name in ("facts", "workload", "model") and special:
        raise ToolError(f"`{name}` is not a file")
    return str(path)


def _list(name: str, given: Any) -> list[str]:
    items = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(items, list) or len(items) > MOST_SETTINGS:
        raise ToolError(f"`{name}` needs a list of paths")
    return items


def _settings(given: Any) -> list[tuple[str, str]]:
    if given is None:
        return []
    if not isinstance(given, dict) or len(given) > MOST_SETTINGS:
        raise ToolError("`settings` needs an object of fact keys and values")
    found = []
    for key, value in given.items():
        if not _SETTING.fullmatch(str(key)):
            raise ToolError("a key of `settings` is not a fact key")
        text = json.dumps(value) if value is None or isinstance(value, (list, bool)) else str(value)
        found.append((str(key), _text("settings", text)))
    return found


def _run(command: Sequence[str], arguments: Mapping[str, Any], after: Sequence[str] = (), text: str = "") -> str:
    """Run a command on the target that the arguments name, and return as much of its answer as they request."""
    with tempfile.TemporaryDirectory(prefix="attn-doctor-mcp-") as folder:
        target = Target(Path(folder), arguments)
        answer = run_doctor([*command, *target.options, *after], text)
    page = arguments.get("page")
    short = not arguments.get("detail") and page is None and answer.startswith("{")
    return short_answer(answer) if short else _page(answer, page)


def _page(answer: str, page: Any) -> str:
    try:
        return page_of(answer, 1 if page is None else int(page))
    except ValueError as problem:
        raise ToolError(str(problem)) from None


def environment_tool(name: str, summary: str, *command: str) -> Callable[..., str]:
    """Return a tool that runs a command on one environment and one workload."""

    def tool(
        facts: Content = None,
        workload: Content = None,
        model: str | None = None,
        requirements: Files = None,
        python: str | None = None,
        site_packages: str | None = None,
        gpu: str | None = None,
        settings: Settings = None,
        detail: bool = False,
        page: int | None = None,
    ) -> str:
        return _run(command, locals())

    tool.__name__, tool.__doc__ = name, summary
    return tool


def diff(
    a: str,
    b: str,
    workload: Content = None,
    model: str | None = None,
    gpu: str | None = None,
    settings: Settings = None,
    detail: bool = False,
    page: int | None = None,
) -> str:
    """Compare two environments (snapshots, interpreters, lock files): what differs, what changes and why, as JSON."""
    sides = [_text("a", a), _text("b", b)]
    given = {
        "workload": workload, "model": model, "gpu": gpu, "settings": settings, "detail": detail, "page": page,
    }  # fmt: skip
    return _run(["diff", "--format=json"], given, ["--", *sides])


def explain(
    text: str | None = None,
    path: str | None = None,
    facts: Content = None,
    requirements: Files = None,
    detail: bool = False,
    page: int | None = None,
) -> str:
    """Name the known cause behind the error in a log (`text`, or `path` of a file), with its fix, as JSON."""
    if (text is None) == (path is None):
        raise ToolError("`explain` needs `text` or `path`, one of them")
    if text is not None and (not isinstance(text, str) or len(text) > LARGEST):
        raise ToolError(f"`text` is longer than {LARGEST >> 20} MiB: give a `path`")
    name = "-" if path is None else _log(path)
    given = {"facts": facts, "requirements": requirements, "detail": detail, "page": page}
    return _run(["explain", "--format=json"], given, ["--", name], text or "")


def _log(path: str) -> str:
    name = _path("path", path)
    if not Path(name).is_file():
        raise ToolError(f"`path` is not a file: `{name}`")
    return str(Path(name).absolute())  # `-` would be stdin


def explain_rule(rule: str, page: int | None = None) -> str:
    """Show one rule with its reason, conditions, fixes and sources; `rule` is an id such as TE103."""
    if not _RULE.fullmatch(str(rule)):
        raise ToolError("`rule` needs a rule id such as TE103")
    return _page(run_doctor(["rules", "show", "--", rule]), page)


def apply_fix(
    requirements: str,
    workload: Content = None,
    model: str | None = None,
    gpu: str | None = None,
    settings: Settings = None,
) -> str:
    """Edit a requirements.txt or pyproject.toml so that the findings are cleared; the old file stays as FILE.bak."""
    return _run(["fix", f"--write={_path('requirements', requirements)}"], locals())


TOOLS = (
    environment_tool(
        "check", "Check whether the attention of a job works in an environment; findings, backends and fixes as JSON.",
        "check", "--no-run", "--format=json",
    ),
    environment_tool(
        "backends", "Predict which attention backend each library selects, and why not the others, as JSON.",
        "backends", "--format=json",
    ),
    environment_tool(
        "fix", "Find the smallest change that clears the findings, as JSON; nothing is installed or written.",
        "fix", "--format=json",
    ),
    diff,
    explain,
    explain_rule,
)  # fmt: skip


def build_server(allow_apply: bool) -> Any:
    """Return the server with its tools; DoctorError where the SDK is not installed."""
    hint = "pip install 'attn-doctor[mcp]'"
    try:
        sdk: Any = import_module("mcp.server")
        new = hasattr(sdk, "MCPServer")  # renamed in SDK 2
        place = "mcp.server.mcpserver" if new else "mcp.server.fastmcp"
        kind = sdk.MCPServer if new else import_module(place).FastMCP
        error = import_module(f"{place}.exceptions").ToolError
        annotations = import_module("mcp.types").ToolAnnotations
    except (ImportError, AttributeError):
        raise DoctorError("`mcp` needs the SDK of the Model Context Protocol", hint) from None
    given: dict[str, Any] = {"version": __version__} if "version" in inspect.signature(kind).parameters else {}
    server = kind("attn-doctor", instructions=INSTRUCTIONS, log_level="WARNING", **given)
    if not given:
        server._mcp_server.version = __version__  # SDK 1 has no other place for it, and would give its own
    for function in (*TOOLS, apply_fix) if allow_apply else TOOLS:
        reads = function is not apply_fix
        words = {"readOnlyHint": reads, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
        server.tool(
            description=function.__doc__, annotations=annotations.model_validate(words), structured_output=False
        )(_answering(function, error))
    return server


def _answering(function: Callable[..., str], error: type[Exception]) -> Callable[..., str]:
    """Return the tool with errors of the SDK's own class: it hides the text of every other from the agent."""

    @functools.wraps(function)
    def tool(*arguments: Any, **named: Any) -> str:
        try:
            return function(*arguments, **named)
        except ToolError as problem:
            raise error(str(problem)) from None
        except Exception as problem:
            text = shortened(" ".join(str(problem).split()), 300)
            raise error(f"a fault of attn-doctor: {type(problem).__name__}: {text}") from None

    return tool


@app.command("mcp")
def mcp(
    allow_apply: Annotated[
        bool, typer.Option("--allow-apply", help="Add a tool that edits requirement files. Off: nothing is written.")
    ] = False,
    allow_python: Annotated[
        bool,
        typer.Option("--allow-python", help="Let tools start the interpreter that they examine. Off: none is started."),
    ] = False,
) -> int:
    """Serve the Model Context Protocol on stdin and stdout: check, backends, fix, diff, explain, explain_rule."""
    Permissions.python = allow_python
    build_server(allow_apply).run("stdio")
    return 0
