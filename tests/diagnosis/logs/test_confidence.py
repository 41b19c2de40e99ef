"""How sure an answer is: what covers many messages or proposes nothing is not of high confidence."""

import json

from doctor.report.explanation import as_json

HEAD = "Traceback (most recent call last):\n"
SITE = "/opt/venv/lib/python3.12/site-packages"
FLEX = f'{HEAD}  File "{SITE}/torch/nn/attention/flex_attention.py", line 2321, in flex_attention\n'
RANK = f"{FLEX}    raise NotImplementedError(\nNotImplementedError: NYI: query, key, and value must be 4D tensors\n"
RAGGED = f'{HEAD}  File "{SITE}/torch/nested/_internal/ops.py", line 65, in _wrap_jagged_dim\n    raise RuntimeError(\n'


def first(explain, log):
    return json.loads(as_json(explain(log, fixes=False)))["diagnosis"][0]


def test_a_rule_for_many_messages_is_not_sure_of_one(explain):
    found = first(explain, RANK)
    assert found["confidence"] == "medium" and found["doubts"] == ["wide"]


def test_the_code_states_what_a_rule_for_many_messages_leaves_open(explain):
    found = first(explain, RANK)
    assert any("flex_attention.py raises it where" in reason for reason in found["reasons"])


def test_a_rule_with_a_message_of_its_own_is_sure(explain):
    assert first(explain, "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n")["confidence"] == "high"


def test_a_condition_without_a_proposal_is_not_sure_of_a_fix(explain):
    frames = (
        f'{HEAD}  File "{SITE}/torch/nested/_internal/ops.py", line 65, in _wrap_jagged_dim\n    raise RuntimeError(\n'
    )
    found = first(explain, f"{frames}RuntimeError: cat(): not supported for NestedTensor on ragged dim\n")
    assert found["rule"] is None and found["doubts"] == ["no_fix"]


def test_what_the_message_proposes_comes_before_a_rule_that_is_unsure(explain):
    error = (
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If "
        "you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map "
        "your storages to the CPU.\n"
    )
    frames = f'{HEAD}  File "{SITE}/torch/serialization.py", line 634, in _validate_device\n    raise RuntimeError(\n'
    found = first(explain, frames + error)
    assert found["confidence"] == "medium" and "map_location" in found["fixes"][0]["note"]
