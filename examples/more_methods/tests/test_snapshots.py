"""Snapshots of one training against a plain loop with the paper's equation, and as a command."""

from __future__ import annotations

import contextlib
import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hydractl_more_methods.snapshots import Cycles
from torch.nn import functional as F

import hydractl
from hydractl.errors import UsageError
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import read_header
from hydractl.log import Log
from hydractl.methods import read_ensemble
from hydractl.model.runtime import HydraModel
from hydractl.training import loop
from hydractl.training.course import ScheduleOptions
from hydractl.training.loop import TrainingContext
from tests.forked import Forked
from tests.image_data import write_images
from tests.pico import source_of, stock
from tests.running import run, stopped_after
from tests.spread import marked_long
from tests.training.test_loop import batches, settings, training_data


def rate(t: int, total: int, cycles: int) -> float:
    """Equation 2, with t from 1, as a share of the peak."""
    length = math.ceil(total / cycles)
    return 0.5 * (math.cos(math.pi * ((t - 1) % length) / length) + 1)


def cycles(total: int, count: int) -> Cycles:
    return Cycles(total, total, ScheduleOptions(), count)


def test_the_cycles_are_those_of_the_paper() -> None:
    assert (cycles(12, 3).ends, cycles(11, 3).ends, cycles(5, 1).ends) == ([4, 8, 12], [4, 8, 11], [5])
    assert [cycles(11, 3).cycle_of(step) for step in (0, 3, 4, 8, 10)] == [(0, 4), (0, 4), (4, 4), (8, 3), (8, 3)]
    with pytest.raises(UsageError, match="9 steps cannot be cut into 4 cycles of equal length"):
        cycles(9, 4)  # ceil(9 / 4) = 3 steps leave none to the fourth


@pytest.mark.parametrize("warmup", [0, 2])
def test_training_equals_a_plain_loop_with_the_rate_of_the_paper(warmup: int) -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    s = settings(
        ensemble="snapshots:3", steps=12, lr=0.02, optimizer="sgd", momentum=0.9, weight_decay=0.0, clip=0.0,
        lr_floor=0.0, warmup=warmup,
    )  # fmt: skip
    model = HydraModel(source.description, source.tensors)
    run = loop.Training(model, training_data(), s, 0.02, TrainingContext(Log()))
    run.run()
    rates = [rate(t, 12, 3) for t in range(1, 13)]
    if warmup:  # in the first cycle only, whose cosine has the steps that are left
        rates[:4] = [0.5, 1.0, 1.0, 0.5]
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.02, momentum=0.9)
    expected = []
    for done, (x, y) in enumerate(batches(12, s.seed), start=1):
        optimizer.param_groups[0]["lr"] = 0.02 * rates[done - 1]
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
        if done in (4, 8, 12):
            expected.append({name: tensor.clone() for name, tensor in reference.state_dict().items()})
    assert len(run.left) == 3
    for snapshot, reached in zip(run.left, expected, strict=True):
        run.put(snapshot.weights)
        trained = model.stock_tensors()
        assert all(torch.allclose(trained[n], t, rtol=1e-4, atol=1e-5) for n, t in reached.items())
    one, last = expected[0], expected[-1]
    assert max(float((one[n] - last[n]).abs().max()) for n in one) > 1e-3


# --- the command ------------------------------------------------------------------------------------------------------

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
# 44 samples are 6 steps an epoch: 18 steps, cycles of 5 that end within epochs, the last one of 3.
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--val", "val.npz", "--device", "cpu", "--batch-size", "8",
         "--epochs", "3", "--lr", "0.01", "--dropout", "0.2", "--ensemble", "snapshots:4"]  # fmt: skip
