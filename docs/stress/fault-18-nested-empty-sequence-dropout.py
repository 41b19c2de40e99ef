# Ends with 1 where the fault shows; needs a GPU of SM 9.0, torch (2.11, cuDNN 9.19) and nothing else.
# Nested tensors with an empty sequence and is_causal go to cuDNN: with dropout, does backward drop what forward dropped?
# With the identity for values the output is what is left of the probabilities P, and dv must be its transpose times dout.
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as sdpa
worst = 0.0
for lengths, heads, dropout in (((64, 0, 64), 1, 0.0), ((64, 0, 64), 1, 0.1), ((64, 0), 4, 0.1), ((64, 0, 64), 4, 0.1)):
    torch.manual_seed(0)
    opts = dict(device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    q, k, v, dout = (torch.randn(sum(lengths), heads, 64, **opts) for _ in range(4))
    def attention(v):
        torch.manual_seed(5)
        nested = (nested_tensor_from_jagged(t, ends).transpose(1, 2) for t in (q, k, v))
        return sdpa(*nested, dropout_p=dropout, is_causal=True).transpose(1, 2).values()
    v.requires_grad_()
    eye = torch.eye(64, **opts).repeat(sum(lengths) // 64, 1)[:, None].repeat(1, heads, 1).requires_grad_()
    kept = attention(eye).detach().unflatten(0, (-1, 64)).double()
    want = torch.einsum("bqhk,bqhd->bkhd", kept, dout.unflatten(0, (-1, 64)).double()).flatten(0, 1)
    (dv,) = torch.autograd.grad(attention(v), v, dout)
    error = float((dv.double() - want).norm() / want.norm())
    print("lengths", lengths, heads, "heads, dropout", dropout, "dv off by", error)
    worst = max(worst, error)
raise SystemExit(not worst < 0.05)
