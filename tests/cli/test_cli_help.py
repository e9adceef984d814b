"""Help, word for word: ``UPDATE_GOLDEN=1 pytest tests/cli`` rewrites the stored texts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hydractl.cli.help import APP_EXAMPLES, INFO_EXAMPLES, verb_help
from hydractl.criteria import CRITERIA
from hydractl.data.corruptions import TABLE
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.options.registry import VERBS
from hydractl.options.verbs import options_of_verb
from hydractl.options.yaml_files import recipe_names

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {"hydractl": [], "info": ["--info"], **{name: [name] for name in VERBS}}
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))


SHORT = [f"{name}.short" for name in VERBS]


@pytest.mark.parametrize("name", [*COMMANDS, *SHORT])
def test_golden(name: str, hydractl: Callable[..., Any]) -> None:
    command, _, short = name.partition(".")
    result = hydractl(*COMMANDS[command], "-h" if short else "--help")
    file = GOLDEN / f"{name}.txt"
    if UPDATE:
        file.write_text(result.out, encoding="utf-8")
    assert (result.code, result.err) == (0, "")
    assert result.out == file.read_text(encoding="utf-8")
    if command not in VERBS:  # these have no more to say
        assert hydractl(*COMMANDS[command], "-h").out == result.out


def test_no_stored_text_is_left_over() -> None:
    assert sorted(f.name for f in GOLDEN.iterdir()) == sorted(f"{name}.txt" for name in [*COMMANDS, *SHORT])


@pytest.mark.parametrize("columns", [80, 100])
def test_the_short_help_fits_a_screen(columns: int) -> None:
    for name in VERBS:
        lines = verb_help(name, columns, short=True).splitlines()
        assert len(lines) <= 40 and lines[-1] == f"all options: hydractl {name} --help"
        assert sum(option.often for option in options_of_verb(name)) <= 14
        assert sum(option.often for option in options_of_verb(name)) >= 6
        assert max(map(len, lines[: lines.index("Examples:")])) <= columns


def test_options_without_effect_are_not_there(hydractl: Callable[..., Any], fake_verb: Callable[..., Any]) -> None:
    result = hydractl("bench", "a.st", "--tower", "text")
    assert result.code == 2 and "no such option: --tower" in result.err
    fake_verb("bench")
    Path("hydra.yaml").write_text("model: a.st\ndata: d.npz")  # meant for the other verbs
    assert hydractl("bench").code == 0


def test_help_wins_over_mistakes(hydractl: Callable[..., Any]) -> None:
    assert hydractl("prune", "--keep", "x", "--help").code == 0


@pytest.mark.parametrize("columns", [20, 60, 100, 500])
def test_lines_fit(columns: int) -> None:
    for name in VERBS:
        text = verb_help(name, columns).split("Examples:")[0]
        assert max(map(len, text.splitlines())) <= max(60, min(columns, 100))


def examples() -> list[str]:
    lines = "".join([APP_EXAMPLES, INFO_EXAMPLES, *(verb.examples for verb in VERBS.values())]).splitlines()
    return [part for line in lines if line.startswith("  hydractl") for part in line.strip().split(" | ")]


def test_examples_are_valid(hydractl: Callable[..., Any], fake_verb: Callable[..., Any], fake_info: None) -> None:
    """Each example parses and passes every check that needs no file."""
    Path("hydra.yaml").write_text("model: vit.st\ndata: d.npz")
    wrong = []
    for command in examples():
        program, verb, *rest = shlex.split(command)
        assert program == "hydractl"
        if verb == "--info":
            assert rest[0] in hydractl(verb, *rest).out
            continue
        seen = fake_verb(verb)
        result = hydractl(verb, *rest)
        if (result.code, len(seen)) != (0, 1):
            wrong.append((command, result.err))
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "position", "completed"),
    [
        ("hydractl pru", 1, "prune"),
        ("hydractl prune --circ", 2, "--circuit"),
        ("hydractl prune --method ta", 3, "taylor"),
    ],
)
def test_the_shell_completes(
    words: str, position: int, completed: str, hydractl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_HYDRACTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(position))
    result = hydractl()
    assert (result.code, result.out.split(), result.err) == (0, [completed], "")


def test_completion_is_shown(hydractl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Typer looks for a shell among the parents of the process, which tests may not have.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = hydractl("--show-completion", "bash")
    assert result.code == 0 and "_HYDRACTL_COMPLETE=complete_bash" in result.out


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("eval", [*SCORES, *FEATURE_SCORES, *TABLE]),
        ("prune", CRITERIA.names),
        ("finetune", recipe_names()),
    ],
)
def test_whatever_can_be_chosen_is_named(verb: str, names: Sequence[str]) -> None:
    words = set(re.findall(r"[\w-]+", verb_help(verb, 100)))
    assert set(names) <= words
