"""When a broken use runs: at import, on a common path, on demand, or for one feature only."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from .findings import Kind, Reach
from .frames import Violation
from .program import Program, imported_modules, module_level_imports
from .sources import Package
from .trees import walk

#: Code of context parallelism, by the names that its functions, files and conditions carry.
CONTEXT_PARALLEL = re.compile(
    r"(?<![a-z])cp(?![a-z])|with_?cp|context_?parallel|ring_?(?:flash|attn|attention)|sequence_?parallel|ulysses|zigzag"
    r"|(?:^|_)fpdt|distributed_?attention|stripe", re.I
)  # fmt: skip
#: A condition by which the workload chooses an option by its name.
_NAMED_OPTION = re.compile(r"[\w.]+ == (['\"]).*\1")
#: The word that classes of one kind end in: `Container`.
_LAST_WORD = re.compile(r"(?<=\w)[A-Z][a-z]+$")
#: Folders of code that a package deprecates or tries out.
SET_ASIDE = frozenset({"deprecated", "legacy", "experimental", "contrib", "examples", "tests"})
#: Words of file names: code for another framework or accelerator, which packages import where that is installed.
OTHER_FRAMEWORK = re.compile(r"(?:^|_)(?:flax|jax|tf|tensorflow|onnx\w*|openvino|mindspore|npu|xla|mlx|neuron)(?:_|$)")
#: So many classes of one kind are options of which a workload uses one.
MANY = 10


@dataclass
class Seen:
    """A violation at a line, over all paths that reach it."""

    violation: Violation
    frame_module: str
    scope: str
    at_import: bool
    path: str
    line: int
    definite: bool
    unknown: str
    conditions: tuple[str, ...]
    contexts: set[tuple[str, str, int, str]]
    """The ways into the function on which the violation is definite."""


def reach_of(item: Seen, program: Program, caller: Package, reached: bool) -> Reach:
    """Return when a use runs; `reached` says whether importing the caller imports its module."""
    violation = item.violation
    missing = violation.kind in (Kind.MISSING_MODULE, Kind.MISSING_ATTRIBUTE)
    if missing and program.is_family_member(violation.symbol):
        return Reach.FEATURE
    if violation.kind in (Kind.MISSING_NAME, Kind.MISSING_ATTRIBUTE) and program.is_family_name(
        violation.module, violation.name
    ):
        return Reach.FEATURE
    if violation.kind is Kind.MISSING_MODULE and any(map(_NAMED_OPTION.fullmatch, item.conditions)):
        return Reach.FEATURE  # `if implementation == "flash_attention_4": from flash_attn.cute import …`
    imported = violation.kind in (Kind.MISSING_MODULE, Kind.MISSING_NAME)
    if imported and not item.at_import and program.in_family(violation.module):
        return Reach.FEATURE
    text = " ".join((item.scope, item.path.rpartition("/")[2], *item.conditions))
    if CONTEXT_PARALLEL.search(text):
        return Reach.CONTEXT_PARALLEL
    if item.at_import:
        return Reach.IMPORT if reached and not _is_for_another_framework(item, program, caller) else Reach.ON_DEMAND
    if imported and item.conditions:
        return Reach.ON_DEMAND  # the author defers the import, and the workload decides whether it runs
    if any(test(item, program, caller) for test in RARE):
        return Reach.ON_DEMAND
    if item.scope.endswith("__init__"):
        return Reach.CONSTRUCTION
    return Reach.COMMON


def _is_optional(item: Seen, program: Program, caller: Package) -> bool:
    """Return whether the file imports the callee in functions only, and a condition leads to the use."""
    record = program.records.get(item.frame_module)
    if record is None or record.tree is None or not item.conditions:
        return False
    callee = item.violation.module.partition(".")[0]
    found = {
        name.partition(".")[0] for node in walk(record.tree) if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in imported_modules(record, node)
    }  # fmt: skip
    return callee in found and all(name.partition(".")[0] != callee for name in module_level_imports(record))


def _serves_one_model(item: Seen, program: Program, caller: Package) -> bool:
    """Return whether the file, or its folder, is one of many that are named like the callee's models."""
    record = program.records.get(item.frame_module)
    if record is None or not program.in_family(item.violation.module):
        return False
    models = program.members_of_family(item.violation.module)
    path = record.source.path
    if path.stem in models:
        return sum(other.stem in models for other in path.parent.glob("*.py")) >= MANY
    return path.parent.name in models and sum(other.name in models for other in path.parent.parent.iterdir()) >= MANY


def _refuses_one_of_many(item: Seen, program: Program, caller: Package) -> bool:
    """Return whether one class refuses a release, and files next to it define many classes of the same kind."""
    ending = _LAST_WORD.search(item.scope.partition(".")[0])
    record = program.records.get(item.frame_module)
    if item.violation.kind is not Kind.VERSION_REFUSED or ending is None or record is None:
        return False
    pattern = re.compile(rb"^class \w+" + ending.group().encode() + rb"\b", re.M)
    siblings = record.source.path.parent.glob("*.py")
    return sum(pattern.search(program.environment.peek(path)) is not None for path in siblings) >= MANY


def _is_never_named(item: Seen, program: Program, caller: Package) -> bool:
    """Return whether the caller names other functions of the module, but never this one, to call or export it."""
    record = program.records.get(item.frame_module)
    if caller.is_code or item.at_import or record is None or record.tree is None:
        return False
    functions = {node.name for node in record.tree.body if isinstance(node, ast.FunctionDef)}
    if item.scope not in functions or len(functions) < 2:
        return False
    named = re.compile(rb"(?<!\bdef )\b(?:" + b"|".join(sorted(map(str.encode, functions))) + rb")\b")
    environment = program.environment
    files = environment.files(caller)
    found = {match.decode() for path in files for match in named.findall(environment.peek(path))}
    return bool(found) and item.scope not in found


def _is_set_aside(item: Seen, program: Program, caller: Package) -> bool:
    """Return whether the caller keeps the file in a folder for code that it deprecates or tries out."""
    return not caller.is_code and not SET_ASIDE.isdisjoint(item.path.split("/")[:-1])


def _is_for_another_framework(item: Seen, program: Program, caller: Package) -> bool:
    """Return whether the name of the file, or of a folder around it, is that of another framework than torch."""
    names = (*item.path.split("/")[1:-1], item.path.rpartition("/")[2].removesuffix(".py"))
    return not caller.is_code and any(map(OTHER_FRAMEWORK.search, names))


RARE = (
    _is_for_another_framework,
    _is_optional,
    _serves_one_model,
    _refuses_one_of_many,
    _is_never_named,
    _is_set_aside,
)
