"""Attention of other libraries: flash-attn, xFormers, SageAttention, FlashInfer, TransformerEngine, fla and NATTEN.

What a library cannot compute is refused before it is imported: an import can take longer than the measurement.
"""

import inspect

from ..attention import te as te_engine
from ..protocol import Refused, Unavailable
from .engine import Engine, Heads, Segments, load, release

#: The module of flash-attn's functions; wheels of flash-attn 3 come under two names.
FLASH = {
    "flash2": (("flash_attn",), ("flash-attn",)),
    "flash3": (("flash_attn_interface", "fa3_fwd_interface"), ("flash-attn-3", "fa3-fwd")),
    "flash4": (("flash_attn.cute",), ("flash-attn-4", "flash-attn-cute")),
}


def _only_gpu(job, name):
    if job.device == "cpu":
        raise Unavailable("{} needs a GPU".format(name))


def _no_mask_tensor(job, library):
    """Raise Refused for a mask that only a tensor can say."""
    if job["mask"] == "arbitrary":
        raise Refused("{} takes no mask tensor".format(library))
    if job["mask"] == "causal" and job["seq_len_q"] != job["seq_len_kv"]:
        raise Refused("{} aligns a causal mask to the lower right corner".format(library))


def _supported(function, arguments, library):
    """Raise Refused for an argument that this release does not take."""
    missing = [name for name in arguments if name not in inspect.signature(function).parameters]
    if missing:
        raise Refused("`{}` of {} takes no {}".format(function.__name__, library, ", ".join(missing)))


def flash(torch, job, generation):
    """Return the engine of one generation of flash-attn: with variable lengths where rows are padded or packed."""
    modules, distributions = FLASH[generation]
    module = None
    for name in modules:
        try:
            module = load(name, distributions[0])
            break
        except Unavailable as missing:
            absent = missing
    if module is None:
        raise absent
    _only_gpu(job, "fa." + generation)
    _no_mask_tensor(job, "flash-attn")
    if job["dtype"] == "float32":
        raise Refused("flash-attn takes float16 and bfloat16")
    variable = job.padded or job.packed
    function = getattr(module, "flash_attn_varlen_func" if variable else "flash_attn_func", None)
    if function is None:
        raise Refused("{} has no function for variable lengths".format(modules[0]))
    arguments = {"causal": job.causal}
    for word, name in (("scale", "softmax_scale"), ("softcap", "softcap"), ("dropout", "dropout_p")):
        if job.get(word):
            arguments[name] = job[word]
    if job.window:
        arguments["window_size"] = job.window
    if job.alibi:
        arguments["alibi_slopes"] = job.slopes()
    if job.get("deterministic"):
        arguments["deterministic"] = True
    _supported(function, arguments, release(*distributions) or modules[0])
    made = _FlashVarlen(torch, job) if variable else _Flash(torch, job)
    made.function, made.arguments, made.library = function, arguments, release(*distributions)
    made.forward_only = module.__name__ == "fa3_fwd_interface"
    return made


class _Flash(Heads):
    def call(self, q, k, v):
        out = self.function(q, k, v, **self.arguments)
        return out[0] if isinstance(out, tuple) else out


class _FlashVarlen(Segments):
    def call(self, q, k, v):
        bounds = {"cu_seqlens_q": self.bounds[0], "cu_seqlens_k": self.bounds[1]}
        longest = {"max_seqlen_q": self.longest[0], "max_seqlen_k": self.longest[1]}
        out = self.function(q, k, v, **bounds, **longest, **self.arguments)
        return out[0] if isinstance(out, tuple) else out


