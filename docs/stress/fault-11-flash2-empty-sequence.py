# Run on its own on an H200 with flash-attn 2.8.3.post2: the call raises.
# Raises where the fault shows; needs a GPU, torch and flash-attn.
import torch
from flash_attn import flash_attn_varlen_func
q, k = (torch.randn(n, h, 64, device="cuda", dtype=torch.bfloat16) for n, h in ((1, 2), (5, 1)))
ends = [torch.tensor(t, dtype=torch.int32, device="cuda") for t in ([0, 1, 1], [0, 4, 5])]
print("one head for each", flash_attn_varlen_func(q[:, :1], k, k, *ends, 1, 4).shape)
print("grouped heads", flash_attn_varlen_func(q, k, k, *ends, 1, 4).shape)
