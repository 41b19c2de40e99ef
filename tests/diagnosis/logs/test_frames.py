"""How a line of a log names a package: library files say how people write it, and what a server prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.diagnosis.logs.frames import Stack
from doctor.rulebook.rulebook import load_rulebook

LIBRARY = """\
name: acme_spoken
distributions: [acme-speech, acme-chat]
modules: {chat: acme-chat}
spoken: {acme-speech: '(?i)acme[ _-]speech'}
plain_words: [chat]
"""


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("ring flash attention is slow here", "ring-flash-attn"),
        ("FlashAttention raised an error", "flash-attn"),
        ("Transformer Engine calls flash attention", "transformer-engine"),
        ("flash linear attention is missing", "flash-linear-attention"),
        ("the kernels are slow and torch is old", "torch"),
        ("nothing of the stack", None),
    ],
)
def test_a_line_names_a_package_as_people_write_it(line: str, package: str | None) -> None:
    assert Stack(load_rulebook().libraries).named(line) == package


@pytest.mark.parametrize(
    ("line", "server"),
    [
        ("(EngineCore_0 pid=4) ERROR 08-02 10:11:12 [core.py:700] EngineCore failed", "vllm"),
        ("[2026-08-02 10:11:12 TP0] Scheduler hit an exception", "sglang"),
        ("ERROR: something else", None),
    ],
)
def test_the_lines_of_a_server_name_it(line: str, server: str | None) -> None:
    assert Stack(load_rulebook().libraries).printer(line) == server


def test_a_library_of_a_team_says_how_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "library.yaml").write_text(LIBRARY)
    stack = Stack(load_rulebook([str(tmp_path)]).libraries)
    assert stack.named("Acme speech raised an error") == "acme-speech"
    assert stack.owner("chat") == "acme-chat" and stack.named("this chat is long") is None
