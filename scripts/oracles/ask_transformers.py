#!/usr/bin/env python3
"""Query an installed transformers what it makes of a request for an attention implementation.

Every model is built on the meta device with one layer, once per request; what its config says afterwards, or
the error, is the answer. A GPU and packages that are only looked for (flash-attn, flash-attn-3, flash-attn-4,
kernels) can be pretended, so that the real code of many releases can be queried on any machine:

    python scripts/oracles/ask_transformers.py --pretend-gpu 9.0 --pretend flash-attn=2.8.3 --output answers.jsonl
"""

import argparse
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import types
import warnings
from pathlib import Path

MODELS = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3",
    "gpt2", "gpt_neox", "gpt_neo", "gptj", "gpt_bigcode", "bloom", "mpt", "falcon", "opt", "starcoder2", "stablelm",
    "olmo", "olmoe", "cohere", "granite", "nemotron", "gpt_oss", "recurrent_gemma", "persimmon", "codegen",
)  # fmt: skip
REQUESTS = (
    None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention", "fast",
)  # fmt: skip
SMALL = {
    "num_hidden_layers": 1, "n_layer": 1, "n_layers": 1, "num_layers": 1, "vocab_size": 64, "layer_types": None,
    "attention_types": [[["global"], 1]],
}  # fmt: skip
#: distribution -> modules it brings
MODULES = {
    "flash-attn": ("flash_attn", "flash_attn.bert_padding", "flash_attn.layers", "flash_attn.layers.rotary"),
    "flash-attn-3": ("flash_attn_interface", "flash_attn_3"),
    "flash-attn-4": ("flash_attn", "flash_attn.cute"),
    "kernels": ("kernels", "kernels.layer", "kernels.utils"),
}
#: what many refusals begin with, before they say why
PREFACE = re.compile(r"FlashAttention\d has been toggled on, but it cannot be used due to the following error: ")
STUB = """
class Anything:
    depth = 0
    def __init__(self, *args, **kwargs): pass
    def __call__(self, *args, **kwargs):
        if self.depth and args: return args[0]  # the decorator that a factory made
        made = Anything()
        made.depth = 1
        return made
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Anything()
    def __or__(self, other): return self
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0): ...
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0): ...
def flash_attn_with_kvcache(q, k_cache, v_cache): ...
def get_kernel(*args, **kwargs):
    import types
    return types.SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func,
                                 flash_attn_with_kvcache=flash_attn_with_kvcache)
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Anything()
"""


def pretend_packages(packages, folder):
    """Empty modules with the metadata that transformers looks for."""
    for name, version in packages.items():
        for module in MODULES[name]:
            path = folder / module.replace(".", "/")
            path.mkdir(parents=True, exist_ok=True)
            (path / "__init__.py").write_text(STUB)
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        tops = sorted({module.split(".")[0] for module in MODULES[name]})
        (info / "top_level.txt").write_text("\n".join(tops) + "\n")
        (info / "RECORD").write_text("".join(f"{module}/__init__.py,,\n" for module in tops))
    sys.path.insert(0, str(folder))


def pretend_gpu(torch, capability):
    """A torch that sees one GPU; nothing is ever run on it."""
    major, minor = map(int, capability.split("."))
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (major, minor)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=major, minor=minor, name="GPU")
    torch.version.cuda = "12.8"


def small_config(transformers, model_type, dropout):
    """The config of a one-layer model, or None for a type this release does not know."""
    if model_type not in transformers.CONFIG_MAPPING:
        return None
    config = transformers.CONFIG_MAPPING[model_type]()
    for key, value in SMALL.items():
        if key == "layer_types":
            if getattr(config, key, None):
                config.layer_types = config.layer_types[:1]
        elif hasattr(config, key):
            setattr(config, key, value)
    if getattr(config, "pad_token_id", None):
        config.pad_token_id = 0
    if dropout and hasattr(config, "attention_dropout"):
        config.attention_dropout = dropout
    return config


def ask(torch, transformers, model_type, request, dtype, dropout):
    """The backend or `! error text`; None for a type this release does not know or cannot build."""
    config = small_config(transformers, model_type, dropout)
    if config is None or type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    flash = sys.modules.get("transformers.modeling_flash_attention_utils")
    if flash is not None and hasattr(flash, "_loaded_implementation"):
        flash._loaded_implementation = None  # the refusal of the model before must not make this one pass
    release = tuple(map(int, transformers.__version__.split(".")[:2]))
    options = {"dtype" if release >= (4, 56) else "torch_dtype": getattr(torch, dtype)}
    if request is not None:
        options["attn_implementation"] = request
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, **options)
    except (ImportError, ValueError) as refusal:
        return f"! {PREFACE.sub('', ' '.join(str(refusal).split()))[:110]}"
    return backend(model.config._attn_implementation)


def backend(name):
    """The doctor's name of what a config says."""
    name = name.removeprefix("paged|")
    return "hf.hub_kernel" if "/" in name or name.startswith("kernel_") else f"hf.{name}"


def main():
    """Run every model with every request; one JSON line for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretend", action="append", default=[], metavar="PACKAGE=VERSION")
    parser.add_argument("--pretend-gpu", metavar="SM")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--output", required=True, help="JSON Lines are appended")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    packages = dict(item.split("=", 1) for item in options.pretend)
    with tempfile.TemporaryDirectory() as folder:
        pretend_packages(packages, Path(folder))
        import torch

        if options.pretend_gpu:
            pretend_gpu(torch, options.pretend_gpu)
        import transformers

        facts = {
            "transformers.version": transformers.__version__,
            "torch.version": importlib.metadata.version("torch").partition("+")[0],
            "torch.cuda": torch.version.cuda or "absent",
            "gpu.sm": options.pretend_gpu or "absent",
            **{f"{name}.version": packages.get(name, "absent") for name in MODULES},
        }
        answers = {}
        for model_type in options.models:
            for request in REQUESTS:
                try:
                    answer = ask(torch, transformers, model_type, request, options.dtype, options.dropout)
                except Exception as problem:  # this release cannot build such a small model
                    asked = f"{facts['transformers.version']} {model_type} {request}"
                    print(f"{asked}: {problem!r:.150}", file=sys.stderr)
                    continue
                if answer is None:
                    break
                answers.setdefault(model_type, {})[request or "none"] = answer
        line = {"facts": facts, "dtype": options.dtype, "dropout": options.dropout, "answers": answers}
        with Path(options.output).open("a") as stream:
            stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
