"""``hydractl predict``: the same figures as eval, line by line, in any division of the work, and after a kill."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.errors import RequirementError, UsageError
from hydractl.evaluation.providers import running
from hydractl.files.atomic import Output
from hydractl.model.arriving import one_behind
from tests.forked import Forked
from tests.pico import published
from tests.running import json_lines, link_files, main, read_json, run
from tests.spread import marked_long

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=24&depth=2&num_heads=3&mlp_ratio=2&num_classes=10"
)
TEST = "builtin:digits/test"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fused model, plain and calibrated with a score on features, a threshold and prediction sets."""
    folder = tmp_path_factory.mktemp("predict")
    with contextlib.chdir(folder):
        run("finetune", BASE, "--train", "builtin:digits/train", "--limit", "400", "--lr", "4e-3", "-o", "base.st")
        for seed in ("0", "1"):
            taylor = ["--method", "taylor", "--keep", "2", "--data", "builtin:digits/train", "--samples", "64"]
            run("prune", "base.st", *taylor, "--seed", seed, "-o", f"t{seed}.st")
        run("fuse", "t0.st", "t1.st", "-o", "hydra.st")
        chosen = ["--ood-score", "mahalanobis", "--temperature", "fit", "--threshold", "id:0.05", "--conformal", "0.1"]
        run("calibrate", "hydra.st", "--val", "builtin:digits/val", "--train", "builtin:digits/train", *chosen)
    return folder


