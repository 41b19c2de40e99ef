# Written by the sweep's shrinker; run on its own on an H200 with torch 2.11.0+cu130, transformers 5.17.0, it ended with 1.
# Ends with 1 where the fault shows; needs a GPU, torch and transformers.
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward as forward
from types import SimpleNamespace
config = SimpleNamespace(_attn_implementation='sdpa', dtype=torch.bfloat16)
module = SimpleNamespace(num_key_value_groups=2, is_causal=False, training=True, config=config, modules=lambda: [], named_modules=lambda: [], layer_idx=0)
torch.manual_seed(100007)
opts = dict(device='cuda', dtype=torch.bfloat16)
q = torch.randn(1, 2, 192, 64, **opts)
k = torch.randn(1, 1, 192, 64, **opts)
v = torch.randn(1, 1, 192, 64, **opts)
q, k, v = (t.detach().requires_grad_(True) for t in (q, k, v))
dout = torch.randn(1, 2, 192, 64, **opts)
scale = 0.125
out = forward(module, q, k, v, None, dropout=0.0, scaling=scale)[0].transpose(1, 2)
torch.autograd.grad(out, (q, k, v), dout.transpose(1, 2).contiguous().transpose(1, 2))
out = forward(module, q, k, v, None, dropout=0.0, scaling=scale)[0].transpose(1, 2)
got = [out, *torch.autograd.grad(out, (q, k, v), dout)]
r = [t.detach().double().requires_grad_() for t in (q, k, v)]
n = q.shape[1] // k.shape[1]
s = scale * r[0] @ r[1].repeat_interleave(n, 1).mT
p = s.softmax(-1)
ref = p @ r[2].repeat_interleave(n, 1)
want = [ref, *torch.autograd.grad(ref, r, dout.double())]
errors = {n: float((g.double() - w).norm() / w.norm()) for n, g, w in zip(['out', 'dq', 'dk', 'dv'], got, want)}
print(errors)
raise SystemExit(not all(e <= 0.00525282 for e in errors.values()))
