"""SWA and SWAG against a list of all weights and the equations of the papers, and as a command."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hydractl_more_methods.averaging import AverageOptions, Averaging
from rich.console import Console

from hydractl.errors import UsageError
from hydractl.files.header import read_header
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from hydractl.report.terminal import render
from hydractl.training.course import ScheduleOptions
from hydractl.training.loop import Training, TrainingContext
from tests.answers import result_of
from tests.image_data import write_images
from tests.pico import source_of, stock
from tests.running import answer, run, stopped_after, tensors
from tests.spread import marked_long, marked_release
from tests.training.test_loop import settings, training_data

RANK, SEED = 3, 3


def test_moments_and_draws_are_those_of_the_weights_that_were_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    before = Averaging.after_step

    def listed(self: Averaging, steps: int, weights: Any, *logs: Any) -> None:
        seen.append({name: tensor.double() for name, tensor in weights().items()})
        before(self, steps, weights, *logs)

    monkeypatch.setattr(Averaging, "after_step", listed)
    source = source_of(stock("class-token"), "class-token")
    s = settings(ensemble=f"swag:2,{RANK},0.25,4", schedule="constant", steps=13, lr=0.02, optimizer="sgd")
    model = HydraModel(source.description, source.tensors)
    training = Training(model, training_data(), s, 0.02, TrainingContext(Log()))
    assert training.run().kept_epoch is None
    # 3 steps, then 10 in which weights are collected 4 times: at the first step that reaches 2.5, 5, 7.5 and 10.
    collected = [seen[step - 1] for step in (6, 8, 11, 13)]
    names = sorted(training.parameters)
    every = {name: torch.stack([weights[name] for weights in collected]) for name in names}
    mean = {name: stacked.mean(dim=0) for name, stacked in every.items()}
    generator = torch.Generator().manual_seed(SEED)
    for drawn in (left.weights for left in training.left):
        along = torch.randn(RANK, generator=generator, dtype=torch.float64)
        for name in names:
            running = [every[name][: i + 1].mean(dim=0) for i in range(4)]
            deviations = torch.stack([every[name][i] - running[i] for i in (1, 2, 3)], dim=-1)
            noise = torch.randn(mean[name].shape, generator=generator, dtype=torch.float64)
            deviation = every[name].std(dim=0, correction=0)  # the root of the mean of squares less the squared mean
            expected = mean[name] + deviation * noise / 2**0.5 + deviations @ along / (2 * (RANK - 1)) ** 0.5
            assert torch.allclose(drawn[name].double(), expected, rtol=1e-6, atol=1e-7), name
            assert float((drawn[name] - mean[name]).abs().max()) > 1e-6 and float(deviations.abs().max()) > 1e-6
    assert all(torch.allclose(p.double(), mean[name], rtol=1e-6, atol=1e-7) for name, p in training.parameters.items())


def test_when_it_collects_and_at_which_rate() -> None:
    half = AverageOptions(start=0.5)
    whole_epochs = Averaging(12, 3, ScheduleOptions(warmup=0, floor=0.5), half)
    assert [step for step in range(1, 13) if whole_epochs.collects(step)] == [9, 12]
    rates = [whole_epochs.share_of_peak(step) for step in range(12)]
    assert rates[0] == 1 and rates[3] == pytest.approx(0.75) and rates[6:] == [0.5] * 6
    constant = Averaging(12, 3, ScheduleOptions(warmup=2, shape="constant"), half)
    assert [constant.share_of_peak(step) for step in (0, 1, 11)] == [0.5, 1, 1]
    for wrong, complaint in (
        (AverageOptions(start=0.75), "collect weights 1 times: too few for an average"),
        (AverageOptions(start=0.5, count=7), "collect weights 7 times in 6 steps"),
        (AverageOptions(start=0.5, count=4, members=2, rank=5), "4 times: too few for a Gaussian of rank 5"),
    ):
        with pytest.raises(UsageError, match=complaint):
            Averaging(12, 3, ScheduleOptions(), wrong)


def test_what_an_average_has_no_use_for_is_refused() -> None:
    for more, complaint in (
        ({}, "--ensemble swa needs the learning rate while it averages"),
        ({"schedule": "linear"}, "--schedule has no effect with --ensemble swa:0.5"),
        ({"schedule": "constant", "patience": 2}, "--patience has no effect with --ensemble swa:0.5"),
    ):
        with pytest.raises(UsageError, match=complaint):
            settings(**{"ensemble": "swa:0.5", "val": "v.npz", **more})  # type: ignore[arg-type]


# --- the command ------------------------------------------------------------------------------------------------------

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--val", "val.npz", "--device", "cpu", "--batch-size", "8",
         "--epochs", "3", "--lr", "0.01", "--dropout", "0.2", "--schedule", "constant"]  # fmt: skip
SWA = [*TRAIN, "--ensemble", "swa:0.5,4"]
SWAG = [*TRAIN, "--ensemble", "swag:2,3,0.5,4"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The working directory, with data, the average ``swa.st``, and ``whole.1.st`` and ``whole.2.st`` drawn around."""
    path = tmp_path_factory.mktemp("averaging")
    with contextlib.chdir(path):
        write_images(train=44, val=20)
        run(*SWA, "-o", "swa.st", "-q")
        run(*SWAG, "-o", "whole.st", "-q")
        yield path


