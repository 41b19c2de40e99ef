"""Planted faults against the sweep's own generator and truth: each is found among the cases it would run on a CPU.

Cases come in the order of the plan, and the first that shows the fault ends the search: all of it in one process.
"""

from __future__ import annotations

from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_program
from doctor.stress.plan import plan
from tests.helpers.broken_flash import FAULTS, source
from tests.helpers.paths import HELPERS

HERE = HELPERS
#: As many as an unasked sweep on a CPU has for a single backend.
CASES = 600
FEW = 24
SEED = 0

#: Fault → the kind that it must be reported as.
COARSE = {
    "wrong_stride": "out", "wrong_alignment": "out", "dropped_tail": "out", "scale_off": "out", "swapped_heads": "out",
    "stale_output": "out", "unwritten_rows": "out_nan", "nan_gradient": "dk_nan", "varying_output": "not_repeatable",
    "varying_gradient": "not_repeatable", "remembers_layout": "dq", "remembers_for_good": "dq",
    "writes_input": "inputs_changed", "forgets_dropout": "dropout", "redraws_dropout": "dropout_backward",
}  # fmt: skip
SUBTLE = {
    "causal_off_at_seam": "out", "decodes_from_the_first": "out", "mask_of_batch_0": "out", "bias_of_head_0": "out",
    "bias_transposed": "out", "bias_scaled": "out", "mean_of_nothing": "blind_rows", "groups_interleaved": "out",
    "scale_of_v": "out", "scale_of_padded": "out", "odd_dims_cut": "out", "last_odd_row": "out",
    "last_split_lost": "out", "offset_ignored": "out", "rows_side_by_side": "out", "gradient_expanded": "dk",
    "gradient_taken_for_dense": "dq", "dk_misses_a_head": "dk", "logsumexp_in_half": "dq",
    "largest_not_taken_off": "out", "dq_by_atomics": "not_repeatable", "float16_by_bfloat16": "out",
    "float32_by_tensor_cores": "out", "dropout_twice_in_dv": "dropout_backward",
    "scale_ignored": "out", "far_keys_lost_in_dq": "dq", "sums_not_rescaled": "out",
    "dropout_twice_in_dq": "dropout_backward", "dropout_not_made_up_for": "dropout",
    "dropout_rate_in_eighths": "dropout",
}  # fmt: skip
FLASH = {name: "dq" if name.endswith("in_backward") else "out" for name in FAULTS}
#: Where each lives; what `file:` names is called like torch's function, the rest as flash-attn is.
ALL = {
    **{name: (f"file:{HERE / 'faults.py'}:{name}", kind) for name, kind in COARSE.items()},
    **{name: (f"file:{HERE / 'subtle_faults.py'}:{name}", kind) for name, kind in SUBTLE.items()},
    **{name: ("flash2", kind) for name, kind in FLASH.items()},
}


def _request(name: str, count: int, after: int = 0) -> dict[str, Any]:
    """The fault's cases as a sweep of `count` runs them; without those that one of `after` has."""
    backend, kind = ALL[name]
    cases = plan([backend], "cpu", count, seed=SEED).cases[after:]
    kinds = [kind, "dropout"] if kind == "out" else [kind]  # a wrong output with dropout scatters wrong
    request: dict[str, Any] = {"kinds": kinds, "cases": [{**case, "profile": False} for case in cases]}
    if backend == "flash2":
        request["modules"] = {"flash_attn": source(name)}
        request["cases"] = [case for case in request["cases"] if not case.get("dropout")]
    return request


@pytest.fixture(scope="module")
def answers(request, torch_python) -> dict[str, KernelResult]:
    """What became of each fault that this run covers."""

    def ask(asked: dict[str, dict[str, Any]]) -> dict[str, KernelResult]:
        program = str(HERE / "until_found.py")
        return dict(zip(asked, run_program(torch_python, program, list(asked.values()), timeout=300), strict=True))

    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = {item.callspec.params["name"] for item in mine}
    # A few cases show most faults, and a plan of many takes a while to make.
    told = ask({name: _request(name, FEW) for name in ALL if name in chosen})
    left = [name for name in told if not told[name].observed.get("found")]
    return told | ask({name: _request(name, CASES, after=FEW) for name in left})


#: One of each kind of fault, by default: masks, heads, layouts, gradients, numbers, dropout, varlen, unwritten memory.
SAMPLE = (
    "wrong_stride", "nan_gradient", "remembers_layout", "causal_off_at_seam", "groups_interleaved", "dk_misses_a_head",
    "float16_by_bfloat16", "dropout_twice_in_dq", "bias_of_head_0", "offset_ignored", "sequences_leak",
    "softcap_after_mask",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in ALL])
def test_a_planted_fault_is_found(answers: dict[str, KernelResult], name: str) -> None:
    answer = answers[name]
    assert answer.outcome == "ran", answer.reason
    assert answer.observed["found"], answer.observed
