# Run on its own on an H200 with TransformerEngine 2.20.2, torch 2.11.0+cu130, cuDNN 9.19, it ended with 1.
# Ends with 1 where the fault shows; needs a GPU, torch and TransformerEngine.
import os
os.environ.update(NVTE_FLASH_ATTN="0", NVTE_UNFUSED_ATTN="0")
import torch
import transformer_engine.pytorch as te
torch.manual_seed(0)
q, k, v = (torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
layer = te.DotProductAttention(8, 64, qkv_format="bshd", attn_mask_type="no_mask")
out, again = layer(q, k, v), layer(q.contiguous(), k.contiguous(), v.contiguous())
ref = torch.nn.functional.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)))
ref = ref.transpose(1, 2).flatten(2)
errors = {name: float((got - ref).norm() / ref.norm()) for name, got in (("views", out), ("contiguous", again))}
print(errors)
raise SystemExit(not errors["views"] < 0.01)
