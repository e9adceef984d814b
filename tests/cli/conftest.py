"""The command line in this process, with a clean environment, a working directory of its own and fake verbs."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hydractl.cli.app import main
from hydractl.errors import InputError
from hydractl.options.call import Call
from hydractl.options.registry import engine_of
from hydractl.verbs.outcome import Outcome
from tests.answers import AnyAnswer, result_of


@dataclass
class Result:
    """Exit code, standard output and standard error of one command."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def clean_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the developer's shell, no hydra.yaml of the repository."""
    for name in list(os.environ):
        if name.startswith("HYDRACTL_") or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hydractl(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    """``hydractl("prune", "a.st", ...)``."""

    def call(*arguments: str) -> Result:
        capfdbinary.readouterr()
        code = main(arguments)
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode("utf-8"), err.decode("utf-8"))

    return call


@pytest.fixture
def fake_verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """``fake_verb("prune", run)`` puts ``run(settings, log)`` in the place of a verb; without it, one that answers.

    Returns the list that will hold the settings of each call.
    """

    def install(verb: str, run: Callable[..., Any] | None = None) -> list[Any]:
        seen: list[Any] = []

        def record(call: Call, *_: Any) -> Outcome:
            seen.append(SimpleNamespace(**call.values, sources=call.sources))
            return (
                run(seen[-1], call.log) if run is not None else Outcome(result_of({"schema": "test/1", "answer": 42}))
            )

        module = types.ModuleType(engine_of(verb))
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.run = record  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, engine_of(verb), module)
        return seen

    return install


@pytest.fixture
def fake_info(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--info`` describes a file by its name; a name that starts with ``bad`` is refused."""

    def describe(path: Path) -> AnyAnswer:
        if str(path).startswith("bad"):
            raise InputError(f"{path} is bad")
        return AnyAnswer(file=str(path))  # type: ignore[call-arg]

    monkeypatch.setattr("hydractl.verbs.info.describe", describe)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``terminal("stdout", "stderr")``: these streams are terminals."""

    def make(*names: str) -> None:
        monkeypatch.setenv("TERM", "xterm-256color")
        for name in names:
            monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)

    return make
