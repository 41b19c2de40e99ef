# Ends with 1, or dies, where the fault shows; needs a GPU and torch alone.
# Where only the mask asks for a gradient, the memory-efficient forward does not keep what its backward reads.
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
failed = False
for batch, heads in ((3, 4), (3, 1), (1, 1)):
    for alone in (False, True):
        torch.manual_seed(0)
        opts = dict(device="cuda", dtype=torch.bfloat16)
        q, k, v = (torch.randn(batch, heads, 64, 64, **opts) for _ in range(3))
        bias = torch.randn(batch, heads, 64, 64, **opts).requires_grad_()
        q.requires_grad_(not alone)
        try:
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                out = sdpa(q, k, v, attn_mask=bias)
            (got,) = torch.autograd.grad(out.square().sum(), bias)
            torch.cuda.synchronize()
            exact = bias.detach().double().requires_grad_()
            ref = sdpa(q.double(), k.double(), v.double(), attn_mask=exact)
            (want,) = torch.autograd.grad(ref.square().sum(), exact)
            error = float((got.double() - want).norm() / want.norm())
            print(batch, heads, "alone" if alone else "with the queries", "gradient of the bias off by", error)
            failed |= not error < 0.05
        except RuntimeError as error:
            print(batch, heads, "alone" if alone else "with the queries", "raises:", str(error).strip()[:160])
            failed = True
raise SystemExit(failed)
