# Ends with 1 where the fault shows; needs a GPU of SM 9.0, torch (2.11, cuDNN 9.19) and nothing else.
# Nested tensors with an empty sequence and is_causal go to cuDNN, whose backward is told the head dim for the length.
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as sdpa
worst = 0.0
for lengths, heads, dim in (((60, 0, 1), 1, 64), ((1000, 0, 1), 1, 40), ((300, 0, 1), 4, 64), ((300, 0), 4, 64)):
    torch.manual_seed(0)
    litter = [torch.full((2**20,), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    del litter  # so that what nobody writes is seen
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    leaves = [torch.randn(sum(lengths), heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    dout = leaves.pop()
    q, k, v = (t.requires_grad_() for t in leaves)
    out = sdpa(*(nested_tensor_from_jagged(t, ends).transpose(1, 2) for t in (q, k, v)), is_causal=True)
    got = [out.transpose(1, 2).values(), *torch.autograd.grad(out.transpose(1, 2).values(), (q, k, v), dout)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    parts = [t.split([n for n in lengths if n]) for t in exact]
    want = torch.cat([sdpa(*(t.transpose(0, 1)[None] for t in p), is_causal=True)[0].transpose(0, 1) for p in zip(*parts)])
    want = [want, *torch.autograd.grad(want, exact, dout.double())]
    errors = {n: float((g.double() - w).norm() / w.norm()) for n, g, w in zip(("out", "dq", "dk", "dv"), got, want)}
    print("lengths", lengths, heads, "heads", dim, "wide: off by", errors)
    worst = max(worst, *(e if e == e else float("inf") for e in errors.values()))
raise SystemExit(worst > 0.05)
