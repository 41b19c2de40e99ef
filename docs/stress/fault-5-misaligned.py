# Run on its own on an H200 with torch 2.11.0+cu130, it ended with 1.
# Ends with 1, or dies, where the fault shows; needs a GPU and torch alone.
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.use_deterministic_algorithms(True)
torch.manual_seed(13)
opts = dict(device='cuda', dtype=torch.float32)
q = torch.randn(1024 + 1, **opts)[1:].view(1, 16, 1, 64)
k = torch.randn(1024000 + 1, **opts)[1:].view(1, 16, 1000, 64)
v = torch.randn(1024000 + 1, **opts)[1:].view(1, 16, 1000, 64)
q, k, v = (t.detach().requires_grad_(True) for t in (q, k, v))
dout = torch.randn(1, 1, 16, 64, **opts).transpose(1, 2)
i, j = torch.arange(1, device=q.device)[:, None], torch.arange(1000, device=q.device)
lens_k = [1000]
keep = (j < torch.tensor(lens_k, device=q.device)[:, None, None, None])
out = sdpa(q, k, v, attn_mask=keep)
got = [out, *torch.autograd.grad(out, (q, k, v), dout)]
