"""Write rules/index/names/PACKAGE.json.gz: in which releases its modules, names, members and arguments exist.

    python scripts/release/make_name_history.py [--only PACKAGE ...] [--cache DIR] [--out DIR]

The archives are read as they are: nothing is installed or run. One release of each minor version is read, the newest;
of packages that change with the third number, one of each of those.
Only what changes between these releases is written: `m` modules, `n` names in a module, `g` names anywhere, `c` members
of a class, `a` arguments of a function, `r` arguments that it requires. Each has first and last release of its spans.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import pickle
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import surfaces

OUT = Path(__file__).resolve().parents[2] / "rules" / "index" / "names"
#: Distribution -> the folders of its modules, the first date of interest, and what is left out.
PACKAGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "transformers": (("transformers",), "2019-10", r"/deprecated/|/dummy_|/sagemaker/|modeling_(?:tf|flax)_|/modular_"),
    "diffusers": (("diffusers",), "2022-08", r"/dummy_|modeling_flax|_flax\.py"),
    "accelerate": (("accelerate",), "2021-03", r"/test_utils/"),
    "peft": (("peft",), "2023-02", r"$^"),
    "trl": (("trl",), "2023-01", r"$^"),
    "huggingface-hub": (("huggingface_hub",), "2021-06", r"$^"),
    "deepspeed": (("deepspeed",), "2021-01", r"/model_implementations/|/autotuning/"),
    "flash-attn": (("flash_attn",), "2022-11", r"$^"),
    "transformer-engine": (("transformer_engine",), "2023-01", r"/jax/|/paddle/"),
    "megatron-core": (("megatron.core",), "2023-01", r"/export/"),
    "xformers": (("xformers",), "2022-10", r"/benchmarks?/|/_flash_attn/|/third_party/"),
    "triton": (("triton",), "2022-01", r"/tools/|/third_party/"),
    "torch": (
        ("torch",), "2021-10",
        r"/testing/|/onnx/|/ao/|_refs|_decomp|/quantization/|/caffe2/|torchgen|/jit/|/mps/|/fx/experimental/",
    ),
    "vllm": (("vllm",), "2023-06", r"/model_executor/models/|/configs/|/test"),
    "sglang": (
        ("sglang",), "2024-11",
        r"/models/|/test/|/lang/|/multimodal_gen/|/hardware_backend/|/bench|/eval/|/jit_kernel/|/kernels/|/cli/|/function_call",
    ),
    "flashinfer-python": (("flashinfer",), "2025-01", r"^flashinfer/\w+/"),
    "bitsandbytes": (("bitsandbytes",), "2022-10", r"$^"),
    "liger-kernel": (("liger_kernel",), "2024-08", r"$^"),
    "flash-linear-attention": (("fla",), "2025-01", r"$^"),
    "torchao": (("torchao",), "2024-08", r"/experimental/"),
    "optimum": (("optimum",), "2023-01", r"/onnxruntime/|/exporters/"),
    "autoawq": (("awq",), "2023-09", r"$^"),
    "auto-gptq": (("auto_gptq",), "2023-04", r"$^"),
    "unsloth": (("unsloth",), "2024-11", r"$^"),
    "sageattention": (("sageattention",), "2024-10", r"$^"),
    "mamba-ssm": (("mamba_ssm",), "2023-12", r"$^"),
    "timm": (("timm",), "2021-01", r"$^"),
    "open-clip-torch": (("open_clip",), "2022-07", r"$^"),
    "pytorch-lightning": (("pytorch_lightning",), "2021-01", r"$^"),
    "torchvision": (("torchvision",), "2021-10", r"/prototype/"),
    "verl": (("verl",), "2025-01", r"$^"),
}  # fmt: skip
#: Models of transformers and diffusers whose names other packages import or patch; those of the others are seldom used.
MODELS = re.compile(
    r"^transformers\.models\.(?!(?:auto|bart|bert|beit|bloom|clip|deberta_v2|deepseek_v3|falcon|gemma|gemma2|gemma3|gpt2"
    r"|gpt_neox|gptj|gpt_oss|llama|llama4|llava\w*|mistral|mixtral|opt|phi|phi3|qwen2|qwen2_vl|qwen2_5_vl|qwen2_moe"
    r"|qwen3|qwen3_moe|qwen3_vl|roberta|siglip|t5|vit|wav2vec2|whisper|xlm_roberta)(?:\.|$))\w+\."
)
#: Packages of whose classes and functions only these have members and arguments on record.
USED = {
    "torch": re.compile(r"$^"),
    "vllm": re.compile(
        r"(?:Async)?(?:LLM|LLMEngine|EngineArgs)\b|SamplingParams\b|VllmConfig\b|\w*ModelRunner\b|Worker\b|flash_attn\w*"
        r"|\w*AttentionImpl\b|\w*AttentionMetadata\b|Attention\b|\w*Backend\b"
    ),
    "sglang": re.compile(r"(?:Engine|ServerArgs|ModelRunner|Scheduler|TokenizerManager|RadixAttention|\w*Backend)\b"),
}
#: Packages whose releases differ in the third number only.
FINE = ("sglang", "xformers")
#: Packages of whose names only the module is on record: they are too many.
BY_MODULE = ("sglang",)
#: Packages whose modules other code also imports what they import themselves from.
REEXPORTED = ("transformers", "diffusers", "huggingface-hub", "flash-attn")
_FOREIGN = {
    *sys.stdlib_module_names,
    *dir(typing),
    "Path",
    "dataclass",
    "partial",
    "wraps",
    "np",
    "nn",
    "torch",
    "tqdm",
}
SHORTEST = 3  # characters of a name
_DYNAMIC = re.compile(
    rb"^def __getattr__|_LazyModule|sys\.modules\[__name__\]|globals\(\)|lazy_import|attach\(|import \*", re.MULTILINE
)


@dataclass
class Function:
    """The arguments of a function."""

    names: frozenset[str]
    required: frozenset[str]
    any_keyword: bool


@dataclass
class Class:
    """What a class defines itself."""

    bases: tuple[str, ...]
    members: set[str] = field(default_factory=set)
    methods: dict[str, Function] = field(default_factory=dict)


@dataclass
class Module:
    """What a module defines and imports at its top."""

    defined: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    dynamic: bool = False  # it gets further names when it is loaded


_read: dict[bytes, Module | None] = {}


def module_of(content: bytes) -> Module | None:
    """Return what a source file says; None where this Python cannot parse it."""
    key = hashlib.sha1(content).digest()
    if key not in _read:
        try:
            made = Module(dynamic=_DYNAMIC.search(content) is not None)
            _collect(ast.parse(content).body, made)
            _read[key] = made
        except (SyntaxError, ValueError, RecursionError):
            _read[key] = None
    return _read[key]


def _collect(body: list[ast.stmt], found: Module) -> None:
    for item in body:
        match item:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.defined.add(name)
                found.functions[name] = _function(item, bound=False)
            case ast.ClassDef(name=name):
                found.defined.add(name)
                found.classes[name] = _class(item)
            case ast.Assign(targets=targets):
                found.defined.update(node.id for one in targets for node in ast.walk(one) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.defined.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found.imported.update(alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.If(body=first, orelse=other):
                _collect([*first, *other], found)
            case ast.Try(body=first, orelse=other, handlers=handlers):
                _collect([*first, *other, *(x for one in handlers for x in one.body)], found)
            case ast.With(body=first) | ast.For(body=first):
                _collect(first, found)
            case _:
                pass


def _function(item: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> Function:
    arguments = item.args
    listed = [*arguments.posonlyargs, *arguments.args]
    static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in item.decorator_list)
    plain = [one.arg for one in listed][1 if bound and not static else 0 :]
    needed = plain[: max(len(plain) - len(arguments.defaults), 0)]
    needed += [one.arg for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None]
    names = [*plain, *(one.arg for one in arguments.kwonlyargs)]
    return Function(frozenset(names), frozenset(needed), arguments.kwarg is not None)


def _class(item: ast.ClassDef) -> Class:
    made = Class(tuple(ast.unparse(base).split("[")[0].rpartition(".")[2] for base in item.bases))
    for part in item.body:
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                made.members.add(name)
                made.methods[name] = _function(part, bound=True)
                made.members.update(_set_on_self(part))
            case ast.Assign(targets=targets):
                made.members.update(one.id for one in targets if isinstance(one, ast.Name))
                if any(isinstance(one, ast.Name) and one.id == "attribute_map" for one in targets):
                    values = getattr(part.value, "keys", [])
                    made.members.update(str(key.value) for key in values if isinstance(key, ast.Constant))
            case ast.AnnAssign(target=ast.Name(id=name)):
                made.members.add(name)
            case _:
                pass
    if any("dataclass" in ast.unparse(one) for one in item.decorator_list):
        fields = [part for part in item.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
        names = [part.target.id for part in fields if isinstance(part.target, ast.Name)]
        made.methods.setdefault("__init__", Function(frozenset(names), frozenset(), any_keyword=False))
    return made


def _set_on_self(function: ast.AST) -> Iterator[str]:
    """Yield the attributes that a method sets on its object."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="register_buffer" | "register_parameter" | "add_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case _:
                pass


