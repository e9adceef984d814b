"""Reading an eval again: what eval writes is taken, and everything else is refused by name before it is drawn."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import InputError
from hydractl.files.eval_answer import EvalAnswer
from tests.report.examples import everything, sample, without_values


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return everything()


def written(folder: Path, document: Any) -> str:
    path = folder / "eval.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_what_eval_writes_is_taken(good: dict[str, Any], tmp_path: Path) -> None:
    for document in (good, sample({"one": 1}, sets={}, rounds=0)):
        assert EvalAnswer.read(written(tmp_path, document)).to_dict() == document
    least = {"schema": "hydractl.eval/2", "models": [{"name": "one", "id": {"n": 3}}]}
    assert EvalAnswer.read(written(tmp_path, least)).models[0].id.n == 3
    assert EvalAnswer.read(written(tmp_path, without_values(good))).models[0].curves is None


def test_numbers_are_as_they_stand_in_the_file(good: dict[str, Any], tmp_path: Path) -> None:
    document = copy.deepcopy(good)
    document["models"][0]["id"] |= {"accuracy": 1, "metric_of_another_package": {"a": 0.5, "b": None}}
    block = EvalAnswer.read(written(tmp_path, document)).models[0].id
    assert block.metrics["accuracy"] == block.accuracy == 1
    assert block.metric_of_another_package == {"a": 0.5, "b": None}


Change = Callable[[dict[str, Any]], None]


def put(*keys: Any, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return change


BAD: dict[str, tuple[Change, str]] = {
    "no rows": (put("models", value=[]), "models is []: "),
    "no name": (put("models", 0, "name", value=None), "models[0].name is None: Input should be a valid string"),
    "two of a name": (put("models", 0, "name", value="hydra"), "two rows have the name 'hydra'"),
    "a text": (put("models", 0, "id", "accuracy", value="high"), "models[0].id.accuracy is 'high': Input should be"),
    "a switch": (put("models", 0, "id", "ece", value=True), "models[0].id.ece is True: Input should be"),
    "half a sample": (put("models", 0, "id", "n", value=0.5), "models[0].id.n is 0.5: Input should be a valid integer"),
    "an OOD set": (put("models", 0, "ood", value=[]), "models[0].ood is []: Input should be"),
    "one end": (
        put("models", 0, "ci", "id.accuracy", value=[0.5]),
        "models[0].ci.id.accuracy is [0.5]: ",
    ),
    "three ends": (
        put("models", 0, "ci", "id.accuracy", value=[0, 1, 2]),
        "models[0].ci.id.accuracy is [0, 1, 2]: ",
    ),
    "a gap in a curve": (
        put("models", 0, "curves", "scores", "letters", 3, value=None),
        "models[0].curves.scores.letters[3] is None: Input should be a valid integer",
    ),
    "a short curve": (
        put("models", 0, "curves", "reliability", "accuracy", value=[0.5]),
        "models[0].curves.reliability has lists that differ in length",
    ),
    "counts of another kind": (
        put("models", 0, "curves", "scores", "photos", 3, value=-1),
        "models[0].curves.scores.photos[3] is -1: Input should be greater than or equal to 0",
    ),
    "falling edges": (
        put("models", 0, "curves", "scores", "edges", value=[0.0] * 41),
        "models[0].curves.scores.edges does not rise",
    ),
    "a head too many": (put("models", 0, "heads", 0, "kept", value=[[0, 8]]), "models[0].heads[0].kept names a head"),
    "test": (put("test", "id", "spec", value=3), "test.id.spec is 3: Input should be a valid string"),
}


@pytest.mark.parametrize(("change", "complaint"), BAD.values(), ids=BAD)
def test_everything_else_is_refused(change: Change, complaint: str, good: dict[str, Any], tmp_path: Path) -> None:
    document = copy.deepcopy(good)
    change(document)
    with pytest.raises(InputError) as caught:
        EvalAnswer.read(written(tmp_path, document))
    assert "is no document that eval writes" in caught.value.message
    assert any(complaint in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"schema": "hydractl.bench/1"}, r"is not the JSON of eval \(schema 'hydractl.bench/1'\)"),
        ([], r"is not the JSON of eval \(schema none\)"),
        ({"schema": "hydractl.eval/2", "dry_run": True, "models": ["a"]}, "holds no results"),
    ],
)
def test_other_documents(document: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=complaint):
        EvalAnswer.read(written(tmp_path, document))
