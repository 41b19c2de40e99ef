"""Values of facts: what is no value of its kind is refused."""

from __future__ import annotations

import pytest

from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse
from doctor.rulebook.conditions import check_conditions


def test_a_compute_capability_is_read_in_its_usual_spellings() -> None:
    assert {parse("gpu.sm", text) for text in ("9.0", "90", "sm90", "sm_90", "9.0a")} == {"9.0"}


@pytest.mark.parametrize("text", ["١.0", "9.١", "٩0"])
def test_digits_of_other_scripts_are_no_compute_capability(text: str) -> None:
    with pytest.raises(DoctorError, match="compute capability"):
        parse("gpu.sm", text)
    with pytest.raises(DoctorError, match="compute capability"):
        check_conditions({"gpu.sm": f">={text}"})


def test_a_backend_of_a_server_is_sent_to_its_own_key():
    with pytest.raises(DoctorError) as raised:
        parse("workload.attention_backend", "trtllm_mha")
    assert raised.value.hint is not None and "workload.attention_backend_option" in raised.value.hint
