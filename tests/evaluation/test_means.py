"""Means of several answers of eval: every figure against the statistics module, and what is refused."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hydractl.cli.app import main
from hydractl.files.eval_answer import EvalAnswer
from tests.report.examples import everything
from tests.running import run

PATHS = ["a.json", "b.json", "c.json"]
NOT_MEANT = ("runs", "std", "heads", "cost", "sha256", "seen")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Three answers: `base` is the same in all, the other models have other weights and figures in each."""
    monkeypatch.chdir(tmp_path)
    # Pages without pictures: drawing takes long.
    monkeypatch.setattr("hydractl.report.eval_html.page_images", lambda _: [])
    found = []
    for number in range(3):
        document = everything()
        document["models"] = [row for row in document["models"] if row["name"] != "taylor"]
        hydra = document["models"][1]
        document["models"][1] = {**shifted(hydra, number), "name": "hydra", "sha256": f"{number}"}
        for key in ("conformal", "calibration", "threshold"):
            document["models"][1][key] = hydra[key]
        document["models"][1]["threshold"]["id_flagged"] = 0.1 * (number + 1)
        found.append(document)
    return found


def shifted(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {key: shifted(one, number * (3 + place % 5)) for place, (key, one) in enumerate(value.items())}
    return value / (1 + number / 9) if isinstance(value, float) else value


def write(answers: list[dict[str, Any]]) -> list[str]:
    for path, answer in zip(PATHS, answers, strict=True):
        Path(path).write_text(json.dumps(answer))
    return PATHS


def figures(row: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, value in row.items():
        if isinstance(value, dict) and key not in NOT_MEANT:
            yield from figures(value, (*place, key))
        elif isinstance(value, float):
            yield (*place, key), value


def at(row: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        row = row[key]
    return row


@pytest.mark.parametrize("numbered", [False, True])
def test_over_seeds(numbered: bool, answers: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """The runs of a row stand in several answers, or with numbers behind their names in one."""
    rows = [answer["models"][1] for answer in answers]
    given = write(answers)
    if numbered:
        base = answers[0]["models"][0]
        together = [base, *({**row, "name": f"hydra#{place}"} for place, row in enumerate(rows))]
        Path("all.json").write_text(json.dumps({**answers[0], "models": together}))
        given = ["all.json"]
    run("report", *given, "--over", "seed", "-o", "mean.json", "--html", "mean.html")
    document = EvalAnswer.read("mean.json").to_dict()
    single, hydra = document["models"]
    assert (single["name"], single["runs"], single["std"]) == ("base", 1, {})
    assert single["id"] == answers[0]["models"][0]["id"]
    assert (hydra["name"], hydra["runs"], hydra["sha256"]) == ("hydra", 3, ["0", "1", "2"])
    found = dict(figures(hydra))
    assert {".".join(place) for place in found} == set(hydra["std"])
    assert {("id", "ece"), ("ood_avg", "auroc"), ("ood", "photos", "fpr95"), ("id", "accuracy_at", "0.90")} <= {*found}
    assert {("corruption_avg", "3", "brier"), ("diversity", "letters", "mi"), ("threshold", "id_flagged")} <= {*found}
    for place, value in found.items():
        values = [at(row, place) for row in rows]
        assert value == pytest.approx(statistics.mean(values), rel=1e-12)
        assert hydra["std"][".".join(place)] == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-15)
    assert hydra["id"]["n"] == 200 and hydra["seen"]["id"] == 12 and document["test"] == answers[0]["test"]
    assert not {"ci", "difference", "curves", "members", "training"} & {*hydra} and "bootstrap" not in document
    text = f"{hydra['id']['accuracy']:.4f} ± {hydra['std']['id.accuracy']:.4f}"
    assert text in Path("mean.html").read_text()
    shown = capsys.readouterr().out
    assert f"± {hydra['std']['id.accuracy']:.4f}" in shown
    assert "means over seeds ± sample standard deviation; runs: base 1, hydra 3" in shown


def of_other_data(answers: list[dict[str, Any]]) -> None:
    for number, answer in enumerate(answers):
        answer["test"]["id"]["fingerprint"] = f"{number}"
        for row in answer["models"]:
            row["id"]["n"] = 100 + number


def test_a_requirement_is_held_against_the_last_row_too(
    answers: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["report", *write(answers), "--over", "seed", "--require"]
    last = answers[0]["models"][-1]["name"]
    assert main([*command, f"{last}:id.nll<=1000"]) == 0
    assert main([*command, f"{last}:id.nll<=0"]) == 4
    assert last in capsys.readouterr().err


def test_over_data_sets(answers: list[dict[str, Any]]) -> None:
    of_other_data(answers)
    for part in (answers[2]["test"], *(row[key] for row in answers[2]["models"] for key in ("ood", "diversity"))):
        del part["noise"]
    run("report", *write(answers), "--over", "data", "-o", "mean.json", "--require", "runs>=3")
    document = EvalAnswer.read("mean.json").to_dict()
    hydra = document["models"][1]
    values = [answer["models"][1]["id"]["nll"] for answer in answers]
    assert hydra["id"]["nll"] == pytest.approx(statistics.mean(values))
    assert hydra["std"]["id.nll"] == pytest.approx(statistics.stdev(values))
    assert "n" not in hydra["id"] and set(hydra["ood"]) == {"letters", "photos"}
    assert [name for name in document["test"] if name.startswith("id")] == ["id#0", "id#1", "id#2"]
    assert document["warnings"] == ["noise is no test set of c.json"]


def renamed(answer: dict[str, Any]) -> None:
    answer["models"][1]["name"] = "other"


def fitted(answer: dict[str, Any]) -> None:
    row = answer["models"][1]
    row["calibration"] = {**row["calibration"], "kind": "vector"}


@pytest.mark.parametrize(
    ("over", "change", "complaint"),
    [
        (
            "seed",
            lambda a: a["test"]["photos"].update(fingerprint="x"),
            "differ in the test sets photos",
        ),
        ("seed", lambda a: a["test"].pop("noise"), "differ in the test sets noise"),
        ("seed", lambda a: a.update(over="data"), "c.json holds means over runs already"),
        ("seed", fitted, "hydra: calibration.kind is 'vector' in c.json, and 'temperature' in a.json"),
        (
            "seed",
            lambda a: a["models"][1].pop("members"),
            "hydra: the number of members is 1 in c.json, and 3 in a.json",
        ),
        ("data", lambda a: a["test"]["id"].update(fingerprint="0"), "c.json and a.json have the same ID data"),
        ("data", renamed, "the rows of c.json are base, other, and those of a.json base, hydra"),
        ("data", fitted, "hydra: calibration.kind is 'vector' in c.json"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    over: str, change: Change, complaint: str, answers: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    if over == "data":
        of_other_data(answers)
    change(answers[2])
    run("report", *write(answers), "--over", over, "-o", "mean.json", code=3)
    assert complaint in capsys.readouterr().err and not Path("mean.json").exists()


def test_one_run_has_no_deviation(answers: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    write(answers)
    run("report", "a.json", "--over", "seed", code=3)
    assert "every row has one run" in capsys.readouterr().err
    run("report", "a.json", "b.json", code=2)
    assert "several documents need --over" in capsys.readouterr().err
