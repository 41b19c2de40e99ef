# Ends with 1, or dies, where the fault shows; needs a GPU, torch and flash-attn (2.8.3.post2).
import torch
from flash_attn import flash_attn_func as attention
torch.manual_seed(0)
size = (2, 256, 4, 64)
for off in (8, 1):  # elements of two bytes: 16 bytes from the beginning of a buffer, then 2
    q, k, v = (torch.randn(2 * 256 * 4 * 64 + off, device="cuda", dtype=torch.bfloat16)[off:].view(size) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
    try:
        out = attention(q, k, v)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(off, "elements off:", str(error).splitlines()[0])
        raise SystemExit(1) from None
    out = out[0] if isinstance(out, tuple) else out
    print(off, "elements off: error", float((out.double() - want).norm() / want.norm()))