def test_an_average_and_its_draws_are_ordinary_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(*SWAG, "-o", "whole.st", "--resume")  # finished before
    assert [(one["output"], one["member"]) for one in found["files"]] == [("whole.1.st", 1), ("whole.2.st", 2)]
    assert (found["output"], found["kept_epoch"]) == ("whole.2.st", None) and "val_accuracy" in found["epochs"][0]
    made = read_header("whole.2.st").description["provenance"]["settings"]  # type: ignore[index]
    assert made["ensemble"] == {"kind": "swag", "members": 2, "rank": 3, "start": 0.5, "count": 4}
    assert made["course"] == {"steps": 18, "averaged": 4, "draw": 2}
    run("--info", "swa.st")
    assert "no epoch chosen, 18 steps" in capsys.readouterr().out
    mean, one, two = tensors("swa.st"), tensors("whole.1.st"), tensors("whole.2.st")
    apart = [float((a[name] - b[name]).norm()) for a, b in ((one, mean), (two, mean), (one, two)) for name in mean]
    assert 0 < max(apart) < 1
    run(*SWAG, "-o", "t.st", "--dry-run")
    assert "would write t.1.st, t.2.st" in " ".join(capsys.readouterr().out.split())
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(render(result_of(found), 80))
    assert ["2", "whole.2.st"] in [line.split() for line in console.export_text().splitlines()]
    run(*TRAIN, "--ensemble", "swa:0.9,9", "-o", "t.st", "--dry-run", code=2)
    assert "collect weights 9 times in 2 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "command", "outputs"),
    [(8, SWA, {"part.st": "swa.st"}), (15, SWAG, {f"part.{i}.st": f"whole.{i}.st" for i in (1, 2)})],
)
def test_stopped_and_taken_up_again_it_gives_the_same_bytes(
    step: int, command: list[str], outputs: dict[str, str]
) -> None:
    """Before weights are collected, and after some of them."""
    with stopped_after(step):
        run(*command, "-o", "part.st", code=130)
    run(*command, "-o", "part.st", "--resume")
    for part, whole in outputs.items():
        assert Path(part).read_bytes() == Path(whole).read_bytes()
        Path(part).unlink()


@pytest.mark.parametrize(
    ("method", "files"), marked_long([("swag:2,3,0.5,4", [".1", ".2"])]) + marked_release([("swa:0.5,4", [""])])
)
def test_of_several_learning_rates_the_average_that_validates_best_is_written(method: str, files: list[str]) -> None:
    """Each file is the one of a training with the kept rate alone, also where the grid was interrupted."""
    rates = ["0.01", "0.1", "1e-12"]
    command = [word for word in TRAIN if word != "0.01"]
    place = command.index("--lr") + 1
    command = [*command, "--ensemble", method]
    several = [*command[:place], ",".join(rates), *command[place:]]
    found = answer(*several, "-o", "of-grid.st")
    accuracies = [trial["val_accuracy"] for trial in found["grid"]]
    kept = found["lr"]
    assert kept == [0.01, 0.1, 1e-12][accuracies.index(max(accuracies))] and found["kept_epoch"] is None
    run(*command[:place], repr(kept), *command[place:], "-o", "alone.st", "-q")
    for mark in files:
        alone, of_grid = tensors(f"alone{mark}.st"), tensors(f"of-grid{mark}.st")
        assert all(torch.equal(tensor, alone[name]) for name, tensor in of_grid.items())
    with stopped_after(4, lr=1e-12):
        run(*several, "-o", "broken.st", "-q", code=130)
    run(*several, "-o", "broken.st", "-q", "--resume")
    for mark in files:
        assert Path(f"broken{mark}.st").read_bytes() == Path(f"of-grid{mark}.st").read_bytes()
