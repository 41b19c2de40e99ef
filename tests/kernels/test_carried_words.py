"""What a program declares to carry arrives in the call of the library: the calls of substitutes are compared."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from doctor.diagnosis.carried_words import CARRIED, FLASH, RANKS, SDPA, TE, VIEWS
from doctor.runner.run import run_one, run_program, run_snippet
from tests.helpers.paths import HELPERS

#: Records torch's attention calls; the calls themselves run on plain math, which a CPU has.
SPY = '''
import contextlib, types
from ..attention import sdpa
from ..parallel import engines
from . import strided_qkv

def run(request):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    functional, calls = torch.nn.functional, []
    real = functional.scaled_dot_product_attention
    cuda = torch.backends.cuda
    switches = {"flash": cuda.flash_sdp_enabled, "math": cuda.math_sdp_enabled,
                "efficient": cuda.mem_efficient_sdp_enabled, "cudnn": cuda.cudnn_sdp_enabled}

    def spy(q, k, v, **more):
        mask = more.get("attn_mask")
        seen = {"backends": sorted(name for name, enabled in switches.items() if enabled()),
                "deterministic": torch.are_deterministic_algorithms_enabled()}
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            seen[name] = [list(tensor.shape), list(tensor.stride()), str(tensor.dtype), tensor.requires_grad]
            seen[name + " offset"] = tensor.storage_offset()
        seen.update({name: value for name, value in more.items() if name != "attn_mask"})
        if isinstance(mask, torch.Tensor) and type(mask) is torch.Tensor:
            sees = mask if mask.dtype == torch.bool else mask == 0
            seen["mask"] = [list(mask.shape), str(mask.dtype), int(sees.sum())]
        else:
            seen["mask"] = type(mask).__name__
        calls.append(seen)
        with sdpa_kernel([SDPBackend.MATH]):
            return real(q, k, v, **more)

    spy.__doc__ = real.__doc__
    functional.scaled_dot_product_attention = spy
    ranks = over_ranks(torch, sdpa, engines)
    programs = {"sdpa": sdpa.measure, "strided_qkv": strided_qkv.run, "context_parallel": ranks}
    found = []
    for kernel, case in request["cases"]:
        del calls[:]
        try:
            programs[kernel](case)
        except Exception as error:
            if not calls:
                raise
        found.append(calls[0])
    functional.scaled_dot_product_attention = real
    return {"calls": found}


def over_ranks(torch, sdpa, engines):
    """torch's context parallelism without ranks: its module is a substitute that divides nothing."""
    class Ring(contextlib.nullcontext):
        def __init__(self, mesh, buffers, buffer_seq_dims):
            super().__init__()

    unshard = lambda mesh, tensors, dims: tensors
    inner = types.SimpleNamespace(set_rotate_method=print, _cp_options=types.SimpleNamespace(),
                                  context_parallel_unshard=unshard)
    outer = types.SimpleNamespace(context_parallel=Ring, _attention=inner)
    real = engines.importlib.import_module
    name = "torch.distributed.tensor.experimental"
    modules = {name: outer, name + "._attention": inner}
    engines.importlib = types.SimpleNamespace(import_module=lambda name: modules.get(name) or real(name))
    mesh = types.SimpleNamespace(DeviceMesh=types.SimpleNamespace(from_group=lambda *_: None))

    def measure(request):
        import torch.distributed
        from ..attention.tensors import make_tensors
        from ..attention.workload import workload
        kept, torch.distributed.device_mesh = getattr(torch.distributed, "device_mesh", None), mesh
        case, _ = workload(dict(request, device="cpu"))
        data = [tensor.to("meta") for tensor in make_tensors(torch, case, "cpu")]
        with sdpa.repeatable(torch, case):  # as parallel/rank.py does
            engines.through_torch(torch, case, None, *data)

    return measure
