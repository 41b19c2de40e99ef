"""The modules of an environment, run abstractly on first use, and what a name in one of them is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from doctor.util.linear_regex import compiled

from .lazy_names import ComputedNames, computed_names
from .sources import Environment, Package, SourceFile, normalized
from .trees import walk
from .values import UNKNOWN, Choice, ClassInfo, External, Imported, ModuleValue, Unknown, Value, alternatives, choice

#: A chain of re-exports longer than this is a circle.
HOPS = 40
STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)
#: A package with this many sibling folders is a family (one folder per model): a missing member is a missing feature.
FAMILY = 30
_TORCH = "torch"
#: Present in every stack: where its files are not found, its version is unknown, but it is not absent.
ASSUMED_PRESENT = frozenset(
    {_TORCH, "numpy", "packaging", "einops", "triton", "typing_extensions", "importlib_metadata", "setuptools",
     "pkg_resources", "tqdm", "yaml", "regex", "huggingface_hub", "safetensors", "tokenizers", "mmengine",
     "accelerate", "datasets", "pydantic", "psutil", "sentencepiece", "torchvision", "scipy", "pandas", "PIL"}
)  # fmt: skip

#: In a part of an environment these count as present too: callers switch whole code paths off without them.
OFTEN_PRESENT = frozenset({"flash_attn"})


@dataclass
class Record:
    """One module: its tree, and its namespace once it has been run."""

    name: str
    source: SourceFile
    package: Package
    tree: ast.Module | None = None
    namespace: dict[str, Value] = field(default_factory=dict)
    status: str = "new"
    open: bool = False
    """Names may be added in ways that the analysis does not follow."""
    lazy: bool = False
    """The module replaces itself by an object that imports on first use."""
    module_class: ClassInfo | None = None
    """The class of that object."""
    bound: frozenset[str] | None = None
    exports: dict[str, Value] | None = None
    listed: dict[str, str] | None = None
    texts: frozenset[str] | None = None
    patched: set[str] = field(default_factory=set)
    global_names: frozenset[str] | None = None
    global_imports: dict[str, Imported] = field(default_factory=dict)
    classes: dict[tuple[str, int], ClassInfo] = field(default_factory=dict)

    @property
    def parent(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.source.is_package else self.name.rpartition(".")[0]

    def absolute(self, module: str | None, level: int) -> str:
        """Return the absolute name of a `from` import."""
        if not level:
            return module or ""
        parts = self.parent.split(".")
        parts = parts[: len(parts) - level + 1]
        return ".".join([*parts, module] if module else parts)


class Program:
    """All modules of an environment, as far as they have been needed."""

    def __init__(self, environment: Environment, readable: Callable[[Package], bool]) -> None:
        """Hold the modules of `environment`; packages that are not `readable` stay closed."""
        self.environment = environment
        self.readable = readable
        self.records: dict[str, Record | None] = {}
        self.texts: dict[str, bytes | None] = {}
        self.split: dict[str, list[bytes]] = {}
        self.listed: dict[str, dict[str, list[str]]] = {}
        self.families: dict[str, bool] = {}
        self.parts: dict[str, bool] = {}
        self.computed: dict[ClassInfo, ComputedNames] = {}
        self.importers: dict[str, bytes] = {}
        """The sources of each package that change the import system, joined."""
        self.execute: Callable[[Record], None] = _not_connected

    def package(self, module: str) -> Package | None:
        """Return the readable package that holds a module."""
        package = self.environment.package_of(module)
        if package is None or not self.readable(package) or self._is_of_another(package, module):
            return None
        return package

    def _is_of_another(self, package: Package, module: str) -> bool:
        """Return whether a module below a namespace package is of a distribution that is not installed.

        `megatron.core` and `megatron.bridge` come from different distributions.
        """
        if package.is_code or "." not in module:
            return False
        part = ".".join(module.split(".", 2)[:2])
        if part not in self.parts:
            namespace = package.root.is_dir() and not (package.root / "__init__.py").is_file()
            self.parts[part] = namespace and self.environment.find(part) is None
        return self.parts[part]

    @property
    def is_complete(self) -> bool:
        """Whether this is the whole environment of a job: without torch it is a part of one, and more may be there."""
        return _TORCH in self.environment.packages or _TORCH in self.environment.releases

    def is_assumed(self, module: str) -> bool:
        """Return whether a package counts as present although its files are not in this part of an environment."""
        top = module.partition(".")[0]
        return top in OFTEN_PRESENT and not self.is_complete and top not in self.environment.packages

    def is_absent(self, module: str) -> bool:
        """Return whether a top-level package is surely not installed."""
        top = module.partition(".")[0]
        package = self.environment.packages.get(top)
        if package is not None and self._is_of_another(package, module):
            return True
        if package is not None or top in ASSUMED_PRESENT or top in STANDARD_LIBRARY:
            return False
        if self.is_assumed(top):
            return False
        # A compiled part of an installed package: `flash_attn_2_cuda` of `flash_attn`, absent from a source archive.
        return _COMPILED_PART.search(top) is None or not any(
            top.startswith(f"{name}_") and self.readable(package) for name, package in self.environment.packages.items()
        )

    def is_distribution_absent(self, name: str) -> bool:
        """Return whether a distribution is surely not installed."""
        top = normalized(name).replace("-", "_")
        if top in OFTEN_PRESENT and not self.is_complete:
            return False
        return self.environment.release_of(name) is None and top not in ASSUMED_PRESENT

    def record(self, module: str) -> Record | None:
        """Return a module of a readable package, run; None where there is no such file."""
        if module in self.records:
            record = self.records[module]
        else:
            package = self.package(module)
            source = self.environment.find(module) if package is not None else None
            record = Record(module, source, package) if source is not None and package is not None else None
            self.records[module] = record
        if record is not None and record.status == "new":
            self._run(record)
        return record

    def _run(self, record: Record) -> None:
        record.status = "running"
        path = record.source.path
        if record.source.compiled or path.is_dir():
            top = "." not in record.name and not record.package.is_code
            record.open = record.source.compiled or top  # other distributions may add to a namespace package
        else:
            parsed = self.environment.parse(path, self.environment.display(record.package, path))
            if parsed is None:
                record.open = True
            else:
                record.tree = parsed.tree
                if parsed.assigns_globals:
                    self._scan_globals(record)
                self.execute(record)
        record.status = "done"

    def _scan_globals(self, record: Record) -> None:
        """Collect names that functions assign through `global`, and imports made that way."""
        assert record.tree is not None
        names: set[str] = set()
        for function in walk(record.tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if b"global " not in self.lines(record.name, function):
                continue
            declared = {name for node in walk(function) if isinstance(node, ast.Global) for name in node.names}
            if not declared:
                continue
            for node in walk(function):
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        if isinstance(target, ast.Name) and target.id in declared:
                            names.add(f"{target.id}={ast.unparse(node.value)}"[:80])
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        if (alias.asname or alias.name) in declared:
                            module = record.absolute(node.module, node.level)
                            record.global_imports[alias.asname or alias.name] = Imported(module, alias.name)
        record.global_names = frozenset(names)

    def global_value(self, record: Record, name: str, value: Value | None) -> Value | None:
        """Return what a function may read from a module's variable that other functions assign."""
        if name in record.global_imports:
            return record.global_imports[name]
        for text in record.global_names or ():
            assigned, _, source = text.partition("=")
            if assigned == name and not (isinstance(value, Value) and repr(getattr(value, "value", value)) == source):
                return UNKNOWN if value is None or not source.startswith(("PkgVersion(", "Version(")) else value
        return value

    def member(self, module: str, name: str, hops: int = 0) -> Value | None:
        """Return what `from module import name` gives; None where the name is surely missing."""
        if hops > HOPS:
            return UNKNOWN
        record = self.record(module)
        if record is None:
            if self.package(module) is None:
                return External(f"{module}.{name}")
            return UNKNOWN if self._aliased(module) else None
        if name in record.namespace and not (record.lazy and name in self._lazy_imports(record)):
            return self.force(record.namespace[name], hops + 1)
        if name in record.patched or (name.startswith("__") and name.endswith("__")):
            return UNKNOWN
        if record.lazy and (target := self._lazy_imports(record).get(name)) is not None:
            found = self.force(target, hops + 1)
            return UNKNOWN if isinstance(found, Unknown) else found
        if record.source.is_package and self.environment.find(f"{module}.{name}") is not None:
            return ModuleValue(f"{module}.{name}")
        if record.lazy:
            where = self._lazy_exports(record).get(name)
            if where is not None:
                return self.force(Imported(where, name), hops + 1) if where else UNKNOWN
            return UNKNOWN if record.open else self._computed(record, name, hops)
        if record.status == "running" or record.open or "__getattr__" in record.namespace:
            return UNKNOWN
        if name in self._bound(record):
            return Choice((UNKNOWN,), absent=True)
        return None

    def _computed(self, record: Record, name: str, hops: int) -> Value | None:
        """Return what the object in place of a module gives for a name that it works out; None where nothing."""
        info = record.module_class
        if info is None:
            return None
        if info not in self.computed:
            self.computed[info] = computed_names(info)
        rules = self.computed[info]
        shorter = rules.shorter(name)
        for other in shorter:
            if (found := self.member(record.name, other, hops + 1)) is not None:
                return found
        owner = self.record(info.module)
        modules = [self.record(owner.absolute(*item)) for item in rules.imports] if owner and shorter else []
        spelled = any(not self._spelled(item).isdisjoint((name, *shorter)) for item in modules if item is not None)
        return UNKNOWN if spelled else None

    def provides(self, module: str, name: str) -> Value | None:
        """Return what `from module import name` binds, without running the module where its text shows the name.

        None where the name is surely missing.
        """
        known = self.records.get(module)
        if known is not None and name in known.patched:
            return UNKNOWN
        text = self.text(module)
        if text is not None and _defines(text, name.encode()):
            return Imported(module, name)
        record = self.record(module)
        if record is not None and record.lazy and name in self._lazy_imports(record):
            return Imported(module, name)
        return self.member(module, name)

    def text(self, module: str) -> bytes | None:
        """Return the source of a readable module; None where there is none."""
        if module not in self.texts:
            source = self.environment.find(module)
            readable = source is not None and not source.compiled and source.path.is_file()
            self.texts[module] = self.environment.read(source.path, module) if source is not None and readable else None
        return self.texts[module]

    def lines(self, module: str, node: ast.AST) -> bytes:
        """Return the lines of a definition in a module."""
        if module not in self.split:
            self.split[module] = (self.text(module) or b"").split(b"\n")
        first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 1
        return b"\n".join(self.split[module][first - 1 : last])

    def force(self, value: Value, hops: int = 0) -> Value:
        """Resolve an imported name to what it is; unknown where it cannot be."""
        while isinstance(value, Imported):
            hops += 1
            if hops > HOPS:
                return UNKNOWN
            if not value.name:
                return self.module_value(value.module)
            found = self.member(value.module, value.name, hops)
            value = UNKNOWN if found is None else found
        if isinstance(value, Choice):
            forced = choice([self.force(item, hops + 1) for item in alternatives(value)])
            if value.absent and isinstance(forced, Choice):
                return Choice(forced.values, absent=True)
            return Unknown("defined under a condition", True) if value.absent else forced
        return value

    def module_value(self, module: str) -> Value:
        """Return the module object of a dotted name."""
        if self.package(module) is not None and self.environment.find(module) is not None:
            return ModuleValue(module)
        return External(module)

    def module_missing(self, module: str) -> str:
        """Return the first part of a dotted module that a readable package lacks; empty where all is there."""
        parts = module.split(".")
        for index in range(1, len(parts) + 1):
            name = ".".join(parts[:index])
            source = self.environment.find(name)
            if source is None:
                if self._aliased(name):
                    return ""
                return name
            if source.compiled:
                return ""
        return ""

    def is_family_member(self, module: str) -> bool:
        """Return whether a missing module is one of a family: `transformers.models.new_model`."""
        parent, _, _ = module.rpartition(".")
        while parent:
            if self.environment.find(parent) is not None:
                return self._is_family(parent)
            parent, _, _ = parent.rpartition(".")
        return False

    def members_of_family(self, module: str) -> frozenset[str]:
        """Return the names of the family that a module is part of: `llama` and its siblings; else none."""
        parts = module.split(".")
        for index in range(1, len(parts)):
            parent = ".".join(parts[:index])
            source = self.environment.find(parent)
            if source is not None and self._is_family(parent):
                return frozenset(item.parent.name for item in source.path.parent.glob("*/__init__.py"))
        return frozenset()

    def in_family(self, module: str) -> bool:
        """Return whether a module is part of one member of a family: `transformers.models.llama.modeling_llama`."""
        parts = module.split(".")
        return any(self._is_family(".".join(parts[:index])) for index in range(1, len(parts)))

    def _is_family(self, module: str) -> bool:
        if module not in self.families:
            source = self.environment.find(module)
            folder = source.path.parent if source is not None else None
            members = (
                sum(1 for item in folder.glob("*/__init__.py"))
                if folder is not None and source is not None and (source.is_package)
                else 0
            )
            self.families[module] = members >= FAMILY
        return self.families[module]

    def is_family_name(self, module: str, name: str) -> bool:
        """Return whether a missing name is a class of a model that the package lacks altogether.

        The package must list many classes with the same ending, and none that starts like this one.
        """
        match = _MODEL_CLASS.fullmatch(name)
        record = self.record(module)
        if match is None or record is None or not record.lazy or record.tree is None:
            return False
        listed = self._lazy_exports(record)
        stem, ending = match.group(1), match.group(2)
        if stem == "Auto" or any(other.startswith(stem) for other in listed):
            return False
        return sum(1 for other in listed if other.endswith(ending)) >= FAMILY

    def _aliased(self, module: str) -> bool:
        """Return whether a package mentions a module that has no file, as packages do that register aliases."""
        parts = module.split(".")
        if self._registered(parts[0], module):
            return True
        for index in range(1, len(parts)):
            record = self.record(".".join(parts[:index]))
            if record is None or record.tree is None:
                continue
            rest = ".".join(parts[index:])
            if not self._spelled(record).isdisjoint((module, rest, f".{rest}")):
                return True
        return False

    def _registered(self, top: str, module: str) -> bool:
        """Return whether a file of a package that changes the import system spells the full name of a module."""
        package = self.package(top)
        if package is None:
            return False
        if top not in self.importers:
            texts = map(self.environment.peek, self.environment.files(package))
            self.importers[top] = b"\n".join(text for text in texts if b"meta_path" in text or b"sys.modules" in text)
        if re.search(rb"[\"']" + re.escape(module.encode()) + rb"[\"']", self.importers[top]) is not None:
            return True
        return _matched(self.importers[top], top, module)

    def _spelled(self, record: Record) -> frozenset[str]:
        """Return the text constants of a module."""
        if record.texts is None:
            found = set()
            for node in walk(record.tree) if record.tree is not None else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
            record.texts = frozenset(found)
        return record.texts

    def _bound(self, record: Record) -> frozenset[str]:
        """Return every name that module-level code binds under any condition."""
        if record.bound is None:
            record.bound = frozenset(_bound_names(record.tree.body)) if record.tree is not None else frozenset()
        return record.bound

    def _lazy_imports(self, record: Record) -> dict[str, Value]:
        """Return what a lazy module imports for type checkers: the same names that it gives at run time."""
        if record.exports is None:
            record.exports = self._scan_lazy(record)
        return record.exports

    def _scan_lazy(self, record: Record) -> dict[str, Value]:
        assert record.tree is not None
        exports: dict[str, Value] = {}
        for node in walk(record.tree):
            if isinstance(node, ast.ImportFrom):
                module = record.absolute(node.module, node.level)
                if self.environment.package_of(module) is not record.package:
                    continue
                for alias in node.names:
                    if alias.name != "*":
                        exports.setdefault(alias.asname or alias.name, Imported(module, alias.name))
        return exports

    def _lazy_exports(self, record: Record) -> dict[str, str]:
        """Return the names that the files below a lazy package list in `__all__`, and the module of each.

        Names that the package's own code spells as text come with an empty module.
        """
        if record.listed is not None:
            return record.listed
        assert record.tree is not None
        found = {text: "" for text in self._spelled(record) if text.isidentifier()}
        prefix = f"{record.name}."
        for module, names in self._listed(record.package).items():
            if module == record.name or module.startswith(prefix):
                for name in names:
                    found.setdefault(name, module)
        record.listed = found
        return found

    def _listed(self, package: Package) -> dict[str, list[str]]:
        """Return the names that each module of a package lists in `__all__` or exports by a decorator."""
        if package.name not in self.listed:
            modules: dict[str, list[str]] = {}
            for path in self.environment.files(package):
                text = self.environment.peek(path)
                names = [name for match in _ALL.finditer(text) for name in _QUOTED.findall(match.group(1))]
                if b"@export" in text or b"@requires" in text:
                    names += [match.group(1) for match in _EXPORT.finditer(text)]
                if names:
                    module = self.environment.module_name(package, path)
                    modules[module] = [name.decode("ascii", "replace") for name in names]
            self.listed[package.name] = modules
        return self.listed[package.name]


