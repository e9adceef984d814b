"""What is said to whoever writes an option or a verb that there is not: one case for each kind of suggestion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hydractl
from hydractl.cli.app import main
from hydractl.errors import UsageError
from hydractl.options.sources import unknown_variables


@pytest.mark.parametrize(
    ("verb", "flag", "said"),
    [
        ("finetune", "--warmup", "; did you mean warmup in a recipe or hydra.yaml?"),
        ("eval", "--html", "; see hydractl report"),
        ("eval", "--budget", "; see hydractl extract-circuit"),
        ("bench", "--keep", "; see hydractl score, extract-circuit or prune"),
        ("bench", "--tower", "; see hydractl score, extract-circuit, prune and others"),
        ("prune", "--meth", "; did you mean --method?"),
        ("prune", "--batchsize", "; did you mean --batch-size?"),
        ("prune", "--max-accuracy-drop", "; did you mean --max-drop?"),
        ("prune", "--keepers", "; did you mean --keep?"),
        ("prune", "--kep", "; did you mean --keep?"),
        ("finetune", "--no-forc", "; did you mean --force?"),
        ("prune", "--hepl", "; did you mean --help?"),
        ("--info", "--jsn", "; did you mean --json?"),
        (None, "--versoin", "; did you mean --version?"),
        (None, "--keep", ""),
        (None, "evaluate", "; did you mean eval?"),
        (None, "circuit", "; did you mean extract-circuit?"),
        (None, "prnue", "; did you mean prune?"),
        (None, "info", "; did you mean --info?"),
        (None, "a.st", ""),
        ("prune", "-x", ""),
        ("prune", "--zzz", ""),
    ],
)
def test_words_of_a_command_line(verb: str | None, flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word for word in (verb, flag) if word is not None]) == 2
    kind = "option" if flag.startswith("-") else "verb"
    of_verb = f" {verb}" if verb else ""
    assert capsys.readouterr().err == f"error: no such {kind}: {flag}{said}\nhint: hydractl{of_verb} --help\n"


def test_variables() -> None:
    (line,) = unknown_variables({"HYDRACTL_SEDE": "1", "HYDRACTL_DEBUG": "1", "HYDRACTL_CONFIG": "x", "OTHER": ""})
    assert line.endswith("HYDRACTL_SEDE is not read by hydractl; did you mean HYDRACTL_SEED?")
    (line,) = unknown_variables({"HYDRACTL_FORC": "1"})  # no variable sets --force
    assert "HYDRACTL_FORCE" not in line


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (hydractl.prune, {"methd": "x"}, "prune() got an unexpected keyword argument 'methd'; did you mean 'method'?"),
        (
            hydractl.prune,
            {"wiht": "x"},
            "prune() got an unexpected keyword argument 'wiht'; did you mean 'with_mask'?",
        ),
        (
            hydractl.evaluate,
            {"objective": "x"},
            "evaluate() got an unexpected keyword argument 'objective'; see hydractl extract-circuit",
        ),
        (
            hydractl.bench,
            {"keep": 2},
            "bench() got an unexpected keyword argument 'keep'; see hydractl score, extract-circuit or prune",
        ),
        (hydractl.prune, {"quiet": True}, "prune() got an unexpected keyword argument 'quiet'"),
    ],
)
def test_arguments_of_python(call: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call("vit.st", **arguments)
    assert caught.value.message == message