class Xformers(Heads):
    """memory_efficient_attention of xFormers, with the operator that it selects."""

    def __init__(self, torch, job):
        super().__init__(torch, job)
        if job.get("softcap"):
            raise Refused("memory_efficient_attention has no soft cap")
        ops = load("xformers.ops", "xformers")
        _only_gpu(job, "xformers")
        self.library, self.ops = release("xformers"), ops
        self.bias = self._bias(ops.fmha.attn_bias)

    def _bias(self, kinds):
        torch, job = self.torch, self.job
        same = job["seq_len_q"] == job["seq_len_kv"]
        if job.alibi or job["mask"] == "arbitrary" or (job.causal and job.padded):
            from .torch_engines import additive

            mask = additive(torch, job, job.dense_mask(), getattr(torch, job["dtype"]))
            mask = mask.expand(job["batch_size"], job["num_heads"], -1, -1)
            self.held = (mask,)
            return mask
        if job.packed:
            kind = kinds.BlockDiagonalCausalMask if job.causal else kinds.BlockDiagonalMask
            made = kind.from_seqlens([part[0] for part in job.segments()])
            if job.window:
                made = made.make_local_attention(job.window[0] + 1)
            return made
        if job.padded:
            return kinds.BlockDiagonalPaddedKeysMask.from_seqlens(
                q_seqlen=[job["seq_len_q"]] * job["batch_size"], kv_padding=job["seq_len_kv"], kv_seqlen=job.lengths
            )
        if job.window:
            left, right = job.window
            return kinds.LocalAttentionFromBottomRightMask(window_left=left, window_right=right)
        if job.causal:
            return kinds.LowerTriangularMask() if same else kinds.LowerTriangularFromBottomRightMask()
        return None

    def prepare(self, q, k, v, dout):
        """Return one row where the mask is of sequences; grouped heads in a dimension of their own."""
        inputs, dout = super().prepare(q, k, v, dout)
        if self.job.packed or (self.job.padded and not self.held):
            inputs = [tensor.flatten(0, 1).unsqueeze(0) for tensor in inputs]
            dout = dout.flatten(0, 1).unsqueeze(0)
        return inputs, dout

    def restore(self, tensor):
        """Return the rows."""
        if tensor.shape[0] != self.job["batch_size"]:
            tensor = tensor[0].unflatten(0, (self.job["batch_size"], -1))
        return super().restore(tensor)

    def call(self, q, k, v):
        """Return the output of one call."""
        job, groups = self.job, self.job["num_kv_heads"]
        more = {"p": job["dropout"]} if job.get("dropout") else {}
        if job.group > 1:
            q = q.unflatten(2, (groups, job.group))
            k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, job.group, -1) for tensor in (k, v))
        out = self.ops.memory_efficient_attention(q, k, v, attn_bias=self.bias, scale=job.scale, **more)
        return out.flatten(2, 3) if job.group > 1 else out


class Sage(Engine):
    """sageattn of SageAttention, which quantizes q and k."""

    forward_only = True

    def __init__(self, torch, job):
        super().__init__(torch, job)
        _no_mask_tensor(job, "sageattn")
        for word, present in (("window", job.window), ("padding", job.padded), ("packing", job.packed),
                              ("bias", job.alibi), ("soft cap", job.get("softcap"))):  # fmt: skip
            if present:
                raise Refused("sageattn takes no {}".format(word))
        self.function = load("sageattention").sageattn
        _only_gpu(job, "sageattention")
        self.library = release("sageattention")

    def call(self, q, k, v):
        """Return the output of one call."""
        return self.function(q, k, v, tensor_layout="HND", is_causal=self.job.causal, sm_scale=self.job.scale)


class FlashInfer(Segments):
    """BatchPrefillWithRaggedKVCacheWrapper of FlashInfer, planned once as a server does for all its layers."""

    forward_only = True

    def __init__(self, torch, job):
        super().__init__(torch, job)
        _no_mask_tensor(job, "FlashInfer")
        dtype = getattr(torch, job["dtype"])
        if job.window and job.window[1] > 0:
            raise Refused("FlashInfer takes a window to the left only")
        library = load("flashinfer", "flashinfer-python")
        _only_gpu(job, "flashinfer")
        self.library = release("flashinfer-python")
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device=job.device)
        self.wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        self.wrapper.plan(
            self.bounds[0], self.bounds[1], job["num_heads"], job["num_kv_heads"], job["head_dim_qk"],
            head_dim_vo=job["head_dim_v"], causal=job.causal, sm_scale=job.scale, q_data_type=dtype,
            window_left=job.window[0] if job.window else -1, logits_soft_cap=job.get("softcap") or None,
            pos_encoding_mode="ALIBI" if job.alibi else "NONE",
        )  # fmt: skip

    def call(self, q, k, v):
        """Return the output of one call."""
        return self.wrapper.run(q, k, v)


