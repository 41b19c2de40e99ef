"""Renew `rules/declared/`: which releases of other packages the metadata of a release excludes.

    python scripts/release/refresh_declared.py --cache DIR [--only CALLER …]

The requirements come from the metadata of each release in the package index. pip checks them for what it installs in
one command; a later command, `--no-deps` or an override leaves them unmet.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index
import refresh_names
from imports_rules import RULES, following, hand_written, name_of, numbers_for, same_rule
from surfaces import releases_of

FOLDER = RULES / "declared"
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


def bounds(lines: Sequence[str], extras: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return package -> the range required of it on Linux, by the package itself or by one of these extras."""
    found: dict[str, SpecifierSet] = defaultdict(SpecifierSet)
    environment = {"python_version": "3.12", "platform_system": "Linux", "sys_platform": "linux",
                   "platform_machine": "x86_64"}  # fmt: skip
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        marker = requirement.marker
        if marker is None or marker.evaluate({**environment, "extra": ""}):
            found[name] &= requirement.specifier
        elif any(name in names and marker.evaluate({**environment, "extra": extra}) for extra, names in extras.items()):
            found[name] &= _at_least(requirement.specifier)
    return {name: plain(spec) for name, spec in found.items() if spec}


def _at_least(spec: SpecifierSet) -> SpecifierSet:
    """Read the pin of an extra as the oldest release that was tested; the one after it mostly works too."""
    return SpecifierSet(",".join(str(one).replace("==", ">=") if "*" not in str(one) else str(one) for one in spec))


def plain(spec: SpecifierSet) -> str:
    """Return the range as text; `<=4.57.2` as `<4.57.3`, which admits its post-releases too, `>4.0` as `>=4.0.1`."""
    bounds_after = {"<=": "<", ">": ">="}
    parts = {
        f"{bounds_after[one.operator]}{following(Version(one.version))}" if one.operator in bounds_after else str(one)
        for one in spec
    }
    return ",".join(sorted(parts, key=lambda text: (not text.startswith(">"), text)))


def windows_of(per_release: Mapping[Version, dict[str, str] | None], callee: str) -> list[tuple[list[Version], str]]:
    """Return runs of releases that require the same of a package."""
    runs = groupby(sorted(per_release), key=lambda version: (per_release[version] or {}).get(callee, ""))
    return [(list(run), spec) for spec, run in runs]


def rule_body(
    number: str,
    caller: str,
    callee: str,
    windows: Sequence[tuple[list[Version], str]],
    later: Mapping[Version, Version | None],
) -> dict[str, Any]:
    """Return the content of a rule with its tests."""
    mine, other = f"{caller}.version", f"{callee}.version"
    cases, fixes, tests = [], [], {}
    for run, spec in windows:  # a range that ends at a release admits no pre-release of it (PEP 440)
        end = Version(following(run[-1]))  # a release in between may be withdrawn, and require something else
        span = f">={run[0]},<{min(later[run[-1]] or end, end)}"
        cases.append({mine: span, "not": {other: re.sub(r"<(\d[\d.]*)(?=,|$)", r"<\1.dev0", spec)}})
        if refresh_names.has_release(callee, spec) is not False:
            fixes.append({"require": {callee: spec}, "when": {mine: span}})
        bad, good = sample(spec)
        at = f"{run[-1]} with"
        tests[f"fires {at} {bad}"] = {"given": {mine: str(run[-1]), other: bad}, "expect": "fires"}
        tests[f"silent {at} {good}"] = {"given": {mine: str(run[-1]), other: good}, "expect": "silent"}
        tests[f"silent with {bad} without {caller} ({spec})"] = {
            "given": {mine: "absent", other: bad},
            "expect": "silent",
        }
    last = windows[-1]
    if len(windows) > 1 and capped(last[1]):
        fixes.append({"require": {caller: f">={last[0][0]}"}, "when": {other: last[1]}})
    tests[f"silent without {callee}"] = {"given": {mine: str(last[0][-1]), other: "absent"}, "expect": "silent"}
    when: dict[str, Any] = {other: ">=0", "any": cases}
    if shipped := SHIPPED.get((caller, callee)):
        when["not"] = shipped
        given = {key: re.split("[>=<,]+", text)[1] + ".1" for key, text in shipped.items()}
        tests["silent for a pair that projects ship"] = {"given": given, "expect": "silent"}
    body: dict[str, Any] = {
        "id": number, "name": f"{caller}-requires-{callee}",
        "severity": "note" if (caller, callee) in SHIPPED_OUTSIDE else "warning", "category": "version-window",
        "reach": caller,
    }  # fmt: skip
    if general := hand_written(caller, callee):
        body["yields_to"] = general
    return body | {
        "summary": f"{callee} is outside the range that {caller} declares",
        "why": f"The metadata of {caller} excludes this release of {callee}. pip leaves such a pair behind "
        "where a later command, `--no-deps` or an override replaces one of the two.",
        "references": [f"https://pypi.org/project/{caller}/{last[0][-1]}/"],
        "when": when,
        "message": f"{caller} {{{mine}}} does not admit {callee} {{{other}}}",
        "fix": fixes,
        "tests": tests,
    }


def sample(spec: str) -> tuple[str, str]:
    """Return a release that a range excludes and one that it admits; the bounds themselves serve."""
    wanted = SpecifierSet(spec)
    texts = [one.version.replace(".*", "") for one in wanted]
    near = [
        text for one in texts for text in (one, f"{Version(one).base_version}.1", following(Version(one)), _before(one))
    ]
    bad = next(text for text in ["9999", *near, "0.0.1"] if not wanted.contains(text, prereleases=True))
    good = next(text for text in near if wanted.contains(text))
    return bad, good


def _before(text: str) -> str:
    release = list(Version(text).release)
    for at in range(len(release) - 1, -1, -1):
        if release[at]:
            release[at] -= 1
            return ".".join(map(str, release[: at + 1] + [99] * (len(release) - at - 1)))
    return "0"


def capped(spec: str) -> bool:
    """Say whether a range excludes releases that are newer than some it admits, or single ones."""
    return bool(re.search(r"<|==|!=|~=", spec))


def main() -> None:
    """Read the options, read the metadata, write the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=CALLERS)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    ids = {name_of(path): path.stem for path in FOLDER.glob("DCL*.yaml")}
    free = numbers_for("DCL", ids.values())
    written = set()
    for caller in options.only:
        per_release = {
            version: None if lines is None else bounds(lines, EXTRAS.get(caller, {}))
            for version, lines in requirements(caller, options.cache).items()
        }
        order = sorted(per_release)
        later = dict(zip(order, [*order[1:], None], strict=True))
        for callee in (*_COMMON, *(["torch"] if caller in _PLAIN else [])):
            windows = [one for one in windows_of(per_release, callee) if one[1]]
            if not windows or caller == callee or (caller, callee) in BY_HAND:
                continue
            number = ids.get(f"{caller}-requires-{callee}") or next(free)
            same_rule(
                FOLDER / f"{number}.yaml", rule_body(number, caller, callee, windows, later), "refresh_declared.py"
            )
            written.add(number)
    if options.only == CALLERS:
        for path in FOLDER.glob("DCL*.yaml"):
            if path.stem not in written:
                path.unlink()
    print(len(written), "rules")


if __name__ == "__main__":
    main()
