"""Workload files and `--set`: flat keys become `workload.*` facts; errors name file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.kinds import INTEGER, WINDOW
from doctor.facts.vocabulary import TERMS, nearest, parse, term
from doctor.model import ABSENT, Fact, Facts
from doctor.util.redact import shortened

PREFIX = "workload."
LONG_FORM = ("value", "source", "raw", "problem")
NULL = "given as null"  # the problem of a plain null
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
_SECTIONS = ("workload", "facts", "schema", "tool")  # of a facts file, which may be used as a workload file too
_OF_CONFIGS = ("architectures", "hidden_size", "num_hidden_layers", "_name_or_path")  # keys of a model config
_FROM_ZERO = ("workload.num_splits",)  # 0 = the kernel decides
LARGEST = 1 << 40  # no tensor dimension is longer; keeps derived products printable


def split_part(name: str) -> tuple[str, str | None]:
    """Split `config.json[vision_config]` into the file and the part of the model; None for the language model."""
    file, bracket, part = name.removesuffix("]").rpartition("[")
    chosen = bool(bracket) and name.endswith("]") and not Path(name).exists()
    return (file, part) if chosen else (name, None)


def workload_of(path: Path, content: Any, lines: Mapping[tuple[str, ...], int]) -> Facts:
    """Return the workload of a parsed file; DoctorError names the file, the line and the nearest key."""
    if content is None:
        raise DoctorError(f"{path}: the workload file is empty", "write keys such as `head_dim_qk: 128`")
    if not isinstance(content, dict):
        raise DoctorError(f"{path}:1: a workload needs a mapping of keys, found {_kind(content)}")
    at: tuple[str, ...] = ()
    if "workload" in content:
        stray = next((key for key in content if key not in _SECTIONS), None)
        if stray is not None:
            raise _fault(path, lines.get((stray,)), f"`{stray}` is outside `workload:`", "move it under `workload:`")
        content, at = content["workload"], ("workload",)
        if not isinstance(content, dict):
            raise _fault(path, lines.get(at), f"`workload:` needs a mapping of keys, found {_kind(content)}", None)
    name = path.name

    def where(key: str) -> str:
        line = lines.get((*at, key))
        return f"{path}:{line}: " if line else f"{path}: "

    return workload_facts(content, lambda key: f"{name}: {key}", where)


def workload_facts(
    content: Mapping[str, Any],
    source: Callable[[str], str] = lambda key: "workload",
    where: Callable[[str], str] = lambda key: "",
) -> Facts:
    """Return the facts of a mapping, its keys with or without `workload.`; `where(key)` starts an error message."""
    facts: dict[str, Fact] = {}
    named = {str(key).removeprefix(PREFIX) for key in content}
    for key, value in content.items():
        bare = str(key).removeprefix(PREFIX)
        for full in ALIASES.get(bare, (str(key),)):
            if full in named and full != bare and len(ALIASES.get(bare, ())) > 1:
                continue  # `head_dim` means both, and the file names one of them
            try:
                found = _fact(full, value, source(str(key)))
            except DoctorError as error:
                raise DoctorError(one_line(where(str(key)) + error.message), error.hint) from None
            if found.key in facts:
                raise DoctorError(one_line(f"{where(str(key))}`{found.key}` is given twice"))
            facts[found.key] = found
    return Facts(facts.values())


def parse_settings(settings: Iterable[str]) -> Facts:
    """Return the facts of `--set KEY=VALUE` options; the last one of a key wins."""
    facts: dict[str, Fact] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key, text = key.strip(), text.strip()
        if not equals or not key:
            raise DoctorError(one_line(f"`--set {setting}` needs KEY=VALUE"), "for example `--set gpu.sm=9.0`")
        keys = _keys_of_setting(setting, key)
        if not text and not key.startswith("env."):
            raise DoctorError(
                one_line(f"`--set {setting}` has no value"), f"`--set {key}={ABSENT}` means that it is not there"
            )
        for full in keys:
            try:
                facts[full] = _typed(full, None if _means_null(full, text) else text, f"--set {key}")
            except DoctorError as error:
                raise DoctorError(one_line(f"`--set {setting}`: {error.message}"), error.hint) from None
    return Facts(facts.values())


def _keys_of_setting(setting: str, key: str) -> tuple[str, ...]:
    """Return the fact keys that `--set KEY=…` means; DoctorError with the nearest for an unknown one."""
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
    raise DoctorError(one_line(f"`--set {setting}`: unknown fact key `{_short(key)}`"), hint)


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


def one_line(text: str) -> str:
    """Return the text without line breaks and lone surrogates, which user input may contain."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def _fact(key: str, value: Any, source: str) -> Fact:
    full = key if key.startswith(PREFIX) else PREFIX + key
    if not _givable(full):
        bare = full.removeprefix(PREFIX)
        known = [name.removeprefix(PREFIX) for name in TERMS if name.startswith(PREFIX) and _givable(name)]
        hint = f"did you mean `{SYNONYMS[bare]}`?" if bare in SYNONYMS else nearest(bare, known)
        if bare in _OF_CONFIGS:
            hint = "a config.json of Hugging Face is for `--model`"
        raise DoctorError(f"unknown workload key `{_short(key)}`", hint)
    if isinstance(value, dict):  # the long form that `snapshot` writes
        stray = next((name for name in value if name not in LONG_FORM), None)
        if stray is not None or "value" not in value:
            raise DoctorError(f"`{key}`: needs a plain value, or a mapping with `value`")
        problem = value.get("problem")
        found = _typed(full, value["value"], str(value.get("source") or source))
        return Fact(found.key, found.value, found.source, None, str(problem)) if problem and not found.known else found
    return _typed(full, value, source)


def _givable(key: str) -> bool:
    """Return whether a workload may state the key; derived keys could contradict their inputs."""
    known = TERMS.get(key)
    return known is not None and not known.derived


def _typed(key: str, value: Any, source: str) -> Fact:
    """Return a parsed fact; null means "none" for a key whose default is absent (a window), else unknown."""
    if value is None:
        if term(key).default == ABSENT:
            return Fact(key, ABSENT, source)
        return Fact(key, None, source, None, NULL)
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value)):
        raise DoctorError(f"`{key}`: needs a value of kind {term(key).kind}, found {_kind(value)}")
    parsed = parse(key, value)
    check_value(key, parsed)
    return Fact(key, parsed, source)


def _means_null(key: str, text: str) -> bool:
    if key.startswith("env."):
        return False
    return text in ("null", "~") or (text.lower() == "none" and term(key).default == ABSENT)


def _fault(path: Path, line: int | None, message: str, hint: str | None) -> DoctorError:
    return DoctorError(one_line(f"{path}:{line}: {message}" if line else f"{path}: {message}"), hint)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "a single value"


def _short(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a very large number"
    return shortened(text, 60)
