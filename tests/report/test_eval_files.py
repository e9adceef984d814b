"""Writing the reports of an eval: claimed before anything is computed, written from the document alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hydractl.errors import OutputError, UsageError
from hydractl.files.atomic import Output
from hydractl.files.eval_answer import EvalAnswer
from hydractl.report.eval_files import claimed_reports, write_reports
from hydractl.report.eval_html import render
from hydractl.report.eval_pictures import KINDS
from tests.calls import checked
from tests.report.examples import answer_of, sample


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return sample({"base": 1, "hydra": 2}, sets={"letters": "near"}, n=60, rounds=3)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of a few bytes, but where they are looked at: drawing takes long."""
    if request.node.name != "test_everything_is_written_and_listed":
        monkeypatch.setattr("hydractl.report.eval_files.save_png", lambda picture, handle: handle.write(b"picture"))
        monkeypatch.setattr("hydractl.report.eval_html.page_images", lambda _: [])


def made(document: dict[str, Any], **options: Any) -> list[str]:
    with claimed_reports(**options) as reports:
        return [str(path) for path in write_reports(answer_of(document), reports)]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_everything_is_written_and_listed(document: dict[str, Any], here: Path) -> None:
    written = made(document, html="out.html", plots="pictures")
    assert written[0] == "out.html" and set(written) == files(here)
    assert Path("out.html").read_bytes() == render(answer_of(document))
    pictures = [path for path in written if path.endswith(".png")]
    assert pictures == [f"pictures/{kind}.png" for kind in KINDS]
    for path in pictures:
        assert Image.open(path).size[0] > 300


# --- what is there already --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["out.html", "pictures/overview.png", "pictures/scores.png"])
def test_whatever_is_there_is_refused_before_anything_is_written(
    document: dict[str, Any], there: str, here: Path
) -> None:
    Path(there).parent.mkdir(exist_ok=True)
    Path(there).write_text("mine")
    with pytest.raises(OutputError, match=f"the output exists: {there}"):
        made(document, html="out.html", plots="pictures")
    assert files(here) == {there} and Path(there).read_text() == "mine"


def test_with_force_what_is_written_is_replaced_and_other_files_stay(here: Path) -> None:
    found = sample({"base": 1}, sets={}, n=40, rounds=0)
    Path("pictures").mkdir()
    replaced = {"out.html", "pictures/reliability.png"}
    kept = {"pictures/notes.txt", "pictures/scores.png"}  # there are no OOD scores to draw
    for file in replaced | kept:
        Path(file).write_text("mine")
    assert replaced <= set(made(found, html="out.html", plots="pictures", force=True))
    assert {file for file in replaced | kept if Path(file).read_bytes() == b"mine"} == kept
    made(found, plots=".")  # the folder itself may be the working one
    assert Path("reliability.png").exists() and kept < files(here)


def test_a_claim_without_writing_leaves_nothing(document: dict[str, Any], here: Path) -> None:
    with claimed_reports(html="out.html", plots="pictures") as outputs:
        planned = [str(output.path) for output in outputs.values()]
        assert {"out.html", "pictures/scores.png"} <= set(planned)
        with pytest.raises(OutputError, match="another process is writing"):
            Output("out.html")
    assert list(here.iterdir()) == []


def test_a_failure_in_between_leaves_nothing(document: dict[str, Any], here: Path) -> None:
    broken = EvalAnswer.model_construct(models=[3])
    with pytest.raises(AttributeError), claimed_reports(html="out.html", plots="pictures") as reports:
        write_reports(broken, reports)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"html": "nowhere/out.html"}, "the folder of the output does not exist"),
        ({"plots": "nowhere/pictures"}, "the folder of the output does not exist: nowhere"),
        ({"plots": "eval.json"}, "--plots is a folder, and eval.json is a file"),
    ],
)
def test_places_that_cannot_be(options: dict[str, Any], complaint: str, document: dict[str, Any], here: Path) -> None:
    Path("eval.json").write_text("{}")
    with pytest.raises(OutputError, match=complaint):
        made(document, **options)
    assert files(here) == {"eval.json"}


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
