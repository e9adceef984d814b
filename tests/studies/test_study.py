"""``study`` from a model to its verdict, on a tiny model with noise for data: what it leaves, resumes and refuses."""

from __future__ import annotations

import html
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special
from PIL import Image
from rich.console import Console
from safetensors.numpy import load_file

from hydractl.api.study import ROWS
from hydractl.cli.app import main
from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.batching import Batch
from hydractl.data.overlap import GivenSet
from hydractl.evaluation import inputs
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet
from hydractl.expressions.data_sets import DataSpec
from hydractl.files.study_answer import StudyAnswer
from hydractl.log import Log, Progress
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.model.source import open_source
from hydractl.options.registry import VERBS
from hydractl.report.terminal import render
from hydractl.report.texts import program_words
from hydractl.studies.rows import KINDS
from hydractl.studies.sets import StudySets
from hydractl.studies.steps import Step
from hydractl.studies.words import WORDS
from hydractl.verbs.study_time import _passes_of_training
from tests.answers import result_of
from tests.calls import ran
from tests.pico import published
from tests.running import json_lines, read_json, stopped_after
from tests.spread import marked_release

TINY = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=3&num_heads=3&mlp_ratio=1&num_classes=3"
)
OPTIONS = {
    "--val": "val.npz",
    "--ood-val": "seen.npz",
    "--test": "test.npz",
    "--ood": "noise:far=noise.npz",
    "--rows": "whole-avg,circuits",
    "--bootstrap": "100",
}
ARTEFACTS = ("best.st", "best.json", "choice.json", "report.html", "study.json", "test.json")
Study = Callable[..., int]


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """Reports with empty pictures: drawing takes longer than all the rest of such a study, and is tested with eval."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydractl.report.eval_html.page_images", lambda _: [("data:,", "drawn")])
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, and a finished study in ``runs``."""
    folder = tmp_path_factory.mktemp("study")
    draw = np.random.default_rng(0)
    for name, count in (("train", 30), ("val", 24), ("test", 24), ("seen", 18), ("noise", 20)):
        brightest = 160 if name in ("seen", "noise") else 256  # OOD samples are darker, which scores on features see
        images = draw.integers(0, brightest, (count, 8, 8), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=images, y=np.arange(count) % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        training = ["--train", "train.npz", "--steps", "20", "--lr", "1e-2", "-o", "vit.st", "-q"]
        assert main(["finetune", TINY, *training]) == 0
        passes, decoded = counted(patch)
        assert study() == 0
    counts = {"passes": [[*one, count] for one, count in passes.items()], "decoded": decoded}
    (folder / "counts.json").write_text(json.dumps(counts))
    return folder


def counted(patch: pytest.MonkeyPatch) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """How often, in any eval, each model (SHA-256) begins to run on each data set (fingerprint), and each is read."""
    passes: Counter[tuple[str, str]] = Counter()
    decoded: Counter[str] = Counter()

    def counting(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def begun(model: RunningModel, one: EvalSet | None, *more: Any) -> Iterator[Any]:
            if one is not None:
                passes[model.sha256, one.fingerprint] += 1
            yield from method(model, one, *more)

        return begun

    for name in ("batches", "_fitting_inputs"):
        patch.setattr(RunningModel, name, counting(getattr(RunningModel, name)))

    read = inputs.batches

    def batches(dataset: Dataset, *more: Any, **options: Any) -> Iterator[Batch]:
        every = read(dataset, *more, **options)
        yield next(every)
        decoded[dataset.fingerprint()] += 1  # behind the first batch: nothing runs before somebody reads
        yield from every

    patch.setattr(inputs, "batches", batches)
    return passes, decoded


def study(*more: str, **options: str) -> int:
    words = [word for pair in {**OPTIONS, "-o": "runs", **options}.items() for word in pair]
    return main(["study", "vit.st", *words, "--no-timed", "-q", *more])


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path, names: Sequence[str] = ARTEFACTS) -> dict[str, bytes]:
    return {name: (folder / "runs" / name).read_bytes() for name in names}


def test_what_a_study_leaves(made: Path) -> None:
    document = read_json(made / "runs/study.json")
    assert [row["name"] for row in document["rows"]] == ["single", "whole-avg@1", "whole-avg@2", "circuits"]
    (chosen,) = (row for row in document["rows"] if row["chosen"])
    assert chosen["name"] == document["choice"]["row"]
    choice = read_json(made / "runs/choice.json")
    assert [one["row"] for one in choice["candidates"] if not one["reason"]] == [chosen["name"]]
    (used,) = (row for row in document["rows"] if row["used"])
    assert [used["name"], document["use"]["score"]] in [[rung["row"], rung["score"]] for rung in choice["ladder"]]
    assert sum(line.startswith("For mistakes of ") for line in document["verdict"]["lines"]) == 1
    # What it says of the test data is what eval measures of the same predictions.
    table = {row["name"]: row for row in read_json(made / "runs/test.json")["models"]}
    assert table["circuits"]["id"]["accuracy"] == document["rows"][3]["test"]["id"]["accuracy"]
    best = read_json(made / "runs/best.json")["models"][0]
    assert best["id"]["nll"] == pytest.approx(used["test"]["id"]["nll"], rel=1e-12)
    assert best["calibration"]["temperature"] == document["use"]["temperature"]
    assert best["threshold"] == document["use"]["threshold"]
    # best.st holds what those figures were measured with.
    stored = open_source(str(made / "runs/best.st")).description.extra
    assert stored["calibration"] == {**best["calibration"], "stored": True}
    assert stored["threshold"] == {key: best["threshold"][key] for key in ("score", "value", "rule")}
    assert stored["ood_score"]["score"] == best["ood_score"] == document["use"]["score"]
    for row in document["rows"]:  # all with their temperature
        assert table[row["name"]]["id"] == row["test"]["id"]
        assert table[row["name"]]["ood"] == row["common"]["ood"]
    # Nothing that was searched on is chosen by, and nothing that was chosen by is tested on.
    used = [{word for word in step if ".npz" in word} for step in document["steps"]]
    for step, data in zip(document["steps"], used, strict=True):
        assert step[0] != "extract-circuit" or data == {"val.npz?part=1/2", "seen.npz?part=1/2"}
        assert not any("?part=2/2" in word for word in data) or "--allow-seen" in step or "--temperature" in step


def test_the_log_has_every_command_in_its_order_once(made: Path) -> None:
    steps = read_json(made / "runs/study.json")["steps"]
    noted = [shlex.split(line) for line in (made / "runs/study.log").read_text().splitlines()]
    assert noted == [["hydractl", *step] for step in steps]
    assert steps[0][0] == "eval" and steps[0][1] == "single=vit.st"  # its scores are known before any search


class Shown(Log):
    """What a person sees of a study while it runs: lines, and how far each bar came."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.bars: dict[str, int] = {}

    def info(self, message: str) -> None:
        self.lines.append(message)

    @contextmanager
    def progress(self, description: str, total: int | None, unit: str) -> Iterator[Progress]:
        shown = self.bars
        shown[description] = 0

        class Bar(Progress):
            def advance(self, amount: int = 1, note: str = "") -> None:
                shown[description] += amount

        yield Bar()


def test_a_person_sees_the_single_model_first_then_a_line_for_each_row_and_one_bar(copy: Path) -> None:
    before = Path("runs/study.log").read_bytes()
    for path in [*Path("runs/choose").glob("circuits.*"), *Path("runs/choose").glob("single.*")]:
        path.unlink()
    log = Shown()
    given = {option.removeprefix("--").replace("-", "_"): value for option, value in OPTIONS.items()}
    given |= {
        "ood_val": ["seen.npz"],
        "ood": ["noise:far=noise.npz"],
        "rows": ["whole-avg", "circuits"],
        "bootstrap": 100,
    }
    ran("study", {"model": "vit.st", **given, "timed": False, "output": "runs"}, log)
    single, circuits = [line for line in log.lines if "reading" not in line]
    assert (
        single.startswith("single: mean AUROC against oodval and auto of the validation data, by score: ")
        and ", msp 0." in single
    )
    validation = read_json("runs/study.json")["rows"][0]["validation"]["auroc"]
    best, figure = single.split("score: ")[1].split(", ")[0].split(" ")
    assert float(figure) == pytest.approx(max(map(mean_auroc, validation.values())), abs=6e-4)
    assert float(figure) == pytest.approx(mean_auroc(validation[best]), abs=6e-4)
    assert circuits.startswith("circuits: 0.") and f"with {best}, of which the single model has {figure}" in circuits
    assert log.bars == {"study": 100}
    assert Path("runs/study.log").read_bytes() == before


def mean_auroc(by_set: dict[str, float]) -> float:
    """The mean over OOD validation sets."""
    return sum(by_set.values()) / len(by_set)


def test_an_estimate_has_every_step_and_grows_with_what_it_resamples(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hydractl.verbs.study_time._seconds_of_a_round", lambda sizes: sum(sizes) / 1e4)
    seconds = []
    for rounds in ("100", "1100"):
        capsys.readouterr()
        assert study("--dry-run", "--json", **{"--bootstrap": rounds, "-o": "new", "--rows": "single"}) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
    samples = 24 + 20  # of the test data: one row in the table, the best row, and the comparisons of the verdict
    assert seconds[1] - seconds[0] == pytest.approx(1000 * samples / 1e4 * (1 + 1 + 2), rel=0.01)


def test_an_estimate_counts_the_samples_that_limit_leaves(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three_seconds_for_a_sample = SimpleNamespace(processor_seconds=1.0, seconds_per_pass=3.0)
    monkeypatch.setattr("hydractl.verbs.study_time._probe_search", lambda step: three_seconds_for_a_sample)
    monkeypatch.setattr("hydractl.verbs.study_time._seconds_of_a_round", lambda sizes: 0.0)
    seconds = []
    for limit in ("2", "6"):
        capsys.readouterr()
        options = {"--limit": limit, "--fit-samples": "0", "-o": "new", "--rows": "single"}
        assert study("--dry-run", "--json", **options) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
    sets = 3 + 2  # to choose: ID, OOD and made OOD; to test: ID and OOD
    assert seconds[1] - seconds[0] == pytest.approx(sets * (6 - 2) * 3.0)


def test_each_row_runs_once_on_each_set_and_each_set_is_decoded_once(made: Path) -> None:
    counts = read_json(made / "counts.json")
    passes = counts["passes"]
    rows = read_json(made / "runs/study.json")["rows"]
    # To choose: ID, OOD and made OOD; to test: ID and OOD; and once what scores on features are fitted to.
    assert len(passes) == len(rows) * (3 + 2 + 1)
    assert {count for _, _, count in passes} == {1}
    assert list(counts["decoded"].values()) == [1] * (3 + 2 + 1)


@pytest.mark.parametrize("of", ["test", *marked_release(["choose"])])
def test_the_predictions_of_a_row_are_those_of_eval_on_it_alone(copy: Path, of: str) -> None:
    steps = read_json("runs/study.json")["steps"]
    for row in ("single", "whole-avg@2", "circuits"):
        (step,) = (words for words in steps if f"runs/{of}/{row}.pred.st" in words and "--predictions" in words)
        renamed = ["alone.pred.st" if word == f"runs/{of}/{row}.pred.st" else word for word in step]
        assert main([*renamed[:-1], f"alone.{row}.json", "-q"]) == 0
        assert Path("alone.pred.st").read_bytes() == Path(f"runs/{of}/{row}.pred.st").read_bytes()
        Path("alone.pred.st").unlink()


def shown(document: dict[str, Any], width: int) -> str:
    """The answer as a terminal shows it."""
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render(result_of(document), width))
    return console.export_text()


def test_the_model_as_it_is_gets_a_threshold_by_the_same_rule(made: Path) -> None:
    def msp(purpose: str, index: int) -> npt.NDArray[np.float64]:
        logits = load_file(made / f"runs/{purpose}/single.pred.st")[f"sets.{index}.logits"][0]
        return -scipy.special.softmax(logits.astype(np.float64), axis=1).max(axis=1)

    now = read_json(made / "runs/study.json")["baseline_threshold"]
    assert (now["score"], now["rule"]) == ("msp", "id:0.05")
    of_validation = np.sort(msp("choose", 0))
    highest_not_flagged = of_validation[-1 - math.floor(0.05 * len(of_validation))]
    assert now["id_flagged"] == np.mean(msp("test", 0) > highest_not_flagged)
    assert now["ood_flagged"]
    for index, share in enumerate(now["ood_flagged"].values(), start=1):
        assert share == np.mean(msp("test", index) > highest_not_flagged)


def test_terminal_report_and_documents_show_the_same_figures(made: Path) -> None:
    document = read_json(made / "runs/study.json")
    page = html.unescape((made / "runs/report.html").read_text())
    assert "test.npz</td>" in page and "pred.st" not in page  # it was measured from predictions
    best = read_json(made / "runs/best.json")["models"][0]
    words = shown(document, 300).split()
    verdict = document["verdict"]
    for sentence in verdict["lines"]:
        assert page.count(f">{sentence}</p>") == 1
    others = StudyAnswer.of(document, "it").verdict.on_other_rows
    for sentence in [verdict["lines"][0], *others, *verdict["doubts"]]:
        assert sentence in " ".join(words)
    now = document["baseline_ci"]["id.nll"]
    assert f"<small>{now[0]:.4f}–{now[1]:.4f}</small>" in page
    above = [row for row in document["rows"] if not row["used"]]
    above.sort(key=lambda row: -row["common"]["ood_avg"]["auroc"])
    used_auroc = next(row["test"]["ood_avg"]["auroc"] for row in document["rows"] if row["used"])
    if above[0]["common"]["ood_avg"]["auroc"] > used_auroc:
        named = verdict["highest"]
        assert named["row"] == above[0]["name"] and named["line"].startswith("Highest of all models is ")
    flags = (
        f"this model with its score and a threshold, flags {100 * best['threshold']['id_flagged']:.1f} % of ID samples "
    )
    assert flags in page and flags in " ".join(words)
    for row in [document["baseline"], *(row["test"] for row in document["rows"])]:
        for figure in (row["id"]["nll"], row["id"]["accuracy"], row["ood_avg"]["auroc"], row["ood_avg"]["fpr95"]):
            assert f"{figure:.3f}" in words
    for row in document["rows"]:
        assert f"<td>{row['test']['id']['nll']:.4f}" in page
    (used,) = (row for row in document["rows"] if row["used"])
    assert best["ood_avg"]["auroc"] == (used["common"] or used["test"])["ood_avg"]["auroc"]
    assert 'alt="drawn"' in page
    assert f"<h1><bdi>Study of {document['model']['name']}</bdi></h1>" in page


def test_without_training_data_scores_on_features_are_fitted_to_the_half_of_the_search(made: Path) -> None:
    document = read_json(made / "runs/study.json")
    evals = [step for step in document["steps"] if "--train" in step]
    assert evals and {step[step.index("--train") + 1] for step in evals} == {"val.npz?part=1/2"}
    assert all(step[step.index("--knn-k") + 1] == "1" for step in evals if "--knn-k" in step)
    assert {"mahalanobis", "vim", "knn"} <= set(document["rows"][0]["validation"]["auroc"])
    assert document["common_score"] in ON_FEATURES and document["choice"]["telling"]


def test_the_scores_on_features_that_a_study_chooses_from(made: Path) -> None:
    document = read_json(made / "runs/study.json")
    names = set(document["rows"][0]["validation"]["auroc"]) & {*ON_FEATURES}
    assert names == {"mahalanobis", "rmd", "mahalanobis-layers", "knn", "vim", "react", "ash"}


@pytest.mark.long
def test_scores_of_layers_that_may_need_too_much_memory_are_left_out_of_all_rows(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of three blocks of width 12 and three classes: two vectors each, the last as wide as features may be.
    most_of_a_member = 8 * (5 * 12 * (12 + 3) + 24 * (24 + 3))
    monkeypatch.setattr("hydractl.model.layers.MOST_BYTES", 4 * most_of_a_member - 1)
    assert study(**{"-o": "less"}) == 0
    whole, less = (read_json(Path(folder, "study.json")) for folder in ("runs", "less"))
    for row, row_of_less in zip(whole["rows"], less["rows"], strict=True):
        scores, scores_of_less = row["validation"]["auroc"], row_of_less["validation"]["auroc"]
        assert {*scores} - {*scores_of_less} == {"mahalanobis-layers"}
    left_out = "mahalanobis-layers is left out: its sums over all layers may need too much memory"
    assert less["warnings"] == [left_out] and "warnings" not in whole


@pytest.mark.long
def test_a_model_that_is_blind_to_its_validation_data_ends_no_worse_than_msp(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(1)
    np.savez("seen.npz", x=draw.integers(0, 256, (18, 8, 8), dtype=np.uint8))
    np.savez("also.npz", x=draw.integers(0, 256, (18, 8, 8), dtype=np.uint8))
    assert study("--ood-val", "also=also.npz", **{"-o": "blind", "--rows": "whole-avg"}) == 0
    document = read_json("blind/study.json")
    assert document["choice"]["telling"] == [] and document["verdict"]["answer"] == "cannot choose"
    assert document["ladder"][0]["score"] == "hedge" and document["ladder"][1]["score"] == "msp"
    score = document["use"]["score"]
    assert document["use"]["row"] == "single" and score in ("hedge", "msp")
    assert read_json("blind/best.json")["models"][0]["ood_score"] == score
    line, of_search = document["verdict"]["doubts"]
    assert "oodval, also" in line and "nothing could be chosen" in line
    assert of_search.startswith("Heads were searched on oodval all the same")


@pytest.mark.long
def test_without_ood_data_the_score_is_taken_blind(copy: Path) -> None:
    bare = {name: value for name, value in OPTIONS.items() if name not in ("--ood-val", "--ood")} | {
        "--rows": "default,circuits"
    }
    words = [word for pair in bare.items() for word in pair]
    assert main(["study", "vit.st", *words, "-o", "bare", "--no-timed", "-q"]) == 0
    document = read_json("bare/study.json")
    assert document["choice"] | {"rule": "", "stability": {}} == {
        "row": "single",
        "score": "hedge",
        "rule": "",
        "telling": [],
        "blind": ["oodval"],
        "n": 12,
        "stability": {},
    }
    assert "no OOD validation data were given" in document["verdict"]["lines"][0]
    assert any("these are made of the ID test data" in line for line in document["verdict"]["doubts"])
    row, _ = document["rows"]
    assert row["score"] == "hedge" and list(row["test"]["ood"]) == ["auto"]
    # Rows that cannot be chosen do not run on the test data; they are shown with their figures on validation data.
    tested = sorted(path.name for path in Path("bare/test").glob("*.pred.st"))
    assert tested == ["circuits.pred.st", "single.pred.st"]  # somebody named the circuits
    ruled_out = {one["name"]: one for one in document["ruled_out"]}
    assert list(ruled_out) == ["whole-avg@1", "whole-avg@2", "whole-late@2", "whole-three@2"]
    table, page = shown(document, 200), html.unescape(Path("bare/report.html").read_text())
    for name, one in ruled_out.items():
        assert one["reason"] == "no OOD validation set tells anything" and one["validation"]["ood_score"] == "msp"
        candidates = read_json("bare/choice.json")["candidates"]
        (validated,) = (x for x in candidates if (x["row"], x["score"]) == (name, "msp"))
        assert one["validation"]["ood_avg"]["auroc"] == pytest.approx(validated["sets"]["oodval"], rel=1e-12)
        assert re.search(
            rf"{name} +no OOD validation set tells anything +{one['validation']['ood_avg']['auroc']:.3f}", table
        )
        assert f"<td>{one['validation']['ood_avg']['auroc']:.3f}</td>" in page
    assert name not in " ".join(document["verdict"]["lines"]) and "validation OOD AUROC" in page
    score = document["use"]["score"]
    stored = open_source(str(copy / "bare/best.st")).description.extra
    measured = read_json("bare/best.json")["models"][0]
    assert stored["ood_score"]["score"] == measured["ood_score"] == score
    assert (
        measured["ood_avg"]["auroc"] == (row["test"] if score == "hedge" else document["baseline"])["ood_avg"]["auroc"]
    )


@pytest.mark.fault(63)
def test_unlabelled_test_data_give_a_verdict_on_ood_detection_alone(copy: Path) -> None:
    with np.load("test.npz") as whole:
        np.savez("bare.npz", x=whole["x"])
    assert study(**{"-o": "bare", "--test": "bare.npz", "--rows": "single"}) == 0
    document = read_json("bare/study.json")
    said = " ".join(document["verdict"]["lines"])
    assert "about OOD detection alone" in said and "accuracy" not in said and "NLL" not in said
    assert "mistakes" not in said and "errors" not in document["rows"][0]["test"]
    assert document["rows"][0]["test"]["ood_avg"]["auroc"] is not None
    table = shown(document, 200)
    assert "NLL" not in table and " - " not in table  # columns of which no row knows anything are left out


@pytest.mark.long
def test_a_verdict_that_steps_down_says_so_in_its_provenance(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the data say, here each rung is found no better than the next one."""
    monkeypatch.setattr("hydractl.studies.tested.end_of", len)
    words = dict.fromkeys(WORDS, "no better")
    monkeypatch.setattr("hydractl.studies.verdict._NO_BETTER", words)
    assert study(**{"-o": "down", "--rows": "whole-avg"}) == 0
    document = read_json("down/study.json")
    assert document["use"]["stepped_down"] and [document["use"]["row"], document["use"]["score"]] == ["single", "msp"]
    chosen = document["ladder"][0]
    note = f"Chosen on validation data was {chosen['row']} with {chosen['score']}; the test data reported here led from"
    assert open_source("down/best.st").description.provenance["note"].startswith(note)


def printed_commands(table: str) -> list[list[str]]:
    """The commands that a study prints at its end, as a shell takes them apart."""
    _, _, end = table.partition("what now:")
    _, _, commands = end.partition("\n")
    joined = commands.replace("\\\n", "")
    return [shlex.split(line) for line in joined.splitlines() if not line.startswith("# ")]


def test_the_same_command_again_changes_nothing_and_prints_commands_as_a_shell_takes_them(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copy / "runs").rglob("*.st")}
    bytes_before = contents(copy)
    assert study() == 0
    assert contents(copy) == bytes_before
    assert {path: path.stat().st_mtime_ns for path in (copy / "runs").rglob("*.st")} == before
    commands = printed_commands(capsys.readouterr().out)
    document = read_json("runs/study.json")
    program = program_words()
    assert commands == [[*program, *step["command"]] for step in document["next"]]
    purposes = [step["purpose"] for step in document["next"]]
    assert purposes == ["predict", "export", "recalibrate"]
    export = commands[1][len(program) :]
    assert Path(export[1]).exists() and export[0] in VERBS


