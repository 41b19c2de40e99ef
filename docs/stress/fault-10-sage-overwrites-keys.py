# Run on its own on an H200 with sageattention 1.0.6, it ended with 1.
# Ends with 1 where the fault shows; needs a GPU, torch and sageattention.
import torch
from sageattention import sageattn
q, k, v = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16) for _ in range(3))
kept = k.clone()
sageattn(q, k, v)
print("k changed by", float((k - kept).norm() / kept.norm()))
raise SystemExit(not torch.equal(k, kept))