def release_of(item: dict, roots: tuple[str, ...], skipped: str) -> dict[str, Module]:
    """Return the modules of one release."""
    folders = tuple(root.replace(".", "/") for root in roots)
    left_out = re.compile(skipped)

    def wanted(path: str) -> bool:
        below = any(path.startswith(f"{folder}/") or path == f"{folder}.py" for folder in folders)
        return below and not re.search(r"(?:^|/)(?:tests?|benchmarks?|examples?)/", path) and not left_out.search(path)

    found = {}
    for path, content in surfaces.python_files(item, wanted):
        made = module_of(content)
        name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if made is not None:
            found[name] = made
    return found


class History:
    """Which of the releases of a package have a key: a bit for each release."""

    def __init__(self, package: str) -> None:
        self.used = USED.get(package, re.compile(""))
        self.reexported = package in REEXPORTED
        self.having: dict[str, int] = {}
        self.owner: dict[str, str] = {}  # key -> key of what it belongs to
        self.dynamic: set[str] = set()  # modules whose names are not all known
        self.bases: dict[str, set[str]] = {}
        self.homes: dict[str, str] = {}  # name -> the module of the newest release that defines it

    def add(self, number: int, modules: dict[str, Module]) -> None:
        """Add the release of that number."""
        bit = 1 << number
        self.homes = {}
        packages = {name.rpartition(".")[0] for name in modules}
        classes: dict[str, list[Class]] = {}
        for name, module in modules.items():
            self._mark(f"m {name}", bit, "")
            if module.dynamic and name in packages:
                self.dynamic.add(name)
            shown = self.reexported or name in packages
            for one in module.defined | (module.imported - _FOREIGN if shown else set()):
                if len(one) >= SHORTEST and not one.startswith("__") and not MODELS.match(f"{name}."):
                    self._mark(f"n {name} {one}", bit, f"m {name}")
            for one in module.defined:
                if len(one) >= SHORTEST and not one.startswith("__"):
                    self._mark(f"g {one}", bit, "")
                    known = self.homes.setdefault(one, name)
                    self.homes[one] = min(known, name, key=lambda module: (module.count("."), len(module), module))
            if MODELS.match(f"{name}."):
                continue
            for label, made in module.classes.items():
                classes.setdefault(label, []).append(made)
            for label, function in module.functions.items():
                if self.used.match(label):
                    self._arguments(label, function, bit)
        for label, same in classes.items():
            if not self.used.match(label):
                continue
            self._mark(f"c {label}", bit, "")
            self.bases.setdefault(label, set()).update(base for one in same for base in one.bases)
            for member in {name for one in same for name in _members(one, classes, set())}:
                if not member.startswith("__"):
                    self._mark(f"c {label} {member}", bit, f"c {label}")
            for one in same:
                for method, function in one.methods.items():
                    self._arguments(f"{label}.{method}", function, bit)

    def _arguments(self, label: str, function: Function, bit: int) -> None:
        self._mark(f"f {label}", bit, "")
        if function.any_keyword:
            self._mark(f"k {label}", bit, f"f {label}")
        for name in function.names:
            self._mark(f"a {label} {name}", bit, f"f {label}")
        for name in function.required:
            self._mark(f"r {label} {name}", bit, f"f {label}")

    def _mark(self, key: str, bit: int, owner: str) -> None:
        self.having[key] = self.having.get(key, 0) | bit
        self.owner[key] = owner

    def changing(self, count: int) -> dict[str, dict[str, list[list[int]]]]:
        """Return for each kind the keys that some releases lack although they have what the key belongs to."""
        every = (1 << count) - 1
        found: dict[str, dict[str, list[list[int]]]] = {kind: {} for kind in ("m", "n", "g", "c", "a", "r")}
        for key, having in sorted(self.having.items()):
            kind, _, rest = key.partition(" ")
            owner = self.owner[key]
            owned = self.having[owner] if owner else every
            if kind in ("f", "k") or (kind == "c" and " " not in rest):
                continue
            inherited = self._inherited(rest, owned) if kind == "c" else set()
            if (having & owned == owned and inherited <= {owned}) or having in inherited:
                continue
            if kind == "n" and rest.partition(" ")[0] in self.dynamic:
                continue
            if kind == "a":
                having |= self.having.get(f"k {rest.rpartition(' ')[0]}", 0)
                if having & owned == owned:
                    continue
            found[kind][rest] = _runs(having, count)
        return found

    def _inherited(self, key: str, owned: int) -> set[int]:
        """Return for each base of a class in which of the releases of the class it has the same member."""
        label, _, member = key.partition(" ")
        keys = [f"c {base} {member}" for base in self.bases.get(label, ())]
        return {self.having[one] & owned for one in keys if one in self.having}