def test_the_command_that_recalibrates_takes_as_many_samples_as_the_study(copy: Path) -> None:
    assert study(**{"-o": "limited", "--rows": "single", "--limit": "24"}) == 0
    (command,) = (
        step["command"] for step in read_json("limited/study.json")["next"] if step["purpose"] == "recalibrate"
    )
    assert main([*command, "-q"]) == 0
    again = open_source("limited/recalibrated.st").description.extra
    before = open_source("limited/best.st").description.extra
    assert again["threshold"]["value"] == pytest.approx(before["threshold"]["value"], rel=1e-4)
    assert again["calibration"]["temperature"] == pytest.approx(before["calibration"]["temperature"], rel=1e-4)


def test_the_command_for_a_free_score_writes_the_single_model_with_it(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydractl.studies.verdict.Facts.free_alternative", "energy")
    assert study() == 0
    last = read_json("runs/study.json")["next"][-1]
    assert last["purpose"] == "free score"
    assert main([*last["command"], "-q"]) == 0
    free = open_source("runs/free.st")
    assert len(free.description.masks) == 1 and free.description.extra["threshold"]["score"] == "energy"


@pytest.mark.long
def test_the_commands_that_it_ends_with_run_as_they_stand(copy: Path) -> None:
    document = read_json("runs/study.json")
    predict, export, _ = [step["command"] for step in document["next"]]
    assert main([*predict, "-q"]) == 0
    rows = json_lines("runs/predictions.jsonl")
    measured = read_json(copy / "runs/best.json")["models"][0]["threshold"]["ood_flagged"]["noise"]
    assert len(rows) == 20
    assert sum(row["is_ood"] for row in rows) / 20 == measured

    if find_spec("onnxruntime") is not None:
        assert main([*export, "-q"]) == 0
        assert Path("runs/best.onnx").exists()


def test_commands_name_the_interpreter_where_hydractl_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    scripts = tmp_path / ".venv/bin"
    scripts.mkdir(parents=True)
    monkeypatch.setattr("sys.executable", str(scripts / "python"))
    program = scripts / "hydractl"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", os.defpath)
    assert program_words() == [".venv/bin/python", "-m", "hydractl"]
    monkeypatch.setenv("PATH", str(scripts))
    assert program_words() == ["hydractl"]
    monkeypatch.setattr("sys.executable", "/elsewhere/bin/python")  # hydractl is found, but of another installation
    assert program_words() == ["/elsewhere/bin/python", "-m", "hydractl"]


@pytest.mark.long
def test_a_study_goes_on_after_a_break(copy: Path) -> None:
    expected = contents(copy)
    runs = copy / "runs"
    gone = ("circuit.avg.json", "circuits.st", "acc@3.mask.json", "test/single.json", "test/single.pred.st")
    for name in (*ARTEFACTS, *gone):
        (runs / name).unlink()
    assert study() == 0
    assert contents(copy) == expected


def test_other_settings_and_other_folders_are_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study(**{"--max-drop": "0.5"}) == 5
    assert "max_drop: '0.01' in the folder, '0.5' now" in capsys.readouterr().err
    plan = read_json(copy / "runs/plan.json")
    for cut in (["the rows whole-avg are left out"], {}, None):
        (copy / "runs/plan.json").write_text(json.dumps({**plan, "cut": cut}))
        assert study() == 3 and "what it cut is none of what these settings lead to" in capsys.readouterr().err
    (copy / "runs/plan.json").write_text(json.dumps({**plan, "schema": "hydractl.study-plan/2"}))
    assert study() == 3
    assert (
        "runs holds a study that another version of hydractl began ('hydractl.study-plan/2'" in capsys.readouterr().err
    )
    (copy / "runs/plan.json").unlink()
    assert study() == 5
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.fault(57)
def test_a_calibration_that_somebody_has_changed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "runs/choose/single.calibration.json"
    document = read_json(path)
    del document["calibration"]
    path.write_text(json.dumps(document))
    assert study() == 3
    assert "single.calibration.json holds no temperature" in capsys.readouterr().err


@pytest.mark.fault(60)
def test_a_study_is_not_continued_with_other_data(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(copy)
    data = np.load("test.npz")
    np.savez("test.npz", x=data["x"][:, ::-1], y=data["y"])
    assert study() == 5  # its verdict is there
    out, error = capsys.readouterr()
    assert "runs holds a study of other settings or data" in error and "samples of --test: '" in error
    assert out == "" and contents(copy) == before
    np.savez("test.npz", x=data["x"], y=data["y"])
    seen = np.load("seen.npz")
    np.savez("seen.npz", x=seen["x"][:17], y=seen["y"][:17])
    for name in ("study.json", "choice.json"):
        (copy / "runs" / name).unlink()
    assert study() == 5
    assert "samples of --ood-val: '" in capsys.readouterr().err


def stack(*names: str) -> dict[str, np.ndarray]:
    parts = [np.load(f"{name}.npz") for name in names]
    return {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"--test": "val.npz"}, "--test and --val are the same samples"),
        ({"--train": "val.npz"}, "--val and --train are the same samples"),
        ({"--ood": "noise=mixed.npz"}, "18 of 44 samples of --ood noise are among the 18 of --ood-val"),
        ({"--ood-val": "one.npz"}, "--ood-val is divided into halves, and one of them is empty"),
        (
            {"--train": "train.npz", "--limit": "1"},
            "would be fitted to 1 samples of --train, no two of one class",
        ),
    ],
)
def test_sets_are_compared_before_the_first_step(
    options: dict[str, str],
    problem: str,
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(copy / "runs")
    monkeypatch.setattr("hydractl.verbs.study._plan_within_time", None)  # nothing is run
    np.savez("mixed.npz", **{key: value[:44] for key, value in stack("seen", "noise", "noise").items()})
    np.savez("one.npz", x=np.zeros((1, 8, 8), dtype=np.uint8))
    for dry in (["--dry-run"], []):
        assert study(*dry, **options) in (2, 3)
        error = capsys.readouterr().err
        assert problem in error and "--allow-seen" not in error
        assert not (copy / "runs").exists()


def broken(folder: Path, *names: str) -> dict[str, str]:
    """Folders of images in place of the .npz files of a study, each with one that cannot be read; the options."""
    for name in names:
        data = np.load(f"{name}.npz")
        for number, (image, label) in enumerate(zip(data["x"], data["y"], strict=True)):
            path = folder / name / str(label) / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        first = sorted((folder / name).rglob("*.png"))[0]
        first.write_bytes(first.read_bytes()[:50])
    (folder / "labels.txt").write_text("0\n1\n2\n")
    return {"--val": "val", "--ood-val": "seen", "--test": "test", "--ood": "noise=noise", "--labels": "labels.txt"}


@pytest.mark.fault(102)
def test_images_that_cannot_be_read_are_named_before_the_first_step_or_left_out(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy / "runs")
    options = {**broken(copy, "val", "seen", "test", "noise"), "--rows": "single"}
    for dry in (["--dry-run"], []):
        assert study(*dry, **options) == 3
        said = capsys.readouterr().err
        for option, total in (("--val", 24), ("--test", 24), ("--ood-val", 18), ("--ood noise", 20)):
            assert f"1 of {total} images of {option} cannot be read: 0/00.png" in said
        assert "--on-bad skip leaves such samples out" in said and not (copy / "runs").exists()

    # A test sample without a label is named before the first step, too.
    paths = sorted((copy / "test").rglob("*.png"))[1:]
    lines = [f"{path} {path.parent.name}" for path in paths]
    (copy / "test.txt").write_text("\n".join([*lines[:-1], str(paths[-1])]))
    assert study("--dry-run", **{**options, "--test": "test.txt"}) == 3
    assert f"no label for sample {paths[-1]}" in capsys.readouterr().err

    # Left out, they are left out of every step, and a study of the rest goes on as any other.
    assert study("--on-bad", "skip", **options) == 0
    document = read_json("runs/study.json")
    assert "1 of 24 images of --test cannot be read: 0/00.png" in document["warnings"]
    assert document["rows"][0]["test"]["id"]["n"] == 23
    words = [word for step in document["steps"] for word in step]
    assert {"val?without=0&part=2/2", "oodval=seen?without=0&part=2/2"} <= {*words}
    assert study("--on-bad", "skip", **options) == 0
    assert read_json("runs/study.json") == document


@pytest.mark.fault(62)
@pytest.mark.parametrize(("more", "total", "left_out"), [("", 27, "25,26"), ("?without=3", 26, "3,25,26")])
def test_what_is_in_both_halves_or_in_the_training_data_is_left_out(
    more: str, total: int, left_out: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    val, train = np.load("val.npz"), np.load("train.npz")
    # Sample 24 is in the first half as is 0; 25 is in the second, its like in the first; 26 is a training sample.
    again = [val["x"], val["x"][[0, 2]], train["x"][[5]]]
    np.savez("again.npz", x=np.concatenate(again), y=np.concatenate([val["y"], val["y"][[0, 2]], train["y"][[5]]]))
    shutil.rmtree(copy / "runs")
    options = {**OPTIONS, "--val": f"again.npz{more}", "--rows": "single", "--train": "train.npz"}
    words = [word for pair in options.items() for word in pair]
    assert main(["study", "vit.st", *words, "--dry-run", "-o", "runs", "--json"]) == 0
    out, error = capsys.readouterr()
    assert f"1 of {total} samples of --val is among those of --train, and left out of it" in error
    assert "1 samples of --val are in one half of it and again in the other" in error
    used = {word for step in json.loads(out)["steps"] for word in step if "again.npz" in word}
    assert f"again.npz?without={left_out}&part=2/2" in used
    assert all(f"without={left_out}" in word for word in used)


def test_a_study_that_was_stopped_before_it_had_a_plan_is_begun(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    shutil.rmtree(copy / "runs")
    monkeypatch.setattr("hydractl.verbs.study._plan_within_time", stop)
    assert study() == 130
    (copy / "runs/.plan.json.hydractl-tmp").touch()
    monkeypatch.undo()
    monkeypatch.chdir(copy)
    monkeypatch.setattr("hydractl.verbs.study._run_step", stop)
    assert study() == 130 and (copy / "runs/plan.json").exists()


def test_a_dry_run_writes_nothing_and_a_budget_leaves_out(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "runs")
    assert study("--dry-run", "--json", "--time", "0s", **{"--rows": "default"}) == 0
    document = json.loads(capsys.readouterr().out)
    assert not (copy / "runs").exists()
    search = next(step for step in document["steps"] if step[0] == "extract-circuit")
    assert "lazy:8" in search and search[search.index("--objective") + 1] == "avg"
    assert any("whole-three" in text for text in document["cut"])


@pytest.mark.long
def test_what_was_calibrated_before_is_set_aside_and_said_so(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "calibrated").mkdir()
    chosen = ["--val", "val.npz", "--temperature", "fit", "--threshold", "id:0.1", "--ood-score", "margin"]
    assert main(["calibrate", "vit.st", *chosen, "-o", "calibrated/vit.st", "-q"]) == 0
    capsys.readouterr()
    for model, stored in (("calibrated/vit.st", True), ("vit.st", False)):
        options = {**OPTIONS, "--rows": "single", "-o": "new"}
        words = [word for pair in options.items() for word in pair]
        assert main(["study", model, *words, "--dry-run", "--json", "-q"]) == 0
        document = json.loads(capsys.readouterr().out)
        said = "vit holds a calibration, the OOD score margin, a threshold, which the study sets aside: "
        warnings = document.get("warnings", [])
        assert any(warning.startswith(said) for warning in warnings) == stored


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"--rows": "taylor"}, "--rows taylor needs --train"),
        ({"--ood": "noise=noise.npz?"}, "noise.npz?"),
        ({"--threshold": "5"}, "--threshold must be id:P"),
    ],
)
def test_what_makes_no_sense(
    options: dict[str, str], problem: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy / "runs")
    assert study(**options) in (2, 3)
    assert problem in capsys.readouterr().err


