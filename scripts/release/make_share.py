#!/usr/bin/env python3
"""Write the man page and the completion files that a wheel installs below `share/`, from the commands themselves.

    python scripts/release/make_share.py [--check]

With --check nothing is written; the exit code is 1 if a file is not what would be written.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from typer.completion import get_completion_script
from typer.core import TyperGroup, TyperOption

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.cli.main import COMMANDS, command_of  # noqa: E402 - after the path

NAME, VARIABLE = "attn-doctor", "_ATTN_DOCTOR_COMPLETE"
COMPLETIONS = {
    "bash": "share/bash-completion/completions/attn-doctor", "zsh": "share/zsh/site-functions/_attn-doctor",
    "fish": "share/fish/vendor_completions.d/attn-doctor.fish",
}  # fmt: skip
PAGE = "share/man/man1/attn-doctor.1"
EXIT = (("0", "no finding at or above --fail-on"), ("1", "findings"), ("2", "bad usage or bad input"),
        ("3", "no diagnosis could be made"))  # fmt: skip


def files() -> dict[str, str]:
    """Return path -> content of every file."""
    made = {path: completion(shell) for shell, path in COMPLETIONS.items()}
    return {PAGE: man_page(), **made}


def completion(shell: str) -> str:
    """Return the completion file of one shell."""
    return get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell).strip() + "\n"


def man_page() -> str:
    """Return the man page in roff."""
    lines = [
        f'.TH {NAME.upper()} 1 "" "{NAME}" "User Commands"', ".SH NAME",
        rf"{_roff(NAME)} \- find what breaks the attention stack of LLM training and inference",
        ".SH SYNOPSIS", rf".B {_roff(NAME)}", r"\fICOMMAND\fR [\fIOPTION\fR]...", ".SH COMMANDS",
    ]  # fmt: skip
    for name, about in COMMANDS.items():
        command = command_of(name)
        lines += [f".SS {_roff(name)}", _roff(about)]
        lines += _options(command)
        if isinstance(command, TyperGroup):
            for action, inner in sorted(command.commands.items()):
                if not inner.hidden:
                    lines += [".PP", rf"\fB{_roff(f'{name} {action}')}\fR: {_roff(_first(inner.help))}"]
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXIT:
        lines += [".TP", rf"\fB{code}\fR", _roff(meaning)]
    lines += [
        ".SH ENVIRONMENT", ".TP", r"\fBATTN_DOCTOR_\fIOPTION\fR",
        _roff("The value of an option: ATTN_DOCTOR_FAIL_ON for --fail-on. The command line wins."),
        ".TP", r"\fBNO_COLOR\fR", _roff("No colors."),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _options(command: Any) -> list[str]:
    lines = []
    for parameter in command.params:
        if isinstance(parameter, TyperOption) and not parameter.hidden and parameter.help:
            names = ", ".join((*parameter.opts, *parameter.secondary_opts))
            value = "" if parameter.is_flag else rf" \fI{_roff(parameter.metavar or 'VALUE')}\fR"
            lines += [".TP", rf"\fB{_roff(names)}\fR{value}", _roff(parameter.help)]
    return lines


def _first(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _roff(text: str) -> str:
    plain = re.sub(r"\[/?[a-z ]+\]", "", text).replace("\\", r"\e").replace("-", r"\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    stale = []
    for name, content in files().items():
        path = ROOT / name
        if path.is_file() and path.read_text("utf-8") == content:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
    for name in stale:
        print(f"{'differs' if options.check else 'wrote'}: {name}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
