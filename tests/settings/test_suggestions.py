"""What is said to whoever writes an option or a verb that there is not: one case for each kind of suggestion."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hydractl
from hydractl.cli.app import main
from hydractl.errors import UsageError
from hydractl.settings.registry import GONE_VERBS
from hydractl.settings.sources import merge, unknown_variables
from hydractl.settings.suggestions import (
    COMMAND_LINE,
    RENAMED,
    SYNONYMS,
    VERB_SYNONYMS,
    about_option,
    about_word,
    is_current,
    nearest,
)
from hydractl.settings.verbs import SETTINGS

NAMES = ["keep", "remove", "method", "samples", "sample-from", "max-drop", "batch-size", "output", "quiet", "val"]


@pytest.mark.parametrize(
    ("verb", "flag", "said"),
    [
        ("study", "--budget", "; it is --time now"),
        ("study", "--data", "; it is --train now"),
        ("eval", "--fit", "; it is --train now"),
        ("finetune", "--members", "; it is --ensemble deep:M now"),
        ("eval", "--report", "; it is --html of hydractl report now"),
        ("eval", "--from", "; it is an argument of hydractl report now"),
        ("eval", "--note", "; it is --note of hydractl calibrate now"),
        ("eval", "--card", "; it is --card of hydractl report now"),
        ("finetune", "--warmup", "; it is a key of a recipe or hydra.yaml"),
        ("eval", "--html", "; see hydractl report"),
        ("extract-circuit", "--max-cost", "; it is gone: docs/numbers/joint-circuits.md shows that it did not help"),
        ("eval", "--budget", "; see hydractl extract-circuit"),
        ("bench", "--keep", "; see hydractl score, extract-circuit or prune"),
        ("bench", "--tower", "; see hydractl score, extract-circuit, prune and others"),
        ("prune", "--meth", "; did you mean --method?"),
        ("prune", "--batchsize", "; did you mean --batch-size?"),
        ("eval", "--gpu", "; did you mean --device?"),
        ("prune", "--heads", "; did you mean --keep or --remove?"),
        ("prune", "--max-accuracy-drop", "; did you mean --max-drop?"),
        ("prune", "--keepers", "; did you mean --keep?"),
        ("prune", "--kep", "; did you mean --keep?"),
        ("finetune", "--no-forc", "; did you mean --no-force?"),
        ("prune", "--hepl", "; did you mean --help?"),
        ("--info", "--jsn", "; did you mean --json?"),
        (None, "--inf", "; did you mean --info?"),
        (None, "--keep", "; see hydractl score, extract-circuit or prune"),
        (None, "train", "; did you mean finetune?"),
        (None, "evaluate", "; did you mean eval?"),
        (None, "circuit", "; did you mean extract-circuit?"),
        (None, "inspect", "; did you mean --info?"),
        (None, "prnue", "; did you mean prune?"),
        (None, "a.st", ""),
        ("prune", "-x", ""),
        ("prune", "--zzz", ""),
    ],
)
def test_words_of_a_command_line(verb: str | None, flag: str, said: str) -> None:
    assert about_word(flag, verb) == said


def test_the_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "vit.st", "--budget", "1h"]) == 2
    assert capsys.readouterr().err == "error: no such option: --budget; it is --time now\nhint: hydractl study --help\n"


def test_a_budget_is_never_taken_for_quiet() -> None:
    for verb in SETTINGS:
        assert "quiet" not in about_option("budget", verb, COMMAND_LINE)
        assert nearest("budget", COMMAND_LINE.names(verb), {}) in ([], ["budget"])


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("study: {budget: 1h}", "hydra.yaml line 1: unknown key 'budget' of study; it is 'time' now"),
        ("bench: {rows: 1}", "hydra.yaml line 1: unknown key 'rows' of bench; see hydractl study"),
        ("prune: {heads: 1}", "hydra.yaml line 1: unknown key 'heads' of prune; did you mean 'keep' or 'remove'?"),
        ("sead: 1", "hydra.yaml line 1: unknown key 'sead'; did you mean 'seed'?"),
        ("pruning: {}", "hydra.yaml line 1: unknown key 'pruning'; did you mean 'prune'?"),
    ],
)
def test_keys_of_a_file(yaml: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "hydra.yaml").write_text(yaml)
    with pytest.raises(UsageError) as caught:
        merge(SETTINGS["prune"], {"model": ["a.st"], "method": "random", "keep": "1"}, {}, tmp_path)
    assert [caught.value.message, *caught.value.problems][-1] == message


def test_variables(renamed_everywhere: str) -> None:
    (line,) = unknown_variables({f"HYDRACTL_{renamed_everywhere.upper()}": "1"})
    assert line.endswith(f"HYDRACTL_{renamed_everywhere.upper()} is not read by hydractl; it is HYDRACTL_KEEP now")
    (line,) = unknown_variables({"HYDRACTL_OVERWRITE": "1"})
    assert line.endswith("is not read by hydractl; did you mean HYDRACTL_FORCE?")


@pytest.fixture
def renamed_everywhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """An old name that no verb has any more."""
    renamed = RENAMED[0]._replace(verb="prune", old="leave", new="keep")
    monkeypatch.setattr("hydractl.settings.suggestions.RENAMED", (renamed,))
    return "leave"


def test_an_option_that_moved_takes_its_value_along(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = RENAMED[0]._replace(verb="fuse", old="cut", new="keep", now_of="prune", value="8")
    monkeypatch.setattr("hydractl.settings.suggestions.RENAMED", (renamed,))
    assert about_word("--cut", "fuse") == "; it is --keep 8 of hydractl prune now"


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (hydractl.study, {"budget": "1h"}, "study() got an unexpected keyword argument 'budget'; it is 'time' now"),
        (hydractl.prune, {"methd": "x"}, "prune() got an unexpected keyword argument 'methd'; did you mean 'method'?"),
        (
            hydractl.prune,
            {"wiht": "x"},
            "prune() got an unexpected keyword argument 'wiht'; did you mean 'with_mask'?",
        ),
        (
            hydractl.evaluate,
            {"objective": "x"},
            "evaluate() got an unexpected keyword argument 'objective'; see hydractl.extract_circuit",
        ),
        (hydractl.prune, {"quiet": True}, "prune() got an unexpected keyword argument 'quiet'"),
    ],
)
def test_arguments_of_python(call: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call("vit.st", **arguments)
    assert caught.value.message == message


def test_an_old_name_counts_when_the_verb_has_the_new_one() -> None:
    study = next(renamed for renamed in RENAMED if renamed.verb == "study")
    assert is_current(study)
    assert not is_current(study._replace(new="learn"))  # which no verb has yet
    assert not is_current(study._replace(old="val"))  # which is there still


def test_the_tables_name_what_there_is() -> None:
    """A verb of the tables that does not exist yet is passed over; an option that no verb has would never be said."""
    every = COMMAND_LINE.names(None)
    planned = {"format", "passes", "plots"}
    for word, names in SYNONYMS.items():
        assert word not in every
        assert {*names} - planned <= {*every}
    for names in VERB_SYNONYMS.values():
        assert {*names} <= {*SETTINGS, "--info", "--version", "report", "export", "calibrate"}


@pytest.mark.parametrize("verb", GONE_VERBS)
def test_a_verb_that_is_gone_says_what_to_do_instead(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "a.st"]) == 2
    said = f"; it is gone: {GONE_VERBS[verb]}\n"
    assert capsys.readouterr().err == f"error: no such verb: {verb}{said}hint: hydractl --help\n"
    with pytest.raises(AttributeError) as caught:
        getattr(hydractl, verb)
    assert str(caught.value) == f"hydractl.{verb} is gone: {GONE_VERBS[verb]}"
    (tmp_path / "hydra.yaml").write_text(f"{verb}: {{}}")
    with pytest.raises(UsageError, match=re.escape(f"unknown key {verb!r}; it is gone: {GONE_VERBS[verb]}")):
        merge(SETTINGS["prune"], {"model": ["a.st"], "method": "random", "keep": "1"}, {}, tmp_path)
    assert verb not in SETTINGS


def test_a_variable_of_an_option_that_is_gone_is_a_warning_like_any_other() -> None:
    (line,) = unknown_variables({"HYDRACTL_BASE_MODEL": "a/b"})  # of push
    assert "HYDRACTL_BASE_MODEL is not read by hydractl" in line