def test_a_zero_shot_model_has_no_rows_of_classifiers(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published("clip", copy / "clip")
    (copy / "names.txt").write_text("a\nb\nc\n")
    data = ["--train", "train.npz", "--labels", "names.txt", "--rows", "deep,heads,laplace", "-o", "new"]
    assert main(["study", "clip", *(word for pair in OPTIONS.items() for word in pair), *data]) == 2
    error = capsys.readouterr().err
    assert all(f"--rows {name} needs a model with a classifier of its own" in error for name in ("laplace", "heads"))


GRID = ["--train", "train.npz", "--epochs", "3", "--batch-size", "2", "--lr", "0.0001,0.01"]


LAST_OF_ROW = {"trained": "trained0", "mimo": "mimo.3", "heads": "heads.1"}


@pytest.mark.long
@pytest.mark.parametrize("made_rows", ["trained,heads", *marked_release([",".join(LAST_OF_ROW)])])
def test_each_training_keeps_the_best_of_several_learning_rates_also_after_a_kill(
    made_rows: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"--rows": made_rows}
    assert study(*GRID, **options, **{"-o": "whole"}) == 0
    document = read_json("whole/study.json")
    rates = {row["name"]: row.get("lr") for row in document["rows"]}
    assert rates.pop("single") is None and list(rates) == made_rows.split(",")
    files = {row: LAST_OF_ROW[row] for row in rates}
    for row, kept in rates.items():
        results = open_source(f"whole/{files[row]}.st").description.provenance["settings"]["grid"]
        best = max(results, key=lambda result: result["val_accuracy"])  # the first of equals
        assert [result["lr"] for result in results] == [0.0001, 0.01] and kept == [best["lr"]]
    table = shown(document, 200)
    assert "learning" in table and all(f"{kept[0]:g}" in table.split() for kept in rates.values())

    # Stopped in the training with the second rate, and given again.
    shutil.rmtree("runs")
    with stopped_after(2, lr=0.01):
        assert study(*GRID, **options) == 130
    assert Path("runs/trained0.st.state").exists()
    assert not Path("runs/choice.json").exists()
    assert study(*GRID, **options) == 0
    made = [*(f"{file}.st" for file in files.values()), "choice.json"]
    assert contents(copy, made) == {name: Path("whole", name).read_bytes() for name in made}
    verdict = read_json("runs/study.json")["verdict"]
    assert verdict == document["verdict"]

    # The rates are part of what a folder is of.
    assert study(*GRID[:-1], "0.0001", **options) == 5
    assert "lr: ['0.0001', '0.01'] in the folder, ['0.0001'] now" in capsys.readouterr().err


def test_an_estimate_counts_every_learning_rate(copy: Path) -> None:
    def passes(rates: list[float]) -> int:
        step = Step("finetune", ("vit.st",), {"epochs": 2}, ())
        train, val = (GivenSet("", open_data(DataSpec.of_option("", name))) for name in ("train.npz", "val.npz"))
        request = SimpleNamespace(choosing_sets=list, limit=None, epochs=2, lr=rates)
        return _passes_of_training(step, StudySets(request, val, val, train, {}, [], []))  # type: ignore[arg-type]

    assert passes([0.1, 0.01, 0.001]) == 3 * passes([0.1]) > 0


@pytest.mark.release
def test_the_script_makes_the_same_bytes_again(copy: Path, with_hydractl: dict[str, str]) -> None:
    environment: dict[str, Any] = {**os.environ, **with_hydractl}
    assert study() == 0  # which writes the script that begins in this folder
    before, again = copy / "before", copy / "runs"
    again.rename(before)
    (copy / "elsewhere").mkdir()
    subprocess.run(["sh", "../before/study.sh"], cwd=copy / "elsewhere", env=environment, check=True)
    names = [path.relative_to(again) for path in again.rglob("*.st")]
    assert Path("best.st") in names and Path("circuits.st") in names
    assert all((again / name).read_bytes() == (before / name).read_bytes() for name in names)


@pytest.mark.release
def test_every_row_is_made(copy: Path) -> None:
    shutil.rmtree(copy / "runs")
    rows = ",".join(ROWS)
    assert study("--train", "train.npz", "--epochs", "3", "--batch-size", "2", **{"--rows": rows}) == 0
    names = {row["name"].partition("@")[0] for row in read_json(copy / "runs/study.json")["rows"]}
    assert names == set(KINDS)


def only_planned(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Begin the study of ``folder`` anew, stop it at its first step, and return the plan that a dry run prints."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    shutil.rmtree(folder / "runs")
    with monkeypatch.context() as patch:
        patch.setattr("hydractl.verbs.study._run_step", stop)
        assert study() == 130
    Path("runs/steps").mkdir()
    capsys.readouterr()
    assert study("--dry-run", "--json") == 0
    return capsys.readouterr().out


def programs_of_the_page() -> list[str]:
    """The programs of docs/several-gpus.md: one that prints a Makefile, and the end of one that submits jobs."""
    page = (Path(__file__).parents[2] / "docs" / "several-gpus.md").read_text(encoding="utf-8")
    return re.findall(r"^```py\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_commands_by_make_make_the_same_bytes(
    copy: Path, with_hydractl: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("flock") is None:
        pytest.skip("flock, by which a GPU has one command at a time, is of util-linux")
    expected = contents(copy)
    plan = only_planned(copy, monkeypatch, capsys)
    program, _ = programs_of_the_page()
    printing = [sys.executable, "-c", program, "runs", "2"]
    makefile = subprocess.run(printing, input=plan, capture_output=True, text=True, check=True).stdout
    Path("runs/steps/Makefile").write_text(makefile)
    make = ["make", "-j", "-f", "runs/steps/Makefile"]
    done = subprocess.run(make, env=with_hydractl, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in subprocess.run(make, capture_output=True, text=True, check=True).stdout
    assert Path("runs/choose/circuits.json").exists() and not list(Path("runs/test").iterdir())
    assert study() == 0
    assert contents(copy) == expected


@pytest.mark.release
def test_jobs_make_the_same_bytes(
    copy: Path, with_hydractl: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit", reason="pip install submitit")
    expected = contents(copy)
    plan = only_planned(copy, monkeypatch, capsys)
    printing, submitting = programs_of_the_page()
    beginning = printing.partition("print(")[0]
    here = submitting.replace('"runs/vit/jobs"', '"runs/jobs", cluster="local"').replace("gpus_per_node=1, ", "")
    assert here.count("local") == 1
    program = [sys.executable, "-c", beginning + here, "runs", "2"]
    done = subprocess.run(program, input=plan, env=with_hydractl, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path("runs/choose/circuits.json").exists() and not list(Path("runs/test").iterdir())
    assert study() == 0
    assert contents(copy) == expected


def test_every_cell_of_the_table_is_shown_on_a_narrow_terminal() -> None:
    document = read_json(Path(__file__).parents[2] / "docs/results/digits.json")
    for width in (80, 120):
        words = shown(document, width).split()
        for row in document["rows"]:
            assert {row["name"], row["score"], f"{row['test']['ood_avg']['fpr95']:.3f}"} <= set(words)
    plan = StudyAnswer.planned(steps=document["steps"], cut=[], seconds=1.0)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(render(plan, 80))
    typed = shlex.split(console.export_text().replace("\\\n", ""))  # as a shell reads it
    assert all(" ".join(step) in " ".join(typed) for step in document["steps"])
