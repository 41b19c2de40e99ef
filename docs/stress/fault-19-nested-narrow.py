# Ends with 1 where the fault shows; needs a GPU and torch alone.
# Nested tensors narrowed from padded ones, so that there are holes between the sequences: the kernels are given the sums
# of the lengths without the leading zero, and the values with their holes. With one head backward raises besides.
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
wrong = False
for dtype in (torch.float32, torch.bfloat16):
    for lengths, heads in (((40, 40, 40), 4), ((40, 9, 23), 4), ((40, 9, 23), 1), ((9, 40), 4)):
        torch.manual_seed(0)
        padded = [torch.randn(len(lengths), 40, heads, 64, device="cuda", dtype=dtype) for _ in range(3)]
        sizes = torch.tensor(lengths, device="cuda")
        try:
            nested = [torch.nested.narrow(t, 1, 0, sizes, layout=torch.jagged).transpose(1, 2) for t in padded]
            rows = sdpa(*nested).transpose(1, 2).unbind()
            exact = [[t[i, :n].transpose(0, 1).double() for t in padded] for i, n in enumerate(lengths)]
            want = [sdpa(*(t[None] for t in one))[0].transpose(0, 1) for one in exact]
            errors = [float((r.double() - w).norm() / w.norm()) for r, w in zip(rows, want)]
            print(dtype, "lengths", lengths, heads, "heads: output of each sequence off by", errors)
            wrong |= not all(e < 0.02 for e in errors)
            leaf = padded[0].requires_grad_()
            nested[0] = torch.nested.narrow(leaf, 1, 0, sizes, layout=torch.jagged).transpose(1, 2)
            sum(row.sum() for row in sdpa(*nested).transpose(1, 2).unbind()).backward()
            print("    and the gradient of the queries", leaf.grad.norm().item())
        except RuntimeError as error:
            print(dtype, "lengths", lengths, heads, "heads raises:", str(error).strip()[:200])
            wrong = True
raise SystemExit(wrong)
