"""The decorator that makes a verb of a typed function: a command of the command line, and the function of a program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from hydractl.options.signature import OF_A_TERMINAL, Declared

P = ParamSpec("P")
R = TypeVar("R")


def verb(name: str, **facts: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a function a verb: a command, e.g. ``hydractl prune``, and a function of Python.

    The decorated function gets the value of each option, read and checked. The command line reads the flags; in Python
    the wrapper below has :mod:`hydractl.api.door` read the plain arguments.

    Args:
        name: the verb on the command line.
        facts: further attributes of :class:`hydractl.options.signature.Declared`.
    """

    # The decorator: it returns a function of Python that reads the arguments, and tells of the options.
    def declare(function: Callable[P, R]) -> Callable[P, R]:
        declared = Declared(name, function, **facts)

        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            door = import_module("hydractl.api.door")  # heavy, and of no use to the command line
            return door.call(declared, arguments, keywords)

        # The command line reads ``declared``; help() and editors show the signature and the docstring.
        call.declared = declared  # type: ignore[attr-defined]
        call.__signature__ = declared.plain_signature()  # type: ignore[attr-defined]
        call.__doc__ = _with_options(inspect.cleandoc(function.__doc__ or ""), declared)
        return call

    return declare


def _with_options(docstring: str, declared: Declared) -> str:
    """Return the docstring of a verb's function with a line ``name: help`` for each option in its section ``Args:``.

    An option that the docstring describes itself keeps its own line. A section that is missing is put before
    ``Returns:``, or at the end.
    """
    lines = []
    for option in declared.options:
        name = option.name
        if option is declared.model:  # its parameter may have another name, such as ``models``
            name = declared.model_parameter
        if name not in OF_A_TERMINAL and f"\n    {name}: " not in docstring:
            lines.append(f"    {name}: {option.described()}")
    described = "\n".join(lines)
    if "Args:\n" in docstring:
        return docstring.replace("Args:\n", f"Args:\n{described}\n", 1)
    head, returns, tail = docstring.partition("Returns:\n")
    return f"{head}Args:\n{described}\n\n{returns}{tail}"
