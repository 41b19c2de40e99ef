"""Which operator xFormers dispatches to, against the answers of the releases' own dispatch.

`captures/xformers-answers.jsonl` was written by `scripts/oracles/ask_xformers.py`.
"""

import json
from collections import Counter
from pathlib import Path

from doctor.diagnosis.batch import answer
from tests.helpers.rulebook import builtin_rulebook

ANSWERS = Path(__file__).parents[1] / "captures" / "xformers-answers.jsonl"
BACKENDS = {"flash": "xf.flash2", "flash3": "xf.flash3", "cutlass": "xf.cutlass", "triton_splitk": "xf.triton_splitk"}


def test_operators_of_nine_releases():
    rulebook = builtin_rulebook()
    wrong, backward = [], Counter()
    for line in ANSWERS.read_text().splitlines():
        case = json.loads(line)
        predicted, good = answer(rulebook, line)
        expected = case["expected"]
        assert good and predicted["could_tell"], case["id"]
        if predicted["selected"] != (expected["forward"] and BACKENDS[expected["forward"]]):
            wrong.append(case["id"])
        fails = bool(expected["forward"] and case["workload"]["training"] and expected["backward"] is None)
        backward[fails == (predicted["fails_at_run"] is not None)] += 1
    assert wrong == []
    assert backward[False] <= 0.02 * backward.total()


def test_the_capture_covers_every_outcome():
    found = Counter(json.loads(line)["expected"]["forward"] for line in ANSWERS.read_text().splitlines())
    assert {"flash", "flash3", "cutlass", None} <= set(found)


def decode(**changed):
    case = {
        "id": "decode",
        "facts": {"xformers.version": "0.0.32.post2", "torch.cuda": "12.8", "gpu.sm": "9.0",
                  "flash-attn.version": "absent", "flash-attn-3.version": "absent", "flash-attn-4.version": "absent"},
        "workload": {
            "framework": "xformers", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 32,
            "num_kv_heads": 8, "batch_size": 1, "seq_len_q": 1, "seq_len_kv": 4096, "mask": "no_mask",
            "training": False, **changed,
        },
    }  # fmt: skip
    return answer(builtin_rulebook(), json.dumps(case))[0]["selected"]


def test_short_queries_of_few_groups_leave_flash_attention_3_out():
    assert decode() == "xf.flash2"
    assert decode(batch_size=8) == "xf.flash3"
    assert decode(num_kv_heads=32) == "xf.flash3"
    assert decode(mask="arbitrary") == "xf.triton_splitk"
