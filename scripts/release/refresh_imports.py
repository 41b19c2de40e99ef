"""Renew `rules/tables/imports.yaml`: which releases of a package import names that releases of another one do not have.

    python scripts/release/refresh_imports.py --cache DIR [--only CALLER …] [--table FILE]

The sources of each release stay in the cache, as a store that `refresh.py` reads, too (`release_store.py`); what was
parsed stays there as well, and only modules that matter are parsed.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import imports_rules
from release_store import Store, fill
from surfaces import Names, RecordedNames, Surface, releases_of

from doctor.rulebook.authoring.module_imports import usable

SINCE = "2023-06"
HISTORY = Path(__file__).resolve().parents[2] / "rules" / "index" / "names" / "transformers.json.gz"
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
    "adapters": ("adapters",), "areal": ("areal",), "attention-sinks": ("attention_sinks",),
    "chatterbox-tts": ("chatterbox",), "colpali-engine": ("colpali_engine",), "coqui-tts": ("TTS",),
    "deepspeed-mii": ("mii",), "gliner": ("gliner",), "kvpress": ("kvpress",), "llm-foundry": ("llmfoundry",),
    "mbridge": ("mbridge",), "minference": ("minference",), "optimum-quanto": ("optimum.quanto",),
    "parler-tts": ("parler_tts",), "qwen-asr": ("qwen_asr",), "qwen-tts": ("qwen_tts",), "setfit": ("setfit",),
    "span-marker": ("span_marker",), "transformer-lens": ("transformer_lens",), "verifiers": ("verifiers",),
    "xfuser": ("xfuser",), "sae-lens": ("sae_lens",),
    "auto-round": ("auto_round",), "chronos-forecasting": ("chronos",), "colbert-ai": ("colbert",),
    "compel": ("compel",), "diffsynth": ("diffsynth",), "flair": ("flair",), "granite-tsfm": ("tsfm_public",),
    "happytransformer": ("happytransformer",), "image-reward": ("ImageReward",), "llm2vec": ("llm2vec",),
    "minicons": ("minicons",), "multimolecule": ("multimolecule",), "safe-mol": ("safe",),
    "salesforce-lavis": ("lavis",), "transformers-stream-generator": ("transformers_stream_generator",),
    "unbabel-comet": ("comet",), "voxcpm": ("voxcpm",), "mteb": ("mteb",), "openpipe-art": ("art",),
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
    "verl": {
        "verl": ("verl.trainer.main_ppo", "verl.workers.fsdp_workers"),
        "the vLLM rollout": (
            "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd",
            "verl.workers.rollout.vllm_rollout.vllm_async_server",
            "verl.utils.vllm.utils", "verl.utils.vllm_utils",
        ),
        "the Megatron workers": (
            "verl.workers.megatron_workers", "verl.utils.megatron_utils", "verl.models.mcore.registry",
        ),
        "the SGLang rollout": (
            "verl.workers.rollout.sglang_rollout.sglang_rollout",
            "verl.workers.rollout.sglang_rollout.async_sglang_server", "verl.workers.sharding_manager.fsdp_sglang",
        ),
    },
    "llamafactory": {
        "llamafactory": ("llamafactory.train.tuner",),
        "the vLLM engine": ("llamafactory.chat.vllm_engine",),
        "the SGLang engine": ("llamafactory.chat.sglang_engine",),
    },
    "ms-swift": {
        "swift": ("swift.llm.train.sft", "swift.llm", "swift.pipelines.train.sft"),
        "the vLLM engine": (
            "swift.llm.infer.infer_engine.vllm_engine", "swift.llm.infer.infer_engine.grpo_vllm_engine",
            "swift.infer_engine.vllm_engine", "swift.infer_engine.grpo_vllm_engine",
        ),
        "the SGLang engine": ("swift.llm.infer.infer_engine.sglang_engine", "swift.infer_engine.sglang_engine"),
        "GRPOTrainer": ("swift.trainers.rlhf_trainer.grpo_trainer", "swift.rlhf_trainers.grpo_trainer"),
        "swift.megatron": (
            "swift.megatron", "swift.megatron.trainers.base", "swift.megatron.model.gpt_model",
        ),
    },
    "axolotl": {
        "axolotl": ("axolotl.cli.train", "axolotl.train"),
        "GRPO": ("axolotl.core.trainers.grpo.trainer",),
    },
    "openrlhf": {
        "openrlhf": ("openrlhf.cli.train_sft", "openrlhf.cli.train_ppo_ray"),
        "the vLLM engine": ("openrlhf.trainer.ray.vllm_engine", "openrlhf.trainer.ray.vllm_worker_wrap"),
    },
    "xtuner": {"xtuner": ("xtuner.tools.train", "xtuner.v1.train.cli.sft")},
    "lmdeploy": {"lmdeploy": ("lmdeploy.api", "lmdeploy.serve.async_engine", "lmdeploy.pytorch.engine.engine")},
    "colossalai": {"shardformer": ("colossalai.shardformer.shard.sharder",)},
    "nemo-toolkit": {"nemo.collections.llm": ("nemo.collections.llm",)},
    "megatron-bridge": {"megatron.bridge": ("megatron.bridge",)},
    "megatron-core": {"megatron.core": ("megatron.core.models.gpt.gpt_model", "megatron.core.transformer.attention")},
    "flagembedding": {"FlagEmbedding": ("FlagEmbedding",)},
    "liger-kernel": {"liger_kernel.transformers": ("liger_kernel.transformers.monkey_patch",)},
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
    "gliner": {"gliner.training": ("gliner.training",)},
    "mbridge": {"mbridge.models": ("mbridge.models",)},
    "minicons": {"minicons.scorer": ("minicons.scorer",)},
}  # fmt: skip
CALLEES = (
    "transformers", "trl", "peft", "accelerate", "diffusers", "liger-kernel", "kernels", "torch", "vllm", "deepspeed",
    "huggingface-hub", "flash-attn", "torchao", "megatron-core", "compressed-tensors", "flash-linear-attention",
    "unsloth-zoo", "sglang",
)  # fmt: skip
CALLERS = (
    "trl", "peft", "accelerate", "diffusers", "verl", "llamafactory", "liger-kernel", "autoawq", "sglang",
    "megatron-core", "ring-flash-attn", "yunchang", "ms-swift", "axolotl", "xtuner", "colossalai", "openrlhf",
    "deepspeed", "megatron-bridge", "nemo-toolkit", "unsloth-zoo", "optimum", "sentence-transformers", "flagembedding",
    "lm-eval", "torchtune", "flash-linear-attention", "llmcompressor", "compressed-tensors", "gptqmodel", "torchao",
    "vllm", "lmdeploy", "kernels", "flash-attn", "mamba-ssm", "unsloth", "adapters", "areal", "attention-sinks",
    "chatterbox-tts", "colpali-engine", "coqui-tts", "deepspeed-mii", "gliner", "kvpress", "llm-foundry", "mbridge",
    "minference", "optimum-quanto", "parler-tts", "qwen-asr", "qwen-tts", "setfit", "span-marker", "transformer-lens",
    "verifiers", "xfuser", "sae-lens", "auto-round", "chronos-forecasting", "colbert-ai", "compel", "diffsynth",
    "flair", "granite-tsfm", "happytransformer", "image-reward", "llm2vec", "minicons", "multimolecule", "safe-mol",
    "salesforce-lavis", "transformers-stream-generator", "unbabel-comet", "voxcpm", "mteb", "openpipe-art",
)  # fmt: skip
COMPILED = ("torch",)  # modules take names from extensions, which are not read


def load(package: str, cache: Path) -> None:
    """Read every release of a package into the store, where it is not there yet; a run that was ended goes on."""
    versions = {str(version) for version in releases_of(package, SINCE)}
    fill(Store(cache, package), jobs=4, only=versions)


def surfaces(package: str, cache: Path) -> Iterator[tuple[Version, Surface]]:
    """Yield the releases of a package that hold modules, oldest first, one at a time: all together are large."""
    store = Store(cache, package)
    known = set(store.read())
    for version in releases_of(package, SINCE):
        if str(version) in known:
            surface = Surface(store, str(version), ROOTS[package])
            if surface.modules:
                yield version, surface
        store.save()


def reached(surface: Surface, starts: Iterable[str], there: str | None = "torch") -> set[str]:
    """Return the modules that importing these modules runs where a package is there, their packages included.

    `there`: None for every package, whatever guards name it.
    """
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in surface.modules:
            continue
        seen.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:end]) for end in range(1, len(parts))]
        for module, what, gate in surface.imports(name):
            if there is None or usable(gate, there):
                waiting += [module, f"{module}.{what}"]
    return seen


@dataclass
class Taken:
    """A name that is imported: whether always behind a check for its package, and the files that import it."""

    checked: bool = True
    files: set[str] = field(default_factory=set)


def needs_of(surface: Surface, starts: Iterable[str], roots: dict[str, str]) -> dict[str, dict[tuple[str, str], Taken]]:
    """Return callee -> (module, name) that importing these modules takes from it."""
    wanted: dict[str, dict[tuple[str, str], Taken]] = defaultdict(lambda: defaultdict(Taken))
    always = reached(surface, starts)
    words = _gates(surface, starts)
    for there in {"torch", *(package for package in set(roots.values()) if _named(",".join(words), package))}:
        for name in always if there == "torch" else reached(surface, starts, there):
            for module, what, gate in surface.imports(name):
                callee = roots.get(module.partition(".")[0]) or roots.get(".".join(module.split(".")[:2]))
                if callee and usable(gate, callee) and (callee == there or name in always):
                    taken = wanted[callee][module, "" if what == "*" else what]
                    taken.checked &= _named(gate, callee) or name not in always
                    taken.files.add(name.replace(".", "/") + ("/__init__.py" if name in surface.packages else ".py"))
    return wanted


def _gates(surface: Surface, starts: Iterable[str]) -> set[str]:
    """Return the packages that a guard names in a module that these modules import, whichever are installed."""
    every = reached(surface, starts, there=None)
    return {word for name in every for _, _, gate in surface.imports(name) for word in gate.split(",")}


def _named(gate: str, callee: str) -> bool:
    """Say whether a guard is about the package that is imported: such a check may demand a minimum release."""
    return bool({callee.replace("-", "_"), callee.partition("-")[0]} & set(gate.split(",")))


def entries_of(caller: str, surface: Surface) -> dict[str, tuple[str, ...]]:
    """Return the entries of a caller that this release has; its package first."""
    package = ROOTS[caller][0]
    found = {"": (package,)}
    for label, modules in ENTRIES.get(caller, {}).items():
        there = tuple(module for module in modules if module in surface.modules)
        if there:
            found[label] = there
    return found


def _leading(missing: tuple[Version, ...], releases: tuple[Version, ...]) -> int:
    """Return how many of the first releases are among the missing ones."""
    return next((at for at, version in enumerate(releases) if version not in missing), len(releases))


@dataclass(frozen=True)
class Need:
    """A name that a release of a caller takes from a callee; in `entry`, or on import of the package itself."""

    caller: str
    version: Version
    entry: str
    callee: str
    module: str
    name: str
    checked: bool
    files: tuple[str, ...]


def needs(caller: str, version: Version, surface: Surface, roots: dict[str, str]) -> Iterator[Need]:
    """Yield what a release imports; a name of the package itself not again for its entries."""
    seen: set[tuple[str, str]] = set()
    for label, starts in entries_of(caller, surface).items():
        for callee, wanted in needs_of(surface, starts, roots).items():
            for (module, name), taken in sorted(wanted.items(), key=lambda item: item[0]):
                if callee != caller and (module, name) not in seen:
                    if not label:
                        seen.add((module, name))
                    yield Need(caller, version, label, callee, module, name, taken.checked, tuple(sorted(taken.files)))


def names_of(package: str, cache: Path) -> Iterator[tuple[Version, Names | RecordedNames]]:
    """Yield the releases of a package with their names; of transformers one of each minor, from the record."""
    if package != "transformers":
        for version, surface in surfaces(package, cache):
            yield version, Names(surface, compiled=package in COMPILED)
        return
    history = json.loads(gzip.decompress(HISTORY.read_bytes()))
    for minor in sorted({Version(".".join(map(str, Version(text).release[:2]))) for text in history["releases"]}):
        yield minor, RecordedNames(minor, history)


def table(callers: Iterable[str], cache: Path) -> list[dict[str, Any]]:
    """Return one row per caller release, entry, callee and name that some release of the callee lacks."""
    roots = {root: package for package in CALLEES for root in ROOTS[package]}
    order: dict[str, list[Version]] = defaultdict(list)
    found: dict[str, list[Need]] = defaultdict(list)
    for caller in callers:
        for version, surface in surfaces(caller, cache):
            order[caller].append(version)
            for need in needs(caller, version, surface, roots):
                found[need.callee].append(need)
    rows = []
    for callee, mine in found.items():
        has: dict[tuple[str, str], list[bool]] = {(need.module, need.name): [] for need in mine}
        order[callee] = []
        for version, names in names_of(callee, cache):
            order[callee].append(version)
            for (module, name), there in has.items():
                there.append(names.has(module, name))
        for need in mine:
            there = has[need.module, need.name]
            start = there.index(True) if need.checked and any(there) else 0  # the guard may demand a newer release
            missing = [str(version) for version, one in list(zip(order[callee], there, strict=True))[start:] if not one]
            if missing and any(there):
                rows.append({
                    "caller": need.caller, "version": str(need.version), "entry": need.entry, "callee": callee,
                    "module": need.module, "name": need.name, "missing": missing, "files": need.files,
                })  # fmt: skip
    return [{"releases": {package: list(map(str, versions)) for package, versions in order.items()}}, *rows]


def main() -> None:
    """Read the options, make the table, write the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="the folder of the stores")
    parser.add_argument("--only", nargs="*", default=CALLERS)
    parser.add_argument("--table", type=Path, help="write the rows to this file, and no rules")
    options = parser.parse_args()
    for package in sorted({*options.only, *CALLEES} - {"transformers"}):
        load(package, options.cache)
    head, *rows = table(options.only, options.cache)
    if options.table:
        options.table.write_text("\n".join(json.dumps(row) for row in [head, *rows]))
    else:
        imports_rules.write(head["releases"], rows, options.only)


if __name__ == "__main__":
    main()
