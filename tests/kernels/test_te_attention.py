"""TransformerEngine's several shapes, played by a substitute: a real one needs a GPU (tests/gpu)."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_program
from tests.helpers.paths import HELPERS

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


WRONG = "q = q.contiguous().view(-1).roll(64).view(q.shape)"
CALLS_FUSED = (
    "class FusedAttnFunc(torch.autograd.Function):\n"
    "            forward = staticmethod(lambda ctx, t: t.clone())\n"
    "            backward = staticmethod(lambda ctx, g: g)\n"
    "        q = FusedAttnFunc.apply(q)"
)
RAISES = "raise Exception('No dot product attention support for the provided inputs!')"
#: Name → (source of the selection, its module, a line in the layer's forward, request).
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "older": (OLD, "attention", "", {}),
    "newer": (NEW, "deep", "", {"seq_len_q": 100000, "execute": False}),
    "flash 3": (OLD_FLASH_3, "attention", "", {"execute": False}),
    "oldest": (OLDEST, "attention", "", {}),
    "wrong": (OLD, "attention", WRONG, {"qkv_layout": "bshd_bshd_bshd"}),
    "fused": (OLD, "attention", CALLS_FUSED, {}),
    "none": (NONE, "deep", RAISES, {}),
    "context parallel": (NEW, "deep", "", {"cp_size": 2}),
    "thd": (NEW, "deep", "", {"qkv_layout": "thd_thd_thd"}),
    "broken": ("", "broken", "", {}),
}


def install(root: pathlib.Path, selector: str, where: str, how: str) -> None:
    package = root / "transformer_engine"
    (package / "pytorch").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.0-stand-in'\n")
    (package / "pytorch" / "__init__.py").write_text(LAYER.replace("{how}", how))
    if where == "attention":
        (package / "pytorch" / "attention.py").write_text(selector)
    elif where == "broken":
        (package / "__init__.py").write_text("raise ImportError('libcudnn_graph.so.9: undefined symbol')")
    else:
        deep = package / "pytorch" / "attention" / "dot_product_attention"
        deep.mkdir(parents=True)
        (deep.parent / "__init__.py").write_text("")
        (deep / "__init__.py").write_text("")
        (deep / "utils.py").write_text(selector)


@pytest.fixture(scope="module")
def results(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelResult]:
    """The result of each case, all in one process: importing torch takes longer than they do."""
    requests = []
    for selector, where, how, more in CASES.values():
        root = tmp_path_factory.mktemp("te")
        install(root, selector, where, how)
        requests.append({"path": str(root), "kernel": "te_attention", "request": {**REQUEST, **more}})
    program = str(HELPERS / "with_libraries.py")
    return dict(zip(CASES, run_program(torch_python, program, requests, timeout=120), strict=True))


def test_five_entries_of_older_releases(results: dict[str, KernelResult]) -> None:
    answer = results["older"]
    assert answer.outcome == "ran", answer
    observed = answer.observed
    assert (observed["selected"], observed["available"]) == ("te.fused", [False, True, True])
    assert observed["log"] == ["Disabling FlashAttention 2 for head_dim 32"]
    assert observed["executed"] and not observed["wrong"], observed["errors"]


def test_six_entries_of_newer_releases(results: dict[str, KernelResult]) -> None:
    observed = results["newer"].observed
    assert observed["selected"] == "te.flash2" and observed["flash_version"] == "2.8.3"
    assert observed["log"] == ["seqlen 100000"], "the selection is queried for the workload as it is"
    assert observed["not_executed_because"] == "not requested"


def test_five_entries_with_flash_attn_3(results: dict[str, KernelResult]) -> None:
    assert results["flash 3"].observed["selected"] == "te.flash3"


def test_one_argument_each(results: dict[str, KernelResult]) -> None:
    assert results["oldest"].observed["selected"] == "te.unfused"


def test_wrong_numbers_are_seen(results: dict[str, KernelResult]) -> None:
    observed = results["wrong"].observed
    assert observed["wrong"] and "out" in observed["offenders"]


def test_the_functions_that_were_called_show_what_ran(results: dict[str, KernelResult]) -> None:
    observed = results["fused"].observed
    assert "cudnn" in observed["ran"] and "FusedAttnFunc" in observed["kernels"], observed
    assert not observed["wrong"]


def test_no_backend_is_a_refusal(results: dict[str, KernelResult]) -> None:
    answer = results["none"]
    assert answer.outcome == "refused" and "No dot product attention" in answer.reason
    assert answer.observed["selected"] is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("context parallel", "context parallelism needs several processes"),
        ("thd", "of the thd format only the selection is checked"),
    ],
)
def test_of_what_one_process_cannot_run_the_selection_is_checked(
    results: dict[str, KernelResult], name: str, why: str
) -> None:
    observed = results[name].observed
    assert (observed["executed"], observed["not_executed_because"]) == (False, why)


def test_broken_installation_is_a_failure(results: dict[str, KernelResult]) -> None:
    assert results["broken"].outcome == "failed" and "undefined symbol" in results["broken"].reason
