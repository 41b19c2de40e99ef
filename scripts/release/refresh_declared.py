"""Renew `rules/tables/declared.yaml`: which releases of other packages the metadata of a release excludes.

    python scripts/release/refresh_declared.py --cache DIR [--only CALLER …]

The requirements come from the metadata of each release in the package index. pip checks them for what it installs in
one command; a later command, `--no-deps` or an override leaves them unmet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index
import refresh_names
from surfaces import releases_of
from table_files import span_text, write_pairs

from doctor.rulebook.authoring.requirements import bounds

SINCE = "2023-06"
_COMMON = (
    "transformers", "tokenizers", "huggingface-hub", "accelerate", "peft", "trl", "vllm", "sglang", "deepspeed",
    "diffusers", "kernels", "liger-kernel", "compressed-tensors", "unsloth-zoo", "optimum", "sentence-transformers",
    "timm", "torchao", "ring-flash-attn", "transformer-engine", "megatron-core",
)  # fmt: skip
#: Packages of plain Python: their bounds on torch are about its interface. Compiled packages have rules of their own.
_PLAIN = (
    "unsloth", "unsloth-zoo", "llamafactory", "axolotl", "openrlhf", "verl", "autoawq", "colossalai", "accelerate",
    "peft", "sentence-transformers", "optimum", "ms-swift", "flagembedding", "trl", "llmcompressor",
)  # fmt: skip
CALLERS = (
    *_PLAIN, "diffusers", "vllm", "sglang", "xtuner", "lmdeploy", "nemo-toolkit", "megatron-bridge", "gptqmodel",
    "compressed-tensors", "kernels", "liger-kernel", "qwen-tts", "qwen-asr", "lm-eval", "torchtune", "auto-gptq",
    "flash-linear-attention", "deepspeed", "f5-tts", "chatterbox-tts", "open-clip-torch", "surya-ocr", "colpali-engine",
    "vibevoice", "mineru", "vllm-omni", "lightllm", "bitsandbytes", "gliner", "outlines", "marker-pdf", "transformers",
    "adapters", "mbridge", "xfuser", "coqui-tts", "setfit", "span-marker", "transformer-lens", "verifiers",
    "llm-foundry", "kvpress", "minference", "deepspeed-mii", "sae-lens", "pylate", "lighteval", "oumi",
    "instructlab-training", "fms-hf-tuning", "optimum-quanto", "autotrain-advanced", "parler-tts", "fschat", "areal",
    "skyrl",
)  # fmt: skip
#: Pairs that working projects lock outside the range (NeMo Automodel, prime-rl, VLM-R1, images of verl): a note. An
#: extra binds only those who install it.
SHIPPED_OUTSIDE = {
    ("transformers", "kernels"), ("trl", "vllm"), ("trl", "liger-kernel"), ("trl", "deepspeed"), ("verl", "vllm"),
    ("verl", "sglang"), ("openrlhf", "vllm"), ("llamafactory", "vllm"), ("axolotl", "vllm"), ("lm-eval", "vllm"),
}  # fmt: skip
#: Releases of a pair that working projects ship by an override (OpenRLHF, NeMo RL, open-instruct): silent.
SHIPPED = {("vllm", "transformers"): {"vllm.version": ">=0.17,<0.23.1", "transformers.version": ">=5.2,<6"}}
#: Extras whose bounds say what a release works with, not only with that extra: caller -> extra -> packages
EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "trl": {"vllm": ("vllm",), "liger": ("liger-kernel",), "deepspeed": ("deepspeed",), "peft": ("peft",)},
    "verl": {"vllm": ("vllm",), "sglang": ("sglang",)},
    "openrlhf": {"vllm": ("vllm",)},
    "llamafactory": {"vllm": ("vllm",), "deepspeed": ("deepspeed",), "liger-kernel": ("liger-kernel",)},
    "ms-swift": {"all": ("transformers", "trl", "peft"), "megatron": ("megatron-core",)},
    "axolotl": {"deepspeed": ("deepspeed",), "vllm": ("vllm",), "ring-flash-attn": ("ring-flash-attn",)},
    "unsloth": {"huggingface": _COMMON},
    "unsloth-zoo": {"huggingface": _COMMON, "core": _COMMON},
    "lm-eval": {"vllm": ("vllm",), "hf": ("transformers", "accelerate", "peft")},
    "xtuner": {"all": ("transformers", "peft", "torch"), "deepspeed": ("deepspeed",)},
    "transformers": {"kernels": ("kernels",), "accelerate": ("accelerate",), "deepspeed": ("deepspeed",)},
}


#: Pairs whose rule is written by hand, since each release moves the bound
BY_HAND = {("unsloth", "unsloth-zoo")}


def requirements(package: str, cache: Path) -> dict[Version, list[str] | None]:
    """Return the requirements of each release, None where only its build knows them."""
    path = cache / f"{package}.requires.json"
    known: dict[str, list[str] | None] = json.loads(path.read_text()) if path.is_file() else {}
    try:
        releases = releases_of(package, SINCE)
    except OSError as error:
        print(f"{package}: {error}", file=sys.stderr)
        return {}
    page = f"{refresh_index.configured_index().rstrip('/')}/{package}/"

    def one(version: Version) -> tuple[str, list[str] | None]:
        text = str(version)
        if text in known:
            return text, known[text]
        try:
            return text, refresh_index.requires_of(package, [releases[version]], page, extras=package in EXTRAS)
        except OSError as error:
            print(f"{package} {text}: {error}", file=sys.stderr)
            return text, None

    with ThreadPoolExecutor(4) as pool:
        found = dict(pool.map(one, releases))
    path.write_text(json.dumps(found))
    return {Version(text): lines for text, lines in found.items()}


def windows_of(per_release: Mapping[Version, dict[str, str] | None], callee: str) -> list[tuple[list[Version], str]]:
    """Return runs of releases that require the same of a package."""
    runs = groupby(sorted(per_release), key=lambda version: (per_release[version] or {}).get(callee, ""))
    return [(list(run), spec) for spec, run in runs]


def row_of(
    caller: str,
    callee: str,
    windows: Sequence[tuple[list[Version], str]],
    later: Mapping[Version, Version | None],
) -> dict[str, Any]:
    """Return the row of a pair: which releases require what."""
    row: dict[str, Any] = {}
    if (caller, callee) in SHIPPED_OUTSIDE:
        row["severity"] = "note"
    if shipped := SHIPPED.get((caller, callee)):
        row["shipped"] = shipped
    if extras := [name for name, names in EXTRAS.get(caller, {}).items() if callee in names]:
        row["extras"] = extras
    unreleased = {spec for _, spec in windows if refresh_names.has_release(callee, spec) is False}
    if unreleased:
        row["unreleased"] = sorted(unreleased)
    # A range that ends at a release admits no pre-release of it (PEP 440); one in between may be withdrawn.
    return row | {span_text(run[0], run[-1], later[run[-1]]): spec for run, spec in windows}


def main() -> None:
    """Read the options, read the metadata, write the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=CALLERS)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for caller in options.only:
        extras = EXTRAS.get(caller, {})
        per_release = {
            version: None if lines is None else bounds(lines, extras)
            for version, lines in requirements(caller, options.cache).items()
        }
        order = sorted(per_release)
        later = dict(zip(order, [*order[1:], None], strict=True))
        for callee in (*_COMMON, *(["torch"] if caller in _PLAIN else [])):
            windows = [one for one in windows_of(per_release, callee) if one[1]]
            if windows and caller != callee and (caller, callee) not in BY_HAND:
                found[caller, "requires", callee] = row_of(caller, callee, windows, later)
    write_pairs("declared", "DCL", found, set(options.only))


if __name__ == "__main__":
    main()
