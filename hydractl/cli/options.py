"""Typer commands made from the declarations of the options.

Typer splits the command line and knows which options there are; every value stays text (None: not given), to be read
by the same parser as the environment and ``hydra.yaml``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from hydractl.cli.verbs import INFO, Request
from hydractl.settings.option import Option, options_of
from hydractl.settings.verbs import SETTINGS


def request_function(verb: str, help_option: Any) -> Callable[..., Request]:
    """A function with one parameter for each option of a verb, which Typer turns into a command."""
    parameters = [_parameter(one) for one in options_of(SETTINGS[verb])]
    return _function(verb, [*parameters, _keyword("help", bool, help_option)])


def info_function(help_option: Any) -> Callable[..., Request]:
    """The same for ``--info``."""
    files = _keyword("files", list[str] | None, typer.Argument(None, show_default=False))
    json = _keyword("json", bool | None, typer.Option(None, "--json"))
    return _function(INFO, [files, json, _keyword("help", bool, help_option)])


def _function(verb: str, parameters: list[inspect.Parameter]) -> Callable[..., Request]:
    def request(**given: Any) -> Request:
        given.pop("help")
        return Request(verb, given)

    request.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    request.__annotations__ = {p.name: p.annotation for p in parameters}
    return request


def _parameter(one: Option) -> inspect.Parameter:
    if one.name == "model":
        return _keyword(one.name, list[str] | None, typer.Argument(None, show_default=False))
    long = f"{one.flag}/--no-{one.flag[2:]}" if one.type is bool else one.flag
    flags = [long, one.short] if one.short else [long]
    annotation = bool | None if one.type is bool else list[str] | None if one.many else str | None
    choices = list(one.choices)
    return _keyword(one.name, annotation, typer.Option(None, *flags, autocompletion=lambda: choices))


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