def _matched(importers: bytes, top: str, module: str) -> bool:
    """Return whether a regular expression in a package's own importers matches the full name of a module."""
    if b"meta_path" not in importers:
        return False
    for found in _RAW_TEXT.finditer(importers):
        text = _OWN_NAME.sub(re.escape(top), found[2].decode("utf-8", "replace"))
        if not text.startswith(re.escape(top)):
            continue
        try:
            if compiled(_LOOKAROUND.sub("", text)).fullmatch(module.encode()):
                return True
        except ValueError:  # what linear time rules out
            continue
    return False


#: Raw texts, the name of the own package in one, and the looks around that an engine of linear time lacks.
_RAW_TEXT = re.compile(rb"\b(?:r|rf|fr)([\"'])([^\"'\n]{1,400})\1")
_OWN_NAME = re.compile(r"\{(?:re\.escape\()?__name__\)?\}")
_LOOKAROUND = re.compile(r"\(\?<?[=!][^()]*\)")
_ALL = re.compile(rb"^__all__\s*(?::[^=\n]*)?\+?=\s*[\[(](.*?)[\])]", re.S | re.M)
_COMPILED_PART = re.compile(r"(?:cuda|torch|extensions?|ext|_C|cpp|gpu|lib)$")
_MODEL_CLASS = re.compile(
    r"([A-Z]\w+?)(Config|Model|PreTrainedModel|For[A-Z]\w+|Tokenizer|TokenizerFast|Processor|ImageProcessor)"
)
_QUOTED = re.compile(rb"[\"']([A-Za-z_]\w*)[\"']")
_EXPORT = re.compile(rb"^@(?:export|requires)\b.*\n(?:@.*\n)*(?:class|def)\s+([A-Za-z_]\w*)", re.M)


