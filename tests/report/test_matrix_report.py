"""The matrix on a terminal and as JSON."""

import json

import pytest

from doctor.errors import DoctorError
from doctor.model import Candidate, Matrix, MatrixRow, Reason
from doctor.report.matrix import renderer
from doctor.report.style import Style

NARROW = Reason("TE900", "needs equal head dims (found 192 and 128)", True)
MISSING = Reason("TE901", "flash-attn-3 is not installed", True)
UNCLEAR = Reason("TE902", "depends on the GPU", None, "", ("gpu.sm",))
CRASH = Reason("TE903", "dies in backward", True)
BACKENDS = (("te.flash2", "FlashAttention 2"), ("te.flash3", "FlashAttention 3"), ("te.unfused", "Unfused"))


def cell(backend, available, *reasons):
    return Candidate(backend, dict(BACKENDS).get(backend, backend), available, reasons)


def build_matrix(**changes):
    never = cell("te.flash3", False, MISSING)
    rows = (
        MatrixRow(
            "job", "as described", {},
            (cell("te.flash2", True), never, cell("te.unfused", True)), "te.flash2", True,
        ),
        MatrixRow(
            "head dim", "192/128", {"workload.head_dim_qk": 192},
            (cell("te.flash2", False, NARROW), never, cell("te.unfused", True)), "te.unfused", True, CRASH,
        ),
        MatrixRow(
            "head dim", "256", {"workload.head_dim_qk": 256},
            (cell("te.flash2", None, UNCLEAR), never, cell("te.unfused", True)), None, False,
        ),
    )  # fmt: skip
    parts = {"library": "transformer_engine", "title": "TransformerEngine", "backends": BACKENDS,
             "workload": {"workload.dtype": "bfloat16", "workload.training": True}, "rows": rows}  # fmt: skip
    return Matrix(**{**parts, **changes})


def table(width=100, **changes):
    return renderer("text")((build_matrix(**changes),), Style(width=width))


def test_every_verdict_is_a_word():
    lines = table().splitlines()
    cells = {line[10:23].strip(): line[23:].split() for line in lines if line.startswith(("job", "head", "          "))}
    assert cells["as described"] == ["*", "yes"]
    assert cells["192/128"] == ["no", "[1]", "*fails", "[2]"]
    assert cells["256"] == ["?", "[3]", "yes"]


def test_reasons_are_below_with_rule_and_what_is_lacking():
    text = table()
    assert "[1] needs equal head dims (found 192 and 128) [TE900]" in text
    assert "[2] dies in backward [TE903]" in text
    assert "missing: `gpu.sm`" in text


def test_a_backend_that_nothing_brings_back_is_reported_once_and_takes_no_column():
    text = table()
    assert "te.flash3 unavailable for every feature: flash-attn-3 is not installed [TE901]" in text
    head = next(line for line in text.splitlines() if line.split()[:1] == ["flash2"])
    assert head.split() == ["flash2", "unfused"]


def test_where_each_row_has_its_own_reason_the_column_stays():
    own = (Reason("TE905", "first", True), Reason("TE906", "second", True), Reason("TE907", "third", True))
    rows = tuple(
        MatrixRow(
            row.group, row.feature, row.changes,
            (row.cells[0], cell("te.flash3", False, reason), row.cells[2]), row.selected, row.could_tell,
        )
        for row, reason in zip(build_matrix().rows, own, strict=True)
    )  # fmt: skip
    text = table(rows=rows)
    assert "unavailable for every feature" not in text
    assert "flash3" in text


def test_without_any_backend_there_is_no_table():
    rows = tuple(
        MatrixRow(row.group, row.feature, row.changes, tuple(cell(name, False, MISSING) for name, _ in BACKENDS),
                  None, True)
        for row in build_matrix().rows
    )  # fmt: skip
    text = table(rows=rows)
    assert "no backend is available for any feature" in text
    assert "192/128" not in text


def test_the_group_is_written_once():
    assert sum(line.startswith("head dim") for line in table().splitlines()) == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_the_terminal(width):
    assert max(map(len, table(width).splitlines())) <= width


def test_columns_that_do_not_fit_get_numbers():
    wide = (*BACKENDS[:2], ("te.a_backend_with_a_rather_long_name_that_leaves_no_room", "Unfused"))
    rows = tuple(
        MatrixRow(row.group, row.feature, row.changes, (*row.cells[:2], cell(wide[2][0], True)), None, True)
        for row in build_matrix().rows
    )
    text = table(60, backends=wide, rows=rows)
    assert "2 te.a_backend_with_a_rather_long_name_that_leaves_no_room Unfused" in " ".join(text.split())
    assert any(line.split() == ["1", "2"] for line in text.splitlines())


LOAD = Reason("TE904", "does not load with this flash-attn", True)


def with_import_error(rows):
    return tuple(
        MatrixRow(row.group, row.feature, row.changes, row.cells, None, True, None, LOAD)
        if row.feature in rows
        else row
        for row in build_matrix().rows
    )


def test_an_import_error_takes_the_place_of_the_table():
    text = table(rows=with_import_error({"as described", "192/128", "256"}))
    assert "does not import: does not load with this flash-attn [TE904]" in text
    assert "as described" not in text


def test_a_feature_that_the_library_refuses_as_such_has_one_reason():
    text = table(rows=with_import_error({"192/128"}))
    line = next(line for line in text.splitlines() if "192/128" in line)
    assert line.split()[-4:] == ["no", "[1]", "no", "[1]"]
    assert "[1] does not load with this flash-attn [TE904]" in text


def test_json_has_every_cell():
    document = json.loads(renderer("json")((build_matrix(),), Style()))
    (matrix,) = document["matrices"]
    assert matrix["workload"] == {"dtype": "bfloat16", "training": True}
    assert [row["feature"] for row in matrix["rows"]] == ["as described", "192/128", "256"]
    narrow = matrix["rows"][1]
    assert narrow["changes"] == {"head_dim_qk": 192}
    assert narrow["fails_at_run"]["rule"] == "TE903"
    assert narrow["import_error"] is None
    assert narrow["cells"][0] == {
        "backend": "te.flash2", "available": False,
        "reason": {"rule": "TE900", "message": "needs equal head dims (found 192 and 128)"},
    }  # fmt: skip
    unclear = matrix["rows"][2]
    assert (unclear["selected"], unclear["could_tell"]) == (None, False)
    assert unclear["cells"][0]["reason"]["missing"] == ["gpu.sm"]


def test_another_format_is_refused_with_those_there_are():
    with pytest.raises(DoctorError, match="sarif") as refusal:
        renderer("sarif")
    assert "text, json" in refusal.value.hint
