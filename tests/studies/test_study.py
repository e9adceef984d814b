"""``study`` from a model to its verdict, on a tiny model with noise for data: what it leaves, resumes and refuses."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hydractl.cli.app import main
from hydractl.log import Log
from hydractl.report.study_table import study_table
from hydractl.settings.studying import ROWS, StudySettings
from hydractl.studies.rows import MAKERS
from hydractl.studies.steps import Step
from hydractl.training.children import Ended
from hydractl.verbs.study import _run_at_once
from tests.pico import published

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
ARTEFACTS = ("best.st", "best.json", "best.md", "choice.json", "report.html", "study.json", "test.json")
Study = Callable[..., int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, and a finished study in ``runs``."""
    folder = tmp_path_factory.mktemp("study")
    draw = np.random.default_rng(0)
    for name, count in (("train", 30), ("val", 24), ("test", 24), ("seen", 18), ("noise", 20)):
        np.savez(folder / f"{name}.npz", x=draw.integers(0, 256, (count, 8, 8), dtype=np.uint8), y=np.arange(count) % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        training = ["--data", "train.npz", "--steps", "20", "--lr", "1e-2", "-o", "vit.st", "-q"]
        assert main(["finetune", TINY, *training]) == 0
        assert study() == 0
    return folder


def study(*more: str, **options: str) -> int:
    words = [word for pair in {**OPTIONS, **options}.items() for word in pair]
    return main(["study", "vit.st", *words, "--no-timed", "-o", "runs", "-q", *more])


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path, names: Sequence[str] = ARTEFACTS) -> dict[str, bytes]:
    return {name: (folder / "runs" / name).read_bytes() for name in names}


