# Ends with 1 where the fault shows; needs a GPU, torch, flash-attn and transformers (5.15 or later).
from types import SimpleNamespace
import torch
from transformers.integrations.flash_attention import flash_attention_forward as forward
torch.manual_seed(0)
config = SimpleNamespace(_attn_implementation="flash_attention_2", dtype=torch.bfloat16)
module = SimpleNamespace(is_causal=False, training=True, config=config, modules=lambda: [], layer_idx=0,
                         named_modules=lambda: [], num_key_value_groups=1)
q, k = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
v = torch.randn(1, 2, 128, 128, device="cuda", dtype=torch.bfloat16)
out = forward(module, q, k, v, None, scaling=0.125)[0].transpose(1, 2)
want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
narrow = want[..., : out.shape[-1]]
print("width of the output", out.shape[-1], "and of the values", v.shape[-1])
print("error of what there is of it", float((out.double() - narrow).norm() / narrow.norm()))
raise SystemExit(out.shape != want.shape)
