"""A further verb is one file and one line: the example of docs/way-of-a-command.md, run through both doors."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hydractl as package
from hydractl.errors import UsageError
from hydractl.options.registry import VERBS, Verb

PAGE = Path(__file__).resolve().parents[2] / "docs" / "way-of-a-command.md"
(FILE, LINE) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the page as a module, and its line in the table of verbs."""
    module = types.ModuleType("hydractl.api.echo")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(FILE, "echo.py", "exec"), vars(module))
    line: dict[str, Verb] = eval(f"{{{LINE}}}", {"Verb": Verb})
    for name, verb in line.items():
        monkeypatch.setitem(VERBS, name, verb)


def test_it_runs(hydractl: Callable[..., Any]) -> None:
    result = hydractl("echo", "a.st", "--times", "2")
    assert (result.code, result.out, result.err) == (0, "schema: hydractl.echo/1\nsaid: a.st a.st\n", "")
    assert json.loads(hydractl("echo", "a.st", "--json").out) == {"schema": "hydractl.echo/1", "said": "a.st"}


def test_its_options_come_from_everywhere(hydractl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hydra.yaml").write_text("model: b.st\necho: {times: 3}")
    assert hydractl("echo").out.endswith("said: b.st b.st b.st\n")
    monkeypatch.setenv("HYDRACTL_TIMES", "1")
    assert hydractl("echo").out.endswith("said: b.st\n")


def test_its_help(hydractl: Callable[..., Any]) -> None:
    assert re.search(r"\n  echo +Say the MODEL again\n", hydractl("--help").out)
    text = hydractl("echo", "--help").out
    assert text.startswith("Usage: hydractl echo MODEL [options]\n\nSay the MODEL again.\n")
    assert re.search(r"\n +--times N +How often it is said \[default: 1\]\n", text)
    assert "Examples:" not in text and "--times" in hydractl("echo", "-h").out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("echo a.st --times 0", "--times must be at least 1, not 0 (flag)"),
        ("echo a.st --tims 2", "no such option: --tims; did you mean --times?"),
        ("ech a.st", "no such verb: ech; did you mean echo?"),
        ("prune a.st --times 2", "no such option: --times; see hydractl echo"),
    ],
)
def test_its_mistakes(words: str, error: str, hydractl: Callable[..., Any]) -> None:
    assert hydractl(*words.split()).err.startswith(f"error: {error}\n")


def test_its_function() -> None:
    assert package.echo("a.st", times=2).said == "a.st a.st"
    assert "times: How often it is said" in (package.echo.__doc__ or "")
    with pytest.raises(UsageError, match="times must be at least 1, not 0"):
        package.echo("a.st", times=0)
