"""Attributes and signatures of classes, and of functions behind decorators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import cast

from .program import Program
from .signatures import Signature, from_fields, signature_of
from .trees import walk
from .values import UNKNOWN, Bound, ClassInfo, ClassValue, External, Function, Value, alternatives

#: `dir(torch.nn.Module())` of torch 2.x without special methods.
TORCH_MODULE = frozenset({
    "T_destination", "_apply", "_backward_hooks", "_backward_pre_hooks", "_buffers", "_call_impl",
    "_compiled_call_impl", "_forward_hooks", "_forward_hooks_always_called", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_get_backward_hooks", "_get_backward_pre_hooks",
    "_get_name", "_is_full_backward_hook", "_load_from_state_dict", "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks", "_maybe_warn_non_full_backward_hook", "_modules", "_named_members",
    "_non_persistent_buffers_set", "_parameters", "_register_load_state_dict_pre_hook", "_register_state_dict_hook",
    "_replicate_for_data_parallel", "_save_to_state_dict", "_slow_forward", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_version", "_wrapped_call_impl", "add_module", "apply", "bfloat16", "buffers",
    "call_super_init", "children", "compile", "cpu", "cuda", "double", "dump_patches", "eval", "extra_repr",
    "float", "forward", "get_buffer", "get_extra_state", "get_parameter", "get_submodule", "half", "ipu",
    "load_state_dict", "modules", "mtia", "named_buffers", "named_children", "named_modules", "named_parameters",
    "parameters", "register_backward_hook", "register_buffer", "register_forward_hook", "register_forward_pre_hook",
    "register_full_backward_hook", "register_full_backward_pre_hook", "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook", "register_module", "register_parameter", "register_state_dict_post_hook",
    "register_state_dict_pre_hook", "requires_grad_", "set_extra_state", "set_submodule", "share_memory",
    "state_dict", "to", "to_empty", "train", "training", "type", "xpu", "zero_grad",
})  # fmt: skip
#: Classes that are visited above one class at most.
LINEAGE = 120
CLOSED_EXTERNALS = {"torch.nn.Module", "torch.nn.modules.module.Module", "builtins.object", "abc.ABC", "typing.Generic"}
#: Decorators that keep the signature.
PRESERVING = frozenset(
    [
        "staticmethod",
        "classmethod",
        "abstractmethod",
        "overload",
        "override",
        "wraps",
        "lru_cache",
        "cache",
        "cached_property",
        "no_grad",
        "inference_mode",
        "enable_grad",
        "contextmanager",
        "asynccontextmanager",
        "final",
        "custom_op",
        "disable",
        "ignore",
        "unused",
        "export",
        "compile",
        "script",
        "custom_fwd",
        "custom_bwd",
        "allow_in_graph",
        "jit_fuser",
        "no_torch_dynamo",
        "compiler_disable",
        "requires",
        "requires_backends",
        "torch_compiler_disable",
        "typechecked",
    ]
)
PROPERTIES = frozenset({"property", "cached_property", "lazyproperty"})


def lineage(program: Program, info: ClassInfo) -> tuple[list[ClassInfo], bool, bool]:
    """Return the classes in look-up order, whether all bases are known, and whether one is a torch module."""
    visited: list[ClassInfo] = []
    closed, torch_module = True, False
    waiting: list[tuple[Value, tuple[ClassInfo, ...]]] = [(ClassValue(info), ())]
    while waiting and len(visited) < LINEAGE:
        value, path = waiting.pop()
        value = program.force(value)
        if isinstance(value, ClassValue):
            if value.info not in path:
                visited.append(value.info)
                closed = closed and not value.info.dynamic
                waiting += [(base, (*path, value.info)) for base in reversed(value.info.bases)]
        elif isinstance(value, External) and value.name in CLOSED_EXTERNALS:
            torch_module = torch_module or value.name.endswith(".Module")
        else:
            closed = False
    # A class that several bases share comes behind all of them: its last place counts.
    order = list(dict.fromkeys(reversed(visited)))[::-1]
    return order, closed and not waiting, torch_module


def class_attribute(program: Program, info: ClassInfo, name: str, after: ClassInfo | None = None) -> Value | None:
    """Return an attribute as found on the class; None where no known class has it.

    With `after`, only classes behind that one in look-up order count, as for `super()`.
    """
    order, _, _ = lineage(program, info)
    if after is not None and after in order:
        order = order[order.index(after) + 1 :]
    for item in order:
        if name in item.patched:
            return UNKNOWN
        if name in item.attributes:
            return program.force(item.attributes[name])
    return None


def may_have_attribute(program: Program, info: ClassInfo, name: str, instance: bool) -> bool:
    """Return whether a class or its instances may have an attribute that no class body defines."""
    order, closed, torch_module = lineage(program, info)
    if not closed or (name.startswith("__") and name.endswith("__")):
        return True
    if torch_module and name in TORCH_MODULE:
        return True
    for item in order:
        if name in item.patched or "__getattr__" in item.attributes or "__getattribute__" in item.attributes:
            return True
        if any(keyword.arg == "metaclass" for keyword in item.node.keywords):
            return True
        if name in _mentioned(item.node, instance):
            return True
    return False


_MENTIONED: dict[int, tuple[ast.ClassDef, frozenset[str], frozenset[str]]] = {}


def _mentioned(node: ast.ClassDef, instance: bool) -> frozenset[str]:
    """Return the names that a class body may give to its instances, or to itself, in ways that are not followed."""
    known = _MENTIONED.get(id(node))
    if known is None or known[0] is not node:
        stored: set[str] = set()
        spelled: set[str] = set()
        for child in walk(node):
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
                stored.add(child.attr)
            elif isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier():
                spelled.add(child.value)
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                stored.add(child.target.id)
        known = (node, frozenset(stored | spelled), frozenset(spelled))
        _MENTIONED[id(node)] = known
    return known[1] if instance else known[2]


_SELF: dict[int, tuple[ast.ClassDef, dict[str, set[int]], set[str]]] = {}


def _self_uses(node: ast.ClassDef) -> tuple[ast.ClassDef, dict[str, set[int]], set[str]]:
    known = _SELF.get(id(node))
    if known is None or known[0] is not node:
        known = _SELF[id(node)] = (node, {}, set())
        for child in walk(node):
            if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id == "self":
                if isinstance(child.ctx, ast.Store):
                    known[1].setdefault(child.attr, set()).add(child.lineno)
                else:
                    known[2].add(child.attr)
    return known


def store_lines(node: ast.ClassDef) -> dict[str, set[int]]:
    """Return the lines of a class at which `self.name` is assigned, by name."""
    return _self_uses(node)[1]


def self_reads(node: ast.ClassDef) -> set[str]:
    """Return the names that a class reads as `self.name`."""
    return _self_uses(node)[2]


def is_property(function: Function) -> bool:
    """Return whether reading the attribute calls the function."""
    for decorator in function.decorators:
        text = dotted(decorator) or ""
        if text.rpartition(".")[2] in PROPERTIES or text.endswith((".setter", ".getter", ".deleter")):
            return True
    return False


def is_static(function: Function) -> bool:
    """Return whether the method takes neither instance nor class."""
    names = {(dotted(item) or "").rpartition(".")[2] for item in function.decorators}
    return "staticmethod" in names or function.qualname.endswith("__new__")


def is_class_method(function: Function) -> bool:
    """Return whether the method takes the class first."""
    return any((dotted(item) or "").rpartition(".")[2] == "classmethod" for item in function.decorators)


def dotted(node: ast.AST) -> str | None:
    """Return `a.b.c` for a chain of names, the callee's chain for a call, None for anything else."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def function_signature(program: Program, function: Function) -> Signature | None:
    """Return the signature that callers see; None where a decorator may have changed it."""
    signature = signature_of(function.node)
    also: frozenset[str] = frozenset()
    for decorator in reversed(function.decorators):
        text = dotted(decorator)
        if text is None:
            return None
        last = text.rpartition(".")[2]
        if last in PRESERVING or last in PROPERTIES or last in ("setter", "getter"):
            continue
        wrappers = _wrappers(program, function, decorator, text)
        if wrappers is None:
            return None
        if any(isinstance(item, Signature) for item in wrappers):
            if len(wrappers) > 1:
                return None
            signature, also = cast("Signature", wrappers[0]), frozenset()
        else:
            also = also.union(*cast("list[frozenset[str]]", wrappers))
    return Signature(signature.parameters, signature.var_positional, signature.var_keyword, also, signature.text)