#: What TransformerEngine's log calls its backends.
TE_NAMES = {"flash": "FlashAttention", "fused": "FusedAttention", "unfused": "UnfusedDotProductAttention"}


def te_reason(log, backend):
    """Return the last line of TransformerEngine's log that rules this backend out, or what can be said without one."""
    name = TE_NAMES[backend]
    lines = [line for line in log if "isabling {}".format(name) in line]
    return lines[-1] if lines else "TransformerEngine has no {} here".format(name)


class TransformerEngine(Engine):
    """DotProductAttention of TransformerEngine; variables of the process say which backend it may use."""

    def __init__(self, torch, job, backend):
        super().__init__(torch, job)
        te = te_engine.load()
        _only_gpu(job, "te." + backend)
        self.library = "transformer-engine {}".format(te_engine.version())
        if job.padded or job.packed or job.alibi or job.get("softcap") or job.get("dropout"):
            raise Unavailable("this program measures TransformerEngine without padding, packing, bias and soft cap")
        case = {**job.words, "mask": job["mask"], "window": job.window}
        chosen, log = te_engine.choice(torch, case, "bshd_bshd_bshd", job["mask"])
        if chosen["selected"] is None or not chosen["selected"].startswith("te." + backend):
            raise Refused("{} (selected: {})".format(te_reason(log, backend)[:300], chosen["selected"]))
        self.backend, self.case = chosen["selected"], case
        self.layer = te_engine.layer(te, case, "bshd")

    def prepare(self, q, k, v, dout):
        """Return (batch, sequence, heads, width)."""
        return [tensor.transpose(1, 2) for tensor in (q, k, v)], dout.transpose(1, 2)

    def restore(self, tensor):
        """Return the heads to the second place."""
        return tensor.transpose(1, 2)

    def call(self, q, k, v):
        """Return the output of one call."""
        more = {"window_size": tuple(self.case["window"])} if self.case.get("window") else {}
        out = self.layer(q, k, v, attn_mask_type=self.case["mask"], **more)
        return out.reshape(tuple(q.shape[:3]) + (self.job["head_dim_v"],))


class Fla(Heads):
    """parallel_attn of flash-linear-attention: causal softmax attention in Triton."""

    def __init__(self, torch, job):
        super().__init__(torch, job)
        same = job["seq_len_q"] == job["seq_len_kv"]
        if job["mask"] != "causal" or not same or job.packed or job.alibi or job.get("softcap") or job.get("dropout"):
            raise Refused("parallel_attn computes plain causal attention of whole sequences")
        self.function = load("fla.ops.attn", "flash-linear-attention").parallel_attn
        _only_gpu(job, "fla.parallel_attn")
        self.library = release("flash-linear-attention", "fla-core")
        self.arguments = {"scale": job.scale}
        if job.window:
            self.arguments["window_size"] = job.window[0] + 1
        _supported(self.function, self.arguments, self.library)

    def call(self, q, k, v):
        """Return the output of one call."""
        return self.function(q, k, v, **self.arguments)


class Natten(Heads):
    """na1d of NATTEN: attention in a window."""

    def __init__(self, torch, job):
        super().__init__(torch, job)
        if not job.window or not job.causal or job.packed or job.padded or job.alibi or job.get("softcap"):
            raise Refused("na1d computes a causal window of whole sequences, without bias")
        library = load("natten")
        _only_gpu(job, "natten.na1d")
        self.function, self.library = library.na1d, release("natten")
        self.size = job.window[0] + 1

    def call(self, q, k, v):
        """Return the output of one call."""
        if self.job.group > 1:
            k, v = (tensor.repeat_interleave(self.job.group, 2) for tensor in (k, v))
        return self.function(q, k, v, kernel_size=self.size, is_causal=True, scale=self.job.scale)
