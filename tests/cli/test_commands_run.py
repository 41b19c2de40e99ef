"""Every command that the documents show is carried out, and does not end as bad input or with a traceback."""

from __future__ import annotations

import re

import pytest

from doctor.cli.main import run
from tests.helpers.command_folder import WHEEL
from tests.helpers.text_commands import GRAMMAR, Command, in_documents, words_of

#: A word of a text -> its file in the prepared folder.
FILES = {
    "/path/to/venv/bin/python": "venv/bin/python", "/path/to/train/bin/python": "venv/bin/python",
    "/mnt/image/usr/lib/python3.12/site-packages": "image", "/dev/stdin": "list.txt",
    "FILE": "requirements.txt", "FILE.whl": WHEEL,
    "A": "node-a.json", "B": "node-b.json", "LOG": "train.log", "WORD": "head_dim", "IMAGE": "image:tag",
    "PATH": "our-rules", ".venv": "venv", "run.sh": "train.sh", "model/config.json": "config.json",
    "snapshot.json": "node-a.json", "axolotl.yaml": "axolotl.yml",
}  # fmt: skip
#: A command with another meaning of such a word -> its file.
ALSO = {
    "attn-doctor snapshot -o FILE": {"FILE": "facts-of-this-node.json"},
    "attn-doctor check --format NAME": {"NAME": "json"},
    "attn-doctor check PATH": {"PATH": "requirements.txt"},
    "attn-doctor schema NAME": {"NAME": "facts"},
    "attn-doctor backends --set workload.framework=NAME": {"workload.framework=NAME": "workload.framework=torch_sdpa"},
    "attn-doctor check --workload FILE --format json": {"FILE": "axolotl.yml"},
    "attn-doctor rules test rules/NAME": {"rules/NAME": "our-rules"},
}
#: Commands that cannot be carried out here -> why not. Other tests parse their words.
NOT_RUN = {
    r"backends --run\b": "measures on a GPU: tests/diagnosis/test_speed.py",
    r"stress\b": "runs kernels: needs torch and a GPU",
    r"fleet stress\b": "runs kernels: needs torch and a GPU",
    r"fleet --slurm": "needs an allocation of Slurm",
    r"fix --dry-run": "a resolver reads a package registry",
    r"rules verify (?!.*--offline)": "downloads releases",
    r"mcp$": "serves until its input ends: tests/cli/test_mcp.py",
    r"--install-completion": "writes to the start file of the shell",
}
#: Mentions of a family of commands: without more words they say what is missing.
FAMILIES = (
    "attn-doctor backends --batch",
    "attn-doctor check --facts",
    "attn-doctor fleet",
    "attn-doctor explain",
    "attn-doctor diff",
    "attn-doctor rules",
    "attn-doctor run",
)


def commands() -> dict[str, Command]:
    """Each command once."""
    found = {}
    for command in in_documents():
        text = re.split(r"\s+#|\s*…$", command.text)[0].strip()
        grammar = GRAMMAR.search(text) and not re.search(r"\[\w+\]['\"]", text)
        if not grammar and text not in FAMILIES:
            found.setdefault(text, command)
    return found


def reason_not_to_run(text: str) -> str | None:
    words = text.removeprefix("attn-doctor ")
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, words)), None)


def words_here(text: str) -> list[str]:
    files = {**FILES, **ALSO.get(text, {})}
    return [files.get(word, word) for word in words_of(text)]


TO_RUN = [text for text in commands() if reason_not_to_run(text) is None]


@pytest.mark.parametrize("text", TO_RUN)
def test_a_command_of_the_documents_does_what_it_says(text, command_folder, capfd):
    code = run(words_here(text))
    said = capfd.readouterr()
    assert code in (0, 1), f"{commands()[text].where}: exit code {code}: {said.err}"
    assert "Traceback (most recent call last)" not in said.err and "fault of attn-doctor" not in said.err


def test_what_is_not_run_is_there_and_few():
    left_out = [text for text in commands() if reason_not_to_run(text) is not None]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, text.removeprefix("attn-doctor ")) for text in left_out), pattern
    assert len(TO_RUN) > 3 * len(left_out), left_out
