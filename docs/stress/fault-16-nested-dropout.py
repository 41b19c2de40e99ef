# Ends with 1 where the fault shows; needs a GPU and torch alone.
# Nested tensors on the memory-efficient backend: backward drops other probabilities than forward. With the identity for
# values the output is what is left of the probabilities P, and dv must be its transpose times dout.
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as sdpa
worst = 0.0
for lengths, heads, dropout in (((64,), 1, 0.1), ((64, 64), 4, 0.0), ((64,), 4, 0.1), ((64, 64), 1, 0.1)):
    torch.manual_seed(0)
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    q, k, v, dout = (torch.randn(sum(lengths), heads, 64, device="cuda") for _ in range(4))
    def attention(v):
        torch.manual_seed(5)
        nested = (nested_tensor_from_jagged(t, ends).transpose(1, 2) for t in (q, k, v))
        return sdpa(*nested, dropout_p=dropout).transpose(1, 2).values()
    kept = attention(torch.eye(64, device="cuda").repeat(len(lengths), 1)[:, None].repeat(1, heads, 1))
    kept, into = (t.unflatten(0, (-1, 64)) for t in (kept, dout))
    same = float((((kept != 0) == (kept[:1, :, :1] != 0)).double()).mean())
    want = torch.einsum("bqhk,bqhd->bkhd", kept, into).flatten(0, 1)
    v.requires_grad_()
    (dv,) = torch.autograd.grad(attention(v), v, dout)
    error = float((dv - want).norm() / want.norm())
    print(len(lengths), "sequences,", heads, "heads, dropout", dropout, "dv off by", error, "dropped alike", same)
    worst = max(worst, error)
raise SystemExit(worst > 1e-3)
