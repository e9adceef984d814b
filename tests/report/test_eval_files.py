"""The page of an eval as a file, and the options of ``report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import UsageError
from hydractl.report.eval_html import render
from tests.calls import checked
from tests.report.examples import answer_of, sample
from tests.running import run


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return sample({"base": 1, "hydra": 2}, sets={"letters": "near"}, n=60, rounds=3)


@pytest.fixture
def eval_file(document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("eval.json").write_text(json.dumps(document))
    return "eval.json"


def files() -> set[str]:
    return {path.name for path in Path().iterdir()}


@pytest.mark.long
def test_the_page_is_written_once_and_replaced_by_force(document: dict[str, Any], eval_file: str) -> None:
    run("report", eval_file, "--html", "out.html", "--dry-run")
    assert files() == {eval_file}
    run("report", eval_file, "--html", "out.html")
    assert Path("out.html").read_bytes() == render(answer_of(document))
    Path("out.html").write_text("mine")
    run("report", eval_file, "--html", "out.html", code=5)
    assert Path("out.html").read_text() == "mine" and files() == {eval_file, "out.html"}
    run("report", eval_file, "--html", "out.html", "--force")
    assert Path("out.html").read_bytes() == render(answer_of(document))


def test_a_page_in_a_folder_that_is_not_there(eval_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("report", eval_file, "--html", "nowhere/out.html", code=5)
    assert "the folder of the output does not exist" in capsys.readouterr().err
    assert files() == {eval_file}


# --- options ----------------------------------------------------------------------------------------------------------


def test_formats_and_partners() -> None:
    document = {"model": ["e"]}
    checked("report", {**document, "html": "a.HTML"})
    with pytest.raises(UsageError, match=r"^--html must end in \.html, not 'a\.pdf' \(flag\)$"):
        checked("report", {**document, "html": "a.pdf"})
    with pytest.raises(UsageError, match=r"^--output \(flag\) needs --over: only means are a new document$"):
        checked("report", {**document, "output": "x"})


def test_a_model_of_every_verb_is_no_document() -> None:
    with pytest.raises(UsageError, match="^report needs a document that eval, bench or study wrote$"):
        checked("report", {}, {"HYDRACTL_MODEL": "vit.st"})
