"""TransformerEngine's several shapes, played by a stand-in: a real one needs a GPU (tests/gpu)."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_one

#: DotProductAttention in plain torch; HOW is what a release does to the numbers.
LAYER = """
import torch
class DotProductAttention(torch.nn.Module):
    def __init__(self, num_attention_heads, kv_channels, num_gqa_groups=None, attention_dropout=0.1,
                 qkv_format="sbhd", attn_mask_type="causal", **rest):
        super().__init__()
        self.form = qkv_format
    def forward(self, q, k, v, attention_mask=None, attn_mask_type=None, window_size=None):
        order = (1, 2, 0, 3) if self.form == "sbhd" else (0, 2, 1, 3)
        q, k, v = (t.permute(order) for t in (q, k, v))
        {how}
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal="causal" in attn_mask_type)
        out = out.permute((2, 0, 1, 3) if self.form == "sbhd" else (0, 2, 1, 3))
        return out.reshape(out.shape[0], out.shape[1], -1)
"""
PARAMETERS = """
import dataclasses, logging
from typing import Any
logger = logging.getLogger("DotProductAttention")
@dataclasses.dataclass(eq=True)
class AttentionParams:
    qkv_dtype: Any = None
    qkv_layout: str = ""
    head_dim_qk: int = 0
    head_dim_v: int = 0
    attn_mask_type: str = ""
    max_seqlen_q: int = 0
"""
OLD = PARAMETERS + (
    "def get_attention_backend(attention_params=None):\n"
    "    logger.debug('Disabling FlashAttention 2 for head_dim %d', attention_params.head_dim_qk)\n"
    "    return False, True, 'NVTE_F16_arbitrary_seqlen', True, [False, True, True]\n"
)
NEW = PARAMETERS + (
    "def get_attention_backend(attention_params=None):\n"
    "    logger.debug('seqlen %d', attention_params.max_seqlen_q)\n"
    "    class V:\n        def __str__(self): return '2.8.3'\n"
    "    return True, V(), False, None, True, [True, False, True]\n"
)
OLD_FLASH_3 = PARAMETERS + (
    "_use_flash_attn_3 = True\n"
    "def get_attention_backend(attention_params=None):\n"
    "    return True, False, None, False, [True, False, False]\n"
)
OLDEST = (
    "def get_attention_backend(qkv_dtype, qkv_layout, head_dim, attn_mask_type):\n"
    "    return False, False, None, head_dim == 32, [False, False, True]\n"
)
NONE = PARAMETERS + "def get_attention_backend(p=None):\n    return False, None, False, None, False, [False] * 3\n"

REQUEST = {"device": "cpu", "num_heads": 4, "num_kv_heads": 2, "seq_len_q": 64, "head_dim_qk": 32, "mask": "causal"}


def te(python: str, root: pathlib.Path, selector: str, *, where: str, how: str = "", **request: Any) -> KernelResult:
    package = root / "transformer_engine"
    (package / "pytorch").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.0-stand-in'\n")
    (package / "pytorch" / "__init__.py").write_text(LAYER.replace("{how}", how))
    if where == "attention":
        (package / "pytorch" / "attention.py").write_text(selector)
    else:
        deep = package / "pytorch" / "attention" / "dot_product_attention"
        deep.mkdir(parents=True)
        (deep.parent / "__init__.py").write_text("")
        (deep / "__init__.py").write_text("")
        (deep / "utils.py").write_text(selector)
    return run_one(python, "te_attention", {**REQUEST, **request}, timeout=120, env={"PYTHONPATH": str(root)})


def test_five_entries_of_older_releases(torch_python: str, tmp_path: pathlib.Path) -> None:
    answer = te(torch_python, tmp_path, OLD, where="attention")
    assert answer.outcome == "ran", answer
    observed = answer.observed
    assert (observed["selected"], observed["available"]) == ("te.fused", [False, True, True])
    assert observed["log"] == ["Disabling FlashAttention 2 for head_dim 32"]
    assert observed["executed"] and not observed["wrong"], observed["errors"]


def test_six_entries_of_newer_releases(torch_python: str, tmp_path: pathlib.Path) -> None:
    huge = {"seq_len_q": 100000, "execute": False}
    answer = te(torch_python, tmp_path, NEW, where="deep", **huge)
    assert answer.observed["selected"] == "te.flash2" and answer.observed["flash_version"] == "2.8.3"
    assert answer.observed["log"] == ["seqlen 100000"], "the choice is asked about the workload as it is"
    assert answer.observed["not_executed_because"] == "not requested"


def test_five_entries_with_flash_attn_3(torch_python: str, tmp_path: pathlib.Path) -> None:
    answer = te(torch_python, tmp_path, OLD_FLASH_3, where="attention", execute=False)
    assert answer.observed["selected"] == "te.flash3"


def test_one_argument_each(torch_python: str, tmp_path: pathlib.Path) -> None:
    assert te(torch_python, tmp_path, OLDEST, where="attention").observed["selected"] == "te.unfused"


def test_wrong_numbers_are_seen(torch_python: str, tmp_path: pathlib.Path) -> None:
    how = "q = q.contiguous().view(-1).roll(64).view(q.shape)"
    answer = te(torch_python, tmp_path, OLD, where="attention", how=how, qkv_layout="bshd_bshd_bshd")
    assert answer.observed["wrong"] and "out" in answer.observed["offenders"]


def test_what_ran_is_read_off_the_functions_that_were_called(torch_python: str, tmp_path: pathlib.Path) -> None:
    how = (
        "class FusedAttnFunc(torch.autograd.Function):\n"
        "            forward = staticmethod(lambda ctx, t: t.clone())\n"
        "            backward = staticmethod(lambda ctx, g: g)\n"
        "        q = FusedAttnFunc.apply(q)"
    )
    observed = te(torch_python, tmp_path, OLD, where="attention", how=how).observed
    assert "cudnn" in observed["ran"] and "FusedAttnFunc" in observed["kernels"], observed
    assert not observed["wrong"]


def test_no_backend_is_a_refusal(torch_python: str, tmp_path: pathlib.Path) -> None:
    how = "raise Exception('No dot product attention support for the provided inputs!')"
    answer = te(torch_python, tmp_path, NONE, where="deep", how=how)
    assert answer.outcome == "refused" and "No dot product attention" in answer.reason
    assert answer.observed["selected"] is None


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"cp_size": 2}, "context parallelism needs several processes"),
        ({"qkv_layout": "thd_thd_thd"}, "of the thd format only the selection is checked"),
    ],
)
def test_what_one_process_cannot_run_is_only_asked(
    torch_python: str, tmp_path: pathlib.Path, request_: dict[str, Any], why: str
) -> None:
    observed = te(torch_python, tmp_path, NEW, where="deep", **request_).observed
    assert (observed["executed"], observed["not_executed_because"]) == (False, why)


def test_broken_installation_is_a_failure(torch_python: str, tmp_path: pathlib.Path) -> None:
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libcudnn_graph.so.9: undefined symbol')")
    answer = run_one(torch_python, "te_attention", REQUEST, timeout=120, env={"PYTHONPATH": str(tmp_path)})
    assert answer.outcome == "failed" and "undefined symbol" in answer.reason
