"""Commands that start vLLM or SGLang: the workload words that their options state.

Only what a command states becomes a fact. A value that the running job alone knows is unknown. Options that no rule
reads are passed over, as are values that are not of the option's kind: the server reports those itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from doctor.facts.sglang_options import OPTIONS as SGLANG_OPTIONS
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import Fact
from doctor.sources.attention_options import not_understood
from doctor.sources.variables import UNKNOWN

#: option -> (workload key, kind), as in `sglang_options`; `switch` and `off` for one that has a `--no-` form
_VLLM_OPTIONS: Mapping[str, tuple[str, str]] = {
    "--attention-backend": ("attention_backend_option", "text"),
    "--attention-config.backend": ("attention_backend_option", "text"),
    "--attention-config.flash_attn_version": ("flash_attn_version_option", "integer"),
    "--kv-cache-dtype": ("kv_cache_dtype", "text"),
    "--block-size": ("block_size", "integer"),
    "--decode-context-parallel-size": ("decode_context_parallel_size", "integer"),
    "-dcp": ("decode_context_parallel_size", "integer"),
    "--tensor-parallel-size": ("tensor_parallel_size", "integer"),
    "-tp": ("tensor_parallel_size", "integer"),
    "--quantization": ("quantization", "text"),
    "-q": ("quantization", "text"),
    "--enforce-eager": ("enforce_eager", "flag"),
    "--enable-prefix-caching": ("prefix_caching", "switch"),
    "--no-enable-prefix-caching": ("prefix_caching", "off"),
    "--enable-chunked-prefill": ("chunked_prefill", "switch"),
    "--no-enable-chunked-prefill": ("chunked_prefill", "off"),
    "--num-speculative-tokens": ("speculative_num_steps", "integer"),
    "--speculative-model": ("speculative_algorithm", "draft"),
}
_DTYPES = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}
_COMPOSED = ("--dtype", "--attention-config", "--speculative-config", "-sc")  # read by their values
_OPTIONS = {"vllm": _VLLM_OPTIONS, "sglang": SGLANG_OPTIONS}
#: module after `python -m` -> framework
_MODULES = re.compile(
    r"(vllm)\.entrypoints\.[\w.]*api_server|(sglang)\.(?:launch_server|bench_one_batch|bench_serving)"
)
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")


#: image -> the command that it runs
_IMAGES = {"vllm/vllm-openai": ("vllm", "serve"), "lmsysorg/sglang": ()}


def default_command(reference: str) -> tuple[str, ...]:
    """Return the command of a server's image, before the arguments that a user appends; empty for other images."""
    name = reference.partition("@")[0].rpartition(":")[0] or reference
    return next((words for image, words in _IMAGES.items() if name.removeprefix("docker.io/") == image), ())


def add_served(served: dict[str, Fact], facts: Iterable[Fact], *, certain: bool = True) -> None:
    """Add the facts of one command; what two commands state differently, or under a condition, is unknown."""
    for fact in facts:
        before = served.get(fact.key)
        if not certain:
            problem = f"{fact.source} states it under a condition"
        elif before is not None and before.value != fact.value:
            problem = f"{before.source} and {fact.source} differ"
        else:
            served.setdefault(fact.key, fact)
            continue
        served[fact.key] = Fact(fact.key, None, fact.source, problem=problem)


def add_job(served: dict[str, Fact], facts: Iterable[Fact], *, certain: bool = True) -> None:
    """Add the workload of one command; what only one of two commands states is unknown, as no job has it all.

    A command under a condition counts as well while it is the only one: it is the job, if the script starts any.
    """
    before, new = set(served), {fact.key: fact for fact in facts}
    add_served(served, new.values(), certain=certain or not before)
    if before and new:
        for key in before.symmetric_difference(new):
            fact = served[key]
            served[key] = Fact(key, None, fact.source, problem=f"{fact.source} states it, another command does not")


def serving_facts(words: Sequence[tuple[int, str]], file: object) -> list[Fact]:
    """Return the facts of a command, as (line, word) pairs; empty unless it starts a server."""
    found = _server(words)
    if found is None:
        return []
    framework, start = found
    place = f"{file}:{words[start - 1][0]}"
    facts = {
        "workload.framework": Fact("workload.framework", framework, place),
        "workload.training": Fact("workload.training", False, place),
    }
    options = _OPTIONS[framework]
    unread: dict[str, str] = {}
    for line, name, value in _given(words[start:]):
        option = f"--{name[2:].replace('_', '-')}" if name.startswith("--") and "." not in name else name
        if option not in (*options, *_COMPOSED):
            unread[option] = "true" if value is None else value
        for key, text in _stated(option, value, options, framework):
            kept = make_fact(f"workload.{key}", text, f"{file}:{line}")
            if UNKNOWN in str(text):
                kept = Fact(kept.key, None, kept.source, problem="only the running job knows the value")
            facts[kept.key] = kept
    return [*facts.values(), *not_understood(unread, (), place)]


def _server(words: Sequence[tuple[int, str]]) -> tuple[str, int] | None:
    """Return the framework and where its options begin."""
    for at, ((_, first), (_, second)) in enumerate(pairwise(words)):
        name = first.rpartition("/")[2]
        if name in _OPTIONS and second == "serve":
            return name, at + 2
        if first == "-m" and at and _PYTHON.fullmatch(words[at - 1][1].rpartition("/")[2]):
            match = _MODULES.fullmatch(second)
            if match:
                return match[1] or match[2], at + 2
    return None


def _given(words: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, option and value of each option; None where the next word is an option too."""
    for at, (line, text) in enumerate(words):
        if text in ("&&", "||", ";", "|", "&"):
            return
        if text.startswith("-"):
            name, equals, value = text.partition("=")
            following = words[at + 1][1] if at + 1 < len(words) else None
            usable = following is not None and not following.startswith("--")
            yield line, name, value if equals else following if usable else None


def _stated(
    option: str, value: str | None, options: Mapping[str, tuple[str, str]], framework: str
) -> Iterator[tuple[str, object]]:
    """Yield the workload keys that one option states."""
    if option == "--dtype" and value in _DTYPES:
        yield "dtype", _DTYPES[value]
    elif option == "--attention-config" and framework == "vllm" and value:
        yield from _attention_config(value)
    elif option in ("--speculative-config", "-sc") and framework == "vllm" and value:
        yield from _speculative_config(value)
    elif option in options:
        key, kind = options[option]
        if kind == "flag":
            yield key, True
        elif kind in ("switch", "off"):  # `--enable-x`, `--enable-x=False`, `--no-enable-x`
            yield key, kind == "switch" and (value or "").lower() not in ("false", "0")
        elif kind == "draft" and value is not None:
            yield key, "NGRAM" if value == "[ngram]" else "DRAFT_MODEL"
        elif value is not None and (kind == "text" or value.isdecimal() or UNKNOWN in value):
            yield key, value


def _attention_config(text: str) -> Iterator[tuple[str, object]]:
    content = _json_object(text)
    for name, key in (("backend", "attention_backend_option"), ("flash_attn_version", "flash_attn_version_option")):
        if isinstance(content.get(name), (str, int)):
            yield key, content[name]


def _speculative_config(text: str) -> Iterator[tuple[str, object]]:
    content = _json_object(text)
    method = content.get("method") or ("draft_model" if content.get("model") else None)
    if isinstance(method, str):
        yield "speculative_algorithm", method.upper()
    if isinstance(content.get("num_speculative_tokens"), int):
        yield "speculative_num_steps", content["num_speculative_tokens"]


def _json_object(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