def _wrappers(
    program: Program, function: Function, decorator: ast.expr, text: str
) -> list[Signature | frozenset[str]] | None:
    """Return what each possible value of a decorator does: see `_wrapper`; None where one is not understood."""
    record = program.record(function.module)
    head, _, rest = text.partition(".")
    value: Value | None = record.namespace.get(head) if record is not None else None
    if value is None:
        return None
    found: list[Signature | frozenset[str]] = []
    for item in alternatives(program.force(value)):
        wrapper = _wrapper(item, decorator, rest)
        if wrapper is None:
            return None
        found.append(wrapper)
    return found


def _wrapper(value: Value, decorator: ast.expr, rest: str) -> Signature | frozenset[str] | None:
    """Return the signature of the function that a decorator puts in place of the decorated one.

    For a wrapper that passes `*args, **kwargs` on, these are the keywords that it may take for itself. None where the
    decorator is not understood.
    """
    if isinstance(value, External):
        known = value.name.startswith(("torch.", "functools.", "contextlib.", "abc.", "typing"))
        return frozenset() if known else None
    if not isinstance(value, Function) or rest or isinstance(value.node, ast.Lambda):
        return None
    factory = isinstance(decorator, ast.Call)
    explicit = _returned_function(value.node)
    if factory and explicit is not None:
        explicit = _returned_function(explicit)
    if explicit is not None and explicit.args.vararg is None and explicit.args.kwarg is None and explicit.args.args:
        return signature_of(explicit)
    for inner in walk(value.node):
        if not isinstance(inner, ast.FunctionDef) or inner is value.node:
            continue
        if inner.args.vararg is not None and inner.args.kwarg is not None:
            named = {item.arg for item in [*inner.args.args, *inner.args.kwonlyargs]}
            taken = named - {"self", "func", "fn", "function", "cls"}
            return frozenset(_strings(value.node) | _strings(decorator) | taken)
    returned = {
        node.value.id for node in walk(value.node) if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
    }
    first = value.node.args.args[0].arg if value.node.args.args else ""
    return frozenset() if first in returned or _returns_identity(value.node) else None


