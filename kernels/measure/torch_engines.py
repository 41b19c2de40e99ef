"""torch's own attention: the backends of SDPA, written-out scores, flex_attention and varlen_attn."""

import contextlib
import inspect
import warnings

from ..attention import sdpa
from ..protocol import Refused, Unavailable
from .engine import Engine, Segments


class Sdpa(Engine):
    """scaled_dot_product_attention, held to one backend."""

    def __init__(self, torch, job, backend):
        super().__init__(torch, job)
        self.backend = backend
        if job["dtype"] == "float32" and backend == "flash":
            pass  # torch refuses it in its own words
        if job.device == "cpu" and backend in ("efficient", "cudnn"):
            raise Unavailable("sdpa.{} needs a GPU".format(backend))
        if job.get("softcap"):
            raise Refused("scaled_dot_product_attention has no soft cap: it would be left out")
        self.repeat = job.group > 1 and (job.get("enable_gqa") is False or not self._groups())
        self.arguments = {"scale": job.get("scale")}
        if job.get("dropout"):
            self.arguments["dropout_p"] = job["dropout"]
        self._mask()

    def _groups(self):
        """Return whether this torch takes grouped heads; that the backend does shows the first call."""
        return "enable_gqa" in (self.torch.nn.functional.scaled_dot_product_attention.__doc__ or "")

    def _mask(self):
        job, torch = self.job, self.torch
        plain = not (job.window or job.padded or job.packed or job.alibi)
        if plain and job["mask"] == "no_mask":
            return
        if plain and job["mask"] == "causal":
            self.arguments["is_causal"] = True
            return
        if plain and job["mask"] == "causal_bottom_right" and self.backend in ("flash", "efficient"):
            from torch.nn.attention.bias import causal_lower_right

            self.arguments["attn_mask"] = causal_lower_right(job["seq_len_q"], job["seq_len_kv"])
            return
        if self.backend == "flash":
            raise Refused("FlashAttention in torch takes no mask tensor")
        mask = job.dense_mask()
        if job.alibi or (job.get("mask_dtype") or "boolean") != "boolean":
            mask = additive(torch, job, mask, getattr(torch, job["dtype"]))
        else:
            mask = mask.contiguous()
        self.held = (mask,)
        self.arguments["attn_mask"] = mask

    def context(self):
        """Return a context in which torch uses this backend only."""
        stack = contextlib.ExitStack()
        stack.enter_context(super().context())
        stack.enter_context(sdpa.only(self.torch, self.backend))
        return stack

    def call(self, q, k, v):
        """Return the output of one call."""
        if self.repeat:
            k, v = k.repeat_interleave(self.job.group, 1), v.repeat_interleave(self.job.group, 1)
        elif self.job.group > 1:
            return self._function(q, k, v, enable_gqa=True, **self.arguments)
        return self._function(q, k, v, **self.arguments)

    @property
    def _function(self):
        return self.torch.nn.functional.scaled_dot_product_attention

    def accept(self, q, k, v):
        """Call once; a backend without grouped heads gets repeated ones. Raise Refused with torch's reasons."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return self.call(q, k, v)
            except RuntimeError as error:
                reason = sdpa.refusal(error, caught)
                if reason is None:
                    raise
                if self.repeat or self.job.group == 1 or self.job.get("enable_gqa"):
                    raise Refused(reason) from error
        self.repeat = True
        self.notes["gqa"] = "k and v are repeated: the backend takes no grouped heads"
        return self.accept(q, k, v)


def additive(torch, job, keep, dtype, lowest=float("-inf")):
    """Return the mask that is added to scores: the bias of ALiBi, and `lowest` where a key does not count."""
    if not job.alibi:
        return torch.zeros(keep.shape, dtype=dtype, device=job.device).masked_fill_(~keep, lowest)
    shape = (1 if keep is None else keep.shape[0], job["num_heads"], job["seq_len_q"], job["seq_len_kv"])
    mask = torch.empty(shape, dtype=dtype, device=job.device)
    for head in range(job["num_heads"]):
        bias = job.alibi_bias(slice(head, head + 1)).to(dtype)
        mask[:, head] = (bias if keep is None else bias.masked_fill(~keep, lowest))[:, 0]
    return mask


class Eager(Engine):
    """Written-out scores, as `eager_attention_forward` of transformers has them."""

    written_out = True

    def __init__(self, torch, job):
        super().__init__(torch, job)
        keep, dtype = job.dense_mask(), getattr(torch, job["dtype"])
        self.mask = None
        if keep is not None or job.alibi:
            self.mask = additive(torch, job, keep, dtype, torch.finfo(dtype).min)
            self.held = (self.mask,)

    def call(self, q, k, v):
        """Return the output of one call."""
        torch, job = self.torch, self.job
        if job.group > 1:
            k, v = (_repeated(tensor, job.group) for tensor in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * job.scale
        if job.get("softcap"):
            scores = torch.tanh(scores / job["softcap"]) * job["softcap"]
        if self.mask is not None:
            scores = scores + self.mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        if job.get("dropout"):
            weights = torch.nn.functional.dropout(weights, job["dropout"])
        return torch.matmul(weights, v)


def _repeated(tensor, group):
    """Return each key head `group` times: repeat_kv of transformers."""
    b, g, s, d = tensor.shape
    return tensor[:, :, None].expand(b, g, group, s, d).reshape(b, g * group, s, d)


class Flex(Engine):
    """flex_attention, with the mask of the job as a block mask and its bias or soft cap as a score function."""

    def __init__(self, torch, job, compiled):
        super().__init__(torch, job)
        if job.get("dropout"):
            raise Refused("flex_attention has no dropout")
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        except ImportError as error:
            raise Unavailable("torch {} has no flex_attention".format(torch.__version__)) from error
        if compiled and job.device == "cpu":
            raise Unavailable("flex.triton needs a GPU")
        self.written_out = not compiled
        self.flex = flex_attention
        self.block_mask = self._block_mask(create_block_mask)
        self.score_mod = self._score_mod()

    def _block_mask(self, create):
        job, visible = self.job, self.job.mask_function()
        if visible is None:
            return None
        queries, keys = job["seq_len_q"], job["seq_len_kv"]
        batch = job["batch_size"] if job.padded else None
        large = (batch or 1) * queries * keys > 1 << 28  # written out, the mask takes many times its bytes
        more = {"_compile": True} if large and "_compile" in inspect.signature(create).parameters else {}
        made = create(visible, batch, None, queries, keys, device=job.device, **more)
        self.held = [tensor for tensor in made.as_tuple() if self.torch.is_tensor(tensor)]
        return made

    def _score_mod(self):
        torch, job, cap = self.torch, self.job, self.job.get("softcap")
        if job.alibi:
            slopes, shift = job.slopes(), job["seq_len_kv"] - job["seq_len_q"]

            def biased(score, b, h, q, k):
                if cap:
                    score = torch.tanh(score / cap) * cap
                return score - (q + shift - k).abs() * slopes[h]

            return biased
        if not cap:
            return None

        def capped(score, b, h, q, k):
            return torch.tanh(score / cap) * cap

        return capped

    def call(self, q, k, v):
        """Return the output of one call."""
        job = self.job
        return self.flex(
            q, k, v, score_mod=self.score_mod, block_mask=self.block_mask, scale=job.scale, enable_gqa=job.group > 1
        )


class Varlen(Segments):
    """torch.nn.attention.varlen: flash kernels on sequences one behind the other, without padding."""

    def __init__(self, torch, job):
        super().__init__(torch, job)
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError as error:
            raise Unavailable("torch {} has no varlen_attn".format(torch.__version__)) from error
        if job.device == "cpu":
            raise Unavailable("torch.varlen needs a GPU")
        for word in ("softcap", "dropout"):
            if job.get(word):
                raise Refused("varlen_attn takes no {}".format(word))
        if job.alibi or job["mask"] == "arbitrary":
            raise Refused("varlen_attn takes no mask tensor and no bias")
        known = inspect.signature(varlen_attn).parameters
        self.function, self.arguments = varlen_attn, {}
        if job.get("scale"):
            self.arguments["scale"] = job["scale"]
        if "window_size" in known:
            left, right = job.window or (-1, -1)
            if job.causal and job.offset == 0 and job["seq_len_q"] != job["seq_len_kv"]:
                raise Refused("varlen_attn aligns a causal mask to the lower right corner")
            self.arguments["window_size"] = (left, 0 if job.causal else right)
        elif job.window:
            raise Refused("varlen_attn of torch {} takes no window".format(torch.__version__))
        elif job.causal:
            self.arguments["is_causal"] = True
        if job.group > 1 and "enable_gqa" in known:
            self.arguments["enable_gqa"] = True

    def call(self, q, k, v):
        """Return the output of one call."""
        return self.function(q, k, v, *self.bounds, *self.longest, **self.arguments)
