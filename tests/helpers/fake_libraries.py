"""Libraries of attention for a CPU, written out: what the sweep's adapters call, meant as the real ones mean it.

An adapter that names the wrong axis, mask or length is wrong here as it is there.
"""

WRITTEN_OUT = '''
import torch

def written_out(q, k, v, left=-1, right=-1, corner="bottom", softcap=0.0, bias=None, slopes=None, scale=None):
    """(seq, heads, dim) each; corner: from where left and right are counted."""
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    s = (q.float() @ k.float().mT) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    shift = k.shape[1] - q.shape[1] if corner == "bottom" else 0
    i, j = torch.arange(q.shape[1])[:, None] + shift, torch.arange(k.shape[1])
    if bias is not None:
        s = s + bias.float()
    if slopes is not None:
        s = s - slopes[:, None, None] * (i - j).abs()
    keep = torch.ones_like(s[0], dtype=torch.bool)
    if left >= 0:
        keep &= j >= i - left
    if right >= 0:
        keep &= j <= i + right
    p = s.masked_fill(~keep, -1e30).softmax(-1) * keep
    return (p @ v.float()).to(v.dtype).transpose(0, 1)
'''

FLASH = (
    WRITTEN_OUT
    + """
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False):
    left, right = (-1, 0) if causal else window_size
    one = lambda *t: written_out(*t, left, right, "bottom", softcap, None, alibi_slopes, softmax_scale)
    return torch.stack([one(*t) for t in zip(q, k, v)])

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **how):
    assert max_seqlen_q == int(cu_seqlens_q.diff().max()) and max_seqlen_k == int(cu_seqlens_k.diff().max())
    ends = zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], cu_seqlens_k.tolist(), cu_seqlens_k.tolist()[1:])
    return torch.cat([flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], **how)[0] for a, b, c, d in ends])
"""
)

TRANSFORMER_ENGINE = (
    WRITTEN_OUT
    + """
class DotProductAttention:
    def __init__(self, heads, dims, num_gqa_groups=None, attention_dropout=0.0, qkv_format="sbhd",
                 attn_mask_type="causal", window_size=None, softcap=0.0, attention_type="self"):
        self.heads, self.groups, self.form, self.mask = heads, num_gqa_groups, qkv_format, attn_mask_type
        self.window, self.softcap = window_size, softcap

    def __call__(self, q, k, v, attention_mask=None, core_attention_bias_type="no_bias", core_attention_bias=None,
                 alibi_slopes=None, cu_seqlens_q=None, cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None):
        assert q.shape[-2] == self.heads and k.shape[-2] == self.groups
        left, right = self.window or ((-1, 0) if "causal" in self.mask else (-1, -1))
        corner = "top" if self.mask in ("causal", "padding_causal") else "bottom"
        if self.form == "thd":
            assert "padding" in self.mask and q.dim() == 3
            at_q, at_k = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
            lengths = zip(at_q, at_q[1:], at_k, at_k[1:])
            parts = [(q[a:b], k[c:d], v[c:d]) for a, b, c, d in lengths]
        else:
            first = [t.transpose(0, 1) if self.form == "sbhd" else t for t in (q, k, v)]
            parts = list(zip(*first))
        seen = [len(part[1]) for part in parts]
        if attention_mask is not None:  # True is padding
            assert "padding" in self.mask and not attention_mask[0].any()
            seen = (~attention_mask[1]).flatten(1).sum(1).tolist()
        bias = core_attention_bias
        outs = []
        for b, ((x, y, z), n) in enumerate(zip(parts, seen)):
            mine = None if bias is None else bias[b % bias.shape[0]]
            slopes = alibi_slopes if core_attention_bias_type == "alibi" else None
            outs.append(written_out(x, y[:n], z[:n], left, right, corner, self.softcap, mine, slopes).flatten(1))
        if self.form == "thd":
            return torch.cat(outs)
        return torch.stack(outs, 1 if self.form == "sbhd" else 0)
"""
)


def install(folder):
    """A folder to put on PYTHONPATH."""
    (folder / "flash_attn").mkdir(parents=True)
    (folder / "flash_attn" / "__init__.py").write_text(FLASH)
    within = folder
    for name in ("transformer_engine", "pytorch", "attention", "dot_product_attention"):
        within = within / name
        within.mkdir()
        (within / "__init__.py").write_text(TRANSFORMER_ENGINE if name == "pytorch" else "")
    (within / "dot_product_attention.py").write_text("_attention_backends = {}\n")
    return folder
