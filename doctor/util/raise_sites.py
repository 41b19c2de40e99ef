"""What the source of a Python file raises: message, function, and the condition that leads there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .redact import shortened

HOLE = "\0"  # in a template: before and after the expression of a formatted part
LONGEST = 260  # characters of a template that are kept
LONGEST_GUARD = 160


@dataclass(frozen=True)
class Site:
    """One place that raises."""

    template: str  # the message
    function: str  # with its class
    guard: str  # the condition, as source; empty where there is none
    first: int  # lines
    last: int

    @property
    def fixed(self) -> int:
        """Return how many characters of the message are fixed."""
        return len(re.sub(f"{HOLE}[^{HOLE}]*{HOLE}", "", self.template).strip())


def raised_in(content: bytes) -> Iterator[Site]:
    """Yield what a file raises; nothing for a file that Python cannot read."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from _walk(tree.body, "", ())


def _walk(body: Iterable[ast.stmt], function: str, guards: tuple[str, ...]) -> Iterator[Site]:
    for item in body:
        match item:
            case ast.FunctionDef(name=name, body=inner) | ast.AsyncFunctionDef(name=name, body=inner):
                yield from _walk(inner, f"{function}.{name}" if function else name, ())
            case ast.ClassDef(name=name, body=inner):
                yield from _walk(inner, name, ())
            case ast.If(test=test, body=first, orelse=other):
                yield from _walk(first, function, (*guards, shown(test)))
                yield from _walk(other, function, (*guards, negated(test)))
            case ast.Raise(exc=ast.Call(args=[message, *_])):
                yield _made(item, template_of(message), function, guards)
            case ast.Raise(exc=error) if error is not None:
                yield _made(item, _hole(error), function, guards)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[*_, test, ast.Lambda(body=message)])) if (
                name.startswith("_check")
            ):
                yield _made(item, template_of(message), function, (*guards, negated(test)))
            case ast.Assert(test=test, msg=message):
                text = template_of(message) if message is not None else ""
                yield _made(item, text, function, (*guards, negated(test)))
            case ast.Try(body=first, orelse=other, handlers=handlers, finalbody=last):
                for part in (first, other, last):
                    yield from _walk(part, function, guards)
                for handler in handlers:
                    caught = f"{ast.unparse(handler.type)} was raised" if handler.type else "anything was raised"
                    yield from _walk(handler.body, function, (*guards, caught))
            case ast.With(body=inner) | ast.AsyncWith(body=inner):
                yield from _walk(inner, function, guards)
            case ast.For(body=inner, orelse=other) | ast.While(body=inner, orelse=other):
                yield from _walk([*inner, *other], function, guards)
            case ast.Match(subject=subject, cases=cases):
                for case in cases:
                    guard = f"{ast.unparse(subject)} is {ast.unparse(case.pattern)}"
                    yield from _walk(case.body, function, (*guards, guard))
            case _:
                pass


def _made(item: ast.stmt, template: str, function: str, guards: tuple[str, ...]) -> Site:
    both = " and ".join(guards[-2:])
    guard = both if len(both) <= LONGEST_GUARD else guards[-1]
    kept = template[:LONGEST]
    kept = kept[: kept.rfind(HOLE)] if kept.count(HOLE) % 2 else kept
    return Site(kept, function, guard[:LONGEST_GUARD], item.lineno, item.end_lineno or item.lineno)


def _hole(node: ast.expr) -> str:
    """Return the place of a part that only a run knows, with the start of its code."""
    return f"{HOLE}{shortened(shown(node), 60, '')}{HOLE}"


def template_of(message: ast.expr) -> str:
    """Return the text of a message, with the expressions of formatted parts between marks."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(template_of(value) for value in values)
        case ast.FormattedValue(value=value):
            return _hole(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template_of(left) + template_of(right)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return re.sub(r"%[-#0 +]*\d*(?:\.\d+)?[srdifgxe]", f"{HOLE}{HOLE}", text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.sub(r"\{(\w*)[^{}]*\}", lambda found: f"{HOLE}{found[1]}{HOLE}", text)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(joint)), attr="join"), args=[ast.List(elts=parts)]
        ):
            return joint.join(template_of(part) for part in parts)
        case ast.Tuple(elts=[first, *_]):
            return template_of(first)
        case _:
            return _hole(message)


def shown(test: ast.expr) -> str:
    """Return the source of an expression."""
    return re.sub(r"\s+", " ", ast.unparse(test))


def negated(test: ast.expr) -> str:
    """Return the source of the opposite of a condition."""
    opposite = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">", ast.In: "not in",
                ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return shown(operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in opposite:
            return f"{shown(left)} {opposite[type(op)]} {shown(right)}"
        case ast.BoolOp(op=ast.And(), values=values):
            return " or ".join(negated(value) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return " and ".join(negated(value) for value in values)
        case ast.Name() | ast.Attribute() | ast.Call():
            return f"not {shown(test)}"
        case _:
            return f"not ({shown(test)})"
