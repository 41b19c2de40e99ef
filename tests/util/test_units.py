"""Sizes as people write them, in evidence and in the messages of rules."""

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.messages import interpolate
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import load_rulebook
from doctor.util.units import human_bytes


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"), (80 << 30, "80 GiB"),
        (85_520_809_984, "79.6 GiB"), (3 << 40, "3 TiB"),
    ],
)  # fmt: skip
def test_a_size_has_one_decimal_at_most(size, text):
    assert human_bytes(size) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("the GPU has {gpu.memory_bytes}", "the GPU has 80 GiB"),
        ("at least {gpu.memory_bytes} bytes per layer", "at least 80 GiB per layer"),
        ("{gpu.memory_bytes} bytesize", "80 GiB bytesize"),
        ("sm {gpu.sm} bytes", "sm 9.0 bytes"),
        ("{driver.version} and {xformers.version}", "(unknown) and not installed"),
        ("no code for sm {gpu.sm} ({gpu.name}): too old", "no code for sm 9.0: too old"),
        ("needs 3.2 (found triton {triton.version}, sm {gpu.sm})", "needs 3.2 (found sm 9.0)"),
        ("needs 3.2 (sm {gpu.sm}, cu13 {driver.version}): too old", "needs 3.2 (sm 9.0): too old"),
        ("stores all scores (per layer {workload.sdpa_math_bytes} bytes)", "stores all scores"),
        ("CUDA 13 needs a driver (580 or newer)", "CUDA 13 needs a driver (580 or newer)"),
    ],
)
def test_messages_write_bytes_as_sizes(message, text):
    values = {"gpu.memory_bytes": 80 << 30, "gpu.sm": "9.0", "xformers.version": "absent"}
    facts = Facts(fact(key, value, "test") for key, value in values.items())
    assert interpolate(message, FactResolver(facts)) == text


def test_no_message_of_a_rule_shows_a_raw_number_of_bytes():
    rule = load_rulebook().rules["TORCH011"]
    facts = Facts([fact("gpu.memory_bytes", 80 << 30, "test"), fact("workload.sdpa_math_bytes", 96 << 30, "test")])
    text = interpolate(rule.message, FactResolver(facts))
    assert "80 GiB" in text and "96 GiB" in text and " bytes" not in text