ENDS = [5, 10, 15, 18]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and ``whole.1.st`` to ``whole.4.st``."""
    path = tmp_path_factory.mktemp("snapshots")
    with contextlib.chdir(path):
        write_images(train=44, val=20)
        run(*TRAIN, "-o", "whole.st", "-q")
    return path


@pytest.fixture(autouse=True)
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in made.iterdir():
        Path(file.name).symlink_to(file)


def provenance(path: str) -> Any:
    return read_header(path).description["provenance"]["settings"]  # type: ignore[index]


def test_each_cycle_leaves_an_ordinary_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    run(*TRAIN, "-o", "s.st", "--json", "--log", "beside")
    answer = json.loads(capsys.readouterr().out)
    names = [f"s.{number}.st" for number in (1, 2, 3, 4)]
    assert sorted(path.name for path in Path().glob("s*")) == [*names, "s.log.jsonl"]
    assert [(one["output"], one["member"]) for one in answer["files"]] == list(zip(names, (1, 2, 3, 4), strict=True))
    assert (answer["output"], answer["kept_epoch"], answer["stopped_early"]) == ("s.4.st", None, False)
    assert len({one["sha256"] for one in answer["files"]}) == 4
    for name, number, end in zip(names, (1, 2, 3, 4), ENDS, strict=True):
        made = provenance(name)
        assert made["ensemble"] == {"kind": "snapshots", "cycles": 4}
        assert made["course"] == {"cycle": number, "steps": end}
        assert [epoch["steps"] for epoch in made["history"]] == [steps for steps in (6, 12, 18) if steps <= end]
        assert "val_accuracy" in answer["epochs"][0]
    events = [json.loads(line) for line in Path("s.log.jsonl").read_text().splitlines()]
    assert [(e["cycle"], e["step"]) for e in events if e.get("event") == "cycle"] == list(
        zip((1, 2, 3, 4), ENDS, strict=True)
    )
    assert (events[-1]["event"], events[-1]["kept_epoch"]) == ("end", None)
    rates = {e["step"]: e["lr"] for e in events if e.get("event") == "step"}
    assert [rates[step] for step in (6, 11, 16)] == [0.01] * 3  # the first step of every cycle but the first
    run("fuse", *names, "--merge", "none", "-o", "fused.st", "-q")
    with torch.no_grad():
        x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        each = hydractl.load("fused.st", device="cpu").member_logits(x)
        for name, said in zip(names, each, strict=True):
            assert torch.allclose(said, hydractl.load(name, device="cpu").member_logits(x)[0], atol=1e-5)


def test_a_snapshot_is_what_a_training_of_its_own_would_give() -> None:
    """The first cycle is an ordinary training of as many steps."""
    short = [{"3": "5", "--epochs": "--steps"}.get(argument, argument) for argument in TRAIN[:-2]]
    run(*short, "--config", "{warmup: 1}", "-o", "one.st", "-q")  # 0.05 of 18 steps are one step, of 5 as well
    one, snapshot = FileTensors("one.st"), FileTensors("whole.1.st")
    assert all(torch.equal(one.read(name), snapshot.read(name)) for name in one.names())


@pytest.mark.long
def test_folders_are_numbered_too() -> None:
    import timm

    run(*TRAIN, "-o", "s/", "-q")
    library = timm.create_model("local-dir:s.2", pretrained=True)
    file = FileTensors("whole.2.st")
    assert all(torch.equal(file.read(name), tensor) for name, tensor in library.state_dict().items())
    assert {path.name for path in Path().iterdir() if path.is_dir()} == {"s.1", "s.2", "s.3", "s.4"}


def test_every_output_is_claimed_before_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.3.st").write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "run", lambda self: pytest.fail("it was trained"))
        run(*TRAIN, "-o", "s.st", code=5)
        run(*TRAIN, "-o", "s.st", "--dry-run", code=5)
    assert "s.3.st" in capsys.readouterr().err
    assert sorted(path.name for path in Path().glob("s.*")) == ["s.3.st"]
    assert not list(Path().glob(".s.*"))
    run(*TRAIN, "-o", "s.st", "--force", "-q")
    assert provenance("s.3.st")["course"]["cycle"] == 3


def test_a_dry_run_names_all_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    run(*TRAIN, "-o", "s.st", "--dry-run")
    assert "would write s.1.st, s.2.st, s.3.st, s.4.st" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("step", [7, *marked_long([5])])
def test_stopped_and_taken_up_again_it_gives_the_same_bytes(step: int) -> None:
    with stopped_after(step):
        run(*TRAIN, "-o", "part.st", code=130)
    assert [path.name for path in Path().glob("part*")] == ["part.st.state"]
    run(*TRAIN, "-o", "part.st", "--resume")
    for number in (1, 2, 3, 4):
        assert Path(f"part.{number}.st").read_bytes() == Path(f"whole.{number}.st").read_bytes()
    assert not list(Path().glob("*.state"))


KILLED_AT_THE_THIRD = """
import os, signal
from hydractl.training import outputs

