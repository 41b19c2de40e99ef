"""Every fact key with its kind, meaning and parser: the interface between probes and rules.

Open families of keys: `<distribution>.version` for any distribution (PEP 503 name), `env.<NAME>`, and predictions of a
backend, `te.selected` and `te.fused.available`. All others are listed here or declared by a derivation
(`doctor.facts.derived`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from doctor.errors import DoctorError
from doctor.model import ABSENT, Fact
from doctor.util.redact import shortened

from .kinds import BOOLEAN, INTEGER, LIST, NUMBER, SM, TEXT, VERSION, WINDOW, FactKind
from .serving_terms import SERVING_ROWS
from .workload_terms import JOB_TERMS


class Term(NamedTuple):
    """One key of the vocabulary."""

    key: str
    kind: FactKind
    meaning: str
    values: tuple[str, ...] = ()  # allowed texts; empty = any
    default: Any = None  # the value in a workload that does not give the key
    derived: bool = False


def _terms(*rows: tuple[Any, ...]) -> dict[str, Term]:
    return {row[0]: Term(*row) for row in rows}


MASKS = (
    "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
    "padding_causal_bottom_right", "arbitrary",
)  # fmt: skip

TERMS: dict[str, Term] = _terms(
    ("python.version", VERSION, "the target's Python"),
    ("python.implementation", TEXT, "cpython, pypy …"),
    ("platform.system", TEXT, "Linux, Darwin, Windows"),
    ("platform.machine", TEXT, "x86_64, aarch64 …"),
    ("platform.glibc", VERSION, "the C library of the target"),
    ("torch.cuda", VERSION, "CUDA the torch build was made for; absent for a CPU build"),
    ("torch.cxx11_abi", BOOLEAN, "torch was built with the C++11 ABI"),
    ("torch.arch_list", LIST, "SM architectures that torch has code for: 8.0, 9.0 …"),
    ("torch.exports_on_record", TEXT, "the build of this torch release whose exports are on record, as 2.8.0+cu128"),
    ("torch.git_version", TEXT, "commit of the torch build"),
    ("xformers.cuda", VERSION, "CUDA the xFormers build was made for; absent for a build without"),
    ("toolkit.nvcc", VERSION, "the CUDA compiler that a build will find; absent where there is none"),
    ("toolkit.cuda_home", TEXT, "the folder of that CUDA toolkit"),
    ("toolkit.gcc", VERSION, "major release of the host C++ compiler"),
    ("toolkit.c_compiler", BOOLEAN, "a C compiler that triton takes is there: gcc or clang on the PATH, or CC"),
    ("toolkit.ninja", BOOLEAN, "a ninja program is on the PATH or in the target's environment"),
    ("cudnn.version", VERSION, "the cuDNN the process will load"),
    ("cudnn.path", TEXT, "the file of the cuDNN the process will load"),
    ("cudnn.copies", LIST, "every cuDNN present, as `version path`"),
    ("cudnn.te_version", VERSION, "the cuDNN that TransformerEngine will load by its own search"),
    ("cudnn.te_path", TEXT, "the file of the cuDNN that TransformerEngine will load"),
    ("binaries.unloadable", LIST, "compiled files that do not load, of packages without a rule of their own"),
    ("binaries.torch_problem", TEXT, "why torch's own libraries do not load, by their files"),
    ("files.owned_twice", LIST, "files that two installed distributions list with different content"),
    ("files.conda_and_pip", LIST, "packages that conda lists in one release and that are installed in another"),
    ("loader.conda_copies", LIST, "libraries that torch's process takes from conda, though a wheel has them"),
    ("loader.old_libstdcxx", TEXT, "the C++ library that comes first and is too old for a compiled file"),
    ("modules.stray", LIST, "modules imported from a copy that no distribution owns, not from an installed one"),
    ("modules.split", LIST, "packages whose Python code and compiled module are imported from two folders"),
    ("modules.hidden", LIST, "modules of which another copy exists that is not imported"),
    ("files.changed", LIST, "installed files whose size or content is not what their distribution lists"),
    ("loader.torch_cudnn_folders", LIST, "folders from which torch's process loads cuDNN's libraries"),
    ("loader.te_cudnn_folders", LIST, "those folders once TransformerEngine is imported after torch"),
    ("loader.one_cudnn", TEXT, "shell commands after which torch and TransformerEngine load one cuDNN"),
    ("triton.own_ptxas", VERSION, "CUDA release of the ptxas inside triton that serves this GPU"),
    ("triton.ptxas_variable", TEXT, "the variable that replaces that ptxas"),
    ("triton.ptxas_override", VERSION, "CUDA release of the ptxas that TRITON_PTXAS_PATH names"),
    ("triton.blackwell_ptxas_override", VERSION, "CUDA release of the ptxas that TRITON_PTXAS_BLACKWELL_PATH names"),
    ("triton.ptxas_problem", TEXT, "why the ptxas that a variable names cannot be used"),
    ("triton.libcuda_problem", TEXT, "why triton cannot link against the driver's library; absent: it can"),
    ("driver.version", VERSION, "the NVIDIA kernel driver"),
    ("driver.cuda", VERSION, "the newest CUDA that the driver supports"),
    ("gpu.sm", SM, "compute capability, as 8.0, 9.0 …"),
    ("gpu.name", TEXT, "the GPU's name"),
    ("gpu.count", INTEGER, "GPUs visible to the job"),
    ("gpu.memory_bytes", INTEGER, "memory of one GPU, in bytes"),
    ("gpu.all", LIST, "every GPU, as `index name sm memory_bytes`"),
    ("gpu.mig", BOOLEAN, "a GPU is partitioned by MIG"),
    ("distributions.complete", BOOLEAN, "every installed distribution was read, so any other is absent"),
    ("distributions.broken", LIST, "distributions whose metadata could not be read"),
    ("distributions.duplicates", LIST, "distributions installed more than once"),
    ("target.path", TEXT, "what was examined"),
    ("declared.wheels", LIST, "wheel files that the declared environment installs by address"),
    ("declared.overridden", LIST, "packages whose release the project sets against what others require"),
    ("declared.elsewhere", LIST, "packages from an index whose releases are not on record"),
    ("declared.flash_attn_isolated", BOOLEAN, "the project has its installer build flash-attn apart from its torch"),
    ("declared.isolated", LIST, "packages that the installer builds apart from the environment, without its torch"),
    ("declared.built", LIST, "packages without a wheel in the registry, which the installer builds"),
    ("declared.built_before_torch", LIST, "packages that are built in the environment before torch is installed"),
    ("declared.built_without_nvcc", LIST, "packages that are built in an image that has no CUDA compiler"),
    ("declared.built_in_image", LIST, "packages that are built while an image is built, where no GPU is visible"),
    ("declared.built_by_extras", LIST, "packages that the installer builds for an extra that is not chosen"),
    ("declared.local_stops", LIST, "folders of the project whose own build stops, each with the reason"),
    ("target.manifest", TEXT, "kind of the file that declares the environment", ("requirements", "other")),
    ("ranks.nccl_differs", TEXT, "which NCCL which ranks of the job load, where they differ"),
    ("ranks.packages_differ", TEXT, "which ranks of the job have which release, where they differ"),
    ("ranks.environment_differs", TEXT, "which ranks of the job set which variable to what, where they differ"),
    ("speed.selected", TEXT, "backend that is much slower, or takes much more memory, than another of this job"),
    ("speed.best", TEXT, "the fastest backend of this job by the records, where the selected one is much slower"),
    ("speed.times", NUMBER, "how many times as long as the fastest backend the selected one takes"),
    ("speed.published_times", NUMBER, "the same by a published figure, where no record covers this GPU"),
    ("speed.skipping", TEXT, "a backend of this job that leaves out blocks which the selected one computes"),
    ("speed.blocks_times", NUMBER, "how many times as many operations the selected backend computes"),
    ("speed.share", INTEGER, "estimated part of a layer's time that the selected backend wastes, in percent"),
    ("speed.lean", TEXT, "the backend of this job that holds least, where the selected one holds much more"),
    ("speed.memory_times", NUMBER, "how many times as much memory as `speed.lean` the selected backend holds"),
    ("speed.memory_bytes", INTEGER, "what the selected backend holds in one layer"),
    ("speed.scores_bytes", INTEGER, "what of that are scores and other workspace"),
    ("speed.lean_bytes", INTEGER, "what `speed.lean` holds in one layer"),
    ("speed.select", TEXT, "how the job selects the other backend"),
    ("speed.basis", TEXT, "where the figures come from"),
    ("ranks.gpus_differ", TEXT, "which ranks of the job run on which GPU, where they differ"),
    ("workload.given", BOOLEAN, "a workload was described"),
    ("workload.framework", TEXT, "who calls attention"),  # the libraries say which words: `allow`
    ("workload.dtype", TEXT, "of q, k, v", ("bfloat16", "float16", "float32", "float8")),
    ("workload.head_dim_qk", INTEGER, "width of a query/key head"),
    ("workload.head_dim_v", INTEGER, "width of a value head"),
    ("workload.num_heads", INTEGER, "query heads"),
    ("workload.num_kv_heads", INTEGER, "key/value heads"),
    ("workload.batch_size", INTEGER, "sequences in a batch"),
    ("workload.seq_len_q", INTEGER, "tokens, global over context-parallel ranks"),
    ("workload.seq_len_kv", INTEGER, "tokens, global over context-parallel ranks"),
    ("workload.mask", TEXT, "attention mask, in TransformerEngine's terms", MASKS),
    ("workload.window", WINDOW, "sliding window [left, right], -1 = unlimited; absent = none given", (), ABSENT),
    ("workload.bias", TEXT, "attention bias", ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi"), "no_bias"),
    ("workload.bias_shape", TEXT, "1hss, b1ss, bhss, 11ss, 111s …", (), ABSENT),
    ("workload.bias_requires_grad", BOOLEAN, "the bias is trained", (), False),
    ("workload.qkv_frozen", BOOLEAN, "no gradients of q, k and v are computed", (), False),
    ("workload.alibi_slopes", TEXT, "shape of given slopes: h or bh", ("h", "bh"), ABSENT),
    ("workload.qkv_layout", TEXT, "memory layout, TE's names: bshd_bshd_bshd, thd_thd_thd, sb3hd …"),
    ("workload.qkv_interleaved", BOOLEAN, "q, k, v are views of one fused projection", (), False),
    ("workload.qkv_transposed", BOOLEAN, "q, k, v are views whose memory order differs from their layout", (), False),
    ("workload.qkv_unaligned", BOOLEAN, "q, k or v start at an address that is not a multiple of 16 bytes", (), False),
    ("workload.kv_storage_offset", BOOLEAN,
     "k and v are contiguous, but start inside a larger buffer", (), False),
    ("workload.dropout", NUMBER, "attention dropout probability", (), 0.0),
    ("workload.softcap", NUMBER, "logit soft cap; 0 = none", (), 0.0),
    ("workload.softmax_type", TEXT, "softmax variant", ("vanilla", "off-by-one", "learnable"), "vanilla"),
    ("workload.return_max_logit", BOOLEAN, "the largest logit is returned", (), False),
    ("workload.num_splits", INTEGER, "split-KV count", (), 1),
    ("workload.training", BOOLEAN, "backward runs too", (), True),
    ("workload.deterministic", BOOLEAN, "the backward pass must be bitwise repeatable", (), False),
    ("workload.cuda_graph", BOOLEAN, "attention is captured in a CUDA graph", (), False),
    ("workload.fp8", BOOLEAN, "runs under FP8 autocast", (), False),
    ("workload.fp8_recipe", TEXT, "FP8 scaling recipe", ("delayed", "current", "mxfp8", "block", "nvfp4"), ABSENT),
    ("workload.fp8_dpa", BOOLEAN, "FP8 dot-product attention", (), False),
    ("workload.fp8_mha", BOOLEAN, "FP8 multi-head attention", (), False),
    ("workload.pad_between_seqs", BOOLEAN, "thd sequences are padded between one another", (), False),
    ("workload.inference_kv_cache", BOOLEAN, "decodes from a KV cache", (), False),
    ("workload.cp_size", INTEGER, "context-parallel ranks", (), 1),
    ("workload.cp_comm_type", TEXT, "context-parallel communication",
     ("p2p", "all_gather", "a2a", "a2a+p2p"), ABSENT),
    ("workload.cp_size_a2a", INTEGER, "ranks of the inner a2a group under a2a+p2p", (), ABSENT),
    ("workload.bottom_right_diagonal", BOOLEAN, "window and ALiBi are aligned to the bottom-right corner"),
    ("workload.attn_implementation", TEXT, "transformers: eager, sdpa, flash_attention_2 …", (), ABSENT),
    ("workload.enable_gqa", BOOLEAN, "SDPA is called with enable_gqa=True instead of expanded kv"),
    ("workload.nested_tensors", BOOLEAN, "SDPA is called on nested tensors", (), False),
    ("workload.nested_layout", TEXT, "layout of the nested tensors", ("strided", "jagged")),
    ("workload.nested_holes", BOOLEAN,
     "jagged tensors were narrowed from padded ones, with gaps between the sequences", (), False),
    ("workload.varlen_attn", BOOLEAN, "torch.nn.attention.varlen.varlen_attn computes packed sequences", (), False),
    ("workload.singleton_strides", BOOLEAN,
     "a head or token dimension of size 1 has a stride that is not a multiple of 8 (float32: 4)", (), False),
    ("workload.mask_dtype", TEXT, "dtype of an arbitrary mask; float is additive, of a type not stated",
     ("boolean", "float", "float32"), ABSENT),
    ("workload.fully_masked_rows", BOOLEAN, "some queries are masked from every key"),
    ("workload.zero_length_sequences", BOOLEAN, "a packed or nested batch may hold a sequence without queries"),
    ("workload.model_type", TEXT, "Hugging Face model_type", (), ABSENT),
    ("workload.rope_parameters", BOOLEAN,
     "the model's config has its rotary base in rope_parameters alone, as transformers 5 writes it", (), False),
    *JOB_TERMS,
    ("workload.use_varlen_attn", BOOLEAN, "XTuner: packed sequences through varlen attention"),
    ("workload.pack_to_max_length", BOOLEAN, "XTuner: sequences are packed"),
    ("workload.layer_types", LIST, "attention kind per layer: full_attention, sliding_attention …", (), ABSENT),
    *SERVING_ROWS,
)  # fmt: skip

#: Other spellings of allowed texts, in lower case.
SPELLINGS: dict[str, dict[str, str]] = {
    "workload.dtype": {
        "bf16": "bfloat16", "torch.bfloat16": "bfloat16", "fp16": "float16", "half": "float16", "f16": "float16",
        "torch.float16": "float16", "fp32": "float32", "f32": "float32", "float": "float32", "torch.float32": "float32",
        "fp8": "float8", "fp8_e4m3": "float8", "float8_e4m3fn": "float8", "torch.float8_e4m3fn": "float8",
    },
    "workload.mask": {"none": "no_mask", "full": "no_mask"},
    "workload.fp8_recipe": {
        "delayed_scaling": "delayed", "current_scaling": "current", "tensorwise": "current", "blockwise": "block",
        "float8_block_scaling": "block", "mxfp8_block_scaling": "mxfp8",
    },
    "workload.attn_implementation": {
        "fa2": "flash_attention_2", "flash_attn_2": "flash_attention_2", "fa3": "flash_attention_3",
        "flash_attn_3": "flash_attention_3",
    },
}  # fmt: skip

#: What a plain null in a workload means, where the key has a value for "none"; any other key is then not given.
NONE_VALUES: dict[str, Any] = {
    "workload.window": ABSENT, "workload.sliding_window": ABSENT, "workload.dropout": 0.0, "workload.softcap": 0.0,
    "workload.bias": "no_bias", "workload.alibi_slopes": ABSENT, "workload.fp8_recipe": ABSENT,
    "workload.quantization": ABSENT, "workload.speculative_algorithm": ABSENT, "workload.sharding": ABSENT,
    "workload.sequence_parallel": ABSENT,
}  # fmt: skip

#: Key with few values -> the key that another library's word belongs to.
_OTHER_KEY = {
    "workload.attention_backend": "it is Megatron's option; vLLM and SGLang: `workload.attention_backend_option`",
}

#: Open families of keys: (pattern, kind, meaning, derived); the first that fits counts.
_FAMILIES: tuple[tuple[re.Pattern[str], FactKind, str, bool], ...] = tuple(
    (re.compile(pattern), kind, meaning, derived)
    for pattern, kind, meaning, derived in (
        (r"env\.[A-Za-z_][A-Za-z0-9_]*", TEXT, "an environment variable; absent = unset", False),
        (r"[a-z0-9]+(-[a-z0-9]+)*\.version", VERSION, "installed version of that distribution", False),
        (r"[a-z0-9]+([-.][a-z0-9_]+)*\.given", BOOLEAN, "that fact or distribution was read, not inferred", True),
        (r"[a-z0-9]+(-[a-z0-9]+)*\.loads", BOOLEAN, "its compiled files load next to the installed torch", False),
        (r"[a-z0-9]+(-[a-z0-9]+)*\.load_problem", TEXT, "why its compiled files do not load, by the files", False),
        (r"[a-z0-9]+(-[a-z0-9]+)*\.gpu_code", LIST, "SM architectures its files have code for: 8.0, 9.0a …", False),
        (r"[a-z0-9]+(-[a-z0-9]+)*\.fitting_torch", LIST,
         "torch builds on record that export what its files need, as 2.8.0+cu128", False),
        (r"[a-z0-9]+(-[a-z0-9]+)*\.wheel", TEXT, "the wheel file it was installed from, by its direct_url.json", False),
        (r"[a-z][a-z0-9]*\.selected(_by_default)?", TEXT, "the backend that library will select; absent = none", True),
        (r"[a-z][a-z0-9]*\.[a-z][a-z0-9_]*\.(variant|step_variant|step_refusal)", TEXT, "its part that serves", True),
        (r"[a-z][a-z0-9]*\.[a-z][a-z0-9_]*\.(available|reached)", BOOLEAN, "that backend serves the workload", True),
    )
)  # fmt: skip


def declare(term: Term) -> None:
    """Add a derived key to the vocabulary; called at import."""
    if term.key in TERMS:
        raise ValueError(f"`{term.key}` is in the vocabulary already")
    TERMS[term.key] = term


def allow(key: str, word: str, spellings: Iterable[str]) -> None:
    """Add a text to those that a key may have, with its other spellings in lower case."""
    found = TERMS[key]
    TERMS[key] = found._replace(values=tuple(dict.fromkeys((*found.values, word))))
    SPELLINGS.setdefault(key, {}).update((spelling, word) for spelling in spellings)
    term.cache_clear()


@lru_cache(maxsize=4096)
def term(key: str) -> Term:
    """Return the term of `key`; DoctorError with the nearest key for an unknown one."""
    found = TERMS.get(key)
    if found is not None:
        return found
    for pattern, kind, meaning, derived in _FAMILIES:
        if pattern.fullmatch(key):
            return Term(key, kind, meaning, derived=derived)
    raise DoctorError(
        f"unknown fact key `{key}`", nearest(key, [f"{key.rpartition('.')[0].replace('_', '-')}.version", *TERMS])
    )


_LONGEST_WORD = 64


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return `did you mean …` for a mistyped word, or None; never the word itself."""
    written = {name.lower(): name for name in known if name != word}
    matches = get_close_matches(word[:_LONGEST_WORD].lower(), written, n=1)  # its cost grows with the square
    return f"did you mean `{written[matches[0]]}`?" if matches else None


