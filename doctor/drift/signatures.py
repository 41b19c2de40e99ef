"""Signatures as written in the source, and whether a call fits one."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .findings import Kind


@dataclass(frozen=True)
class Parameter:
    """One parameter; `keyword_only` and `positional_only` exclude each other."""

    name: str
    required: bool
    positional_only: bool = False
    keyword_only: bool = False


@dataclass(frozen=True)
class Signature:
    """The parameters of a callable."""

    parameters: tuple[Parameter, ...]
    var_positional: bool = False
    var_keyword: bool = False
    also_accepted: frozenset[str] = frozenset()
    """Keywords that a decorator takes before the function sees the call."""
    text: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all parameters."""
        return frozenset(item.name for item in self.parameters)

    def without_first(self) -> Signature:
        """Return the signature of the bound method."""
        first = next((index for index, item in enumerate(self.parameters) if not item.keyword_only), None)
        if first is None:
            return self
        rest = self.parameters[:first] + self.parameters[first + 1 :]
        return Signature(rest, self.var_positional, self.var_keyword, self.also_accepted, self.text)

    def accepts(self, keyword: str) -> bool:
        """Return whether a keyword may be passed."""
        if self.var_keyword or keyword in self.also_accepted:
            return True
        return any(item.name == keyword and not item.positional_only for item in self.parameters)


@dataclass(frozen=True)
class Arguments:
    """A call as far as it is known: `star` and `open` mean that more may be passed."""

    positional: int
    star: bool = False
    keywords: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    open: bool = False


@dataclass(frozen=True)
class Misfit:
    """Why a call does not fit a signature."""

    kind: Kind
    name: str
    message: str


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Signature:
    """Read the signature of a function."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    with_default = len(arguments.defaults)
    parameters = [
        Parameter(item.arg, index < len(plain) - with_default, index < len(arguments.posonlyargs))
        for index, item in enumerate(plain)
    ]
    parameters += [
        Parameter(item.arg, default is None, keyword_only=True)
        for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    name = "" if isinstance(node, ast.Lambda) else node.name
    return Signature(
        tuple(parameters), arguments.vararg is not None, arguments.kwarg is not None, frozenset(),
        f"{name}({_written(arguments)})",
    )  # fmt: skip


def _written(arguments: ast.arguments) -> str:
    """Write parameters and defaults without annotations, which fill a screen."""
    parts: list[str] = []
    plain = [*arguments.posonlyargs, *arguments.args]
    padding: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    for index, (item, default) in enumerate(zip(plain, [*padding, *arguments.defaults], strict=True)):
        parts.append(item.arg if default is None else f"{item.arg}={ast.unparse(default)}")
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1:
            parts.append("/")
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(item.arg if default is None else f"{item.arg}={ast.unparse(default)}")
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    return ", ".join(parts)


def from_fields(fields: list[tuple[str, bool]], text: str) -> Signature:
    """Make the signature of a dataclass from (name, required) pairs."""
    return Signature(tuple(Parameter(name, required) for name, required in fields), text=text)


def misfits(signature: Signature, call: Arguments) -> list[Misfit]:
    """Return every reason why a call is refused; an empty list means that it binds or may bind."""
    found: list[Misfit] = []
    positional = [item for item in signature.parameters if not item.keyword_only]
    if not call.star and not signature.var_positional and call.positional > len(positional):
        count = len(positional)
        message = f"takes {count} positional argument{'s' * (count != 1)}, {call.positional} are passed"
        found.append(Misfit(Kind.TOO_MANY_POSITIONALS, "", message))
    filled = {item.name for item in positional[: call.positional]}
    for keyword in sorted(call.keywords):
        taken = next((item for item in positional if item.name == keyword and not item.positional_only), None)
        if taken is not None and keyword in filled:
            found.append(Misfit(Kind.DUPLICATE_ARGUMENT, keyword, f"multiple values for argument `{keyword}`"))
        elif not signature.accepts(keyword):
            found.append(Misfit(Kind.UNEXPECTED_KEYWORD, keyword, f"unexpected keyword argument `{keyword}`"))
    if call.open:
        return found
    passed = filled | call.keywords | call.optional
    for item in signature.parameters:
        if not item.required or item.name in passed:
            continue
        if call.star and not item.keyword_only:
            continue
        if signature.also_accepted:
            continue  # a decorator may fill it from the keyword that it takes
        found.append(Misfit(Kind.MISSING_ARGUMENT, item.name, f"missing required argument `{item.name}`"))
    return found