write = outputs._write_output

def killed(output, *more):
    if output.path.name == "s.3.st":
        os.kill(os.getpid(), signal.SIGKILL)
    return write(output, *more)

outputs._write_output = killed
"""


@pytest.mark.long
@pytest.mark.fault(6)
def test_killed_while_it_writes_it_writes_all_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """The state goes last: what is there of the outputs is replaced by the same bytes."""
    whole = {path.name.replace("whole", "s"): path.read_bytes() for path in Path().glob("whole.*.st")}
    process = Forked([*TRAIN, "-o", "s.st", "--save-every", "1", "-q"], before=KILLED_AT_THE_THIRD)
    assert process.wait() == -signal.SIGKILL
    assert {path.name for path in Path().glob("s.*")} == {"s.1.st", "s.2.st", "s.st.state"}
    run(*TRAIN, "-o", "s.st", "--resume", "-q")
    assert {path.name: path.read_bytes() for path in Path().glob("s.*.st")} == whole
    capsys.readouterr()
    run(*TRAIN, "-o", "s.st", "--resume", "--json")
    found = capsys.readouterr()
    assert "the training of s.1.st s.2.st s.3.st s.4.st is finished: nothing to do" in found.err
    assert [one["member"] for one in json.loads(found.out)["files"]] == [1, 2, 3, 4]
    run(*TRAIN, "-o", "s.st", "--resume", "--config", "{label_smoothing: 0.2}", code=3)
    Path("s.2.st").unlink()
    run(*TRAIN, "-o", "s.st", "--resume", "-q", code=5)  # not finished, and some of its outputs are in the way


def test_of_weights_that_are_not_finite_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A last step that is far too long: its loss, of before the step, is still finite."""
    before = loop.Training._step

    def wild(self: Any, batches: Any, shares: Any, rate: float) -> float:
        return before(self, batches, shares, math.inf if self.history.steps == 17 else rate)

    command = [*TRAIN, "--optimizer", "sgd", "--config", "{finetune: {clip: 0}}", "-o", "s.st", "-q"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "_step", wild)
        run(*command, code=6)
    assert "the weights are not finite after step 18" in capsys.readouterr().err
    assert not list(Path().glob("s.*"))


# --- options ----------------------------------------------------------------------------------------------------------


def test_what_chooses_among_weights_is_refused() -> None:
    for more, complaint in (
        ({"patience": 2}, "--patience has no effect with --ensemble snapshots:3"),
        ({"min_delta": 0.1}, "min_delta has no effect with --ensemble snapshots:3"),
        ({"schedule": "linear"}, "--schedule has no effect with --ensemble snapshots:3"),
    ):
        with pytest.raises(UsageError, match=complaint):
            settings(ensemble="snapshots:3", val="v.npz", **more)
    assert settings(ensemble="snapshots:3", schedule="cosine", lr_floor=0.1).schedule.floor == 0.1
    with pytest.raises(ValueError, match="snapshots: M must be at least 2, not 1; such as snapshots:3"):
        read_ensemble("snapshots:1")


def test_what_only_a_recipe_says_gives_way() -> None:
    made = settings(ensemble="snapshots:3", val="v.npz", recipe="sst2", lr_floor=0.1)
    assert (made.schedule.shape, made.patience, made.min_delta, made.epochs) == ("cosine", None, 0.0, 7)