LONGEST_VERSION = 256  # characters; Python refuses numbers of more than 4,300 digits


@lru_cache(maxsize=65536)
def parse_version(text: str) -> Version:
    """Return a PEP 440 version, parsed once per text; raise InvalidVersion for anything else."""
    if len(text) > LONGEST_VERSION or not text.isascii():  # `\d` of `packaging` also takes digits of other scripts
        raise InvalidVersion(f"Invalid version: {shortened(text, 60)!r}")
    return Version(text)


_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("needs true or false")


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError("needs an integer")
    text = str(value).strip()
    number = int(text) if len(text) < 32 else 1 << 63
    if abs(number) >= 1 << 63:
        raise ValueError("needs an integer below 2^63")
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("needs a number")
    number = float(str(value).strip())
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("needs a finite number")
    return number


def _version(value: Any) -> str:
    text = str(value).strip()
    try:
        parse_version(text)
    except InvalidVersion:
        raise ValueError("needs a version such as 2.6.0") from None
    return text


def _sm(value: Any) -> str:
    text = str(value).strip().lower().removeprefix("sm_").removeprefix("sm").rstrip("af")
    if re.fullmatch(r"[0-9]{2,3}", text):
        text = f"{text[:-1]}.{text[-1]}"
    if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", text):
        raise ValueError("needs a compute capability such as 9.0 or sm90")
    return text


