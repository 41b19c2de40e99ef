"""`attn-doctor snapshot`: the facts of this machine as a file that every command reads."""

from __future__ import annotations

import json

import typer

from doctor.diagnosis.examine import examine
from doctor.diagnosis.watch import rulebook_of
from doctor.sources.snapshot import document

from .options import Output
from .output import require_all_read, write
from .request import TargetOptions, examines, request_of

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("snapshot")
@examines()
def snapshot(target: TargetOptions, output: Output = None) -> int:
    """Save the facts of this machine as JSON; every command reads them with --facts."""
    request = request_of(target)
    found = examine(request, rulebook_of(request))
    write(json.dumps(document(found.facts), indent=2, ensure_ascii=False) + "\n", output)
    require_all_read(found.unread)
    return 0
