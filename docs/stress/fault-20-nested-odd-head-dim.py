# Ends with 1 where the fault shows; needs a GPU of SM 8.0 or later and torch alone.
# Nested tensors with is_causal and a head dim that is no multiple of 8: cuDNN is chosen, and refuses it when it runs.
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as sdpa
torch.manual_seed(0)
raised = False
ends = torch.tensor([0, 20, 50], device="cuda")
for dim, causal in ((40, True), (36, False), (36, True)):
    q, k, v = (torch.randn(50, 2, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    try:
        out = sdpa(*(nested_tensor_from_jagged(t, ends).transpose(1, 2) for t in (q, k, v)), is_causal=causal)
        print(dim, "wide, causal", causal, "runs:", out.transpose(1, 2).values().shape)
    except RuntimeError as error:
        print(dim, "wide, causal", causal, "raises:", str(error).strip()[:200])
        raised = True
raise SystemExit(raised)