def _members(one: Class, known: dict[str, list[Class]], seen: set[str]) -> set[str]:
    found = set(one.members)
    for base in one.bases:
        if base not in seen:
            for other in known.get(base, ()):
                found |= _members(other, known, seen | {base})
    return found


def _runs(having: int, count: int) -> list[list[int]]:
    found: list[list[int]] = []
    for number in range(count):
        if having >> number & 1:
            if found and found[-1][1] == number - 1:
                found[-1][1] = number
            else:
                found.append([number, number])
    return found


def history_of(package: str, cache: Path | None) -> dict:
    """Return the history of one package."""
    roots, since, skipped = PACKAGES[package]
    items = surfaces.releases_of(package, since)
    parts = 3 if package in FINE else 2
    minors: dict[tuple[int, ...], Version] = {version.release[:parts]: version for version in sorted(items)}
    history, releases = History(package), []
    for version in sorted(minors.values()):
        stored = cache / f"{package}-{version}.pickle" if cache else None
        if stored and stored.is_file():
            modules = pickle.loads(stored.read_bytes())
            modules = {name: module for name, module in modules.items() if ".modular_" not in name}
        else:
            try:
                modules = release_of(items[version], roots, skipped)
            except OSError as error:
                print(f"{package} {version}: {error}", file=sys.stderr)
                continue
            if stored:
                stored.write_bytes(pickle.dumps(modules))
        if modules:
            history.add(len(releases), modules)
            releases.append(str(version))
            print(f"{package} {version}: {len(modules)} modules", flush=True)
    made = history.changing(len(releases))
    if package in BY_MODULE:
        made["g"] = {}
    lost = {key.partition(" ")[2] for key, runs in made["n"].items() if runs[-1][1] < len(releases) - 1}
    homes = {name: home for name, home in sorted(history.homes.items()) if name in lost}
    packed = {kind: {key: _packed(runs) for key, runs in keys.items()} for kind, keys in made.items()}
    changed = {key.partition(" ")[0] for key in packed["c"]}
    for _ in range(3):  # a base of a base counts, too
        changed |= {label for label, known in history.bases.items() if known & changed}
    bases = {label: sorted(known & changed) for label, known in sorted(history.bases.items()) if known & changed}
    return {"releases": releases, **packed, "homes": homes, "bases": bases}


def _packed(runs: list[list[int]]) -> str:
    return ",".join(f"{first}-{last}" for first, last in runs)


def main() -> None:
    """Read the releases of all packages and write the history."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(PACKAGES))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    for package in given.only:
        content = history_of(package, given.cache)
        file = given.out / f"{package}.json.gz"
        file.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
        print(package, {kind: len(keys) for kind, keys in content.items()}, file.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
