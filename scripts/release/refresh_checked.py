"""Renew `rules/checked/`: releases of other packages that a release refuses when it runs.

    python scripts/release/refresh_checked.py --cache DIR [--only CALLER …]

The bounds are constants in the code of each release, read from its archive in the package index. No metadata has them,
so pip installs such a pair. `_CHECKS` says where each constant is and when the code compares it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index
from imports_rules import RULES, following, hand_written, name_of, numbers_for, same_rule
from refresh_declared import capped, plain, sample
from surfaces import python_files, releases_of

FOLDER = RULES / "checked"
SINCE = "2023-06"


@dataclass(frozen=True)
class Check:
    """One constant: `find` matches it in one of `files`; its group is the range that the code accepts,
    or its lowest release."""

    caller: str
    callee: str
    files: tuple[str, ...]
    find: str
    summary: str
    why: str
    source: str  # address of the file in a release, with {version}
    #: Further facts that must hold, each with a value that fits and one that does not.
    given: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    severity: str = "error"
    name: str = ""
    reach: str = ""  # the part of the caller that compares, where not every job reaches it
    first: str = "0"  # earlier releases compare only for some jobs
    between: bool = False  # judge the development versions, by the releases before and after them
    #: Further remedies, behind the newer release.
    fixes: tuple[Mapping[str, Any], ...] = ()


_PEFT = "https://github.com/huggingface/peft/blob/v{version}/src/peft/import_utils.py"
_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/v{version}/src/transformers/"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/v{version}/src/accelerate/"
_AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/blob/v{version}/src/axolotl/utils/schemas/config.py"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/core_v{version}/megatron/core/"
_SWIFT = "https://github.com/modelscope/ms-swift/tree/v{version}/swift/"
_TORCH = r"version\.parse\(torch_version\) < version\.parse\(\s*\"([\d.]+)\"\s*\):\s+raise ValueError\([^)]*"

_CHECKS = (
    Check("peft", "gptqmodel", ("peft/import_utils.py",), r"GPTQMODEL_MINIMUM_VERSION = .*\"([\d.]+)\"",
          "PEFT refuses this release of GPTQModel",
          "PEFT looks at the release of an installed GPTQModel when it adds adapters, and raises ImportError below its "
          "own bound, also where the model is not quantized with it.", _PEFT, severity="warning",
          fixes=({"require": {"gptqmodel": "absent"}, "note": "where the model is not quantized with it"},)),
    Check("peft", "optimum", ("peft/import_utils.py",), r"OPTIMUM_MINIMUM_VERSION = .*\"([\d.]+)\"",
          "PEFT with GPTQModel refuses this release of optimum",
          "Where GPTQModel is installed, PEFT looks at the release of optimum when it adds adapters, and raises "
          "ImportError below its own bound.", _PEFT, {"gptqmodel.version": ("7.1.0", "absent")}, severity="warning"),
    Check("peft", "auto-gptq", ("peft/import_utils.py",), r"AUTOGPTQ_MINIMUM_VERSION = .*\"([\d.]+)\"",
          "PEFT refuses this release of AutoGPTQ",
          "PEFT looks at the release of an installed AutoGPTQ when it adds adapters, and raises ImportError below its "
          "own bound, also where the model is not quantized with it.", _PEFT, severity="warning",
          fixes=({"require": {"auto-gptq": "absent"}, "note": "where the model is not quantized with it"},)),
    Check("peft", "torchao", ("peft/import_utils.py",), r"TORCHAO_MINIMUM_VERSION = .*\"([\d.]+)\"",
          "PEFT refuses this release of torchao",
          "PEFT looks at the release of an installed torchao when it adds adapters, and raises ImportError below its "
          "own bound, also where the model is not quantized with it.", _PEFT, severity="warning",
          fixes=({"require": {"torchao": "absent"}, "note": "where the model is not quantized with it"},)),
    Check("accelerate", "torch", ("accelerate/utils/constants.py",), r"^FSDP2_PYTORCH_VERSION = \"([\d.]+)\"",
          "FSDP2 of accelerate needs a newer torch",
          "The plugin of FSDP compares torch with a constant where fsdp_version is 2, and raises ImportError.",
          _ACCELERATE + "utils/constants.py",
          {"workload.sharding": ("fsdp2", "ddp"), "workload.framework": ("transformers", "megatron")},
          name="accelerate-fsdp2-refuses-torch",
          fixes=({"config": {"workload.sharding": "fsdp"}, "note": "the first FSDP"},)),
    Check("accelerate", "torch", ("accelerate/utils/constants.py",),
          r"^FSDP_PYTORCH_VERSION = \(?\s*\"(\d+\.\d+\.\d+)",
          "FSDP of accelerate needs a newer torch",
          "The Accelerator compares torch with a constant where FSDP is on, and raises ValueError.",
          _ACCELERATE + "utils/constants.py",
          {"workload.sharding": ("fsdp", "ddp"), "workload.framework": ("transformers", "megatron")},
          name="accelerate-fsdp-refuses-torch"),
    Check("accelerate", "torch", ("accelerate/utils/constants.py",),
          r"^BETA_CP_AVAILABLE_PYTORCH_VERSION = \"([\d.]+)\"",
          "Context parallelism of accelerate needs a newer torch",
          "TorchContextParallelConfig compares torch with a constant, and raises ValueError.",
          _ACCELERATE + "utils/constants.py",
          {"workload.sharding": ("fsdp2", "ddp"), "workload.context_parallel": ("true", "false"),
           "workload.framework": ("transformers", "megatron")},
          name="accelerate-context-parallelism-refuses-torch"),
    Check("accelerate", "deepspeed", ("accelerate/utils/constants.py",),
          r"^BETA_SP_AVAILABLE_DEEPSPEED_VERSION = \"([\d.]+)\"",
          "Sequence parallelism of accelerate needs a newer DeepSpeed",
          "accelerate compares DeepSpeed with a constant where sp_size is above 1, and raises ImportError.",
          _ACCELERATE + "utils/constants.py",
          {"workload.sequence_parallel": ("ulysses", "ring"), "workload.framework": ("transformers", "megatron")},
          name="accelerate-ulysses-refuses-deepspeed"),
    Check("axolotl", "torch", ("axolotl/utils/schemas/config.py",), _TORCH + "FSDP2 is not supported",
          "FSDP2 of axolotl needs a newer torch", "The schema of axolotl's configuration refuses an older one.",
          _AXOLOTL, {"workload.sharding": ("fsdp2", "zero3")}, name="axolotl-fsdp2-refuses-torch",
          fixes=({"config": {"workload.sharding": "fsdp"}, "note": "the first FSDP"},)),
    Check("axolotl", "torch", ("axolotl/utils/schemas/config.py",), _TORCH + "Flex attention is not supported",
          "Flex attention of axolotl needs a newer torch",
          "The schema of axolotl's configuration refuses an older one.",
          _AXOLOTL, {"workload.attn_implementation": ("flex_attention", "sdpa")},
          name="axolotl-flex-attention-refuses-torch",
          fixes=({"config": {"workload.attn_implementation": "flash_attention_2"}},)),
    Check("axolotl", "torch", ("axolotl/utils/schemas/config.py",),
          r"version\.parse\(torch_version\) < version\.parse\(\"([\d.]+)\"\):\s+raise ValueError\(\s+f?\"attn_"
          r"implementation=fp8",
          "FP8 attention of axolotl needs a newer torch", "The schema of axolotl's configuration refuses an older one.",
          _AXOLOTL, {"workload.attn_implementation": ("fp8", "sdpa")}, name="axolotl-fp8-attention-refuses-torch",
          fixes=({"config": {"workload.attn_implementation": "flash_attention_2"}},)),
    Check("transformers", "bitsandbytes", ("transformers/utils/import_utils.py",),
          r"^BITSANDBYTES_MIN_VERSION = \"([\d.]+)\"",
          "transformers takes this bitsandbytes for missing",
          "is_bitsandbytes_available compares the release; below the bound the quantizers of 4 and 8 bits raise "
          "ImportError.", _TRANSFORMERS + "utils/import_utils.py",
          {"workload.quantization": ("bitsandbytes", "awq")}),
    Check("transformers", "torchao", ("transformers/utils/import_utils.py",),
          r"^TORCHAO_MIN_VERSION = \"([\d.]+)\"",
          "transformers takes this torchao for missing",
          "is_torchao_available compares the release; below the bound TorchAoConfig raises ImportError.",
          _TRANSFORMERS + "utils/import_utils.py", {"workload.quantization": ("torchao", "awq")}),
    Check("transformers", "gptqmodel",
          ("transformers/quantizers/quantizer_gptq.py",),
          r"(?:MIN_GPTQ_VERSION = |version\(\"gptqmodel\"\)\) < version\.parse\()\"([\d.]+)\"",
          "transformers refuses this release of GPTQModel",
          "The quantizer of GPTQ compares the release of GPTQModel, and raises ImportError.",
          _TRANSFORMERS + "quantizers/quantizer_gptq.py", {"workload.quantization": ("gptq", "awq")}),
    Check("transformers", "optimum",
          ("transformers/quantizers/quantizer_gptq.py",),
          r"(?:MIN_OPTIMUM_VERSION = |version\(\"optimum\"\)\) < version\.parse\()\"([\d.]+)\"",
          "transformers refuses this release of optimum for GPTQ",
          "The quantizer of GPTQ compares the release of optimum, and raises ImportError.",
          _TRANSFORMERS + "quantizers/quantizer_gptq.py", {"workload.quantization": ("gptq", "awq")}),
    Check("transformers", "gguf", ("transformers/utils/import_utils.py",), r"^GGUF_MIN_VERSION = \"([\d.]+)\"",
          "transformers takes this gguf for missing",
          "is_gguf_available compares the release; below the bound loading a GGUF file raises ImportError.",
          _TRANSFORMERS + "utils/import_utils.py", {"workload.quantization": ("gguf", "awq")}),
    Check("transformers", "accelerate", ("transformers/trainer.py",),
          r"min_accelerate_version = \"([\d.]+)\"",
          "Context and sequence parallelism of the Trainer need a newer accelerate",
          "The Trainer compares accelerate with a constant where a ParallelismConfig is given, and raises ImportError.",
          _TRANSFORMERS + "trainer.py",
          {"workload.framework": ("transformers", "megatron"), "workload.training": ("true", "false"),
           "workload.context_parallel": ("true", "false")},
          name="transformers-parallelism-refuses-accelerate", reach="transformers.trainer"),
    Check("ms-swift", "trl", ("swift/llm/argument/rlhf_args.py", "swift/arguments/rlhf_args.py"),
          r"assert trl_version >= version\.parse\('([\d.]+)'\), \('Your current version of `trl` is outdated",
          "GRPO of ms-swift needs a newer trl",
          "The arguments of a GRPO run compare trl with a constant, and an assertion fails.",
          _SWIFT, {"workload.training_method": ("grpo", "sft")}, name="ms-swift-grpo-refuses-trl"),
    Check("ms-swift", "liger-kernel", ("swift/llm/argument/rlhf_args.py", "swift/arguments/rlhf_args.py"),
          r"liger_kernel_version < version\.parse\('([\d.]+)'\)",
          "GRPO of ms-swift with Liger needs a newer Liger Kernel",
          "The arguments of a GRPO run with use_liger_kernel compare liger-kernel with a constant: ValueError.",
          _SWIFT, {"workload.training_method": ("grpo", "sft"), "workload.liger_kernel": ("true", "false")},
          name="ms-swift-grpo-refuses-liger-kernel",
          fixes=({"config": {"workload.liger_kernel": "false"}},)),
    Check("ms-swift", "mcore-bridge", ("swift/megatron/arguments/megatron_args.py",),
          r"require_version\('mcore-bridge>=([\d.]+)'",
          "Megatron-SWIFT needs a newer mcore-bridge",
          "The arguments of Megatron-SWIFT compare mcore-bridge with a constant, and raise ImportError.",
          "https://github.com/modelscope/ms-swift/blob/v{version}/swift/megatron/arguments/megatron_args.py",
          severity="warning"),
    *(Check(caller, callee, (f"{caller}/extras/misc.py", f"{caller}/tuner/core/loader.py", f"{caller}/model/loader.py",
                             f"{caller}/tuner/tune.py", f"{caller}/tuner/core/parser.py", f"{caller}/hparams/parser.py",
                             f"{caller}/model/parser.py"),
            rf"(?:check|require)_version\(\s*\"{callee}((?:[<>=!]=?[\d.]+(?:dev\d+)?,?)+)\"",
            f"LLaMA-Factory refuses this release of {callee}",
            f"LLaMA-Factory compares {callee} with its own range at start and raises ImportError. "
            "DISABLE_VERSION_CHECK=1 skips the check of later releases, not the incompatibility.",
            f"https://github.com/hiyouga/LLaMA-Factory/blob/v{{version}}/src/{caller}/",
            {} if caller == "llmtuner" else {"env.DISABLE_VERSION_CHECK": ("absent", "1")}, first="0.2.1")
      for caller, callees in (("llamafactory", ("accelerate",)),
                              ("llmtuner", ("transformers", "accelerate", "peft", "trl")))
      for callee in callees),
    *(Check("llamafactory", callee, ("llamafactory/extras/misc.py",),
            rf"(?:check|require)_version\(\s*\"{callee}((?:[<>=!]=?[\d.]+,?)+)\"",
            f"Development versions of LLaMA-Factory refuse this release of {callee}",
            f"The main branch compares {callee} with a range at start and raises ImportError. "
            "The ranges of the releases before and after this version exclude it alike.",
            "https://github.com/hiyouga/LLaMA-Factory/blob/v{version}/src/llamafactory/extras/misc.py",
            {"env.DISABLE_VERSION_CHECK": ("absent", "1")}, severity="warning",
            name=f"llamafactory-development-refuses-{callee}", between=True)
      for callee in ("transformers", "accelerate", "peft", "trl")),
    *(Check("llamafactory", "vllm", ("llamafactory/hparams/parser.py",),
            r"(?:check|require)_version\(\s*\"vllm((?:[<>=!]=?[\d.]+,?)+)\"",
            f"{whose} of LLaMA-Factory refuse this release of vLLM",
            "With infer_backend vllm it compares vLLM with its own range and raises ImportError.",
            "https://github.com/hiyouga/LLaMA-Factory/blob/v{version}/src/llamafactory/hparams/parser.py",
            {"workload.framework": ("vllm", "transformers"), "env.DISABLE_VERSION_CHECK": ("absent", "1")},
            severity="warning", name=name, between=between_releases)
      for whose, name, between_releases in (
          ("Some releases", "llamafactory-refuses-vllm", False),
          ("Development versions", "llamafactory-development-refuses-vllm", True))),
    *(Check("megatron-core", "transformer-engine", (f"megatron/core/{file}",), find,
            f"{what} of Megatron-Core needs a newer TransformerEngine", why, _MEGATRON + file,
            {"workload.fp8_recipe": (recipe, "delayed"), "workload.framework": ("megatron", "transformers")},
            name=f"megatron-core-{name}-refuses-transformer-engine",
            fixes=({"config": {"workload.fp8_recipe": "delayed"}},))
      for file, recipe, name, what, find, why in (
          ("fp8_utils.py", "current", "current-scaling", "FP8 with current scaling",
           r"Fp8Recipe\.tensorwise and is_te_min_version\(\"([\d.]+)\.dev0\"\)",
           "get_fp8_context raises ValueError, or asserts delayed scaling, with an older TransformerEngine."),
          ("fp8_utils.py", "block", "block-scaling", "FP8 in blocks",
           r"Fp8Recipe\.blockwise and is_te_min_version\(\"([\d.]+)\.dev0\"\)",
           "get_fp8_context raises ValueError, or asserts delayed scaling, with an older TransformerEngine."),
          ("fp8_utils.py", "mxfp8", "mxfp8", "MXFP8",
           r"fp8_recipe = None\s+if is_te_min_version\(\"([\d.]+)\"\):\s+if config\.fp8_recipe == Fp8Recipe\.delayed",
           "get_fp8_context asserts delayed scaling with an older TransformerEngine."),
          ("fp4_utils.py", "nvfp4", "nvfp4", "NVFP4",
           r"def get_fp4_recipe[^@]*?is_te_min_version\(\"([\d.]+)\.dev0\"\)",
           "get_fp4_recipe raises with an older TransformerEngine, and the arguments are refused."))),
)  # fmt: skip


def bounds(caller: str, checks: Sequence[Check], cache: Path) -> dict[Version, dict[str, str]]:
    """Return the bound of each check in each release; "" where the release has none."""
    path = cache / f"{caller}.checked.json"
    known: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.is_file() else {}
    files = {file for check in checks for file in check.files}
    found: dict[str, dict[str, str]] = {}
    for version, item in releases_of(caller, SINCE).items():
        texts = known.get(str(version), {})
        if not files <= texts.keys():
            print(caller, version, file=sys.stderr)
            read = dict(_contents(item, files))
            texts = texts | {file: read.get(file, "") for file in files}
        found[str(version)] = texts
        path.write_text(json.dumps(known | found))
    return {
        Version(text): {
            _name(check): _bound(check, texts) if Version(text) >= Version(check.first) else "" for check in checks
        }
        for text, texts in found.items()
    }


def _contents(item: dict[str, Any], files: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the files of one archive; a wheel is read by ranges."""
    if item["filename"].endswith(".whl") and item.get("size"):
        with zipfile.ZipFile(refresh_index.RangeFile(item["url"], item["size"])) as archive:
            for name in set(archive.namelist()) & set(files):
                yield name, archive.read(name).decode()
        return
    for name, content in python_files(item, lambda path: path in files):
        yield name, content.decode()


