"""Renew `rules/imports/`: which releases of a package import names that releases of another one do not have.

    python scripts/release/refresh_imports.py --cache DIR [--only CALLER …] [--table FILE]

The sources of each release come from the package index (`surfaces.py`); what they define and import stays in the cache.
Only imports count that always run: at the top of a module, outside `try`, behind no check but `is_X_available()`, in a
module that the package's entry imports in the same way. A name that no release has is left out, since it may be made at
run time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache as memo
from pathlib import Path

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import imports_rules
from surfaces import Names, RecordedNames, Surface, releases_of, stored, surface_of, usable

SINCE = "2023-06"
HISTORY = imports_rules.RULES / "index" / "name_history.json.gz"
#: package -> its import roots
ROOTS = {
    "transformers": ("transformers",), "trl": ("trl",), "peft": ("peft",), "accelerate": ("accelerate",),
    "diffusers": ("diffusers",), "vllm": ("vllm",), "sglang": ("sglang",), "huggingface-hub": ("huggingface_hub",),
    "deepspeed": ("deepspeed",), "megatron-core": ("megatron.core",), "unsloth-zoo": ("unsloth_zoo",),
    "unsloth": ("unsloth",), "liger-kernel": ("liger_kernel",), "verl": ("verl",), "llamafactory": ("llamafactory",),
    "ms-swift": ("swift",), "axolotl": ("axolotl",), "openrlhf": ("openrlhf",), "xtuner": ("xtuner",),
    "lmdeploy": ("lmdeploy",), "colossalai": ("colossalai",), "nemo-toolkit": ("nemo",),
    "megatron-bridge": ("megatron.bridge",), "flagembedding": ("FlagEmbedding",), "autoawq": ("awq",),
    "sentence-transformers": ("sentence_transformers",), "gptqmodel": ("gptqmodel",), "optimum": ("optimum",),
    "llmcompressor": ("llmcompressor",), "compressed-tensors": ("compressed_tensors",), "auto-gptq": ("auto_gptq",),
    "torchtune": ("torchtune",), "lm-eval": ("lm_eval",), "torch": ("torch",), "torchao": ("torchao",),
    "flash-linear-attention": ("fla",), "yunchang": ("yunchang",), "ring-flash-attn": ("ring_flash_attn",),
    "timm": ("timm",), "mamba-ssm": ("mamba_ssm",), "kernels": ("kernels",), "flash-attn": ("flash_attn",),
    "xformers": ("xformers",), "hqq": ("hqq",), "bitsandbytes": ("bitsandbytes",), "datasets": ("datasets",),
}  # fmt: skip
#: caller -> what a user runs: entry -> its modules, of which those count that the release has
ENTRIES: dict[str, dict[str, tuple[str, ...]]] = {
    "trl": {
        "GRPOTrainer": ("trl.trainer.grpo_trainer",),
        "SFTTrainer": ("trl.trainer.sft_trainer",),
        "DPOTrainer": ("trl.trainer.dpo_trainer",),
        "PPOTrainer": ("trl.trainer.ppo_trainer",),
    },
    "vllm": {"vllm": ("vllm.entrypoints.llm", "vllm.engine.llm_engine", "vllm.entrypoints.openai.api_server")},
    "sglang": {"sglang": ("sglang.srt.entrypoints.http_server", "sglang.srt.server", "sglang.srt.entrypoints.engine")},
    "verl": {"verl": ("verl.trainer.main_ppo", "verl.workers.fsdp_workers")},
    "llamafactory": {"llamafactory": ("llamafactory.train.tuner",)},
    "ms-swift": {"swift": ("swift.llm.train.sft", "swift.llm", "swift.pipelines.train.sft")},
    "axolotl": {"axolotl": ("axolotl.cli.train", "axolotl.train")},
    "openrlhf": {"openrlhf": ("openrlhf.cli.train_sft", "openrlhf.cli.train_ppo_ray")},
    "xtuner": {"xtuner": ("xtuner.tools.train", "xtuner.v1.train.cli.sft")},
    "lmdeploy": {"lmdeploy": ("lmdeploy.api", "lmdeploy.serve.async_engine", "lmdeploy.pytorch.engine.engine")},
    "colossalai": {"shardformer": ("colossalai.shardformer.shard.sharder",)},
    "nemo-toolkit": {"nemo.collections.llm": ("nemo.collections.llm",)},
    "megatron-bridge": {"megatron.bridge": ("megatron.bridge",)},
    "megatron-core": {"megatron.core": ("megatron.core.models.gpt.gpt_model", "megatron.core.transformer.attention")},
    "flagembedding": {"FlagEmbedding": ("FlagEmbedding",)},
    "liger-kernel": {"liger_kernel.transformers": ("liger_kernel.transformers",)},
    "diffusers": {"pipelines": ("diffusers.pipelines.pipeline_utils", "diffusers.models.modeling_utils")},
    "transformers": {
        "models": ("transformers.modeling_utils",),
        "generation": ("transformers.generation.utils",),
        "Trainer": ("transformers.trainer",),
    },
    "optimum": {"optimum": ("optimum.gptq.quantizer",)},
    "torchtune": {"torchtune": ("torchtune.modules", "torchtune.training")},
    "lm-eval": {"hf models": ("lm_eval.models.huggingface",), "vllm models": ("lm_eval.models.vllm_causallms",)},
    "flash-linear-attention": {"fla": ("fla.models", "fla.layers")},
    "deepspeed": {"deepspeed": ("deepspeed.runtime.engine",)},
    "kernels": {"kernels": ("kernels",)},
}  # fmt: skip
CALLEES = (
    "transformers", "trl", "peft", "accelerate", "diffusers", "liger-kernel", "kernels", "torch", "vllm", "deepspeed",
    "huggingface-hub", "flash-attn", "torchao", "megatron-core", "compressed-tensors", "flash-linear-attention",
    "unsloth-zoo",
)  # fmt: skip
CALLERS = (
    "trl", "peft", "accelerate", "diffusers", "verl", "llamafactory", "liger-kernel", "autoawq", "sglang",
    "megatron-core", "ring-flash-attn", "yunchang", "ms-swift", "axolotl", "xtuner", "colossalai", "openrlhf",
    "deepspeed", "megatron-bridge", "nemo-toolkit", "unsloth-zoo", "optimum", "sentence-transformers", "flagembedding",
    "lm-eval", "torchtune", "flash-linear-attention", "llmcompressor", "compressed-tensors", "gptqmodel", "torchao",
    "vllm", "lmdeploy", "kernels", "flash-attn", "mamba-ssm",
)  # fmt: skip
COMPILED = ("torch",)  # modules take names from extensions, which are not read
_SKIPPED_TORCH = (
    "torch/testing/",
    "torch/_inductor/",
    "torch/onnx/",
    "torch/ao/",
    "torch/_dynamo/",
    "torch/quantization/",
)


def load(package: str, cache: Path) -> dict[Version, Surface]:
    """Read every release of a package, from the cache where it is there."""
    folder = cache / package
    folder.mkdir(parents=True, exist_ok=True)
    releases = releases_of(package, SINCE)
    with ThreadPoolExecutor(4) as pool:  # the time goes into the transfer
        surfaces = pool.map(lambda version: _load(package, releases[version], folder / f"{version}.json.gz"), releases)
        return {version: surface for version, surface in zip(releases, surfaces, strict=True) if surface}


def _load(package: str, item: dict, path: Path) -> Surface | None:
    if not path.is_file():
        wanted = (lambda name: not name.startswith(_SKIPPED_TORCH)) if package == "torch" else None
        try:
            surface = surface_of(item, ROOTS[package], wanted)
        except (OSError, EOFError, KeyError) as error:
            print(f"{item['filename']}: {error}", file=sys.stderr)
            return None
        path.write_bytes(gzip.compress(stored(surface), mtime=0))
    surface = Surface(**json.loads(gzip.decompress(path.read_bytes())))
    return surface if surface.defines else None


def reached(surface: Surface, starts: Iterable[str]) -> set[str]:
    """Return the modules that importing these modules runs, their packages included."""
    seen: set[str] = set()
    waiting = [name for name in starts if name in surface.imports]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in surface.imports:
            continue
        seen.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:end]) for end in range(1, len(parts))]
        for module, what, gate in surface.imports[name]:
            if usable(gate, "torch"):
                waiting += [module, f"{module}.{what}"]
    return seen


def needs_of(surface: Surface, starts: Iterable[str], roots: dict[str, str]) -> dict[str, dict[tuple[str, str], bool]]:
    """Return callee -> (module, name) that importing these modules takes from it -> always behind a check for it."""
    wanted: dict[str, dict[tuple[str, str], bool]] = defaultdict(dict)
    for name in reached(surface, starts):
        for module, what, gate in surface.imports[name]:
            callee = roots.get(module.partition(".")[0]) or roots.get(".".join(module.split(".")[:2]))
            if callee and usable(gate, callee):
                key = module, "" if what == "*" else what
                wanted[callee][key] = _named(gate, callee) and wanted[callee].get(key, True)
    return wanted


def _named(gate: str, callee: str) -> bool:
    """Say whether a guard is about the package that is imported: such a check may demand a minimum release."""
    return bool({callee.replace("-", "_"), callee.partition("-")[0]} & set(gate.split(",")))


def entries_of(caller: str, surface: Surface) -> dict[str, tuple[str, ...]]:
    """Return the entries of a caller that this release has; its package first."""
    package = ROOTS[caller][0]
    found = {"": (package,)}
    for label, modules in ENTRIES.get(caller, {}).items():
        there = tuple(module for module in modules if module in surface.imports)
        if there:
            found[label] = there
    return found


def _leading(missing: tuple[Version, ...], releases: tuple[Version, ...]) -> int:
    """Return how many of the first releases are among the missing ones."""
    return next((at for at, version in enumerate(releases) if version not in missing), len(releases))


def table(callers: Iterable[str], cache: Path) -> list[dict]:
    """Return one row per caller release, entry, callee and name that some release of the callee lacks."""
    packages = sorted({*callers, *CALLEES} - {"transformers"})
    loaded = {package: load(package, cache) for package in packages}
    roots = {root: package for package in CALLEES for root in ROOTS[package]}
    history = json.loads(gzip.decompress(HISTORY.read_bytes()))["transformers"]
    minors = sorted({Version(".".join(map(str, Version(text).release[:2]))) for text in history["releases"]})
    names: dict[str, dict[Version, Names | RecordedNames]] = {
        package: {version: Names(surface, compiled=package in COMPILED) for version, surface in loaded[package].items()}
        for package in CALLEES if package != "transformers"
    }  # fmt: skip
    names["transformers"] = {minor: RecordedNames(minor, history) for minor in minors}

    @memo
    def lacking(callee: str, module: str, name: str) -> tuple[Version, ...]:
        has = {version: known.has(module, name) for version, known in names[callee].items()}
        return tuple(version for version, there in has.items() if not there) if any(has.values()) else ()

    rows = []
    for caller in callers:
        for version, surface in loaded[caller].items():
            seen: set[tuple[str, str, str]] = set()
            for label, starts in entries_of(caller, surface).items():
                for callee, wanted in needs_of(surface, starts, roots).items():
                    if callee == caller:
                        continue
                    for (module, name), checked in sorted(wanted.items()):
                        missing = lacking(callee, module, name)
                        if checked:  # an older release than the guard wants is not imported
                            missing = missing[_leading(missing, tuple(names[callee])) :]
                        if missing and (callee, module, name) not in seen:
                            if not label:
                                seen.add((callee, module, name))
                            rows.append({
                                "caller": caller, "version": str(version), "entry": label, "callee": callee,
                                "module": module, "name": name, "missing": [str(one) for one in missing],
                            })  # fmt: skip
    releases = {
        package: [str(version) for version in (loaded.get(package) or names.get(package, ()))]
        for package in {*packages, *CALLEES}
    }
    return [{"releases": releases}, *rows]


def main() -> None:
    """Read the options, make the table, write the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="keeps what was read of each release")
    parser.add_argument("--only", nargs="*", default=CALLERS)
    parser.add_argument("--table", type=Path, help="write the rows to this file, and no rules")
    options = parser.parse_args()
    head, *rows = table(options.only, options.cache)
    if options.table:
        options.table.write_text("\n".join(json.dumps(row) for row in [head, *rows]))
    else:
        imports_rules.write(head["releases"], rows)


if __name__ == "__main__":
    main()