def _window(value: Any) -> tuple[int, int]:
    if isinstance(value, str):
        value = [part for part in re.split(r"[\s,\[\]()]+", value) if part]
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError("needs two integers [left, right]")
    return (_integer(value[0]), _integer(value[1]))


def _list(value: Any) -> tuple[str, ...]:
    """Return the items of a list, or of a text: between semicolons if there is one, else single words."""
    if isinstance(value, str):
        parts = value.split(";") if ";" in value else re.split(r"[\s,\[\]]+", value)
        value = [part.strip() for part in parts if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ValueError("needs a list")
    return tuple(str(item) for item in value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict, tuple)):
        raise ValueError("needs a single text")
    return str(value).strip()


def _architectures(value: Any) -> tuple[str, ...]:
    """Return SM architectures as `9.0`, `9.0a`, `9.0+PTX`, however torch, CMake or nvcc write them."""
    return tuple(_architecture(word) for item in _list(value) for word in re.split(r"[\s,\[\]]+", item) if word)


def _architecture(text: str) -> str:
    match = re.fullmatch(
        r"(sm_?|compute_?|)([0-9]{1,3}\.[0-9]|[0-9]{2,3})([af]?)(\+ptx|-real|-virtual)?", text.strip().lower()
    )
    if match is None:
        raise ValueError("needs SM architectures such as 8.0, 9.0a, 9.0+PTX")
    prefix, number, variant, suffix = match.groups()
    dotted = number if "." in number else f"{number[:-1]}.{number[-1]}"
    is_ptx = suffix in ("+ptx", "-virtual") or (prefix.startswith("compute") and suffix is None)
    return f"{dotted}{variant}{'+PTX' if is_ptx else ''}"


