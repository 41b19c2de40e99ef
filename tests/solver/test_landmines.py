"""The incidents and every numbered landmine: the right fix comes first, the popular wrong one is explained."""

# ruff: noqa: E501  (a row of the table stays one row)

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Fix
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.solve import no_fix, solve
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.recipes import read_job
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples" / "incidents"
BASE = {"python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64",
        "distributions.complete": True, "driver.version": "580.65.06"}  # fmt: skip
JOB = {"workload.dtype": "bfloat16", "workload.num_heads": 32, "workload.num_kv_heads": 32, "workload.batch_size": 2,
       "workload.seq_len_q": 4096, "workload.mask": "causal", "workload.training": True,
       "workload.head_dim_qk": 128, "workload.head_dim_v": 128}  # fmt: skip
TE = ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12")


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


def incident(name: str) -> Facts:
    place = EXAMPLES / name
    return complete_workload(read_facts(place / "facts.yaml").with_(*read_job(place / "workload.yaml").values()))


def given(values: dict[str, Any], job: dict[str, Any] | None = None) -> Facts:
    whole = {**BASE, **values, **({} if job is None else {**JOB, **job})}
    return complete_workload(Facts(fact(key, value, "test") for key, value in whole.items()))


def versions(values: dict[str, str]) -> dict[str, str]:
    return {f"{name}.version": version for name, version in values.items()}


def changes(fix: Fix) -> dict[str, str | None]:
    return {change.name: change.after for change in fix.changes}


