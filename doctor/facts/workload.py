"""A workload as a mapping of words: aliases, nulls and the long form mean the same from every source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from doctor.errors import DoctorError
from doctor.model import ABSENT, Fact, Facts
from doctor.util.printable import one_line
from doctor.util.redact import shortened

from .kinds import INTEGER, WINDOW
from .long_form import read_fact
from .vocabulary import NONE_VALUES, TERMS, nearest, term

PREFIX = "workload."
#: Names that other tools use, without `workload.` -> the keys they mean.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "head_dim": ("head_dim_qk", "head_dim_v"), "head_size": ("head_dim_qk", "head_dim_v"),
    "heads": ("num_heads",), "num_attention_heads": ("num_heads",), "kv_heads": ("num_kv_heads",),
    "num_key_value_heads": ("num_kv_heads",), "num_gqa_groups": ("num_kv_heads",),
    "num_query_groups": ("num_kv_heads",),
    "seq_len": ("seq_len_q", "seq_len_kv"), "seq_length": ("seq_len_q", "seq_len_kv"),
    "seqlen": ("seq_len_q", "seq_len_kv"), "sequence_length": ("seq_len_q", "seq_len_kv"),
    "max_seq_len": ("seq_len_q", "seq_len_kv"), "max_seqlen_q": ("seq_len_q",), "max_seqlen_kv": ("seq_len_kv",),
    "attn_mask_type": ("mask",), "window_size": ("window",), "context_parallel_size": ("cp_size",),
    "attention_dropout": ("dropout",), "is_training": ("training",), "torch_dtype": ("dtype",),
    "batch": ("batch_size",), "micro_batch_size": ("batch_size",), "max_seqlen": ("seq_len_q", "seq_len_kv"),
    "dropout_p": ("dropout",), "layout": ("qkv_layout",),
    "use_cache": ("inference_kv_cache",),
    "attention_sinks": ("sinks",), "cuda_graphs": ("cuda_graph",), "double_backward": ("higher_order_gradients",),
    "compile": ("torch_compile",), "compile_mode": ("torch_compile_mode",), "dynamic": ("dynamic_shapes",),
    "hub_kernel": ("attn_implementation",), "trust_remote_code": ("remote_code",), "tp_size": ("tensor_parallel_size",),
    "pp_size": ("pipeline_parallel_size",), "ep_size": ("expert_parallel_size",),
}  # fmt: skip
#: Names of other tools whose values differ, for hints; they are not accepted.
SYNONYMS: Mapping[str, str] = {"is_causal": "mask", "causal": "mask", "qkv_format": "qkv_layout"}
_OF_CONFIGS = ("architectures", "hidden_size", "num_hidden_layers", "_name_or_path")  # keys of a model config
_FROM_ZERO = ("workload.num_splits",)  # 0 = the kernel decides
LARGEST = 1 << 40  # no tensor dimension is longer; keeps derived products printable


def workload_facts(
    content: Mapping[str, Any],
    source: Callable[[str], str] = lambda key: "workload",
    where: Callable[[str], str] = lambda key: "",
    *,
    recorded: bool = False,
) -> Facts:
    """Return the facts of a mapping, its keys with or without `workload.`; `where(key)` starts an error message.

    A plain null means "none given": the value that the vocabulary has for it (no window, no dropout), else the key is
    as if it were not written. Only the long form states that a value is unknown.

    recorded: the mapping was written from facts. Derived keys may be among them, and `complete_workload` checks sizes.
    """
    facts: dict[str, Fact] = {}
    nulls: dict[str, Fact] = {}
    named = {str(key).removeprefix(PREFIX) for key, value in content.items() if value is not None}
    for written, value in content.items():
        key = str(written)
        try:
            for full in _keys(key, named, recorded):
                found = _fact(full, value, source(key), recorded)
                if value is None:
                    nulls.update({found.key: found} if found else {})
                elif found is None:
                    continue
                elif found.key in facts:
                    raise DoctorError(f"`{found.key}` is given twice")
                else:
                    facts[found.key] = found
        except DoctorError as error:
            raise DoctorError(one_line(where(key) + error.message), error.hint) from None
    return Facts({**nulls, **facts}.values())


def setting_keys(key: str) -> tuple[str, ...]:
    """Return the fact keys that a setting such as `head_dim` or `torch.version` means; DoctorError with the nearest."""
    bare = key.removeprefix(PREFIX)
    if bare in ALIASES:
        return tuple(PREFIX + name for name in ALIASES[bare])
    if _givable(PREFIX + bare):
        return (PREFIX + bare,)
    hint = None
    if not key.startswith(PREFIX):
        distribution, dot, rest = key.rpartition(".")
        spelled = f"{distribution.replace('_', '-').lower()}.version" if dot and rest == "version" else key
        try:
            return (term(spelled).key,)
        except DoctorError as error:
            hint = error.hint
    hint = f"did you mean `{PREFIX}{SYNONYMS[bare]}`?" if bare in SYNONYMS else hint
    hint = hint or nearest(key, filter(_givable, TERMS))
    raise DoctorError(f"unknown fact key `{_short(key)}`", hint)


def setting_fact(key: str, value: Any, source: str) -> Fact | None:
    """Return the fact of a setting; None where a null says that nothing is given."""
    if not key.startswith(PREFIX):
        return read_fact(key, {"value": None, "problem": "given as null"} if value is None else value, source)
    return _fact(key, value, source, recorded=False)


def check_value(key: str, value: Any) -> None:
    """Raise DoctorError for a value that no attention can have: a negative size, a probability above 1."""
    if not key.startswith(PREFIX):
        return
    kind = term(key).kind
    if value == ABSENT:
        if term(key).default != ABSENT:
            raise DoctorError(f"`{key}`: needs a value of kind {kind}, found `{ABSENT}`")
        return
    if kind == INTEGER:
        least = 0 if key in _FROM_ZERO else 1
        if not least <= value <= LARGEST:
            raise DoctorError(f"`{key}`: needs an integer from {least} to 2^40, found `{_short(value)}`")
    elif kind == WINDOW:
        if not all(-1 <= side <= LARGEST for side in value):
            raise DoctorError(f"`{key}`: needs two integers from -1 (unlimited) up, found `{_short(list(value))}`")
    elif key == "workload.dropout" and not 0 <= value <= 1:
        raise DoctorError(f"`{key}`: needs a probability from 0 to 1, found `{value}`")
    elif key == "workload.softcap" and value < 0:
        raise DoctorError(f"`{key}`: needs a number from 0 (none) up, found `{value}`")


def _keys(key: str, named: set[str], recorded: bool) -> Sequence[str]:
    """Return the full keys that a written key means, but for those that the mapping names itself."""
    meant = _meant(key, recorded)
    if len(meant) == 1:
        return meant
    return [full for full in meant if full.removeprefix(PREFIX) not in named]  # `head_dim` means two


@lru_cache(maxsize=1024)
def _meant(key: str, recorded: bool) -> tuple[str, ...]:
    """Return the full keys that a written key means; DoctorError for one that a workload cannot state."""
    bare = key.removeprefix(PREFIX)
    full = tuple(PREFIX + name for name in ALIASES.get(bare, (bare,)))
    if not all(_exists(name) if recorded else _givable(name) for name in full):
        raise _unknown_key(key, bare)
    return full


def all_words(names: Iterable[str]) -> bool:
    """Return whether a workload may state each of these names: a file of them is a workload, and no other config."""
    return all(
        _givable(PREFIX + word) for name in map(str, names) for word in ALIASES.get(name, (name.removeprefix(PREFIX),))
    )


def _unknown_key(key: str, bare: str) -> DoctorError:
    known = [name.removeprefix(PREFIX) for name in TERMS if name.startswith(PREFIX) and _givable(name)]
    hint = f"did you mean `{SYNONYMS[bare]}`?" if bare in SYNONYMS else nearest(bare, [*known, *ALIASES])
    if bare in _OF_CONFIGS:
        hint = "a config.json of Hugging Face is for `--model`"
    return DoctorError(f"unknown workload key `{_short(key)}`", hint)


def _givable(key: str) -> bool:
    """Return whether a workload may state the key; derived keys could contradict their inputs."""
    known = TERMS.get(key)
    return known is not None and not known.derived


def _exists(key: str) -> bool:
    try:
        return term(key) is not None
    except DoctorError:
        return False


def _fact(key: str, value: Any, source: str, recorded: bool) -> Fact | None:
    """Return the fact of one word; None for a null of a key without a value for "none"."""
    if isinstance(value, str) and value.strip().lower() == "none":
        value = None if key in NONE_VALUES else ABSENT if term(key).default == ABSENT else value
    if value is None:
        none = NONE_VALUES.get(key)
        return None if none is None else Fact(key, none, source)
    if isinstance(value, dict) and "value" not in value and not recorded:
        raise DoctorError(f"`{key}`: needs a plain value, or a mapping with `value`")
    found = read_fact(key, value, source)
    if found.known and not recorded:
        check_value(key, found.value)
    return found


def _short(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a very large number"
    return shortened(text, 60)