def _defines(text: bytes, name: bytes) -> bool:
    """Return whether a function or class is defined at the left margin, where no condition encloses it."""
    for start in (b"\nclass ", b"\ndef ", b"\nasync def "):
        needle = start + name
        at = text.find(needle)
        while at >= 0:
            following = text[at + len(needle) : at + len(needle) + 1]
            if following in (b"(", b":", b" ", b"["):
                return True
            at = text.find(needle, at + 1)
    return False


def imported_modules(record: Record, node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the modules that an import names, and the names in them, which may be modules too."""
    if isinstance(node, ast.Import):
        return {item.name for item in node.names}
    module = record.absolute(node.module, node.level)
    return {module} | {f"{module}.{item.name}" for item in node.names}


def module_level_nodes(record: Record) -> set[int]:
    """Return the ids of nodes outside functions."""
    assert record.tree is not None
    found: set[int] = set()
    waiting: list[ast.AST] = [record.tree]
    while waiting:
        node = waiting.pop()
        found.add(id(node))
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += list(ast.iter_child_nodes(node))
    return found


def module_level_imports(record: Record) -> Iterable[str]:
    """Yield the modules that a module imports outside of functions."""
    level = module_level_nodes(record)
    assert record.tree is not None
    for node in walk(record.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) in level:
            yield from imported_modules(record, node)


def _not_connected(record: Record) -> None:
    raise AssertionError(f"no interpreter runs {record.name}")


def _bound_names(body: Iterable[ast.stmt]) -> Iterable[str]:
    """Yield the names that statements bind, in every branch."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
            continue
        waiting += list(ast.iter_child_nodes(node))
