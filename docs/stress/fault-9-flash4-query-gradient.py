# Written by the sweep's shrinker; run on its own on an H200 with flash-attn-4 4.0.0b36, it ended with 1.
# Ends with 1 where the fault shows; needs a GPU, torch and flash-attn-4.
import torch
from flash_attn.cute import flash_attn_func
first = lambda x: x[0] if isinstance(x, tuple) else x
torch.manual_seed(23)
opts = dict(device='cuda', dtype=torch.bfloat16)
q = torch.randn(1, 1, 255, 8, **opts)
k = torch.randn(1, 1, 1025, 8, **opts)
v = torch.randn(1, 1, 1025, 8, **opts)
q, k, v = (t.detach().requires_grad_(True) for t in (q, k, v))
dout = torch.randn(1, 1, 255, 8, **opts)
scale = 0.3535533905932738
out = first(flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))).transpose(1, 2)
got = [out, *torch.autograd.grad(out, (q, k, v), dout)]
r = [t.detach().double().requires_grad_() for t in (q, k, v)]
n = q.shape[1] // k.shape[1]
s = scale * r[0] @ r[1].repeat_interleave(n, 1).mT
p = s.softmax(-1)
ref = p @ r[2].repeat_interleave(n, 1)
want = [ref, *torch.autograd.grad(ref, r, dout.double())]
errors = {n: float((g.double() - w).norm() / w.norm()) for n, g, w in zip(['out', 'dq', 'dk', 'dv'], got, want)}
print(errors)
raise SystemExit(not all(e <= 0.00545783 for e in errors.values()))