def _python(value: Any) -> str:
    text = _version(value)
    if not is_python_version(text):
        raise ValueError("needs a version such as 3.11")
    return text


def is_python_version(text: str) -> bool:
    """Return whether a version can be Python's: it has a minor release, and numbers of a plausible size."""
    return re.match(r"[23]\.[0-9]{1,3}(?![0-9])", text) is not None


def _upper(value: Any) -> str:
    return _text(value).upper()


#: Keys whose values have a form of their own. vLLM writes `eagle3`, SGLang `EAGLE3`.
_OF_KEY: dict[str, Callable[[Any], Any]] = {
    "torch.arch_list": _architectures, "python.version": _python, "workload.speculative_algorithm": _upper,
}  # fmt: skip
_PARSERS: dict[FactKind, Callable[[Any], Any]] = {
    VERSION: _version, SM: _sm, INTEGER: _integer, NUMBER: _number, TEXT: _text,
    BOOLEAN: _boolean, WINDOW: _window, LIST: _list,
}  # fmt: skip


def parse(key: str, value: Any) -> Any:
    """Return the value of `key` in canonical form; DoctorError names the expected kind."""
    known = term(key)
    if isinstance(value, str) and value.strip().lower() == ABSENT:
        return ABSENT
    try:
        parsed = (_OF_KEY.get(key) or _PARSERS[known.kind])(value)
    except (ValueError, TypeError, OverflowError) as problem:
        detail = str(problem) if str(problem).startswith("needs") else f"needs a value of kind {known.kind}"
        raise DoctorError(f"`{key}`: {detail}, found `{shortened(str(value), 60)}`") from None
    if isinstance(parsed, str) and key in SPELLINGS:
        lower = parsed.lower()
        parsed = SPELLINGS[key].get(lower, lower if lower in known.values else parsed)
    if known.values and parsed not in known.values:
        hint = nearest(str(parsed), known.values) or _OTHER_KEY.get(key)
        raise DoctorError(f"`{key}`: needs one of {', '.join(known.values)}, found `{parsed}`", hint)
    return parsed


def fact(key: str, value: Any, source: str, *, raw: str | None = None, problem: str | None = None) -> Fact:
    """Return a parsed `Fact`; a value that cannot be parsed becomes an unknown fact with the error as its problem."""
    if value is None:
        return Fact(key, None, source, raw, problem or "not known")
    try:
        return Fact(key, parse(key, value), source, raw, problem)
    except DoctorError as error:
        return Fact(key, None, source, raw if raw is not None else str(value), problem or error.message)
