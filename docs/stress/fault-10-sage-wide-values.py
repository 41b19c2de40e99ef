# Ends with 1 where the fault shows; needs a GPU, torch and sageattention (1.0.6).
# Values wider than queries are cut off: the output has the queries' width.
import torch
from sageattention import sageattn
torch.manual_seed(0)
q, k = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16) for _ in range(2))
v = torch.randn(1, 2, 128, 128, device="cuda", dtype=torch.float16)
out = sageattn(q, k.clone(), v)
print("width of the output", out.shape[-1], "and of the values", v.shape[-1])
raise SystemExit(out.shape[-1] != v.shape[-1])
