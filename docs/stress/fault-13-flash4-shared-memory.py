# Ends with 1 where the fault shows; needs a Hopper GPU, torch and flash-attn-4 (4.0.0b36).
import torch
from flash_attn.cute import flash_attn_func
torch.manual_seed(0)
for dim, wide in ((72, 128), (64, 96), (64, 128)):  # 1280 d_qk + 768 d_v + 68608 bytes up to 64, and Hopper has 232448
    q, k = (torch.randn(1, 256, 2, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 256, 2, wide, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = flash_attn_func(q, k, v)
    out = out[0] if isinstance(out, tuple) else out
    try:
        torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
        torch.cuda.synchronize()
    except Exception as error:
        print(dim, "and", wide, "wide: the backward does not start:", str(error).strip()[:400])
        raise SystemExit(1) from None
    print(dim, "and", wide, "wide: the backward runs")
