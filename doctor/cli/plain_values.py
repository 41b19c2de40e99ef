"""Options whose values are plain text are converted here: newer releases of typer import pydantic for every option.

That import takes a fifth of a check. Numbers and other values that are not plain text are left to typer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

Convert = Callable[[Any], Any]


class _IsNotPlain(Exception):
    """Typer converts or refuses this value."""


def convert_plain_values(command: Any) -> None:
    """Let the options and arguments of a command, or of the commands of a group, convert plain values themselves."""
    for inner in getattr(command, "commands", {}).values():
        convert_plain_values(inner)
    if command.callback is None:
        return
    stated = inspect.signature(command.callback, eval_str=True).parameters
    for parameter in command.params:
        _convert(parameter, _converter(stated[parameter.name].annotation) if parameter.name in stated else _nothing)
    command.get_help_option = functools.partial(_help_option, command.get_help_option)


def _help_option(of_command: Callable[[Any], Any], ctx: Any) -> Any:
    option = of_command(ctx)
    if option is not None:
        _convert(option, _nothing)
    return option


def _convert(parameter: Any, convert: Convert) -> None:
    if not parameter.required and "process_value" not in vars(parameter):
        parameter.process_value = functools.partial(_processed, parameter, convert, parameter.process_value)


def _processed(parameter: Any, convert: Convert, by_typer: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    try:
        found = convert(value)
    except _IsNotPlain:
        return by_typer(ctx, value)
    return found if parameter.callback is None else parameter.callback(ctx, parameter, found)


def _converter(annotation: Any) -> Convert:
    """Return what converts values of an option with this annotation."""
    stated, *described = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    kinds = [kind for kind in _alternatives(stated) if kind is not type(None)]
    if len(kinds) != 1:
        return _nothing
    parser = next((item.parser for item in described if getattr(item, "parser", None) is not None), None)
    if get_origin(kinds[0]) is list:
        return functools.partial(_several, _of_one(get_args(kinds[0])[0], parser))
    return functools.partial(_single, _of_one(kinds[0], parser))


def _alternatives(stated: Any) -> Iterator[Any]:
    if get_origin(stated) in (None, list, Literal):
        yield stated
    else:  # a union
        yield from get_args(stated)


def _of_one(kind: Any, parser: Convert | None) -> Convert:
    if parser is not None:
        return parser
    if kind is str:
        return _text
    return functools.partial(_choice, get_args(kind)) if get_origin(kind) is Literal else _nothing


def _nothing(value: Any) -> None:
    """Convert a value that is not given."""
    if value is not None:
        raise _IsNotPlain


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _IsNotPlain
    return value


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, choices))}")
    return value


def _single(convert: Convert, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, (str, float)):
        raise _IsNotPlain
    return convert(value)


def _several(convert: Convert, value: Any) -> Any:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise _IsNotPlain
    return [convert(item) for item in value]