'''

#: Word → (words of both calls, its value, what it changes in the call).
CHANGES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "dtype": ({}, "float32", "q"),
    "head_dim_qk": ({}, 64, "q"),
    "head_dim_v": ({}, 16, "v"),
    "num_heads": ({}, 8, "q"),
    "num_kv_heads": ({}, 2, "k"),
    "batch_size": ({}, 1, "q"),
    "seq_len_q": ({"seq_len_kv": 96}, 64, "q"),
    "seq_len_kv": ({}, 64, "k"),
    "mask": ({}, "causal", "is_causal"),
    "training": ({}, False, "q"),
    "qkv_layout": ({}, "sbhd_sbhd_sbhd", "q"),
    "qkv_interleaved": ({}, True, "k offset"),
    "bottom_right_diagonal": ({"window": [9, 0], "seq_len_kv": 128}, True, "mask"),
    "fully_masked_rows": ({"seq_len_kv": 32}, True, "is a consequence"),
    "window": ({}, [9, 0], "mask"),
    "qkv_frozen": ({}, True, "q"),
    "dropout": ({}, 0.25, "dropout_p"),
    "deterministic": ({}, True, "deterministic"),
    "sdpa_backend": ({}, "flash", "backends"),
    "enable_gqa": ({"num_kv_heads": 2}, False, "enable_gqa"),
    "mask_dtype": ({"mask": "arbitrary"}, "float32", "mask"),
}
BASE = {
    "device": "cpu",
    "num_heads": 4,
    "num_kv_heads": 4,
    "seq_len_q": 96,
    "head_dim_qk": 32,
    "mask": "no_mask",
    "repeat": 1,
}
#: What the views of one projection decide themselves: the program runs each of its layouts, on one sequence.
OF_VIEWS = {"head_dim_v", "seq_len_kv", "qkv_layout", "qkv_interleaved", "bottom_right_diagonal", "fully_masked_rows"}
#: What the ranks are divided by, or refuse: see TestRefusals.
OF_RANKS = {
    "cp_size", "cp_size_a2a", "seq_len_kv", "window", "bottom_right_diagonal", "fully_masked_rows", "qkv_interleaved",
}  # fmt: skip


def carried_by(kernel: str) -> set[str]:
    return {word for word, carriers in CARRIED.items() if kernel in carriers.programs}


PROVEN = (
    (SDPA, carried_by(SDPA) - {"fully_masked_rows"}),
    (VIEWS, carried_by(VIEWS) - OF_VIEWS),
    (RANKS, carried_by(RANKS) - OF_RANKS),
)


@pytest.fixture(scope="module")
def calls(torch_python: str) -> dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]]:
    """By program and word: the call without the word, and the call with it."""
    asked = [(kernel, word) for kernel, words in PROVEN for word in sorted(words)]
    cases = []
    for kernel, word in asked:
        more, value, _ = CHANGES[word]
        base = {**BASE, "sdpa_backend": "math", "layouts": ["bs(h+2hg)d"], "engine": "torch.allgather", **more}
        cases += [(kernel, base), (kernel, {**base, word: value})]
    answer = run_snippet(torch_python, SPY, {"cases": cases}, timeout=200)
    assert answer.outcome == "ran", (answer.reason, answer.observed)
    seen = answer.observed["calls"]
    return {place: (seen[2 * at], seen[2 * at + 1]) for at, place in enumerate(asked)}


def test_every_carried_word_is_tried() -> None:
    """A word that is declared as carried by a program of torch needs a line in CHANGES."""
    assert set().union(*(words for _, words in PROVEN)) <= set(CHANGES)


@pytest.mark.parametrize(("kernel", "words"), PROVEN, ids=[kernel for kernel, _ in PROVEN])
def test_a_carried_word_changes_the_call_of_torch(calls, kernel, words):
    for word in words:
        without, with_it = calls[kernel, word]
        changed = {name for name in {*without, *with_it} if without.get(name) != with_it.get(name)}
        assert CHANGES[word][2] in changed, (kernel, word, without, with_it)


def test_what_arrives_is_what_the_job_says(calls):
    for kernel in (SDPA, VIEWS, RANKS):
        assert [call["backends"] for call in calls[kernel, "sdpa_backend"]] == [["math"], ["flash"]]
        grouped, repeated = calls[kernel, "enable_gqa"]
        assert (grouped["enable_gqa"], grouped["k"][0][1], repeated["k"][0][1]) == (True, 2, 4), kernel
    assert calls[SDPA, "dropout"][1]["dropout_p"] == 0.25
    assert calls[SDPA, "mask_dtype"][1]["mask"][1] == "torch.float32"
    assert [calls[SDPA, "training"][at]["q"][3] for at in (0, 1)] == [True, False]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "packed": (SDPA, {"qkv_layout": "thd_thd_thd"}, "qkv_layout"),
    "one projection, two lengths": (SDPA, {"qkv_interleaved": True, "seq_len_kv": 32}, "qkv_interleaved"),
    "type not stated": (SDPA, {"mask": "arbitrary", "mask_dtype": "float"}, "mask_dtype"),
    "queries without keys": (SDPA, {"mask": "arbitrary", "fully_masked_rows": True}, "fully_masked_rows"),
    "packed views": (VIEWS, {"qkv_layout": "thd_thd_thd"}, "qkv_layout"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_a_program_does_not_carry_is_declined_by_name(torch_python, name):
    kernel, words, named = REFUSED[name]
    answer = run_one(torch_python, kernel, {**BASE, **words, "backends": ["sdpa.math"]}, timeout=100)
    assert answer.outcome == "unavailable" and named in answer.reason, answer


def test_dropout_is_judged_and_a_false_one_is_found(torch_python):
    """The output keeps its mean, scatters as it must, and the backward pass drops the same values."""
    right, false = {**BASE, "dropout": 0.25, "seq_len_q": 128}, FALSE_DROPOUT
    answer = run_one(torch_python, SDPA, right, timeout=100)
    assert answer.outcome == "ran" and answer.observed["wrong"] is False, answer
    assert answer.observed["shrunk"] == {}, "it is no smaller job"
    answer = run_snippet(torch_python, false, right, timeout=100)
    assert answer.outcome == "ran" and answer.observed["wrong"] is True, answer
    assert set(answer.observed["offenders"]) & {"dropout", "dropout_backward"}


FALSE_DROPOUT = """
from ..attention import sdpa

def run(request):
    import torch
    real = torch.nn.functional.scaled_dot_product_attention
    functional = torch.nn.functional
    functional.scaled_dot_product_attention = lambda q, k, v, dropout_p=0.0, **more: real(q, k, v, **more)
    try:
        return sdpa.measure(dict(request, profile=False))
    finally:
        functional.scaled_dot_product_attention = real
"""

#: TransformerEngine's selection logs all that it is given, its layer the strides of k.
TE_SELECTION = """
import logging
logger = logging.getLogger("DotProductAttention")
NAMES = ('qkv_dtype qkv_layout batch_size num_heads num_gqa_groups max_seqlen_q max_seqlen_kv head_dim_qk head_dim_v'
         ' attn_mask_type window_size alibi_slopes_shape core_attention_bias_type core_attention_bias_shape'
         ' core_attention_bias_requires_grad pad_between_seqs attention_dropout context_parallel cp_comm_type'
         ' deterministic is_training fp8 fp8_meta bottom_right_diagonal softcap softmax_type return_max_logit'
         ' num_splits cuda_graph').split()
class AttentionParams:
    def __init__(self, {arguments}):
        self.given = {{name: value for name, value in locals().items() if name in NAMES}}
def get_attention_backend(attention_params=None):
    for name, value in attention_params.given.items():
        logger.debug('%s=%s', name, getattr(value.get('recipe'), 'made', value) if isinstance(value, dict) else value)
    return False, None, True, 'arbitrary_seqlen', True, [False, True, True]
"""
NAMES = TE_SELECTION.split("NAMES = (")[1].split(").split()")[0].replace("'", "").split()
TE_LAYER = """
import logging, torch
class DotProductAttention(torch.nn.Module):
    def __init__(self, *args, **more):
        super().__init__()
    def forward(self, q, k, v, **more):
        logging.getLogger("DotProductAttention").debug(
            'k %s %s %s', tuple(k.shape), k.stride(), torch.are_deterministic_algorithms_enabled())
        raise RuntimeError('No dot product attention backend: the call is all that is wanted')
"""
RECIPE = """
class DelayedScaling:
    def __init__(self, **more):
        self.made = sorted(more.items())
"""
TE_CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    **{word: (more, value) for word, (more, value, _) in CHANGES.items()},
    "bottom_right_diagonal": ({"window": [9, 0]}, False),
    "softcap": ({}, 30.0),
    "bias": ({}, "post_scale_bias"),
    "bias_shape": ({"bias": "post_scale_bias"}, "1hss"),
    "bias_requires_grad": ({"bias": "post_scale_bias"}, True),
    "alibi_slopes": ({"bias": "alibi"}, "bh"),
    "softmax_type": ({}, "learnable"),
    "return_max_logit": ({}, True),
    "num_splits": ({}, 2),
    "cuda_graph": ({}, True),
    "fp8": ({}, True),
    "fp8_dpa": ({"fp8": True, "fp8_mha": True}, True),
    "fp8_mha": ({"fp8": True}, True),
    "pad_between_seqs": ({"qkv_layout": "thd_thd_thd", "mask": "padding"}, True),
    "cp_size": ({}, 2),
    "cp_comm_type": ({"cp_size": 2}, "all_gather"),
}
#: Declined by name, and what follows from the lengths.
TE_OTHERS = {"fp8_recipe", "fully_masked_rows"}


def test_a_carried_word_changes_what_transformer_engine_gets(torch_python, tmp_path: pathlib.Path):
    words = sorted(carried_by(TE) - TE_OTHERS)
    assert set(words) <= set(TE_CHANGES), "a word that is declared as carried needs a line in TE_CHANGES"
    deep = tmp_path / "transformer_engine" / "pytorch" / "attention" / "dot_product_attention"
    deep.mkdir(parents=True)
    (tmp_path / "transformer_engine" / "common").mkdir()
    arguments = ", ".join(f"{name}=None" for name in NAMES)
    files = {
        "": "__version__ = '0.0-substitute'\n", "common": "", "pytorch": TE_LAYER, "pytorch/attention": "",
        "pytorch/attention/dot_product_attention": "",
    }  # fmt: skip
    for folder, text in files.items():
        (tmp_path / "transformer_engine" / folder / "__init__.py").write_text(text)
    (tmp_path / "transformer_engine" / "common" / "recipe.py").write_text(RECIPE)
    (deep / "utils.py").write_text(TE_SELECTION.format(arguments=arguments))
    cases = []
    for word in words:
        more, value = TE_CHANGES[word]
        base = {**BASE, "qkv_layout": "bshd_bshd_bshd", **more}
        cases += [
            base,
            {**base, word: value},
            *([{**base, "fp8_recipe": "mxfp8", "fp8": True}] if word == "fp8" else []),
        ]
    asked = [{"path": str(tmp_path), "kernel": TE, "request": case} for case in cases]
    answers = run_program(torch_python, str(HELPERS / "with_libraries.py"), asked, timeout=200)
    declined = [answer for answer in answers if answer.outcome == "unavailable"]
    assert len(declined) == 1 and "fp8_recipe" not in declined[0].observed and "mxfp8" in declined[0].reason
    seen = iter([answer for answer in answers if answer.outcome != "unavailable"])
    for word in words:
        without, with_it = next(seen), next(seen)
        pair = [
            (answer.observed.get("log"), answer.observed.get("executed"), answer.reason)
            for answer in (without, with_it)
        ]
        assert all(answer.observed.get("log") for answer in (without, with_it)), (word, without, with_it)
        if word == "qkv_interleaved":  # the selection does not get it; the layer gets views
            continue
        assert pair[0] != pair[1], (word, pair[0])


#: flash-attn's function raises with all that it was given.
FLASH_FUNCTION = """
import torch
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    deterministic=False):
    given = dict(locals())
    told = {name: value for name, value in given.items() if name not in 'qkv'}
    for name in 'qkv':
        tensor = given[name]
        told[name] = [tuple(tensor.shape), tensor.stride(), str(tensor.dtype), tensor.requires_grad]
    raise KeyError(repr(told) + str(torch.are_deterministic_algorithms_enabled()))
"""
#: flash-attn's mask has one corner and one head dim; other values are declined.
FLASH_OTHERS = {"head_dim_v", "bottom_right_diagonal", "fully_masked_rows", "seq_len_q"}
FLASH_CHANGES = {**TE_CHANGES, "dtype": ({}, "float16"), "head_dim_qk": ({}, 64)}


def test_a_carried_word_changes_the_call_of_flash_attn(torch_python, tmp_path: pathlib.Path):
    words = sorted(carried_by(FLASH) - FLASH_OTHERS)
    assert set(words) <= set(FLASH_CHANGES), "a word that is declared as carried needs a line in FLASH_CHANGES"
    (tmp_path / "flash_attn.py").write_text(FLASH_FUNCTION)
    cases = []
    for word in words:
        more, value = FLASH_CHANGES[word]
        cases += [{**BASE, **more}, {**BASE, **more, word: value}]
    asked = [{"path": str(tmp_path), "kernel": FLASH, "request": case} for case in cases]
    answers = run_program(torch_python, str(HELPERS / "with_libraries.py"), asked, timeout=200)
    for at, word in enumerate(words):
        without, with_it = answers[2 * at], answers[2 * at + 1]
        assert without.reason.startswith("KeyError") and with_it.reason.startswith("KeyError"), (word, without, with_it)
        assert without.reason != with_it.reason, (word, without.reason)
