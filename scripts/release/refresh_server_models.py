#!/usr/bin/env python3
"""Write `rules/tables/{vllm,sglang}_models.yaml`: the first and last release of a server with a class for a model.

    python scripts/release/refresh_server_models.py --transformers WHEEL [--only vllm sglang]

Of each release only the Python files that list the model classes are read (`surfaces.py`). The wheel of transformers
says which class belongs to a model_type.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
from surfaces import python_files, releases_of
from table_files import write_rows

_VLLM_FILES = re.compile(r"vllm/model_executor/(?:models/(?:registry|__init__)|model_loader)\.py")
_SGLANG_FILES = re.compile(r"sglang/srt/models/[^/]+\.py")
_NO_MODELS = re.compile("PREVIOUSLY|SPECULATIVE|ROCM|OOT|_TRANSFORMERS_BACKEND")
_AUTO = re.compile(r"transformers/models/auto/(?:modeling_auto|auto_mappings)\.py")
_TABLE = re.compile(r"^MODEL_FOR_(?:CAUSAL_LM|IMAGE_TEXT_TO_TEXT|MULTIMODAL_LM)_MAPPING_NAMES = (.*?)^\)", re.M | re.S)
_ENTRY = re.compile(r'\(\s*"([\w.-]+)",\s*\(?\s*"(\w+)"')
_CLASS = re.compile(r"[A-Z]\w*(?:LM|LMHead\w*|Generation\w*|Model\w*|LLM\w*|VL\w*|Chat)$")


def vllm_classes(source: str) -> set[str]:
    """Return the class names that vLLM's tables list, without drafts and models that it dropped."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(keys=keys))
            ) if not _NO_MODELS.search(name):
                found.update(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    return {name for name in found if _CLASS.match(name) and not name.startswith("Transformers")}


def sglang_classes(source: str) -> set[str]:
    """Return the class names of `EntryClass` in a model file of SGLang."""
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="EntryClass")], value=ast.Name(id=name)):
                return {name}
            case ast.Assign(targets=[ast.Name(id="EntryClass")], value=ast.List(elts=items) | ast.Tuple(elts=items)):
                return {item.id for item in items if isinstance(item, ast.Name)}
    return set()


#: model_type -> class, where the code is in the model's repository and transformers has no table entry.
REMOTE = {
    "aquila": "AquilaForCausalLM", "baichuan": "BaichuanForCausalLM", "chatglm": "ChatGLMModel",
    "deepseek": "DeepseekForCausalLM", "deepseek_vl_v2": "DeepseekVLV2ForCausalLM", "dots_ocr": "DotsOCRForCausalLM",
    "exaone": "ExaoneForCausalLM", "grok-1": "Grok1ModelForCausalLM", "h2ovl_chat": "H2OVLChatModel",
    "internlm": "InternLMForCausalLM", "internlm2": "InternLM2ForCausalLM", "internlm3": "InternLM3ForCausalLM",
    "internvl_chat": "InternVLChatModel", "kimi_k2": "DeepseekV3ForCausalLM", "kimi_linear": "KimiLinearForCausalLM",
    "kimi_vl": "KimiVLForConditionalGeneration", "minicpm": "MiniCPMForCausalLM", "minicpm3": "MiniCPM3ForCausalLM",
    "minicpmo": "MiniCPMO", "minicpmv": "MiniCPMV", "molmo": "MolmoForCausalLM", "orion": "OrionForCausalLM",
    "phi3_v": "Phi3VForCausalLM", "phi4mm": "Phi4MMForCausalLM", "qwen": "QWenLMHeadModel",
    "skywork_chat": "SkyworkR1VChatModel", "step3_vl": "Step3VLForConditionalGeneration",
    "telechat": "TeleChatForCausalLM", "xverse": "XverseForCausalLM",
}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A server: which files of its wheel list its classes, and how they are read."""

    files: re.Pattern[str]
    classes: Callable[[str], set[str]]


SERVERS = {
    "vllm": Server(_VLLM_FILES, vllm_classes),
    "sglang": Server(_SGLANG_FILES, sglang_classes),
}


def known(package: str) -> dict[Version, set[str]]:
    """Return the classes of every release that has any."""
    server = SERVERS[package]

    def read(item: dict) -> set[str]:
        found: set[str] = set()
        for _, content in python_files(item, lambda path: bool(server.files.fullmatch(path))):
            try:
                found |= server.classes(content.decode("utf-8-sig"))
            except SyntaxError as error:
                print(f"{item['filename']}: {error}", file=sys.stderr)
        return found

    published = releases_of(package, "2023-06")
    with ThreadPoolExecutor(4) as pool:
        return {
            version: names
            for version, names in zip(published, pool.map(read, published.values()), strict=True)
            if names
        }


def class_of_type(wheel: Path) -> dict[str, set[str]]:
    """Return the classes that generate text for a model_type, from the tables of a transformers wheel."""
    found: dict[str, set[str]] = defaultdict(set)
    with zipfile.ZipFile(wheel) as archive:
        for name in filter(_AUTO.fullmatch, archive.namelist()):
            for table in _TABLE.findall(archive.read(name).decode()):
                for model_type, model_class in _ENTRY.findall(table):
                    found[model_type].add(model_class)
    return found


def spans(having: Iterable[tuple[Version, bool]]) -> tuple[Version | None, Version | None]:
    """Return the first release that has something, and the first one after the last that has it."""
    first = gone = None
    for version, there in having:
        if there:
            first, gone = first or version, None
        elif first and not gone:
            gone = version
    return first, gone


def _part(having: Mapping[str, set[str]], of: Mapping[Version, set[str]]) -> dict[str, Any]:
    """Return the rows for a kind of name; `having` holds the classes of each name, of which one is enough."""
    order = sorted(of)
    brought, dropped = defaultdict(list), defaultdict(list)
    for name, classes in sorted(having.items()):
        first, gone = spans((version, bool(of[version] & classes)) for version in order)
        if first is None:
            continue
        brought[first].append(name)
        if gone:
            dropped[order[order.index(gone) - 1], gone].append(name)
    return {
        "brought": {str(first): names for first, names in sorted({order[0]: [], **brought}.items())},
        "dropped": {f"{last} before {gone}": names for (last, gone), names in sorted(dropped.items())},
    }


def rows_of(of: Mapping[Version, set[str]], types: Mapping[str, set[str]]) -> dict[str, Any]:
    """Return the rows of the table; where the class is not known, one class of the model_type is enough."""
    names = {name: {name} for classes in of.values() for name in classes}
    return {
        "newest": str(max(of)), "workload.architecture": _part(names, of), "workload.model_type": _part(types, of)
    }  # fmt: skip


def main() -> None:
    """Read the options, read the releases, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", type=Path, required=True, help="a wheel of transformers, best the newest")
    parser.add_argument("--only", nargs="*", default=sorted(SERVERS))
    options = parser.parse_args()
    types = class_of_type(options.transformers) | {name: {one} for name, one in REMOTE.items()}
    for package in options.only:
        of = known(package)
        write_rows(f"{package}_models", rows_of(of, types))
        print(package, len(of), "releases", len(set().union(*of.values())), "classes", file=sys.stderr)


if __name__ == "__main__":
    main()
