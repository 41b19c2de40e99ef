"""`attn-doctor schema`: JSON Schemas for editors and programs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from doctor.diagnosis.schemas import schema_names, schema_of
from doctor.errors import DoctorError
from doctor.facts.vocabulary import nearest
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.project.config import project_defaults

from .options import Output
from .output import write

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("schema")
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of the names; without it they are listed.")
    ] = None,
    output: Output = None,
) -> int:
    """Print a JSON Schema: facts, workload, rule, library, report, project."""
    names = schema_names()
    if name is None:
        write("".join(f"{item}\n" for item in names), output)
        return 0
    if name not in names:
        raise DoctorError(f"there is no schema `{name}`", nearest(name, names) or f"schemas are {', '.join(names)}")
    load_rulebook(project_defaults().rules)  # whose libraries add words
    write(json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n", output)
    return 0
