"""``finetune`` as a command: a new classifier, folders, several learning rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydractl
from hydractl.data import open_data
from hydractl.distributed import Processes
from hydractl.errors import UsageError
from hydractl.files.header import read_header
from hydractl.training import loop
from hydractl.training.data import training_data
from tests.calls import training_request
from tests.running import answer, run, stopped_after, tensors

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"
DATA = ["--train", "train.npz", "--val", "val.npz", "--device", "cpu", "-q", "--batch-size", "8"]
TRAIN = ["finetune", MODEL, *DATA, "--epochs", "2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name, count in (("train", 44), ("val", 21)):
        y = np.arange(count) % 5
        pixels = (
            draw.integers(0, 200, (count, 16, 16, 3), dtype=np.uint8) + (y * 12).astype(np.uint8)[:, None, None, None]
        )
        np.savez(tmp_path / f"{name}.npz", x=pixels, y=y)


def settings_of(path: str) -> dict[str, Any]:
    return read_header(path).description["provenance"]["settings"]  # type: ignore[index]


# --- several learning rates -------------------------------------------------------------------------------------------


def test_the_best_learning_rate_is_kept_and_each_is_as_if_alone() -> None:
    rates = ["0.00001", "0.01"]
    found = answer(*TRAIN, "--lr", ",".join(rates), "-o", "grid.st")
    alone = {rate: answer(*TRAIN, "--lr", rate, "-o", f"{rate}.st") for rate in rates}
    assert [entry["lr"] for entry in found["grid"]] == [float(rate) for rate in rates]
    for entry, rate in zip(found["grid"], rates, strict=True):
        assert entry["epochs"] == alone[rate]["epochs"]
    best = [entry["val_accuracy"] for entry in found["grid"]]
    kept = rates[best.index(max(best))]  # the first of equals
    assert found["lr"] == float(kept)
    assert found["epochs"] == alone[kept]["epochs"]
    assert all(torch.equal(t, tensors(f"{kept}.st")[name]) for name, t in tensors("grid.st").items())
    assert [entry["lr"] for entry in settings_of("grid.st")["grid"]] == [float(rate) for rate in rates]


def test_the_first_of_equals_is_kept() -> None:
    found = answer(*TRAIN, "--lr", "1e-12,1e-13", "-o", "tie.st")
    assert len({entry["val_accuracy"] for entry in found["grid"]}) == 1
    assert found["lr"] == 1e-12


def test_a_learning_rate_that_diverges_is_out() -> None:
    wild = ["--optimizer", "sgd", "--config", "{finetune: {clip: 0, warmup: 0}}"]
    found = answer(*TRAIN, *wild, "--lr", "1e30,0.001", "-o", "out.st")
    assert found["grid"][0]["val_accuracy"] is None
    assert "the loss is" in found["grid"][0]["error"]
    assert found["lr"] == 0.001
    run(*TRAIN, *wild, "--lr", "1e30,1e29", "-o", "none.st", code=6)
    assert not Path("none.st").exists()


@pytest.mark.long
def test_a_grid_goes_on_where_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = [*TRAIN, "--lr", "0.001,0.003,0.01"]
    run(*grid, "-o", "whole.st")
    begun: list[float] = []
    start = loop.Training.run

    def counted(self: Any) -> Any:
        begun.append(self.lr)
        return start(self)

    monkeypatch.setattr(loop.Training, "run", counted)
    with stopped_after(4, lr=0.003):
        run(*grid, "-o", "part.st", code=130)
    run(*grid, "-o", "part.st", "--resume")
    assert begun == [0.001, 0.003, 0.003, 0.01]
    assert Path("part.st").read_bytes() == Path("whole.st").read_bytes()
    capsys.readouterr()
    run(*[a for a in grid if a != "-q"], "-o", "part.st", "--resume")
    assert "is finished: nothing to do" in capsys.readouterr().err


def test_without_validation_the_last_epoch_is_kept() -> None:
    data = ["--train", "train.npz", "--device", "cpu", "-q", "--batch-size", "8"]
    found = answer("finetune", MODEL, *data, "--epochs", "2", "-o", "plain.st")
    assert (found["kept_epoch"], len(found["epochs"]), len(found["loss_curve"])) == (2, 2, 12)
    assert "val_accuracy" not in found["epochs"][0]


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_new_classifier_has_the_classes_of_the_data() -> None:
    for name in ("train", "val"):
        found = dict(np.load(f"{name}.npz"))
        np.savez(f"{name}3.npz", x=found["x"], y=found["y"] % 3, classes=np.array(["tin", "oak", "salt"]))
    data = ["--train", "train3.npz", "--val", "val3.npz", "--device", "cpu", "-q"]
    run("finetune", MODEL, *data, "--steps", "2", "--reset-head", "-o", "three.st")
    model = hydractl.load("three.st", device="cpu")
    assert model.labels == ["tin", "oak", "salt"]
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 3)
    run("finetune", MODEL, *data, "--steps", "2", "-o", "five.st", code=3)


@pytest.mark.long
def test_a_folder_loads_in_the_stock_library() -> None:
    import timm

    for output in ("tuned.st", "tuned/"):
        run("finetune", MODEL, *DATA, "--steps", "2", "-o", output)
    stock = timm.create_model("local-dir:tuned", pretrained=True).eval()
    ours = tensors("tuned.st")
    assert all(torch.equal(t, ours[name]) for name, t in stock.state_dict().items())
    run("prune", "tuned.st", "--method", "magnitude", "--keep", "2", "-o", "cut.st")
    run("finetune", "cut.st", *DATA, "--steps", "2", "-o", "cut-tuned.st")
    run("finetune", "cut.st", *DATA, "--steps", "2", "-o", "cut-tuned/")
    stock = timm.create_model("local-dir:cut-tuned", pretrained=True).eval()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours_says = hydractl.load("cut-tuned.st", device="cpu").member_logits(x)[0]
        assert torch.allclose(stock(x), ours_says, atol=1e-5)
    run("finetune", "cut.st", *DATA, "--steps", "2", "-o", "cut-tuned/", code=5)
    run("finetune", "cut.st", *DATA, "--steps", "2", "-o", "cut-tuned/", "--resume")  # finished
    assert not list(Path().glob("*.state"))


def test_augmented_training_does_not_depend_on_the_workers() -> None:
    more = ["--augment", "crop,flip,randaugment", "--dropout", "0.1", "--steps", "4"]
    one = [argument for argument in TRAIN if argument not in ("--epochs", "2")]
    run(*one, *more, "-o", "none.st")
    run(*one, *more, "-o", "some.st", "--workers", "2")
    assert Path("none.st").read_bytes() == Path("some.st").read_bytes()


def test_checkpointed_blocks_give_the_same_bytes() -> None:
    run(*TRAIN, "--dropout", "0.3", "-o", "plain.st")
    run(*TRAIN, "--dropout", "0.3", "--checkpoint-blocks", "-o", "again.st")
    assert Path("plain.st").read_bytes() == Path("again.st").read_bytes()


def test_autocast_trains_float32_weights() -> None:
    run(*TRAIN, "-o", "full.st")
    run(*TRAIN, "--autocast", "bfloat16", "-o", "half.st")
    full, half, start = tensors("full.st"), tensors("half.st"), tensors_of_start()
    assert all(t.dtype == torch.float32 for t in half.values())
    moved = sum(float((full[n] - start[n]).norm() ** 2) for n in full) ** 0.5
    apart = sum(float((full[n] - half[n]).norm() ** 2) for n in full) ** 0.5
    assert 0 < apart < 0.5 * moved


def tensors_of_start() -> dict[str, torch.Tensor]:
    return hydractl.load(MODEL, device="cpu").stock_tensors()


def test_a_batch_must_be_divided_evenly() -> None:
    team = Processes()
    team.size = 2
    given = training_request(batch_size=7)
    with pytest.raises(UsageError, match="--batch-size 7 cannot be divided among 2 processes"):
        training_data(hydractl.load(MODEL, device="cpu"), open_data("train.npz"), None, given, team)
