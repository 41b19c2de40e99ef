"""Groups of options that commands share: a command has one parameter for all options of a group."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Command = Callable[..., int]


class OptionGroup(NamedTuple):
    """The options behind one parameter: name -> annotation and default, and what makes them one value."""

    options: Mapping[str, tuple[Any, Any]]
    build: Callable[..., Any]  # called with the values by name


def takes(parameter: str, group: OptionGroup) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of a group in place of its `parameter`."""
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in group.options.items()
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            values = {name: given.pop(name) for name in group.options}
            return command(**{parameter: group.build(**values)}, **given)

        parameters: list[inspect.Parameter] = []
        for name, own in inspect.signature(command, eval_str=True).parameters.items():
            kept = own.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += added if name == parameter else [kept]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        return run

    return decorate
