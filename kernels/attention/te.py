"""TransformerEngine as it is installed: the backend it selects, its log, and one call through it.

The place of the selection differs by release: 1.9 to 2.1 have it in `transformer_engine.pytorch.attention`, 2.3 and
later in `...attention.dot_product_attention.utils`; earlier releases select inside the forward call.
"""

import importlib
import inspect
import logging
import os

from ..protocol import Unavailable, step
from . import sdpa

SELECTORS = (
    "transformer_engine.pytorch.attention.dot_product_attention.utils",
    "transformer_engine.pytorch.dot_product_attention.utils",
    "transformer_engine.pytorch.attention",
)
LOGGERS = (
    "DotProductAttention",
    "transformer_engine",
    "FusedAttention",
    "FlashAttention",
    "UnfusedDotProductAttention",
)


def load():
    """Return `transformer_engine.pytorch`; raise Unavailable if the package is not installed."""
    os.environ["NVTE_DEBUG"] = "1"  # read by some releases at import, by others at each choice
    os.environ["NVTE_DEBUG_LEVEL"] = "2"
    step("import transformer_engine.pytorch")
    try:
        import transformer_engine.pytorch as te
    except ModuleNotFoundError as error:
        if error.name != "transformer_engine":
            raise  # installed, but broken: that is the finding
        raise Unavailable("transformer_engine is not installed") from error
    return te


def version():
    """Return the version that the package states."""
    import transformer_engine

    return str(getattr(transformer_engine, "__version__", "unknown"))


