# Ends with 1 where the fault shows; needs a Hopper GPU, torch and flash-attn-4 (4.0.0b36).
import torch
from flash_attn.cute import flash_attn_func
torch.manual_seed(0)
for heads in (2, 8):  # a key head for each query head, then one for four
    q = torch.randn(1, 256, heads, 192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, 256, 2, 192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn(1, 256, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = flash_attn_func(q, k, v)
    out = out[0] if isinstance(out, tuple) else out
    try:
        grads = torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
    except AssertionError as error:
        print(heads, "query heads over 2: the forward runs, the backward raises:", error)
        raise SystemExit(1) from None
    print(heads, "query heads over 2: gradients", [tuple(g.shape) for g in grads])