def _bound(check: Check, texts: Mapping[str, str]) -> str:
    for file in check.files:
        if match := re.search(check.find, texts.get(file, ""), re.MULTILINE):
            return plain(SpecifierSet(match[1] if match[1][0] in "<>=!~" else f">={match[1]}"))
    return ""


def _name(check: Check) -> str:
    return check.name or f"{check.caller}-refuses-{check.callee}"


def windows_of(per_release: Mapping[Version, str]) -> list[tuple[str, Version, str]]:
    """Return a range of releases, its last one and the bound, for each run with the same bound.

    Lower bounds stay: the last run is open. Releases to come may accept more than an upper bound says.
    """
    runs = [(bound, list(run)) for bound, run in groupby(sorted(per_release), key=lambda one: per_release[one])]
    found = []
    for at, (bound, run) in enumerate(runs):
        if bound:
            later = str(runs[at + 1][1][0]) if at + 1 < len(runs) else following(run[-1]) if capped(bound) else ""
            end = f",<{later}" if later else ""
            found.append((f">={run[0]}{end}", run[-1], bound))
    return found


def between(per_release: Mapping[Version, str]) -> list[tuple[str, Version, str]]:
    """Return the versions between two releases, each with the range that holds both of their ranges."""
    found = []
    for before, after in pairwise(sorted(per_release)):
        if bound := _both(SpecifierSet(per_release[before]), SpecifierSet(per_release[after])):
            names = dict.fromkeys((following(before), str(after)))
            found += [(f"=={name}.dev0", Version(f"{name}.dev0"), bound) for name in names]
    return found