class Log(logging.Handler):
    """Collect the lines that TransformerEngine logs, each once."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines, self._levels = [], {}

    def emit(self, record):
        """Record one line."""
        text = record.getMessage()
        if text not in self.lines and len(self.lines) < 200:
            self.lines.append(text[:2000])

    def __enter__(self):
        for name in LOGGERS:
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            logger.setLevel(logging.DEBUG)
            logger.addHandler(self)
        return self

    def __exit__(self, *_):
        for name, level in self._levels.items():
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).setLevel(level)


def selector():
    """Return (get_attention_backend, its module); raise Unavailable before TransformerEngine 1.9."""
    for name in SELECTORS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "get_attention_backend"):
            return module.get_attention_backend, module
    raise Unavailable("this TransformerEngine ({}) has no get_attention_backend".format(version()))


def parameters(torch, case, layout, te_mask):
    """Return the parameters of a workload that any release takes, by their names there."""
    window = case.get("window")
    if not window:
        window = [-1, 0] if "causal" in te_mask else [-1, -1]
    return {
        "qkv_type": torch.Tensor,
        "qkv_dtype": getattr(torch, case["dtype"]),
        "qkv_layout": layout,
        "batch_size": case["batch_size"],
        "num_heads": case["num_heads"],
        "num_gqa_groups": case["num_kv_heads"],
        "max_seqlen_q": case["seq_len_q"],
        "max_seqlen_kv": case["seq_len_kv"],
        "head_dim": case["head_dim_qk"],
        "head_dim_qk": case["head_dim_qk"],
        "head_dim_v": case["head_dim_v"],
        "attn_mask_type": te_mask,
        "window_size": tuple(window),
        "alibi_slopes_shape": _slopes_shape(torch, case),
        "core_attention_bias_type": case.get("bias") or "no_bias",
        "core_attention_bias_shape": case.get("bias_shape"),
        "core_attention_bias_requires_grad": bool(case.get("bias_requires_grad")),
        "pad_between_seqs": bool(case.get("pad_between_seqs")),
        "attention_dropout": float(case.get("asked_dropout") or 0.0),
        "context_parallel": int(case.get("cp_size") or 1) > 1,
        "cp_comm_type": case.get("cp_comm_type") or "p2p",
        "cp_size": int(case.get("cp_size") or 1),
        "deterministic": bool(case.get("deterministic")),
        "is_training": bool(case["training"]),
        "fp8": bool(case.get("fp8")),
        "fp8_meta": {"recipe": _recipe(case)} if case.get("fp8") else None,
        "bottom_right_diagonal": bottom_right(case, te_mask),
        "softcap": float(case.get("softcap") or 0.0),
        "softmax_type": case.get("softmax_type") or "vanilla",
        "return_max_logit": bool(case.get("return_max_logit")),
        "num_splits": int(case.get("num_splits") or 1),
        "softmax_scale": case.get("scale") or case["head_dim_qk"] ** -0.5,
        "cuda_graph": bool(case.get("cuda_graph")),
    }


def _slopes_shape(torch, case):
    """Return the shape of the ALiBi slopes that the job passes; None where the layer makes them."""
    sizes = {"h": [case["num_heads"]], "bh": [case["batch_size"], case["num_heads"]]}
    return torch.Size(sizes[case["alibi_slopes"]]) if case.get("alibi_slopes") else None


def bottom_right(case, te_mask):
    """Return whether window and ALiBi are aligned to the lower right corner: as the job says, else by the mask."""
    given = case.get("bottom_right_diagonal")
    return te_mask not in ("causal", "padding_causal") if given is None else bool(given)


def _recipe(case):
    """Return the FP8 recipe of the job; attention is part of it where no word says otherwise."""
    from transformer_engine.common.recipe import DelayedScaling

    if (case.get("fp8_recipe") or "delayed") != "delayed":
        raise Unavailable("this program knows the delayed FP8 recipe, not {fp8_recipe}".format(**case))
    mha = bool(case.get("fp8_mha"))
    dpa = case.get("fp8_dpa")
    return DelayedScaling(fp8_dpa=not mha if dpa is None else bool(dpa), **({"fp8_mha": True} if mha else {}))


def choice(torch, case, layout, te_mask):
    """Return which backend the installed release selects, and the lines that it logs."""
    function, module = selector()
    wanted = parameters(torch, case, layout, te_mask)
    names = list(inspect.signature(function).parameters)
    holder = getattr(module, "AttentionParams", None)
    step("get_attention_backend")
    with Log() as log:
        if holder is not None and len(names) == 1:
            known = inspect.signature(holder).parameters
            result = function(holder(**{key: value for key, value in wanted.items() if key in known}))
        else:  # 1.9: one argument each
            result = function(**{key: value for key, value in wanted.items() if key in names})
    return dict(decode(result, module), module=module.__name__), log.lines


def decode(result, module=None):
    """Decode the tuple that get_attention_backend returns: 5 entries up to 2.1, 6 from 2.3 on."""
    result = tuple(result)
    if len(result) == 5:
        flash, fused, sub_backend, unfused, available = result
        # These releases keep the choice between flash-attn 2 and 3 in a variable of the module.
        flash_version = ("3" if getattr(module, "_use_flash_attn_3", False) else "2") if flash else None
    else:
        flash, flash_version, fused, sub_backend, unfused, available = result[:6]
    selected = None
    if flash:
        major = str(flash_version).split(".")[0] if flash_version is not None else ""
        selected = "te.flash" + (major if major.isdigit() else "")
    elif fused:
        selected = "te.fused"
    elif unfused:
        selected = "te.unfused"
    return {
        "selected": selected,
        "available": [bool(flag) for flag in available],  # flash, fused, unfused
        "flash_version": None if flash_version is None else str(flash_version),
        "fused_sub_backend": None if sub_backend is None else str(sub_backend),
    }


def layer(te, case, form):
    """Construct DotProductAttention as a job with this workload does."""
    dims = case["head_dim_qk"]
    if case["head_dim_v"] != dims:
        dims = (dims, case["head_dim_v"])
    step("DotProductAttention: construct")
    made = te.DotProductAttention(
        case["num_heads"],
        dims,
        num_gqa_groups=case["num_kv_heads"],
        attention_dropout=0.0,
        qkv_format=form,
        attn_mask_type=case["mask"],
    )
    return made.train(bool(case["training"]))


def attend(torch, attention, case, q, k, v, dout, form, attention_mask=None):
    """Run the layer forward and backward on (batch, heads, seq, dim) views; return the results by name."""
    order = {"sbhd": (2, 0, 1, 3), "bshd": (0, 2, 1, 3)}[form]
    back = [order.index(axis) for axis in range(4)]
    inputs = [t.detach().permute(order).requires_grad_(bool(case["training"])) for t in (q, k, v)]
    more = {"window_size": tuple(case["window"])} if case.get("window") else {}
    step("DotProductAttention: forward")
    out = attention(*inputs, attention_mask=attention_mask, attn_mask_type=case["mask"], **more)
    grads = [None] * 3
    shaped = out.reshape(tuple(inputs[0].shape[:3]) + (case["head_dim_v"],))
    if case["training"]:
        step("DotProductAttention: backward")
        grads = sdpa.gradients(torch, shaped, inputs, dout.permute(order))
    got = {"out": shaped.detach().permute(back)}
    for name, grad in zip(("dq", "dk", "dv"), grads):  # noqa: B905 - Python 3.8
        got[name] = None if grad is None else grad.permute(back)
    return got
