"""A hydra.yaml that lies in the working folder: it may be anybody's, so it replaces nothing and writes nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import UsageError
from hydractl.options.registry import VERBS
from hydractl.options.verbs import options_of_verb
from tests.calls import checked

Merge = Callable[..., Any]
Refused = Callable[..., list[str]]

SCORE: dict[str, Any] = {"model": ["a.st"], "method": "random"}
NO_DEFAULT = "force cannot be a default; give --force with the command that is to replace an output"
AN_ENDING = {"log": ".jsonl", "report": ".json", "html": ".html"}


@pytest.mark.fault(94)
@pytest.mark.parametrize("yaml", ["force: true", "score: {force: true}", "force: false", "seed: 1\nforce: 1"])
def test_no_file_sets_force(yaml: str, refused: Refused, tmp_path: Path) -> None:
    problem = f"hydra.yaml: {NO_DEFAULT}"
    assert refused("score", SCORE, yaml=yaml) == [problem]
    # Nor does one that the user named.
    (tmp_path / "mine.yaml").write_text(yaml)
    (tmp_path / "hydra.yaml").unlink()
    assert refused("score", {**SCORE, "config": "mine.yaml"}) == [problem.replace("hydra.yaml", "mine.yaml")]


@pytest.mark.fault(94)
@pytest.mark.parametrize("text", ["1", "no"])
def test_no_variable_sets_force(text: str, refused: Refused, merged: Merge) -> None:
    assert refused("score", SCORE, {"HYDRACTL_FORCE": text}) == [f"HYDRACTL_FORCE: {NO_DEFAULT}"]
    assert merged("score", {**SCORE, "force": True}).force is True
    assert merged("score", SCORE, {"HYDRACTL_FORCE": ""}).force is False


def outputs() -> list[tuple[str, str]]:
    """Every option of every verb that names something to write, with its verb."""
    found = []
    for verb in VERBS:
        for option in options_of_verb(verb):
            if option.writes and not option.many:
                found.append((verb, option.name))
    assert len(found) > 12
    return found


@pytest.mark.fault(94)
@pytest.mark.parametrize(("verb", "name"), outputs())
@pytest.mark.parametrize("shared", [True, False])
def test_no_output_of_a_found_file_leads_out_of_its_folder(
    verb: str, name: str, shared: bool, tmp_path: Path, refused: Refused
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "link").symlink_to("../elsewhere")
    ending = AN_ENDING.get(name, ".st")
    (folder / f"file{ending}").symlink_to("../notes")
    key = name
    for path in ("../a", "sub/../../a", f"{tmp_path}/a", "link/a", "link/../b", "~/a", "file"):
        path = f"{path}{ending}"
        if shared and key in VERBS:  # a key of the file is the verb, then
            continue
        text = f"{key}: {path}" if shared else f"{verb}: {{{key}: {path}}}"
        source = f"hydra.yaml:{key}" if shared else f"hydra.yaml:{verb}.{key}"
        flag = "--" + key.replace("_", "-")
        expected = (
            f"{flag} {path} ({source}) leads out of this folder; give it on the command line, or say --config "
            "hydra.yaml"
        )
        assert expected in problems_of(verb, {}, folder, text)
        # The user's own word: by a flag, by a variable, or by naming the file.
        assert expected not in problems_of(verb, {name: path}, folder, text)
        assert not leading_out(problems_of(verb, {"config": "hydra.yaml"}, folder, text))
        assert not leading_out(problems_of(verb, {}, folder, "", {f"HYDRACTL_{key.upper()}": path}))


@pytest.mark.fault(94)
@pytest.mark.parametrize("path", ["a.json", "./a.json", "sub/a.json", "sub/../a", "-", "inner/a.json", "a\\0.json"])
def test_outputs_below_the_folder_are_taken(path: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "inner").symlink_to("sub")
    (tmp_path / "here").symlink_to(".")
    text = f'score: {{output: "{path}"}}'
    for folder in (tmp_path, tmp_path / "here"):
        assert not problems_of("score", SCORE, folder, text)


@pytest.mark.fault(94)
@pytest.mark.parametrize("key", ["labels", "prompt"])
def test_no_text_file_from_elsewhere_is_copied_into_an_output(key: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "token").write_text("secret")
    (folder / "names").write_text("cat\ndog")
    (tmp_path / "classes").mkdir()
    (expected,) = leading_out(problems_of("calibrate", {"model": ["a.st"]}, folder, f"{key}: ../token"))
    assert expected.startswith(f"--{key.replace('_', '-')} ../token (hydra.yaml:{key}) leads out of this folder; ")
    for path in ("names", "imagenet", "../classes", "A photo of ../a {label}"):  # a folder has no lines
        assert not leading_out(problems_of("calibrate", {"model": ["a.st"]}, folder, f"{key}: {path}"))


def problems_of(
    verb: str, flags: dict[str, Any], folder: Path, yaml: str, env: dict[str, str] | None = None
) -> list[str]:
    """The problems of the options of a verb in a folder with this hydra.yaml."""
    (folder / "hydra.yaml").write_text(yaml)
    try:
        checked(verb, flags, env or {}, folder)
    except UsageError as error:
        return error.problems or [error.message]
    return []


def leading_out(problems: list[str]) -> list[str]:
    return [problem for problem in problems if "leads out of this folder" in problem]