def _both(first: SpecifierSet, second: SpecifierSet) -> str:
    lower = [
        min((Version(one.version) for one in spec if one.operator == ">="), default=None) for spec in (first, second)
    ]
    upper = [
        min((Version(one.version) for one in spec if one.operator == "<"), default=None) for spec in (first, second)
    ]
    parts = [f">={min(map(Version, map(str, lower)))}"] if None not in lower else []
    if None not in upper:
        parts.append(f"<{max(map(Version, map(str, upper)))}")
    parts += sorted(str(one) for one in set(first) & set(second) if one.operator == "!=")
    return ",".join(parts)


def rule_body(number: str, check: Check, windows: Sequence[tuple[str, Version, str]]) -> dict[str, Any]:
    """Return the content of a rule with its tests."""
    mine, other = f"{check.caller}.version", f"{check.callee}.version"
    fits = {key: good for key, (good, _) in check.given.items()}
    tests: dict[str, Any] = {}
    fixes: list[Mapping[str, Any]] = []
    for span, last, bound in windows:
        bad, good = sample(bound)
        base = {mine: str(last), other: bad, **fits}
        tests[f"fires {last} with {bad}"] = _test(base, "fires")
        tests[f"silent {last} with {good}"] = _test(base | {other: good}, "silent")
        tests[f"silent with {bad} without {check.caller} ({bound})"] = _test(base | {mine: "absent"}, "silent")
        if capped(bound):
            tests[f"silent {last} without {check.callee}"] = _test(base | {other: "absent"}, "silent")
        fixes.append({"require": {check.callee: bound}, "when": {mine: span}})
    for key, (_, misfit) in check.given.items():
        tests[f"silent with {key} {misfit}"] = _test(base | {key: misfit}, "silent")
    tests[f"silent without {check.callee}"] = _test(base | {other: "absent"}, "silent")
    body: dict[str, Any] = {
        "id": number, "name": _name(check), "severity": check.severity, "category": "version-window",
        "reach": check.reach or check.caller,
    }  # fmt: skip
    if general := [one for one in hand_written(check.caller, check.callee) if not one.startswith("CHK")]:
        body["yields_to"] = general
    when = {key: "present" if key.endswith(".version") else good for key, (good, _) in check.given.items()}
    return body | {
        "summary": check.summary,
        "why": check.why,
        "references": [check.source.format(version=windows[-1][1].base_version)],
        "when": when | {"any": [{mine: span} | _outside(other, bound) for span, _, bound in windows]},
        "message": f"{check.caller} {{{mine}}} refuses {check.callee} {{{other}}}",
        "fix": [*fixes, *check.fixes],
        "tests": tests,
    }