#: what it is, the facts, the rule, what the recommended fix changes (or a part of it), what is said of the wrong one
TABLE: list[tuple[str, Facts, str, dict[str, str | None], str]] = [
    ("A softcap", incident("a"), "TE101", {"NVTE_FLASH_ATTN": "0"}, "flash-attn==2.3.0"),
    ("B bottom right", incident("b"), "TE103", {"NVTE_FUSED_ATTN": "0"}, "9.3.0.75"),
    ("C xtuner", incident("c"), "XT001", {"transformers": "4.42.4"}, "transformers<4.43"),
    ("D no backend", incident("d"), "TE111", {"NVTE_FLASH_ATTN": None, "v = torch.nn.functional.pad(v, (0, head_dim_qk - head_dim_v))": "…"}, "upgrading cuDNN"),
    ("E interleaved", incident("e"), "TE120", {"NVTE_FUSED_ATTN": "0"}, "cuDNN"),
    ("F two cuDNNs", incident("f"), "TE130", {"CUDNN_HOME": "…", "LD_LIBRARY_PATH": "…"}, "alone"),
    ("1 two cuDNN wheels", given(versions({"torch": "2.8.0", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-cudnn-cu13": "9.19.0.56"})),
     "CUDNN003", {"nvidia-cudnn-cu13": None}, "same files"),
    ("2 a stray cuDNN", given(versions({"torch": "2.15.0", "nvidia-cudnn-cu12": "9.28.0.42", "nvidia-cudnn-cu13": "9.26.0.51"})),
     "CUDNN002", {"nvidia-cudnn-cu12": None}, "torch"),
    ("3 decode on B200", given({**versions({"torch": "2.12.1"}), "gpu.sm": "10.0", "gpu.name": "B200"},
     {"workload.framework": "torch_sdpa", "workload.seq_len_q": 1, "workload.seq_len_kv": 4096, "workload.num_kv_heads": 4,
      "workload.enable_gqa": True, "workload.training": False, "workload.mask": "no_mask"}),
     "TORCH003", {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, "pin theirs"),
    ("4 cuDNN by default", given({**versions({"torch": "2.9.1"}), "gpu.sm": "9.0", "gpu.name": "H100"},
     {"workload.framework": "torch_sdpa", "workload.seq_len_q": 1000, "workload.seq_len_kv": 1000}),
     "TORCH004", {"TORCH_CUDNN_SDPA_PREFERRED": "0"}, "9.10.2.21"),
    ("5 no gradient", given({**versions({"torch": "2.8.0", "flash-attn": "2.8.3"}), "gpu.sm": "8.9", "gpu.name": "L40S"},
     {"workload.framework": "flash_attn", "workload.head_dim_qk": 256, "workload.head_dim_v": 256, "workload.dropout": 0.1}),
     "FA001", {"dropout": "0.0"}, "no release has this kernel"),
    ("6 offsets", given({**versions({"torch": "2.8.0", "flash-attn": "2.8.3"}), "gpu.sm": "9.0", "gpu.name": "H100"},
     {"workload.framework": "flash_attn", "workload.num_heads": 128, "workload.num_kv_heads": 128, "workload.seq_len_q": 131072}),
     "FA002", {"call attention on slices of the batch (batch x length x heads x head dim below 2^31)": "…"}, "2.8.3.post1"),
    ("7 literal window", given({**versions({"torch": "2.8.0", "flash-attn": "2.8.3.post1", **dict.fromkeys(TE, "2.13.0")}),
     "python.version": "3.12.3", "gpu.sm": "9.0", "gpu.name": "H100"}),
     "TE150", {"flash-attn": "2.8.3"}, "literal version"),
    ("8 two cores", given({**versions({"torch": "2.8.0", **dict.fromkeys((*TE, "transformer-engine-cu13"), "2.14.1")}),
     "python.version": "3.12.3", "gpu.sm": "9.0", "gpu.name": "H100"}),
     "TE161", {"transformer-engine": "2.13.0"}, "core-cu12"),
    ("9 two flash_attn.cute", given(versions({"torch": "2.8.0", "flash-attn": "2.8.3", "flash-attn-4": "4.0.0b36"})),
     "FA003", None, "0.0.0"),
    ("10 Blackwell", given({**versions({"torch": "2.7.1"}), "gpu.sm": "10.0", "gpu.name": "B200"}),
     "TORCH001", {"torch": "2.7.1+cu128"}, "12.6 build"),
    ("10 Volta", given({**versions({"torch": "2.11.0"}), "gpu.sm": "7.0", "gpu.name": "V100"}),
     "TORCH002", {"torch": "2.11.0+cu126"}, "sm 7.5"),
    ("11 a shadowed cuDNN", given({**versions({"torch": "2.8.0", "nvidia-cudnn-cu12": "9.10.2.21", "cudnn": "9.1.0"}),
     "cudnn.path": "/usr/lib/libcudnn.so.9", "env.LD_LIBRARY_PATH": "/usr/lib"}),
     "CUDNN004", {"LD_LIBRARY_PATH": None}, "does not fix it"),
    ("12 resolvable and broken", incident("c"), "XT001", {"transformers": "4.42.4"}, "torch"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "rule", "wanted", "said"), TABLE, ids=[row[0] for row in TABLE])
def test_the_right_fix_comes_first_and_the_wrong_one_is_explained(
    name: str, facts: Facts, rule: str, wanted: dict[str, str | None] | None, said: str
):
    before = evaluate(rulebook(), facts)
    found = {finding.rule: finding for finding in before.findings}
    assert rule in found, sorted(found)
    assert said in (found[rule].myth or ""), found[rule].myth
    fixes = solve(rulebook(), facts, before)
    if wanted is None:  # a note: nothing has to change
        assert found[rule].severity == "note" and not fixes
        return
    assert fixes and rule in fixes[0].resolves and not fixes[0].leaves
    done = changes(fixes[0])
    for key, value in wanted.items():
        assert key in done
        assert value == "…" or done[key] == value
    assert not no_fix(rulebook(), facts, before, fixes)


def test_popular_wrong_pins_are_never_among_the_fixes():
    for name, wrong in (("a", ("flash-attn", "2.3.0")), ("b", ("nvidia-cudnn-cu12", "9.3.0.75"))):
        facts = incident(name)
        for fix in solve(rulebook(), facts, evaluate(rulebook(), facts)):
            assert changes(fix).get(wrong[0]) != wrong[1]
