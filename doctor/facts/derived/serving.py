"""Derived facts of serving workloads: what the words of a model config say to the server's selector."""

from __future__ import annotations

from functools import partial
from operator import eq

from doctor.facts.derived.registry import derived
from doctor.facts.kinds import BOOLEAN, INTEGER, WINDOW
from doctor.facts.libraries.frameworks import DEPENDENT, servers
from doctor.model import ABSENT


@derived("workload.sinks", BOOLEAN, "learned attention sinks", needs=("workload.softmax_type",))
def _sinks(softmax_type: str) -> bool:
    return softmax_type == "learnable"


@derived("workload.window", WINDOW, "sliding window", needs=("workload.sliding_window",))
def _window(tokens: int | str) -> tuple[int, int] | str:
    return (tokens - 1, 0) if isinstance(tokens, int) else ABSENT


@derived(
    "workload.head_size_given_to_selector",
    INTEGER,
    "head width as the server's selector gets it",
    needs=("workload.mla", "workload.head_dim_qk"),
    uses=("workload.kv_lora_rank", "workload.qk_rope_head_dim"),
)
def _head_size(mla: bool, head_dim: int, lora: int | str | None, rope: int | str | None) -> int | None:
    if not mla:
        return head_dim
    return lora + rope if isinstance(lora, int) and isinstance(rope, int) else None


@derived(
    "workload.head_dims_differ_by_layer",
    BOOLEAN,
    "layers have heads of different width",
    needs=("workload.head_dims_of_layers",),
)
def _differ(dims: tuple[str, ...] | str) -> bool:
    return dims != ABSENT and len(set(dims)) > 1


@derived(
    "machine.nvcc",
    BOOLEAN,
    "nvcc and ninja are on PATH, so that FlashInfer can compile its kernels",
    needs=("toolkit.nvcc", "toolkit.ninja"),
)
def _nvcc(release: str, ninja: bool) -> bool:
    return release != ABSENT and ninja


def _installed_or_required(version: str | None, required: bool | None) -> bool | None:
    """Whether a package is there; where it was not examined, whether the server's own metadata requires it."""
    return (True if required else None) if version is None else version != ABSENT


@derived(
    "vllm.xformers_installed",
    BOOLEAN,
    "xFormers is installed, or required by this vLLM and not examined",
    uses=("xformers.version", "vllm.requires_xformers"),
)
def _xformers_installed(version: str | None, required: bool | None) -> bool | None:
    return _installed_or_required(version, required)


@derived(
    "sglang.flashinfer_installed",
    BOOLEAN,
    "FlashInfer is installed, or required by this SGLang and not examined",
    uses=("flashinfer-python.version", "flashinfer.version", "sglang.flashinfer_pin"),
)
def _flashinfer_installed(version: str | None, of_old: str | None, pin: str | None) -> bool | None:
    if of_old not in (None, ABSENT):  # the name of the distribution before 0.2
        return True
    return _installed_or_required(version, pin not in (None, ABSENT))


@derived(
    "workload.heads_divide_over_ranks",
    BOOLEAN,
    "query heads divide by the ranks of tensor parallelism",
    needs=("workload.num_heads", "workload.tensor_parallel_size"),
)
def _heads_divide(heads: int, ranks: int) -> bool | None:
    return None if ranks < 1 else heads % ranks == 0


def _register_servers() -> None:
    for word, server in servers().items():
        derived(
            f"workload.served_by_{word}",
            BOOLEAN,
            f"{server.title} runs the workload, next to which other servers may be installed; false where not known",
            uses=("workload.framework",),
        )(partial(eq, word))


_register_servers()
DEPENDENT.append(_register_servers)
