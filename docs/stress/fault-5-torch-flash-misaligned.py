# Ends with 1, or dies, where the fault shows; needs a GPU and torch alone.
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.manual_seed(0)
size = (2, 4, 256, 64)
for off in (8, 1):  # elements of two bytes: 16 bytes from the beginning of a buffer, then 2
    q, k, v = (torch.randn(2 * 4 * 256 * 64 + off, device="cuda", dtype=torch.bfloat16)[off:].view(size) for _ in range(3))
    want = sdpa(q.double(), k.double(), v.double())
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = sdpa(q, k, v)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(off, "elements off:", str(error).splitlines()[0])
        raise SystemExit(1) from None
    print(off, "elements off: error", float((out.double() - want).norm() / want.norm()))
