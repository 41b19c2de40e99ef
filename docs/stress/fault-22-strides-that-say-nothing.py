# Ends with 1 where the fault shows; needs a GPU and torch alone.
# The stride of a dimension of one says nothing, and the memory-efficient backend asks that it be a multiple of 8 or 4.
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
failed = False
for dtype, dim, sizes in ((torch.float32, 96, (2, 4, 1)), (torch.float32, 200, (1, 1, 64)), (torch.float32, 96, (2, 1, 64)),
                          (torch.float16, 40, (2, 4, 1)), (torch.float16, 40, (2, 1, 64)), (torch.float16, 40, (1, 4, 64))):
    torch.manual_seed(0)
    batch, heads, length = sizes
    strides = [s if n > 1 else 3 for n, s in zip(sizes, (heads * length * dim, length * dim, dim))]
    opts = dict(device="cuda", dtype=dtype)
    odd = [torch.randn(batch * heads * length * dim, **opts).as_strided((*sizes, dim), (*strides, 1)) for _ in range(3)]
    for name, tensors in (("contiguous", [t.clone(memory_format=torch.contiguous_format) for t in odd]), ("odd", odd)):
        tensors = [t.detach().requires_grad_() for t in tensors]
        try:
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                out = sdpa(*tensors)
            torch.autograd.grad(out, tensors, torch.randn_like(out))
            print(dtype, sizes, dim, name, tensors[0].stride(), "runs")
        except RuntimeError as error:
            print(dtype, sizes, dim, name, tensors[0].stride(), "raises:", str(error).strip()[:160])
            failed = True
raise SystemExit(failed)
