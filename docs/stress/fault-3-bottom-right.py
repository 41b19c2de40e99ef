# Run on its own on an H200 with torch 2.11.0+cu130, it ended with 1.
# Ends with 1, or dies, where the fault shows; needs a GPU and torch alone.
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.nn.attention.bias import causal_lower_right
torch.manual_seed(133)
opts = dict(device='cuda', dtype=torch.bfloat16)
q = torch.randn(1, 1, 2, 64, **opts)
k = torch.randn(1, 1, 1, 64, **opts)
v = torch.randn(1, 1, 1, 128, **opts)
q, k, v = (t.detach().requires_grad_(False) for t in (q, k, v))
i, j = torch.arange(2, device=q.device)[:, None], torch.arange(1, device=q.device)
keep = (j <= i + -1)
keep = keep[None, None]
out = sdpa(q, k, v, attn_mask=causal_lower_right(2, 1))
got = [out]
blind = got[0][~keep.any(-1).expand(out.shape[:3])]
print('rows that see no key hold', blind[0, :4].tolist())
raise SystemExit(not bool((blind == 0).all()))