def _returned_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef | None:
    """Return the only inner function that a function returns; None where it may return something else."""
    names = [item.value for item in _own_nodes(node) if isinstance(item, ast.Return)]
    inner = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    if len(names) != 1 or not isinstance(names[0], ast.Name):
        return None
    return inner.get(names[0].id)


def _returns_identity(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator factory has an inner function that returns its only argument."""
    for inner in walk(node):
        if isinstance(inner, ast.FunctionDef) and inner is not node and len(inner.args.args) == 1:
            name = inner.args.args[0].arg
            for child in walk(inner):
                if isinstance(child, ast.Return) and isinstance(child.value, ast.Name) and child.value.id == name:
                    return True
    return False


def _strings(node: ast.AST) -> set[str]:
    return {
        child.value for child in walk(node)
        if isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier()
    }  # fmt: skip


def constructor(program: Program, info: ClassInfo) -> tuple[Function | None, Signature | None]:
    """Return what `Class(...)` calls and its signature without `self`; the signature is None where it is unknown."""
    order, closed, _ = lineage(program, info)
    for item in order:
        if item.dynamic or any(keyword.arg == "metaclass" for keyword in item.node.keywords):
            return None, None
    for item in order:
        fields = _dataclass_fields(item)
        if fields is not None and "__init__" not in item.attributes:
            inherited = any(_dataclass_fields(other) is not None for other in order if other is not item)
            known = closed and not inherited
            return None, from_fields(fields, f"{item.qualname}(...)") if known else None
        for name in ("__init__", "__new__"):
            if name in item.patched:
                return None, None
            value = item.attributes.get(name)
            if isinstance(value, Function):
                if name == "__init__" and any("__new__" in other.attributes for other in order):
                    return None, None
                signature = function_signature(program, value)
                return value, signature.without_first() if signature is not None else None
            if value is not None:
                return None, None
    return None, None


def _dataclass_fields(info: ClassInfo) -> list[tuple[str, bool]] | None:
    """Return (name, required) of a plain dataclass's fields; None for any other class."""
    for decorator in info.node.decorator_list:
        if (dotted(decorator) or "").rpartition(".")[2] == "dataclass":
            return [
                (item.target.id, item.value is None) for item in info.node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                and "ClassVar" not in ast.unparse(item.annotation)
            ]  # fmt: skip
    return None


def call_method(program: Program, info: ClassInfo) -> Bound | Function | None:
    """Return the method that calling an instance runs: `__call__`, or `forward` of a torch module."""
    found = class_attribute(program, info, "__call__")
    if found is None:
        _, _, torch_module = lineage(program, info)
        found = class_attribute(program, info, "forward") if torch_module else None
    return found if isinstance(found, Function) else None


def return_lengths(function: Function) -> frozenset[int]:
    """Return the possible lengths of the tuple that a function returns; empty where one return is not a tuple."""
    if isinstance(function.node, ast.Lambda):
        return frozenset()
    if any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in _own_nodes(function.node)):
        return frozenset()
    lengths: set[int] = set()
    returned = False
    for node in _own_nodes(function.node):
        if isinstance(node, ast.Return):
            returned = True
            found = _lengths(node.value, function.node)
            if not found:
                return frozenset()
            lengths |= found
    return frozenset(lengths) if returned else frozenset()


def _lengths(node: ast.expr | None, function: ast.AST) -> set[int]:
    if isinstance(node, ast.Tuple) and not any(isinstance(item, ast.Starred) for item in node.elts):
        return {len(node.elts)}
    if isinstance(node, ast.IfExp):
        body, other = _lengths(node.body, function), _lengths(node.orelse, function)
        return body | other if body and other else set()
    if isinstance(node, ast.Name):
        assigned = [
            child for child in _own_nodes(function)
            if isinstance(child, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and _binds(child, node.id)
        ]  # fmt: skip
        if len(assigned) == 1 and isinstance(assigned[0], ast.Assign) and isinstance(assigned[0].targets[0], ast.Name):
            value = assigned[0].value
            return _lengths(value, function) if isinstance(value, (ast.Tuple, ast.IfExp)) else set()
    return set()


def _binds(node: ast.Assign | ast.AugAssign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(child, ast.Name) and child.id == name for target in targets for child in walk(target))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes inside it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        yield child
        yield from _own_nodes(child)
