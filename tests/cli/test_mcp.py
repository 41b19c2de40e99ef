"""The MCP server in a real session over stdio, with every SDK that is there; the client is this file.

ATTN_DOCTOR_MCP_SDKS names folders with one release of the SDK each, as `.ci/run` installs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor._version import __version__
from doctor.cli import mcp
from doctor.cli.mcp_answer import LARGEST_ANSWER, page_of, short_answer

ROOT = Path(__file__).resolve().parents[2]
B = ROOT / "examples" / "incidents" / "b"
HOSTILE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("explain_rule", {"rule": "--help"}),
    ("explain_rule", {"rule": "../../etc/passwd"}),
    ("explain_rule", {"rule": "NOSUCH999"}),
    ("check", {"facts": "/dev/zero"}),
    ("check", {"facts": "/etc/passwd"}),
    ("check", {"facts": {"nonsense key": 1}}),
    ("check", {"facts": {"torch.version": "2.6.0"}, "gpu": "--output=/tmp/x"}),
    ("check", {"python": "/bin/sh"}),
    ("explain", {"path": "--output=owned.txt"}),
    ("explain", {"path": "/dev/zero"}),
    ("explain", {"text": "x", "path": "y"}),
    ("check", {"python": "relative/python\x00"}),
    ("check", {"facts": "x" * 3000}),
    ("check", {"model": "~no-such-user/config.json"}),
    ("check", {"requirements": ["--output=owned.txt"]}),
    ("check", {"settings": {"--output": "owned.txt"}}),
    ("check", {"facts": 5}),
    ("diff", {"a": "--output=owned.txt", "b": "nowhere"}),
    ("fix", {"requirements": "requirements.txt", "write": True, "unknown": 1, "facts": "x"}),
    ("apply_fix", {"requirements": "requirements.txt"}),
    ("no_such_tool", {}),
)


def sdks() -> dict[str, str | None]:
    """Major release of the SDK -> its folder; None for the one that this interpreter has."""
    named = os.environ.get("ATTN_DOCTOR_MCP_SDKS")
    if named:
        folders = [Path(name) for name in named.split(os.pathsep)]
        return {next(folder.glob("mcp-*.dist-info")).name[4]: str(folder) for folder in folders}
    try:
        return {version("mcp")[0]: None}
    except PackageNotFoundError:
        return {}


SDKS = sdks()
each_sdk = pytest.mark.parametrize(
    "sdk", SDKS or [pytest.param("none", marks=pytest.mark.skip(reason="no SDK: extra `mcp`, or ATTN_DOCTOR_MCP_SDKS"))]
)


def test_ci_has_both_major_releases_of_the_sdk() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "'mcp<2'" in script and "'mcp>=2'" in script and "export ATTN_DOCTOR_MCP_SDKS=" in script
    if "ATTN_DOCTOR_MCP_SDKS" in os.environ:
        assert set(SDKS) == {"1", "2"}


class Session:
    """A client in a few lines: one JSON object per line."""

    def __init__(self, folder: Path, sdk: str, *options: str) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), SDKS[sdk])))
        self._errors = (folder / "stderr").open("w+")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "doctor", "mcp", *options], cwd=folder, env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8",
        )  # fmt: skip
        self._number = 0
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self.server = self.request("initialize", hello)["serverInfo"]
        self._send({"method": "notifications/initialized"})
        self.tools = {tool["name"]: tool for tool in self.request("tools/list", {})["tools"]}

    def _send(self, message: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._server.stdin.flush()

    def request(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": arguments})
        assert self._server.stdout is not None
        for line in self._server.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._number:
                return answer.get("result") or {"isError": True, "content": [{"text": str(answer.get("error"))}]}
        raise AssertionError(f"the server ended: {self.end()}")

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.request("tools/call", {"name": name, "arguments": arguments})

    def end(self) -> str:
        """Close the session and return what the server wrote to stderr."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)
        self._errors.seek(0)
        text = self._errors.read()
        self._errors.close()
        return text


def session(folder: Path, sdk: str, calls: Sequence[tuple[str, dict[str, Any]]], *options: str) -> list[Any]:
    """The answers to some calls; a server that writes a traceback fails the test."""
    client = Session(folder, sdk, *options)
    answers = [client.call(name, arguments) for name, arguments in calls]
    errors = client.end()
    assert "Traceback" not in errors, errors
    return answers


def is_error(answer: Any) -> bool:
    return bool(answer.get("isError"))


def words(answer: Any) -> str:
    return "".join(str(item["text"]) for item in answer["content"])


def text(answer: Any) -> str:
    assert not is_error(answer), answer
    assert len(words(answer).encode()) <= LARGEST_ANSWER and "structuredContent" not in answer
    return words(answer)


@each_sdk
def test_the_server_names_itself_and_what_its_tools_change(tmp_path: Path, sdk: str) -> None:
    client = Session(tmp_path, sdk, "--allow-apply")
    client.end()
    assert client.server["name"] == "attn-doctor" and client.server["version"] == __version__
    assert set(client.tools) == {"check", "backends", "fix", "diff", "explain", "explain_rule", "apply_fix"}
    for name, tool in client.tools.items():
        assert tool["annotations"]["readOnlyHint"] is (name != "apply_fix"), name
        assert tool["inputSchema"]["type"] == "object" and tool["description"]
    assert "workload" in client.tools["check"]["inputSchema"]["properties"]


