"""The MCP server in a real session: the SDK's own client over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is in the extra `mcp`")

from mcp import ClientSession, StdioServerParameters, stdio_client

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


async def _session(
    folder: Path, calls: list[tuple[str, dict[str, Any]]], *options: str
) -> tuple[dict[str, Any], list[Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "doctor", "mcp", *options], env=environment, cwd=str(folder)
    )
    answers: list[Any] = []
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        for name, arguments in calls:
            try:
                answers.append(await session.call_tool(name, arguments))
            except Exception as error:  # an SDK may refuse a call before the server sees it
                answers.append(error)
    return tools, answers


def session(folder: Path, calls: list[tuple[str, dict[str, Any]]], *options: str) -> tuple[dict[str, Any], list[Any]]:
    return asyncio.run(asyncio.wait_for(_session(folder, calls, *options), 900))


def is_error(answer: Any) -> bool:
    return isinstance(answer, Exception) or bool(getattr(answer, "is_error", getattr(answer, "isError", False)))


def text(answer: Any) -> str:
    assert not is_error(answer), answer
    return str(answer.content[0].text)


def test_tools_check_an_incident_and_fix_it(tmp_path):
    facts, workload = (yaml.load((B / f"{name}.yaml").read_text(), yaml.BaseLoader) for name in ("facts", "workload"))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check", {"facts": facts, "workload": workload}),
        ("fix", {"facts": str(B / "facts.yaml"), "workload": str(B / "workload.yaml")}),
    ]
    tools, answers = session(tmp_path, calls)
    assert set(tools) == {"check", "backends", "fix", "diff", "explain_rule"}
    schema = getattr(tools["check"], "input_schema", None) or tools["check"].inputSchema
    assert schema["type"] == "object" and "workload" in schema["properties"]
    checked, fixed = map(text, answers)
    assert "TE103" in {item["id"] for item in json.loads(checked)["findings"]}
    assert json.loads(fixed)["fixes"]


@pytest.mark.slow
def test_the_other_tools(tmp_path):
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check", {"facts": str(B / "facts.yaml"), "workload": str(B / "workload.yaml")}),
        ("explain_rule", {"rule": "TE103"}),
        ("backends", {"facts": {"torch.version": "2.6.0"}, "gpu": "h100", "workload": {"framework": "torch_sdpa"}}),
        ("diff", {"a": str(B / "facts.yaml"), "b": str(B / "facts.yaml"), "settings": {"workload.dtype": "bfloat16"}}),
    ]
    _, answers = session(tmp_path, calls)
    checked, explained, predicted, compared = map(text, answers)
    assert "TE103" in {item["id"] for item in json.loads(checked)["findings"]} and "TE103" in explained
    assert json.loads(predicted)["backends"] and json.loads(compared)["findings"] == []


@pytest.mark.slow
def test_hostile_arguments_get_errors_and_write_nothing(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.6.0\ntransformer-engine==2.3.0\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    _, answers = session(tmp_path, list(HOSTILE))
    passed = [call for call, answer in zip(HOSTILE, answers, strict=True) if not is_error(answer)]
    assert passed == []
    assert not any("Traceback" in str(answer) for answer in answers)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_files_are_edited_with_the_flag_only(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.4.0\ntransformers==4.44.2\nxtuner==0.1.23\n")
    job = yaml.load((B.parent / "c" / "workload.yaml").read_text(), yaml.BaseLoader)
    call = ("apply_fix", {"requirements": "requirements.txt", "workload": job, "gpu": "a100"})
    tools, (answer,) = session(tmp_path, [call], "--allow-apply")
    assert "apply_fix" in tools and not is_error(answer), answer
    assert (tmp_path / "requirements.txt.bak").is_file(), answer
