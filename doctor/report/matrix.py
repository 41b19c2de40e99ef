"""Backends × features as a table that needs no colour and no wide terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps
from typing import Any

from doctor.errors import DoctorError
from doctor.model import Candidate, Matrix, MatrixRow, Reason

from .page import Page
from .style import Style
from .tables import reason_text

Matrices = tuple[Matrix, ...]
_GAP = 2
_LEGEND = "* selected; yes: available; no: unavailable; ?: unknown; fails: selected, but crashes at run time"


def renderer(name: str) -> Callable[[Matrices, Style], str]:
    """The function that renders matrices as format `name`; DoctorError lists what there is."""
    if name not in _FORMATS:
        raise DoctorError(f"format `{name}` cannot show the matrix", f"formats for it are {', '.join(_FORMATS)}")
    return _FORMATS[name]


def text(matrices: Matrices, style: Style) -> str:
    """One table per library; a number behind a verdict leads to its reason below."""
    page = Page(style)
    for matrix in matrices:
        page.gap()
        _table(page, matrix)
    page.gap()
    page.say(_LEGEND, look="dim")
    return page.text()


def _table(page: Page, matrix: Matrix) -> None:
    page.say(_start(matrix), lead=f"{matrix.title}:", look="label")
    refusal = matrix.rows[0].import_error if matrix.rows else None
    if refusal is not None and all(row.import_error and row.import_error.rule == refusal.rule for row in matrix.rows):
        page.say(reason_text(refusal), lead="does not import:", look="error", indent=2)
        return
    barred = _out_in_every_row(matrix)
    for backend, reason in barred.items():
        page.say(reason_text(reason), lead=f"{backend} unavailable for every feature:", look="dim", indent=2)
    if len(barred) == len(matrix.backends):
        page.say("no backend is available for any feature", look="label", indent=2)
        return
    notes: dict[str, tuple[int, Reason]] = {}
    lines = [
        (row, [_shown(cell, row, notes) for cell in row.cells if cell.backend not in barred]) for row in matrix.rows
    ]
    columns = [item for item in matrix.backends if item[0] not in barred]
    heads = [backend.split(".", 1)[1] for backend, _ in columns]
    room = _widths(heads, [cells for _, cells in lines])
    group_width = max((len(row.group) for row in matrix.rows), default=0) + _GAP
    label_width = max((len(row.feature) for row in matrix.rows), default=0) + _GAP
    wide = group_width + label_width + sum(room) <= max(page.style.width, 40)
    if not wide:  # numbers instead of names over the columns
        for index, (backend, title) in enumerate(columns, 1):
            page.say(title, lead=f"{index} {backend}", indent=2)
        heads = [str(index) for index in range(1, len(heads) + 1)]
        room = _widths(heads, [cells for _, cells in lines])
    margin = " " * (group_width + label_width)
    page.line(margin + "".join(f"{head:<{width}}" for head, width in zip(heads, room, strict=True)), "label")
    before = ""
    for row, cells in lines:
        group = "" if row.group == before else row.group
        before = row.group
        words = "".join(f"{cell:<{width}}" for cell, width in zip(cells, room, strict=True))
        page.line(f"{group:<{group_width}}{row.feature:<{label_width}}{words}", "dim", lead=len(group))
    page.gap()
    for number, reason in notes.values():
        page.say(reason_text(reason), lead=f"[{number}]", look="dim", hang=4)


def _out_in_every_row(matrix: Matrix) -> dict[str, Reason]:
    """Backends that one reason rules out for every feature, as where a package is not installed."""
    found: dict[str, Reason] = {}
    for index, (backend, _) in enumerate(matrix.backends):
        cells = [row.cells[index] for row in matrix.rows]
        if not cells or any(cell.available is not False for cell in cells):
            continue
        shared = set.intersection(*({reason.rule for reason in cell.reasons} for cell in cells))
        reason = next((item for item in cells[0].reasons if item.rule in shared), None)
        if reason is not None:
            found[backend] = reason
    return found


def _widths(heads: list[str], lines: list[list[str]]) -> list[int]:
    return [max([len(head), *(len(cells[index]) for cells in lines)]) + _GAP for index, head in enumerate(heads)]


def _shown(cell: Candidate, row: MatrixRow, notes: dict[str, tuple[int, Reason]]) -> str:
    if row.import_error:
        return f"no{_note(row.import_error, notes)}"
    if cell.backend == row.selected:
        return f"*fails{_note(row.fails_at_run, notes)}" if row.fails_at_run else "*"
    word = {True: "yes", False: "no", None: "?"}[cell.available]
    return f"{word}{_note(_first(cell), notes)}"


def _first(cell: Candidate) -> Reason | None:
    return cell.reasons[0] if cell.reasons else None


def _note(reason: Reason | None, notes: dict[str, tuple[int, Reason]]) -> str:
    """The number of a reason: one per rule, with the values of the first row that has it."""
    if reason is None:
        return ""
    number, _ = notes.setdefault(reason.rule, (len(notes) + 1, reason))
    return f" [{number}]"


def _start(matrix: Matrix) -> str:
    def value(key: str) -> Any:
        return matrix.workload.get(f"workload.{key}")

    passes = "training" if value("training") else "inference"
    parts = [
        f"{value('dtype')}", f"head dim {value('head_dim_qk')}/{value('head_dim_v')}",
        f"{value('num_heads')}/{value('num_kv_heads')} heads", f"{value('seq_len_q')}/{value('seq_len_kv')} tokens",
        f"mask {value('mask')}", f"layout {value('qkv_layout')}", passes,
    ]  # fmt: skip
    return f"rows change one thing in {', '.join(parts)}"


def json(matrices: Matrices, style: Style) -> str:
    """Every cell with its verdict, first reason and rule."""

    document = {"schema": 1, "matrices": [_matrix(matrix) for matrix in matrices]}
    return dumps(document, indent=2, ensure_ascii=False) + "\n"


def _matrix(matrix: Matrix) -> dict[str, Any]:
    return {
        "library": matrix.library,
        "title": matrix.title,
        "backends": [{"backend": backend, "title": title} for backend, title in matrix.backends],
        "workload": _plain(matrix.workload),
        "rows": [_row(row) for row in matrix.rows],
    }


def _row(row: MatrixRow) -> dict[str, Any]:
    return {
        "group": row.group,
        "feature": row.feature,
        "changes": _plain(row.changes),
        "selected": row.selected,
        "could_tell": row.could_tell,
        "fails_at_run": _reason(row.fails_at_run),
        "import_error": _reason(row.import_error),
        "cells": [
            {"backend": cell.backend, "available": cell.available, "reason": _reason(_first(cell))}
            for cell in row.cells
        ],
    }


def _plain(values: Any) -> dict[str, Any]:
    return {key.removeprefix("workload."): value for key, value in values.items()}


def _reason(reason: Reason | None) -> dict[str, Any] | None:
    if reason is None:
        return None
    result: dict[str, Any] = {"rule": reason.rule, "message": reason.message}
    if reason.missing:
        result["missing"] = list(reason.missing)
    return result


_FORMATS = {"text": text, "json": json}
