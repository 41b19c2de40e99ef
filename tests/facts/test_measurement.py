"""Records of measured attention: what is written is read again, and a line of another kind is refused."""

import json
from dataclasses import replace

import pytest

from doctor.facts.measurement import MEMORY_PARTS, Measurement, from_record, read_records

ONE = Measurement(
    "NVIDIA H100 80GB HBM3", "9.0", "2.11.0+cu130", "sdpa.flash", None, "bfloat16", 4, 32, 8, 128, 128, 4096, 4096,
    "causal", window=(1023, 0), ms=1.25, ms_spread=0.01, memory=dict.fromkeys(MEMORY_PARTS, 1), kernels=("flash",),
)  # fmt: skip


def test_a_record_is_read_as_it_was_written():
    line = json.dumps(ONE.as_record())
    assert list(read_records([line, "", line])) == [ONE, ONE]


def test_every_field_survives():
    changed = {
        "training": False,
        "compiled": True,
        "packed": True,
        "outcome": "refused",
        "reason": "no",
        "bias": "alibi",
    }
    other = replace(ONE, ms=None, **changed)
    assert from_record(json.loads(json.dumps(other.as_record()))) == other
    assert not other.ran and ONE.ran


def test_a_record_of_a_newer_doctor_is_read_without_its_new_fields():
    assert from_record({**ONE.as_record(), "field_of_tomorrow": 1}) == ONE


@pytest.mark.parametrize("record", [{}, {"schema": 2}, {"schema": 1}, [], {**ONE.as_record(), "schema": 0}])
def test_what_is_no_measurement_is_refused(record):
    with pytest.raises(ValueError, match="measurement"):
        from_record(record)