@pytest.fixture(autouse=True)
def inside(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts in a folder of its own that sees the models."""
    monkeypatch.chdir(tmp_path)
    link_files(models, tmp_path)
    os.symlink(models / "hydra.calibrated.st", "cal.st")


def predict(*words: str) -> bytes:
    """The file that a prediction writes."""
    run("predict", "cal.st", *words, "-o", "p.jsonl", "--force")
    return Path("p.jsonl").read_bytes()


def images(folder: str, count: int) -> list[str]:
    """Write so many images, and return their paths."""
    os.mkdir(folder)
    generator = np.random.default_rng(7)
    paths = []
    for number in range(count):
        path = f"{folder}/{number:02}.png"
        Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths


def give_on_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let this process read so many bytes from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_figures_of_the_lines_are_those_of_eval() -> None:
    run("eval", "cal.st", "--test", TEST, "--limit", "60", "-o", "e.json")
    predict(TEST, "--limit", "60")
    measured = read_json("e.json")["models"][0]
    rows = json_lines("p.jsonl")
    assert len(rows) == 60
    assert np.mean([row["predicted"] == row["label"] for row in rows]) == measured["id"]["accuracy"]
    assert np.mean([row["is_ood"] for row in rows]) == measured["threshold"]["id_flagged"]
    assert np.mean([row["mi"] for row in rows]) == pytest.approx(measured["diversity"]["id"]["mi"], abs=1e-12)
    wrong = np.array([row["predicted"] != row["label"] for row in rows])
    scores = np.array([row["ood_score"] for row in rows])
    pairs = scores[wrong][:, None] - scores[~wrong]
    auroc = np.mean((pairs > 0) + (pairs == 0) / 2)
    assert auroc == pytest.approx(measured["errors"]["auroc"], abs=1e-12)
    assert all(row["predicted"] in row["set"] or not row["set"] for row in rows)


def test_batches_that_are_started_ahead_as_on_a_gpu_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> tuple[bytes, bytes]:
        few = ["--limit", "50", "--batch-size", "20", "--device", "cpu"]
        run("eval", "cal.st", "--test", TEST, *few, "--predictions", "e.st", "-o", "e.json", "--force")
        return predict(TEST, *few), Path("e.st").read_bytes()

    def as_on_a_gpu(started: Iterator[Any], device: torch.device) -> Iterator[Any]:
        assert device.type == "cpu"
        return one_behind(started, torch.device("cuda"))

    expected = files()
    monkeypatch.setattr(running, "one_behind", as_on_a_gpu)
    assert files() == expected


def test_prediction_sets_are_those_that_eval_measures() -> None:
    options = ["--val", "builtin:digits/val", "--conformal", "0.1", "--allow-seen"]
    run("eval", "cal.st", "--test", TEST, *options, "-o", "e.json")
    predict(TEST)
    conformal = read_json("e.json")["models"][0]["conformal"]
    rows = json_lines("p.jsonl")
    covered = [row["label"] in row["set"] for row in rows]
    assert np.mean(covered) == pytest.approx(conformal["coverage"], abs=1e-12)
    assert np.mean([len(row["set"]) for row in rows]) == pytest.approx(conformal["mean_size"], abs=1e-12)


@pytest.mark.long
def test_what_changes_the_predictions_drops_the_sets(capsys: pytest.CaptureFixture[str]) -> None:
    run("calibrate", "base.st", "--val", "builtin:digits/val", "--conformal", "0.1", "-o", "c.st")
    assert "conformal" in hydractl.open("c.st").source.description.extra
    run("prune", "c.st", "--method", "magnitude", "--keep", "2", "-o", "p.st")
    data = ["--train", "builtin:digits/train", "--limit", "50"]
    assert main(["finetune", "c.st", *data, "--ensemble", "laplace", "-o", "l.st"]) == 0
    assert "left out, as fitted to the logits without the posterior: conformal" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="the conformal is left out"):
        hydractl.save(hydractl.load("c.st", device="cpu"), "s.st")
    for changed in ("p.st", "l.st", "s.st"):
        assert "conformal" not in hydractl.open(changed).source.description.extra


def test_top_classes() -> None:
    predict(TEST, "--limit", "7", "--top", "3")
    for row in json_lines("p.jsonl"):
        probabilities = [entry["p"] for entry in row["top"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert row["top"][0] == {"label": row["predicted"], "p": row["confidence"]}
        assert len(probabilities) == 3


def test_standard_input_files_and_folders_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = images("new", 5)
    by_file = predict(*paths)
    give_on_stdin(monkeypatch, "\n".join(paths).encode() + b"\n\n")
    assert predict("-") == by_file
    of_folder = predict("new")
    assert [row["id"] for row in json_lines("p.jsonl")] == [os.path.basename(path) for path in paths]
    assert len(of_folder.splitlines()) == 5


@pytest.mark.parametrize("content", [None, b"\n  \n"])
def test_nothing_on_standard_input(
    content: bytes | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        monkeypatch.setattr(sys, "stdin", None)
    else:
        give_on_stdin(monkeypatch, content)
    assert main(["predict", "cal.st", "-", "-q"]) == 3
    assert "standard input is" in capsys.readouterr().err


def test_texts_keep_their_order_and_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts run by length within a window and are written in input order, window by window."""
    texts = [f"{'word ' * (number % 7 + 1)}{number}" for number in range(70)]
    Path("t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = str(published("bert", Path("text-model")))
    options = ["--batch-size", "2", "--device", "cpu", "--force"]
    run("predict", model, "t.jsonl", *options, "-o", "whole.jsonl")
    whole = json_lines("whole.jsonl")
    assert len(whole) == 70
    give_on_stdin(monkeypatch, "\n".join(texts).encode())
    run("predict", model, "-", *options, "-o", "stdin.jsonl")
    for row, expected in zip(json_lines("stdin.jsonl"), whole, strict=True):
        assert {**row, "id": expected["id"]} == expected
    loaded = hydractl.load(model, device="cpu", dtype="float64")
    for text, row in zip(texts, whole, strict=True):
        with torch.no_grad():
            log_probs = loaded(loaded.preprocess([text]))
        assert row["confidence"] == pytest.approx(float(log_probs.exp().max()), abs=1e-5)
    spans = b""
    for span in ("take=32", "from=32"):  # two batches of 16 are a window
        run("predict", model, f"t.jsonl?{span}", *options, "-o", "span.jsonl")
        spans += Path("span.jsonl").read_bytes()
    assert spans == Path("whole.jsonl").read_bytes()
    run("predict", model, "t.jsonl?part=2/3", *options, "-o", "part.jsonl")
    assert [row["id"] for row in json_lines("part.jsonl")] == [row["id"] for row in whole[1::3]]


@pytest.mark.parametrize("workers", ["0", *marked_long(["2"])])
def test_broken_images_are_listed_wherever_they_are(workers: str) -> None:
    paths = images("new", 9)
    for broken in (0, 2, 3, 8):  # with two a batch: half of the first, all of the second, all of the last
        Path(paths[broken]).write_bytes(b"no image")
    options = ["--batch-size", "2", "--workers", workers]
    assert main(["predict", "cal.st", "new", *options, "-o", "p.jsonl", "-q"]) == 3
    assert not Path("p.jsonl.part").exists()  # nothing was predicted before it
    run("predict", "cal.st", "new", *options, "--on-bad", "skip", "-o", "p.jsonl", "--report", "r.json")
    assert [row["id"] for row in json_lines("p.jsonl")] == ["01.png", "04.png", "05.png", "06.png", "07.png"]
    summary = read_json("r.json")
    assert summary["skipped"] == {"n": 4, "ids": ["00.png", "02.png", "03.png", "08.png"]}
    assert summary["n"] == 5


def test_once_a_broken_image_is_replaced_it_goes_on_after_what_came_before(capsys: pytest.CaptureFixture[str]) -> None:
    paths = images("new", 5)
    image = Path(paths[3]).read_bytes()
    Path(paths[3]).write_bytes(b"no image")
    command = ["predict", "cal.st", "new", "--batch-size", "2", "-o", "p.jsonl"]
    assert main(command) == 3
    assert "--resume goes on once it is replaced" in capsys.readouterr().err
    Path(paths[3]).write_bytes(image)
    run(*command, "--resume")
    assert "p.jsonl.part is resumed: 3 of 5 are left" in capsys.readouterr().err
    assert len(json_lines("p.jsonl")) == 5


def test_nothing_but_broken_images() -> None:
    for path in images("new", 3):
        Path(path).write_bytes(b"no image")
    assert main(["predict", "cal.st", "new", "--on-bad", "skip", "-o", "p.jsonl", "-q"]) == 3
    assert not Path("p.jsonl").exists()


def test_csv_holds_the_same() -> None:
    run("predict", "cal.st", TEST, "--limit", "6", "--top", "2", "-o", "p.csv")
    predict(TEST, "--limit", "6", "--top", "2")
    with open("p.csv", encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    for row, expected in zip(rows, json_lines("p.jsonl"), strict=True):
        assert list(row) == list(expected)
        assert (float(row["ood_score"]), json.loads(row["top"])) == (expected["ood_score"], expected["top"])


def test_lines_into_a_pipe_and_a_requirement(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    whole = predict(TEST, "--limit", "8")
    capsysbinary.readouterr()
    assert main(["predict", "cal.st", TEST, "--limit", "8", "--require", "ood_share>=2", "-q"]) == 4
    assert capsysbinary.readouterr().out == whole
    assert main(["predict", "cal.st", TEST, "--require", "ood_shares<=1", "-q"]) == 2


def test_only_flagged_samples_are_listed_and_all_are_counted(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    flagged = [row for row in map(json.loads, predict(TEST).splitlines()) if row["is_ood"]]
    assert flagged
    capsysbinary.readouterr()
    assert main(["predict", "cal.st", TEST, "--flagged", "-q"]) == 0
    assert list(map(json.loads, capsysbinary.readouterr().out.splitlines())) == flagged
    found = hydractl.predict("cal.st", data=TEST, flagged=True)
    assert found.rows == flagged and found.n > len(flagged)


def test_without_a_threshold_nothing_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "hydra.st", TEST, "--limit", "3"]) == 0
    printed = capsys.readouterr()
    assert "hydra holds no threshold, so no input is flagged" in printed.err
    assert main(["predict", "hydra.st", TEST, "--require", "ood_share<=0.5"]) == 2
    assert "needs a threshold, and hydra holds none" in capsys.readouterr().err
    assert main(["predict", "hydra.st", TEST, "--flagged"]) == 2
    assert "--flagged needs a threshold, and hydra holds none" in capsys.readouterr().err
    assert all("is_ood" not in json.loads(line) for line in printed.out.splitlines())
    assert main(["predict", "hydra.st", TEST, "--limit", "1"]) == 0
    assert "\n1 input\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "needs an INPUT"),
        (["-", "-"], "INPUT - is no image file: several inputs have to be such files"),
        ([TEST, "new/"], f"INPUT {TEST} is no image file"),
        (["missing.png", "new/"], "INPUT missing.png: no such file"),
        ([TEST, "--data", TEST], "give only one of INPUT, --data"),
        ([TEST, "-o", "p.txt"], "written to .jsonl, .csv"),
        ([TEST, "-o", "p.parquet"], "written to .jsonl, .csv"),
        ([TEST, "--resume"], "--resume needs --output"),
        ([TEST, "--flagged", "-o", "p.jsonl"], "the file of --output holds every sample"),
        (["nowhere/"], "no such file or folder"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "cal.st", *words]) in (2, 3)
    assert expected in capsys.readouterr().err


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "cal.st", TEST, "-o", "p.jsonl", "--report", "r.json", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["n"] == 497
    assert plan["files"] == ["p.jsonl", "r.json"]
    assert not Path("p.jsonl").exists()


def test_an_interrupted_run_goes_on_to_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU, where a batch is started before the one before it is written, one batch more is run again.
    options = [TEST, "--batch-size", "16", "--limit", "90", "--device", "cpu"]
    whole = predict(*options)
    os.remove("p.jsonl")
    start_batch = running.move
    batches = iter(range(3))
    runs: list[int] = []

    def stops(inputs: Any, *place: Any) -> Any:
        if next(batches, None) is None:
            raise KeyboardInterrupt
        return start_batch(inputs, *place)

    def counts(inputs: Any, *place: Any) -> Any:
        runs.append(len(inputs))
        return start_batch(inputs, *place)

    with monkeypatch.context() as patch:
        patch.setattr(running, "move", stops)
        assert main(["predict", "cal.st", *options, "-o", "p.jsonl", "-q"]) == 130
    assert not Path("p.jsonl").exists()
    unfinished = Path("p.jsonl.part")
    with unfinished.open("ab") as handle:
        handle.write(b'{"stop": 64, "ro')  # what a kill may leave
    assert main(["predict", "cal.st", *options, "--top", "1", "-o", "p.jsonl", "--resume", "-q"]) == 3  # another run
    with monkeypatch.context() as patch:
        patch.setattr(running, "move", counts)
        assert main(["predict", "cal.st", *options, "-o", "p.jsonl", "--resume", "-q"]) == 0
    assert runs == [16, 16, 10]
    assert Path("p.jsonl").read_bytes() == whole
    assert not unfinished.exists()


@pytest.mark.fault(105)
@pytest.mark.parametrize("written", [0, 1])
def test_stopped_between_its_files_it_goes_on(written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["-o", "p.jsonl", "--report", "r.json"]
    command = ["predict", "cal.st", TEST, "--limit", "40", "--device", "cpu", *files, "-q"]
    assert main([*command]) == 0
    whole = Path("p.jsonl").read_bytes(), Path("r.json").read_bytes()
    for path in ("p.jsonl", "r.json"):
        os.remove(path)

    left = iter(range(written))
    commit = Output.commit

    def stops(output: Output) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return commit(output)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "commit", stops)
        assert main([*command]) == 130
    assert not Path("p.jsonl").exists() and Path("r.json").exists() == bool(written)  # the summary comes first
    assert main([*command, "--resume"]) == 0
    assert (Path("p.jsonl").read_bytes(), Path("r.json").read_bytes()) == whole
    assert not Path("p.jsonl.part").exists()


@pytest.mark.fault(105)
def test_a_finished_run_is_resumed_if_it_says_the_same() -> None:
    command = ["predict", "cal.st", TEST, "--limit", "40", "--device", "cpu", "-o", "p.jsonl", "--report", "r.json"]
    assert main([*command, "-q"]) == 0
    whole = Path("p.jsonl").read_bytes(), Path("r.json").read_bytes()
    assert main([*command, "-q", "--resume"]) == 0
    assert (Path("p.jsonl").read_bytes(), Path("r.json").read_bytes()) == whole

    # What another command has written stays as it is.
    lines = whole[0].splitlines(keepends=True)
    Path("p.jsonl").write_bytes(b"".join(lines[:-1]))
    for _ in range(2):  # nor does the unfinished file of a first try replace it
        assert main([*command, "-q", "--resume"]) == 5
    assert Path("p.jsonl").read_bytes() == b"".join(lines[:-1])
    assert Path("r.json").read_bytes() == whole[1]


def test_python_gets_rows_and_batches(capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (5, 8, 8), dtype=np.uint8)
    found = hydractl.predict("cal.st", pixels, device="cpu")
    assert len(found.rows) == found.n == 5
    assert 0 <= found.ood_share <= 1
    model = hydractl.load("cal.st", device="cpu")
    prediction = model.predict(model.preprocess(list(pixels)))
    assert prediction.predicted_labels == [row["predicted"] for row in found.rows]
    assert prediction.confidence.tolist() == [row["confidence"] for row in found.rows]
    assert prediction.ood_score.tolist() == [row["ood_score"] for row in found.rows]
    assert prediction.is_ood.tolist() == [row["is_ood"] for row in found.rows]
    with pytest.raises(RequirementError):
        hydractl.predict("cal.st", data=pixels, device="cpu", require="ood_share>=2")
    with pytest.raises(UsageError):
        hydractl.predict("t0.st+t1.st", data=pixels)


def test_broken_prediction_sets_of_a_file_are_refused() -> None:
    from hydractl.errors import InputError
    from hydractl.model.prediction import Chosen

    sound = {"method": "lac", "alpha": 0.1, "qhat": 0.5, "n_val": 3}
    assert Chosen.of({"conformal": sound}).conformal.qhat == 0.5
    for broken in ({"method": "x"}, {"qhat": 2}, {"qhat": float("nan")}, {"alpha": None}, {"n_val": 1.5}):
        with pytest.raises(InputError):
            Chosen.of({"conformal": {**sound, **broken}})


@pytest.mark.long
def test_killed_again_and_again_it_gives_the_same_bytes() -> None:
    words = ["cal.st", TEST, "--batch-size", "4", "--device", "cpu", "-o", "p.jsonl", "-q"]
    run("predict", *words)
    whole = Path("p.jsonl").read_bytes()
    os.remove("p.jsonl")
    kills = 0
    while not Path("p.jsonl").exists():
        child = Forked(["predict", *words, "--resume"])
        size = os.path.getsize("p.jsonl.part") if os.path.exists("p.jsonl.part") else 0
        deadline = time.monotonic() + 120
        while child.poll() is None and kills < 3 and time.monotonic() < deadline:
            if os.path.exists("p.jsonl.part") and os.path.getsize("p.jsonl.part") > size + 2000:
                child.kill()
                kills += 1
                break
            time.sleep(0.002)
        child.wait()
    assert kills
    assert Path("p.jsonl").read_bytes() == whole


def test_a_reader_of_rows_that_leaves(with_hydractl: dict[str, str]) -> None:
    """As ``head`` does: the rest is not computed, and nothing is said."""
    shell = f"hydractl predict cal.st {TEST} --limit 200 --batch-size 8 -q | head -n 1"
    process = subprocess.run(["bash", "-c", shell], env=with_hydractl, capture_output=True, text=True, check=False)
    assert json.loads(process.stdout) and process.stderr == ""