def test_what_a_study_leaves(made: Path) -> None:
    document = json.loads((made / "runs/study.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["single", "whole-avg@1", "whole-avg@2", "circuits"]
    (chosen,) = (row for row in document["rows"] if row["chosen"])
    assert chosen["name"] == document["choice"]["row"]
    choice = json.loads((made / "runs/choice.json").read_text())
    assert [one["row"] for one in choice["candidates"] if not one["reason"]] == [chosen["name"]]
    # What it says of the test data is what eval measures of the same predictions.
    table = {row["name"]: row for row in json.loads((made / "runs/test.json").read_text())["models"]}
    assert table["circuits"]["id"]["accuracy"] == document["rows"][3]["test"]["id"]["accuracy"]
    calibrated = json.loads((made / "runs/best.json").read_text())["models"][0]
    assert calibrated["id"]["nll"] == pytest.approx(chosen["test"]["id"]["nll"], abs=1e-6)
    assert calibrated["calibration"]["temperature"] == pytest.approx(document["choice"]["temperature"], rel=1e-6)
    assert document["verdict"]["lines"][0] in (made / "runs/report.html").read_text().replace("&#39;", "'")
    # Nothing that was searched on is chosen by, and nothing that was chosen by is tested on.
    used = [{word for word in step if ".npz" in word} for step in document["steps"]]
    for step, data in zip(document["steps"], used, strict=True):
        assert step[0] != "extract-circuit" or data == {"val.npz?part=1/2", "seen.npz?part=1/2"}
        assert not any("?part=2/2" in word for word in data) or "--allow-seen" in step or "--calibrated" in step


def test_the_same_command_again_computes_nothing_and_changes_nothing(copy: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copy / "runs").rglob("*.st")}
    bytes_before = contents(copy)
    assert study() == 0
    assert contents(copy) == bytes_before
    assert {path: path.stat().st_mtime_ns for path in (copy / "runs").rglob("*.st")} == before


@pytest.mark.long
def test_a_study_goes_on_after_a_break(copy: Path) -> None:
    expected = contents(copy)
    runs = copy / "runs"
    for name in (*ARTEFACTS, "circuit.avg.json", "circuits.st", "acc@3.mask.json", "test/single.json"):
        (runs / name).unlink()
    assert study() == 0
    assert contents(copy) == expected


def test_other_settings_and_other_folders_are_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study(**{"--max-drop": "0.5"}) == 5
    assert "max_drop: 0.01 in the folder, 0.5 now" in capsys.readouterr().err
    plan = json.loads((copy / "runs/plan.json").read_text())
    for scale in ({"rows": ["deep"], "approx": None, "samples": None, "cut": []}, {}, None):
        (copy / "runs/plan.json").write_text(json.dumps({**plan, "scale": scale}))
        assert study() == 3 and "its scale is none that" in capsys.readouterr().err
    (copy / "runs/plan.json").unlink()
    assert study() == 5
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.fault(60)
def test_a_study_is_not_continued_with_other_data(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(copy)
    data = np.load("test.npz")
    np.savez("test.npz", x=data["x"][:, ::-1], y=data["y"])
    assert study() == 5  # its verdict is there
    out, error = capsys.readouterr()
    assert "runs holds a study of other data" in error and "--test: other samples or labels" in error
    assert out == "" and contents(copy) == before
    np.savez("test.npz", x=data["x"], y=data["y"])
    seen = np.load("seen.npz")
    np.savez("seen.npz", x=seen["x"][:17], y=seen["y"][:17])
    for name in ("study.json", "choice.json"):
        (copy / "runs" / name).unlink()
    assert study() == 5
    assert "--ood-val: other samples or labels" in capsys.readouterr().err


def stack(*names: str) -> dict[str, np.ndarray]:
    parts = [np.load(f"{name}.npz") for name in names]
    return {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"--test": "val.npz"}, "--test and --val are the same samples"),
        ({"--ood": "noise=seen.npz"}, "--ood noise and --ood-val are the same samples"),
        ({"--data": "test.npz"}, "--test and --data are the same samples"),
        ({"--data": "val.npz"}, "--val and --data are the same samples"),
        ({"--ood": "noise=mixed.npz"}, "18 of 44 samples of --ood noise are among the 18 of --ood-val"),
        ({"--ood": "noise=half.npz"}, "24 of 44 samples of --ood noise are among the 24 of --test"),
        ({"--ood-val": "one.npz"}, "--ood-val is divided into halves, and one of them is empty"),
        (
            {"--data": "train.npz", "--limit": "1"},
            "would be fitted to 1 samples of --data, no two of them of one class",
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
    monkeypatch.setattr("hydractl.verbs.study._fitting", None)  # nothing is run
    np.savez("mixed.npz", **{key: value[:44] for key, value in stack("seen", "noise", "noise").items()})
    np.savez("half.npz", **stack("test", "noise"))
    np.savez("one.npz", x=np.zeros((1, 8, 8), dtype=np.uint8))
    for dry in (["--dry-run"], []):
        assert study(*dry, **options) in (2, 3)
        error = capsys.readouterr().err
        assert problem in error and "--allow-seen" not in error
        assert not (copy / "runs").exists()


@pytest.mark.fault(62)
def test_what_is_in_both_halves_or_in_the_training_data_is_left_out(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    val, train = np.load("val.npz"), np.load("train.npz")
    # Sample 24 is in the first half as is 0; 25 is in the second, its like in the first; 26 is a training sample.
    again = [val["x"], val["x"][[0, 2]], train["x"][[5]]]
    np.savez("again.npz", x=np.concatenate(again), y=np.concatenate([val["y"], val["y"][[0, 2]], train["y"][[5]]]))
    shutil.rmtree(copy / "runs")
    options = {**OPTIONS, "--val": "again.npz", "--rows": "single", "--data": "train.npz"}
    words = [word for pair in options.items() for word in pair]
    assert main(["study", "vit.st", *words, "--no-timed", "-o", "runs", "--json"]) == 0
    out, error = capsys.readouterr()
    assert "1 of 27 samples of --val are among the 30 of --data, and left out of --val" in error
    assert "1 samples of --val are in one half of it and again in the other" in error
    used = {word for step in json.loads(out)["steps"] for word in step if "again.npz" in word}
    assert "again.npz?without=25-26&part=2/2" in used and all("without=25-26" in word for word in used)


@pytest.mark.fault(63)
def test_unlabelled_test_data_are_refused_before_the_first_step(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "runs")
    np.savez("unlabelled.npz", x=np.load("test.npz")["x"])
    assert study(**{"--test": "unlabelled.npz"}) == 3
    assert "--test unlabelled.npz has no labels" in capsys.readouterr().err and not (copy / "runs").exists()


def test_a_study_that_was_stopped_before_it_had_a_plan_is_begun(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    shutil.rmtree(copy / "runs")
    monkeypatch.setattr("hydractl.verbs.study._fitting", stop)
    assert study() == 130
    (copy / "runs/.plan.json.hydractl-tmp").touch()
    monkeypatch.undo()
    monkeypatch.chdir(copy)
    monkeypatch.setattr("hydractl.verbs.study._run_steps", stop)
    assert study() == 130 and (copy / "runs/plan.json").exists()


def test_a_dry_run_writes_nothing_and_a_budget_leaves_out(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "runs")
    assert study("--dry-run", "--json", "--budget", "0s", **{"--rows": "default"}) == 0
    document = json.loads(capsys.readouterr().out)
    assert not (copy / "runs").exists()
    search = next(step for step in document["steps"] if step[0] == "extract-circuit")
    assert "lazy:8" in search and search[search.index("--objective") + 1] == "avg"
    assert any("whole-three" in text for text in document["cut"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"--rows": "taylor"}, "--rows taylor needs --data"),
        ({"--rows": "swa", "--data": "train.npz"}, "--rows swa: a training of 40 steps or more is needed"),
        ({"--ood": "noise=noise.npz?"}, "noise.npz?"),
        ({"--threshold": "5"}, "--threshold must be id:P"),
        ({"--devices": "99"}, "device 'cuda:99' is not available"),
        ({"--slurm": "partition=gpu"}, "--slurm (flag) needs time=MINUTES"),
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
    data = ["--data", "train.npz", "--labels", "names.txt", "--rows", "deep,heads,laplace", "-o", "new"]
    assert main(["study", "clip", *(word for pair in OPTIONS.items() for word in pair), *data]) == 2
    assert "--rows laplace,heads: only a model with a classifier" in capsys.readouterr().err


def test_the_names_of_rows_are_those_there_are() -> None:
    assert ("default", *MAKERS) == ROWS


@pytest.mark.long
def test_the_script_makes_the_same_bytes_elsewhere(copy: Path, with_hydractl: dict[str, str]) -> None:
    environment: dict[str, Any] = {**os.environ, **with_hydractl}
    (copy / "elsewhere").mkdir()
    subprocess.run(["sh", "../runs/study.sh", "again"], cwd=copy / "elsewhere", env=environment, check=True)
    again = copy / "elsewhere/again"
    names = [path.relative_to(again) for path in again.rglob("*.st")]
    assert Path("best.st") in names and Path("circuits.st") in names
    assert all((again / name).read_bytes() == (copy / "runs" / name).read_bytes() for name in names)


@pytest.mark.long
def test_every_row_is_made(copy: Path) -> None:
    shutil.rmtree(copy / "runs")
    rows = ",".join(ROWS)
    assert study("--data", "train.npz", "--epochs", "3", "--batch-size", "2", **{"--rows": rows}) == 0
    names = {row["name"].partition("@")[0] for row in json.loads((copy / "runs/study.json").read_text())["rows"]}
    assert names == set(MAKERS)


@pytest.mark.long
def test_two_commands_at_a_time_make_the_same_bytes_also_after_a_stop(copy: Path) -> None:
    expected = contents(copy)
    shutil.rmtree(copy / "runs")

    def stop() -> None:
        while not Path("runs/choose/single.json").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    assert study("--devices", "cpu,cpu") == 130
    assert not Path("runs/choice.json").exists()
    assert study("--devices", "cpu,cpu") == 0
    assert contents(copy) == expected


@pytest.mark.long
def test_jobs_make_the_same_bytes(copy: Path) -> None:
    pytest.importorskip("submitit", reason="pip install 'hydractl[slurm]'")
    expected = contents(copy)
    for name in (*ARTEFACTS, "circuits.st", "acc@3.st"):
        (copy / "runs" / name).unlink()
    assert study("--slurm", "cluster=local,time=20") == 0
    assert contents(copy) == expected
    assert len(list(Path("runs/slurm").glob("*_submitted.pkl"))) == 4  # prune, fuse, and two of eval


def test_a_timing_has_the_machine_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def run(commands: dict[str, Any], devices: list[str], *_: Any) -> dict[str, Ended]:
        begun.append((list(commands), devices))
        return {name: Ended(name) for name in commands}

    monkeypatch.setattr("hydractl.verbs.study.run_side_by_side", run)
    first = Step("prune", (), {}, (Path("a.st"),))
    steps = [Step("bench", (), {}, (Path("time"),)), Step("eval", (), {}, (Path("b"),), (first,)), first]
    plan: Any = SimpleNamespace(settings=StudySettings(devices=["0", "cpu"]), shop=SimpleNamespace(folder=Path()))
    _run_at_once(steps, plan, Log())
    both = ["cuda:0", "cpu"]
    assert begun == [(["a.st"], both), (["b"], both), (["time"], ["cuda:0"])]


@pytest.mark.long
def test_a_command_that_fails_ends_the_study(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/circuits.st").write_bytes(b"damaged")
    Path("runs/choose/circuits.json").unlink()
    assert study("--devices", "cpu") == 3
    assert "error: runs/choose/circuits.json: runs/circuits.st" in capsys.readouterr().err


def test_every_cell_of_the_table_is_shown_on_a_narrow_terminal() -> None:
    document = json.loads((Path(__file__).parents[2] / "docs/results/digits.json").read_text(encoding="utf-8"))
    for width in (80, 120):
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(study_table(document, width))
        words = console.export_text().split()
        for row in document["rows"]:
            assert {row["name"], row["score"], f"{row['test']['ood_avg']['fpr95']:.3f}"} <= set(words)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(study_table({"dry_run": True, "steps": document["steps"], "cut": [], "seconds": 1.0}, 80))
    typed = shlex.split(console.export_text().replace("\\\n", ""))  # as a shell reads it
    assert all(" ".join(step) in " ".join(typed) for step in document["steps"])
