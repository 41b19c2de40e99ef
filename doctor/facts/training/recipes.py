"""Which trainer a config file or a command belongs to, and the workload that its options describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from doctor.facts.vocabulary import fact
from doctor.model import Fact

from . import megatron, trainers
from .options import Options, ReadConfig, Statement


class Trainer(NamedTuple):
    """A trainer that builds on transformers, or a launcher whose config says nothing about the model."""

    title: str
    statements: Callable[[Options, ReadConfig], list[Statement]]
    framework: str | None
    library: str | None = None  # its name in `calls`; TrainingArguments are read as TRL, which reaches all they reach


TRAINERS: Mapping[str, Trainer] = {
    "trl": Trainer("TrainingArguments", trainers.trl_statements, "transformers", "trl.scripts"),
    "llamafactory": Trainer("LLaMA-Factory", trainers.llamafactory_statements, "transformers", "llamafactory"),
    "llamafactory_inference": Trainer(
        "LLaMA-Factory", trainers.llamafactory_inference_statements, "transformers", "llamafactory"
    ),
    "llamafactory_v1": Trainer(
        "LLaMA-Factory v1", trainers.llamafactory_v1_statements, "transformers", "llamafactory.v1"
    ),
    "axolotl": Trainer("axolotl", trainers.axolotl_statements, "transformers", "axolotl"),
    "swift": Trainer("ms-swift", trainers.swift_statements, "transformers", "ms_swift"),
    "swift_megatron": Trainer("ms-swift", megatron.swift_megatron_statements, "megatron", "ms_swift"),
    "openrlhf": Trainer("OpenRLHF", trainers.openrlhf_statements, "transformers", "openrlhf"),
    "verl": Trainer("verl", trainers.verl_statements, "transformers", "verl"),
    "accelerate": Trainer("accelerate", trainers.accelerate_statements, None, "accelerate.launch"),
    "deepspeed": Trainer("DeepSpeed", trainers.deepspeed_statements, None),
}
#: trainer -> keys that its configs have: all of the first, and one of the second.
_SIGNS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("axolotl", ("base_model",), (
        "datasets", "pretraining_dataset", "adapter", "micro_batch_size", "sequence_len", "val_set_size", "rl",
    )),
    ("accelerate", ("distributed_type",), ("compute_environment", "mixed_precision", "num_processes")),
    ("deepspeed", (), ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")),
    ("llamafactory", ("model_name_or_path",), ("finetuning_type", "cutoff_len", "neat_packing", "flash_attn")),
    ("llamafactory_inference", ("model_name_or_path", "template"), ("infer_backend", "export_dir")),
    ("llamafactory_v1", ("model",), (
        "model_class", "kernel_config", "dist_config", "quant_config", "peft_config", "train_dataset",
    )),
    ("trl", ("model_name_or_path",), (
        "attn_implementation", "per_device_train_batch_size", "gradient_checkpointing", "bf16", "torch_dtype", "dtype",
        "use_peft", "output_dir",
    )),
)  # fmt: skip


def trainer_of(config: Mapping[str, Any]) -> str | None:
    """Return the trainer whose config this is; None for another file."""
    for name, needed, one_of in _SIGNS:
        if all(key in config for key in needed) and any(key in config for key in one_of):
            return name
    return None


def recipe_statements(trainer: str, given: Mapping[str, Any], read: ReadConfig) -> list[Statement]:
    """Return what the options of a trainer say, one statement for each word; the first of two counts."""
    kind = TRAINERS[trainer]
    found = kind.statements(Options(given), read)
    if kind.framework is not None:
        found += [Statement("framework", kind.framework, kind.title), Statement("training", True, kind.title)]
    if kind.library is not None:
        found.append(Statement("trainer", kind.library, kind.title))
    by_word: dict[str, Statement] = {}
    for statement in found:
        by_word.setdefault(statement.word, statement)
    return list(by_word.values())


def fact_of(statement: Statement, source: str) -> Fact:
    """Return the fact that a statement makes, with the place of its option."""
    key = f"workload.{statement.word}"
    if statement.value is None:
        return Fact(key, None, source, problem="only the running job knows the value")
    made = fact(key, statement.value, source)
    return made._replace(source=f"assumed: {source}", assumed=True) if statement.assumed else made
