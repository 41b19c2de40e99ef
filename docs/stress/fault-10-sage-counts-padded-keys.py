# Ends with 1 where the fault shows; needs a GPU, torch and sageattention (1.0.6).
# The last block of 64 keys is filled with keys that are not there, and they count: 129 keys beside 128.
import torch
from sageattention import sageattn
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.manual_seed(0)
errors = {}
for keys in (128, 129, 1):
    q = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, 2, keys, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    want = sdpa(q.double(), k.double(), v.double())
    out = sageattn(q, k.clone(), v)  # a clone: it overwrites the keys, which is another fault
    errors[keys] = float((out.double() - want).norm() / want.norm())
print("error of the output by number of keys", errors, "(int8 costs about 0.01)")
print("one key: its value is", float(v[0, 0, 0, 0]), "and the output", float(out[0, 0, 0, 0]))
raise SystemExit(not all(error < 0.05 for error in errors.values()))
