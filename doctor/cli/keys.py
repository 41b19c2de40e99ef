"""`attn-doctor keys`: the words for facts and workloads."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any

import typer

from doctor.errors import DoctorError
from doctor.facts.examples import example_of
from doctor.facts.vocabulary import TERMS, Term, nearest
from doctor.facts.workload import ALIASES
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.project.config import project_defaults

from .answer import Answer, reports

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

#: Families of keys that no list can name.
_OPEN = (
    ("<distribution>.version", "version", "any installed package, by its normalized name", "torch.version=2.6.0"),
    ("env.<NAME>", "text", "an environment variable of the job", "env.NVTE_FLASH_ATTN=0"),
)


@app.command("keys")
@reports("keys", "text", "json")
def keys(
    answer: Answer,
    word: Annotated[str | None, typer.Argument(metavar="WORD", help="Only keys that contain this word.")] = None,
) -> int:
    """List the words for facts and workloads: what --set, facts files and workload files accept."""
    load_rulebook(project_defaults().rules)  # whose libraries add words
    rows = [_row(term) for term in TERMS.values() if not term.derived]
    rows += [
        {"key": key, "kind": kind, "meaning": meaning, "example": f"--set {example}"}
        for key, kind, meaning, example in _OPEN
    ]
    wanted = (word or "").lower().replace("-", "_")
    found = [row for row in rows if _matches(row, wanted)]
    if not found:
        known = [*TERMS, *ALIASES, *(key.removeprefix("workload.") for key in TERMS)]
        raise DoctorError(f"no key contains `{word}`", nearest(wanted, known) or "`attn-doctor keys` lists them all")
    answer.give({"text": lambda style: _text(found), "json": lambda style: json.dumps(found, indent=2) + "\n"})
    return 0


def _row(term: Term) -> dict[str, Any]:
    also = [alias for alias, keys in ALIASES.items() if term.key.removeprefix("workload.") in keys]
    row: dict[str, Any] = {"key": term.key, "kind": term.kind, "meaning": term.meaning}
    if term.values:
        row["values"] = list(term.values)
    if also:
        row["also"] = also
    return {**row, "example": f"--set {shlex.quote(f'{term.key}={example_of(term)}')}"}


def _matches(row: dict[str, Any], wanted: str) -> bool:
    texts = (row["key"], row["meaning"], *(row.get("also") or ()), *(row.get("values") or ()))
    return any(wanted in str(text).lower().replace("-", "_") for text in texts)


def _text(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        lines.append(f"{row['key']}  ({row['kind']})")
        lines.append(f"    {row['meaning']}")
        if "values" in row:
            lines.append(f"    values: {', '.join(map(str, row['values']))}")
        if "also" in row:
            lines.append(f"    also written: {', '.join(map(str, row['also']))}")
        lines.append(f"    example: {row['example']}")
    return "\n".join(lines) + "\n"