@each_sdk
def test_errors_arrive_with_their_text(tmp_path: Path, sdk: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check", {"facts": "nosuch.yaml"}),
        ("check", {"facts": {"torch.version": "2.6.0"}, "gpu": "mi300x"}),
        ("explain_rule", {"rule": "NOSUCH999"}),
        ("explain", {}),
        ("check", {"python": sys.executable}),
        ("explain_rule", {"rule": "TE103", "page": 9}),
    ]
    expected = ("nosuch.yaml", "mi300x", "NOSUCH999", "`text` or `path`", "--allow-python", "there is no page 9")
    for answer, part in zip(session(tmp_path, sdk, calls), expected, strict=True):
        assert is_error(answer) and part in words(answer), answer


@each_sdk
def test_tools_check_an_incident_and_fix_it(tmp_path: Path, sdk: str) -> None:
    facts, workload = (yaml.load((B / f"{name}.yaml").read_text(), yaml.BaseLoader) for name in ("facts", "workload"))
    job: dict[str, Any] = {"facts": facts, "workload": workload}
    log = "torch.cuda.OutOfMemoryError: CUDA out of memory.\n" + "ValueError: No dot product attention support\n" * 9
    calls = [
        ("check", job),
        ("fix", {"facts": str(B / "facts.yaml"), "workload": str(B / "workload.yaml")}),
        ("explain", {"text": log}),
        ("check", {**job, "detail": True}),
        ("check", {**job, "detail": True, "page": 2}),
    ]
    checked, fixed, explained, first, second = map(text, session(tmp_path, sdk, calls))
    short = json.loads(checked)
    found = {item["id"]: item for item in short["findings"]}
    assert found["TE103"]["message"] and short["fixes"] and "detail" in short["more"]
    assert json.loads(fixed)["fixes"]
    assert json.loads(explained)["input"] == "stdin"
    assert first.startswith("page 1 of ") and "`page` = 2" in first and second.startswith("page 2 of ")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with an interpreter that leaves a trace when it is started; it is the active environment too."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/STARTED\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / ".venv"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tools_for_agents_start_no_interpreter_unless_allowed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {tool.__name__: tool for tool in mcp.TOOLS}
    venv, facts = str(repository / ".venv"), str(B / "facts.yaml")
    calls: list[tuple[str, dict[str, Any]]] = [
        *((name, {"python": place}) for name in ("check", "fix") for place in (venv, f"{venv}/bin/python")),
        ("backends", {"python": venv}), ("check", {}), ("diff", {"a": venv, "b": facts}),
        ("diff", {"a": facts, "b": f"python:{venv}/bin/python"}),
    ]  # fmt: skip
    for name, arguments in calls:
        with pytest.raises(mcp.ToolError, match="--allow-python"):
            tools[name](**arguments)
        assert not (repository / "STARTED").exists(), (name, arguments)
    monkeypatch.setattr(mcp.Permissions, "python", True)
    with contextlib.suppress(mcp.ToolError):  # it holds no attention library
        tools["check"](python=venv)
    assert (repository / "STARTED").exists()


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["findings", "fixes", "backends", "notes", "undetermined", "other"]),
        st.lists(
            st.dictionaries(st.sampled_from(["id", "message", "title", "x"]), st.text(max_size=3000), max_size=4),
            max_size=40,
        ),
    ),
    st.text(max_size=20000),
)
def test_every_answer_fits_and_its_pages_are_the_whole(document: dict[str, Any], more: str) -> None:
    document["long"] = more
    whole = json.dumps(document, ensure_ascii=False, indent=1)
    short = short_answer(whole)
    assert len(short.encode()) <= LARGEST_ANSWER and isinstance(json.loads(short), dict)
    first = page_of(whole, 1)
    if not first.startswith("page 1 of "):
        assert first == whole
        return
    count = int(first.split()[3].rstrip(";"))
    pages = [page_of(whole, number) for number in range(1, count + 1)]
    assert all(len(page.encode()) <= LARGEST_ANSWER for page in pages)
    assert "".join(page.split("\n", 1)[1] for page in pages) == whole


@pytest.mark.slow
@each_sdk
def test_the_other_tools(tmp_path: Path, sdk: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check", {"facts": str(B / "facts.yaml"), "workload": str(B / "workload.yaml")}),
        ("explain_rule", {"rule": "TE103"}),
        ("backends", {"facts": {"torch.version": "2.6.0"}, "gpu": "h100", "workload": {"framework": "torch_sdpa"}}),
        ("diff", {"a": str(B / "facts.yaml"), "b": str(B / "facts.yaml"), "settings": {"workload.dtype": "bfloat16"}}),
    ]
    answers = session(tmp_path, sdk, calls)
    checked, explained, predicted, compared = map(text, answers)
    assert "TE103" in {item["id"] for item in json.loads(checked)["findings"]} and "TE103" in explained
    assert json.loads(predicted)["backends"] and json.loads(compared)["findings"] == []


@pytest.mark.slow
@each_sdk
def test_hostile_arguments_get_errors_and_write_nothing(tmp_path: Path, sdk: str) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\ntransformer-engine==2.3.0\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    answers = session(tmp_path, sdk, HOSTILE)
    passed = [call for call, answer in zip(HOSTILE, answers, strict=True) if not is_error(answer)]
    assert passed == []
    assert not any("Traceback" in str(answer) for answer in answers)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
@each_sdk
def test_files_are_edited_with_the_flag_only(tmp_path: Path, sdk: str) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.4.0\ntransformers==4.44.2\nxtuner==0.1.23\n")
    job = yaml.load((B.parent / "c" / "workload.yaml").read_text(), yaml.BaseLoader)
    call = ("apply_fix", {"requirements": "requirements.txt", "workload": job, "gpu": "a100"})
    (answer,) = session(tmp_path, sdk, [call], "--allow-apply")
    assert not is_error(answer), answer
    assert (tmp_path / "requirements.txt.bak").is_file(), answer