def _outside(key: str, bound: str) -> dict[str, Any]:
    """Return the condition that a release is outside a range; one that is not installed is not."""
    if re.fullmatch(r">=[\d.]+", bound):
        return {key: f"<{bound.removeprefix('>=')}"}
    return {key: ">=0", "not": {key: re.sub(r"<(\d[\d.]*)(?=,|$)", r"<\1.dev0", bound)}}


def _test(given: Mapping[str, str], expect: str) -> dict[str, Any]:
    return {"given": dict(given), "expect": expect}


def main() -> None:
    """Read the options, read the archives, write the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    callers = list(dict.fromkeys(check.caller for check in _CHECKS))
    parser.add_argument("--only", nargs="*", default=callers)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    ids = {name_of(path): path.stem for path in FOLDER.glob("CHK*.yaml")}
    free = numbers_for("CHK", ids.values())
    grouped: dict[str, list[Check]] = defaultdict(list)
    for check in _CHECKS:
        grouped[check.caller].append(check)
    for caller in options.only:
        per_release = bounds(caller, grouped[caller], options.cache)
        for check in grouped[caller]:
            name = _name(check)
            read = {version: found[name] for version, found in per_release.items()}
            windows = between(read) if check.between else windows_of(read)
            print(name, *(f"{span}: {bound};" for span, _, bound in windows))
            if windows:
                number = ids.get(name) or next(free)
                same_rule(FOLDER / f"{number}.yaml", rule_body(number, check, windows), "refresh_checked.py")


if __name__ == "__main__":
    main()
