"""Rebuild rules/index/model_configs.json: what each model class of transformers takes where a config says nothing.

    python scripts/release/refresh_model_configs.py transformers-5.24.0-py3-none-any.whl

Read from the syntax tree of every `configuration_*.py`; nothing is imported. A class has the fields of its bases. Only
fields about attention are kept, and only constants: what a class works out from other fields is not among them. Models
that are no longer in this release keep what an earlier one said.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "rules" / "index" / "model_configs.json"
_FILE = re.compile(r"transformers/models/\w+/configuration_\w+\.py")
#: Fields that the reader of model configs takes.
_ATTENTION = re.compile(
    r"(?:\w+_)?(?:head_dim|hidden_size|n_embd|embed_dim|d_model|d_kv|kv_channels|num_attention_heads|num_heads|n_heads?"
    r"|num_key_value_heads|num_kv_heads|n_head_kv|multi_query|sliding_window|use_sliding_window|max_window_layers"
    r"|sliding_window_pattern|attn_logit_softcapping|kv_lora_rank|q_lora_rank|qk_nope_head_dim|qk_rope_head_dim|v_head_dim"
    r"|index_topk|index_n_heads|index_head_dim|max_position_embeddings|n_positions|attention_dropout|attn_pdrop"
    r"|attention_probs_dropout_prob|dropout_rate|relative_attention_num_buckets|is_encoder_decoder|alibi"
    r"|full_attention_interval|num_(?:global|sliding|swa)_\w+_heads|linear_num_\w+|attention_k_eq_v|new_decoder_architecture)"
)
_SKIPPED = re.compile(r"(?:vision|audio|image|decoder|encoder|cross|mtp|memory|swin|text|prompt|query|mamba)_\w+")


def main() -> None:
    """Read the wheel and write the table."""
    classes: dict[str, ast.ClassDef] = {}
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        for name in filter(_FILE.fullmatch, wheel.namelist()):
            for node in ast.parse(wheel.read(name)).body:
                if isinstance(node, ast.ClassDef):
                    classes[node.name] = node
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for name in classes:
        model = _constant(_fields(name, classes).get("model_type"))
        if isinstance(model, str) and (found := _kept(_fields(name, classes))):
            table[model] = found
    lines = [f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table)]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(table)} models", file=sys.stderr)


def _fields(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, ast.expr | None]:
    """Return field -> default of a class, its bases first."""
    node = classes.get(name)
    if node is None:
        return {}
    found: dict[str, ast.expr | None] = {}
    for base in node.bases:
        found.update(_fields(getattr(base, "id", ""), classes))
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found[item.target.id] = item.value
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            found[item.targets[0].id] = item.value
    for call in ast.walk(node):  # kwargs.pop("global_head_dim", 512): a field of published configs
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("pop", "get") and len(call.args) == 2:
            name = _constant(call.args[0])
            if isinstance(name, str) and getattr(getattr(call.func, "value", None), "id", "") == "kwargs":
                found.setdefault(name, call.args[1])
    return found


def _kept(fields: dict[str, ast.expr | None]) -> dict[str, Any]:
    chosen = ((name, _constant(node)) for name, node in fields.items() if _is_kept(name))
    return {name: value for name, value in chosen if value is not None and not (name == "head_dim" and not value)}


def _is_kept(name: str) -> bool:
    return _ATTENTION.fullmatch(name) is not None and (name == "num_attention_heads" or not _SKIPPED.fullmatch(name))


def _constant(node: ast.expr | None) -> Any:
    """Return a constant, also the default of `interval(...)(default=...)`; None for anything else."""
    if isinstance(node, ast.Call):
        return next((_constant(item.value) for item in node.keywords if item.arg == "default"), None)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, bool, str)) else None


if __name__ == "__main__":
    main()
