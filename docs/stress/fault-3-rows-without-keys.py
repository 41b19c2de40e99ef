# Run on its own on an H200 with torch 2.11.0+cu130, it ended with 1.
# Ends with 1, or dies, where the fault shows; needs a GPU and torch alone.
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.manual_seed(16)
opts = dict(device='cuda', dtype=torch.bfloat16)
q = torch.randn(1, 1, 1, 8, **opts)
k = torch.randn(1, 1, 2, 8, **opts)
v = torch.randn(1, 1, 2, 8, **opts)
q, k, v = (t.detach().requires_grad_(False) for t in (q, k, v))
keep = torch.rand(1, 1, 1, 2, device=q.device) < 0.7
keep[..., 0] = True
keep[:, :, ::5] = False
out = sdpa(q, k, v, attn_mask=keep)
got = [out]
blind = got[0][~keep.any(-1).expand(out.shape[:3])]
print('rows that see no key hold', blind[0, :4].tolist())
raise SystemExit(not bool((blind == 0).all()))
