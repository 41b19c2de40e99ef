# Ends with 1 where the fault shows; needs a GPU and torch alone.
# A grid of blocks has 65,535 in its second and third dimension: more sequences, or more heads, than that fail to launch.
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
failed = []
every = [getattr(SDPBackend, n) for n in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")]
for name, chosen in (("default", every), *((b.name, [b]) for b in every)):
    for batch, heads, dropout in ((65535, 1, 0.0), (65536, 1, 0.0), (65536, 1, 0.1), (1, 65536, 0.0)):
        torch.manual_seed(0)
        q, k, v = (torch.randn(batch, heads, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for _ in range(3))
        try:
            with sdpa_kernel(chosen):
                out = sdpa(q, k, v, dropout_p=dropout)
            torch.cuda.synchronize()
            torch.autograd.grad(out.sum(), (q, k, v))
            torch.cuda.synchronize()
            want = sdpa(q.double(), k.double(), v.double())
            error = float((out.double() - want).norm() / want.norm())
            said = "runs" if dropout or error < 0.02 else "is off by {}".format(error)
        except Exception as error:
            said = "raises: " + str(error).strip().replace("\n", " ")[:160]
        if said != "runs":
            failed.append(name)
        print(name, batch, "sequences of", heads, "heads, dropout", dropout, said)
raise SystemExit(bool({"default", "FLASH_ATTENTION", "CUDNN_ATTENTION"} & set(failed)))
