# Ends with 1 where the fault shows; needs a GPU and torch alone.
# is_causal means the upper left corner for plain tensors and for nested ones in float32, the lower right in half types.
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.manual_seed(0)
lens_q, lens_k, wrong = (40, 12), (72, 30), False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    parts = [[torch.randn(n, 4, 64, device="cuda", dtype=dtype) for n in lens] for lens in (lens_q, lens_k, lens_k)]
    ends = [torch.tensor([0, *lens], device="cuda").cumsum(0) for lens in (lens_q, lens_k, lens_k)]
    nested = [nested_tensor_from_jagged(torch.cat(p), e).transpose(1, 2) for p, e in zip(parts, ends)]
    out = sdpa(*nested, is_causal=True).transpose(1, 2).values()
    errors = {}
    for corner in ("upper left", "lower right"):
        want = []
        for q, k, v in zip(*parts):
            q, k, v = (t.transpose(0, 1).double() for t in (q, k, v))
            shift = 0 if corner == "upper left" else k.shape[1] - q.shape[1]
            keep = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device="cuda").tril(shift)
            want.append(sdpa(q[None], k[None], v[None], attn_mask=keep)[0].transpose(0, 1))
        want = torch.cat(want)
        errors[corner] = float((out.double() - want).norm() / want.norm())
    print(dtype, "output off by, from the", errors)
    wrong |= errors["upper left"] > 0.02
raise SystemExit(wrong)
