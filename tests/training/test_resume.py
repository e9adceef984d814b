"""Trainings that are killed, stopped, and taken up again: the same bytes as without a break."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.cli.app import main
from hydractl.files.checkpoint import DictTensors, FileTensors, write_tensors
from hydractl.files.header import read_header
from hydractl.training import loop
from hydractl.training.checkpointing import _digest_of_tensors
from tests.image_data import write_images
from tests.running import described, json_lines, stopped_after
from tests.spread import marked_long

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"
# Dropout draws from torch's generator, 44 samples leave a smaller batch at the end of each epoch.
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--val", "val.npz", "--device", "cpu", "-q", "--batch-size", "8",
         "--epochs", "3", "--lr", "0.003", "--dropout", "0.2", "--augment", "flip", "--log", "beside"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("resume")
    with contextlib.chdir(path):
        write_images(train=44, val=20)
        run(*TRAIN, "-o", "whole.st")
        yield path


def run(*arguments: str, code: int = 0) -> None:
    assert main(last_of_each(list(arguments))) == code


def last_of_each(command: list[str]) -> list[str]:
    """The command with only the last value of every option, as one option may be given once."""
    places = {word: place for place, word in enumerate(command) if word.startswith("--")}
    early = [place for place, word in enumerate(command) if place < places.get(word, 0)]
    return [word for place, word in enumerate(command) if place not in early and place - 1 not in early]


def with_lr(command: list[str], lr: str) -> list[str]:
    return [lr if argument == "0.003" else argument for argument in command]


def same(path: str, other: str = "whole.st") -> None:
    assert Path(path).read_bytes() == Path(other).read_bytes()


def clean(name: str) -> None:
    for file in Path().glob(f"*{name}*"):
        file.unlink()


@pytest.mark.fault(5, 7)
@pytest.mark.parametrize("step", [*marked_long([6, 18]), 7])
def test_stopped_after_any_step_it_goes_on_with_the_same_bits(step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """6 steps make an epoch: at a boundary and behind it, after the last."""
    clean("stopped")
    command = [*TRAIN, "-o", "stopped.st"]
    stop_after(step, command, capsys)
    assert read_header("stopped.st.state").description["progress"]["steps"] == step  # type: ignore[index]
    run(*command, code=5)  # an unfinished run is neither overwritten nor taken up without being asked
    assert "an unfinished run is saved in stopped.st.state" in capsys.readouterr().err
    aloud = [word for word in command if word != "-q"]
    run(*aloud, "--dry-run", code=5)
    assert "an unfinished run is saved in stopped.st.state" in capsys.readouterr().err
    run(*aloud, "--dry-run", "--resume")
    assert f"would go on with the run in stopped.st.state, at step {step}" in capsys.readouterr().err
    run(*command, "--resume")
    same("stopped.st")
    assert not Path("stopped.st.state").exists()


def stop_after(step: int, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with stopped_after(step):
        run(*command, code=130)
    said = capsys.readouterr().err
    assert "add --resume to the same command to go on" in said
    assert f"has step {step} of 18" in said


def test_interrupted_in_validation_it_validates_again() -> None:
    clean("valid")
    command = [*TRAIN, "-o", "valid.st"]
    with pytest.MonkeyPatch.context() as patch:
        before = loop.validate

        def signalled(*arguments: Any, **more: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return before(*arguments, **more)

        patch.setattr(loop, "validate", signalled)
        run(*command, code=130)
        run(*command, "--resume", code=130)
    assert read_header("valid.st.state").description["progress"]["steps"] == 6  # type: ignore[index]
    run(*command, "--resume")
    same("valid.st")


@pytest.mark.fault(7)
def test_every_save_is_a_place_to_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    clean("each")
    saved: list[bytes] = []
    before = loop.Training.save

    def kept(self: Any) -> None:
        before(self)
        saved.append(Path("each.st.state").read_bytes())

    monkeypatch.setattr(loop.Training, "save", kept)
    command = [*TRAIN, "-o", "each.st", "--save-every", "7"]
    run(*command)
    same("each.st")
    assert len(saved) == 18 // 7
    states = list(saved)
    for state in states:
        clean("each")
        Path("each.st.state").write_bytes(state)
        run(*command, "--resume")
        same("each.st")


def test_patience_and_the_best_weights_survive() -> None:
    command = [*with_lr(TRAIN, "1e-9"), "--epochs", "5", "--patience", "2"]  # no epoch is better than the first
    run(*command, "-o", "patient.st")
    with stopped_after(14):
        run(*command, "-o", "again.st", code=130)
    run(*command, "-o", "again.st", "--resume")
    same("again.st", "patient.st")
    assert len(read_header("again.st").description["provenance"]["settings"]["history"]) == 3  # type: ignore[index]


def test_another_optimizer_and_an_adapter_are_taken_up_again() -> None:
    """Than AdamW, which all others here have; its gradients are added up over two batches."""
    clean("opt")
    command = [
        *TRAIN,
        "--optimizer",
        "sgd",
        "--accumulate",
        "2",
        "--freeze",
        "stem",
        "--ensemble",
        "batch-ensemble:0.2",
    ]
    run(*command, "-o", "opt-whole.st")
    with stopped_after(5):
        run(*command, "-o", "opt.st", code=130)
    run(*command, "-o", "opt.st", "--resume")
    same("opt.st", "opt-whole.st")


# --- what is taken up, and what is refused ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(folder: Path) -> dict[str, bytes]:
    """What a training leaves that was stopped after 8 steps."""
    with stopped_after(8):
        run(*TRAIN, "-o", "other.st", code=130)
    return {path.name: path.read_bytes() for path in Path().glob("other*")}


@pytest.fixture
def unfinished(begun: dict[str, bytes]) -> list[str]:
    clean("other")
    for name, content in begun.items():
        Path(name).write_bytes(content)
    return [*TRAIN, "-o", "other.st"]


@pytest.mark.fault(3, 7)
def test_another_run_is_refused_with_all_differences(unfinished: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("other.st.state").read_bytes()
    changes = ["--train", "val.npz", "--val", "train.npz", "--seed", "4", "--config", "{label_smoothing: 0.2}"]
    run(*with_lr(unfinished, "0.1"), *changes, "--resume", code=3)
    said = capsys.readouterr().err
    for line in (
        "lr: 0.003 in the unfinished run, 0.1 now",
        "seed: 0 in",
        "label_smoothing: 0.0 in",
        "train: '",
        "val: '",
        "model: ",
    ):
        assert line in said
    assert Path("other.st.state").read_bytes() == before
    run(*with_lr(unfinished, "0.1"), "--force")  # starts over
    assert not Path("other.st.state").exists()


@pytest.mark.fault(8, 57)
def test_a_damaged_or_foreign_file_is_refused(unfinished: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    state = Path("other.st.state")
    whole = state.read_bytes()
    for damaged, code in (
        (b"\0" * len(whole), 3),
        (whole[:-8] + b"\1" * 8, 3),
        (whole[: len(whole) // 2], 3),
        (b"", 3),
    ):
        state.write_bytes(damaged)
        run(*unfinished, "--resume", code=code)
        assert state.read_bytes() == damaged
    state.write_bytes(Path("whole.st").read_bytes())
    capsys.readouterr()
    run(*unfinished, "--resume", code=3)
    assert "is no hydractl.training/1 file" in capsys.readouterr().err


@pytest.mark.fault(57)
def test_headers_that_lack_what_they_should_hold_are_refused(
    unfinished: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"schema": "hydractl.training/1", "fingerprint": {}, "environment": {}, "progress": {}}
    for broken in ({**whole, "fingerprint": 3}, {**whole, "progress": [1]}, {"schema": whole["schema"]}):
        with open("other.st.state", "wb") as file:
            write_tensors(file, DictTensors({"a": torch.zeros(2)}), broken)
        run(*unfinished, "--resume", code=3)
        assert "other.st.state is damaged: its header is not as it was saved" in capsys.readouterr().err


@pytest.mark.fault(57)
def test_outputs_with_broken_settings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    clean("broken")
    output = Path("broken.st")

    def changed(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
        return lambda description: description["provenance"].update({key: value})

    def changed_setting(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
        return lambda description: description["provenance"]["settings"].update({key: value})

    changes = [changed("settings", [1]), changed("inputs", []), changed("seed", None)]
    changes += [changed_setting("grid", 5), changed_setting("grid", [3]), changed_setting("history", "no")]
    for change in changes:
        described(Path("whole.st"), output, change)
        before = output.read_bytes()
        run(*TRAIN, "-o", "broken.st", "--resume", code=3)
        assert "broken.st does not say how it was trained" in capsys.readouterr().err
        assert output.read_bytes() == before
    described(Path("whole.st"), output, lambda description: description.update(provenance="x"))
    run(*TRAIN, "-o", "broken.st", "--resume", code=5)  # nobody knows who has made it
    run(*TRAIN, "-o", "broken.st", "--resume", "--force")
    same("broken.st")


@pytest.mark.fault(8)
def test_a_state_is_damaged_where_its_numbers_are_those_of_other_tensors() -> None:
    numbers = torch.arange(4.0)
    states = [
        {"a": numbers[:1], "b": numbers[1:]},
        {"a": numbers[:3], "b": numbers[3:]},
        {"a": numbers[:1], "c": numbers[1:]},
        {"a": numbers[:1], "b": numbers[1:].reshape(3, 1)},
        {"a": numbers[:1], "b": numbers[1:].view(torch.int32)},
    ]
    assert len({_digest_of_tensors(state) for state in states}) == len(states)


@pytest.mark.fault(7)
def test_what_is_finished_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("done.st").write_bytes(Path("whole.st").read_bytes())
    command = [argument for argument in TRAIN if argument != "-q"]
    run(*command, "-o", "done.st", "--resume", "--json")
    found = capsys.readouterr()
    assert "the training of done.st is finished: nothing to do" in found.err
    assert len(json.loads(found.out)["epochs"]) == 3
    run(*with_lr(command, "0.1"), "-o", "done.st", "--resume", code=3)
    assert "lr: 0.003 in the file, 0.1 now" in capsys.readouterr().err
    same("done.st")
    run(*with_lr(command, "0.1"), "-o", "done.st", "--resume", "--force")
    assert Path("done.st").read_bytes() != Path("whole.st").read_bytes()


def test_without_an_unfinished_run_it_starts_afresh(capsys: pytest.CaptureFixture[str]) -> None:
    clean("fresh")
    run(*[argument for argument in TRAIN if argument != "-q"], "-o", "fresh.st", "--resume")
    assert "no unfinished run is saved in fresh.st.state: starting afresh" in capsys.readouterr().err
    same("fresh.st")


@pytest.mark.fault(29)
def test_a_loss_that_is_not_finite_keeps_the_last_good_state(capsys: pytest.CaptureFixture[str]) -> None:
    clean("wild")
    command = [*with_lr(TRAIN, "1e15"), "--optimizer", "sgd", "--config", "{finetune: {clip: 0, warmup: 0.9}}"]
    command += ["-o", "wild.st"]
    run(*command, "--save-every", "1", code=6)
    said = capsys.readouterr().err
    assert "at step" in said or "after step" in said
    assert not Path("wild.st").exists()
    assert "wild.st.state has the last good state" in said or "after step" in said
    file = FileTensors("wild.st.state")
    assert all(bool(torch.isfinite(file.read(n)).all()) for n in file.names() if n.startswith("model."))


# --- the log ----------------------------------------------------------------------------------------------------------


def test_the_log_has_each_step_once(unfinished: list[str]) -> None:
    run(*unfinished, "--resume")
    found = json_lines("other.log.jsonl")
    assert found[0]["schema"] == "hydractl.training-log/1"
    assert [line["step"] for line in found if line.get("event") == "step"] == list(range(1, 19))
    epochs = [line for line in found if line.get("event") == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert {"loss", "lr", "samples_per_s"} <= set(found[1])
    assert found[-1]["event"] == "end"
    history = read_header("other.st").description["provenance"]["settings"]["history"]  # type: ignore[index]
    assert [line["val_accuracy"] for line in epochs] == [epoch["val_accuracy"] for epoch in history]


def test_the_log_can_be_elsewhere_or_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    clean("log")
    run(*TRAIN[:-2], "-o", "log.st")
    assert sorted(Path().glob("log*")) == [Path("log.st")]
    run(*TRAIN, "-o", "log.st", "--force", "--log", "there.log")
    assert json_lines("there.log")[-1]["event"] == "end"
    Path("mine.txt").write_text("my notes\n")
    run(*TRAIN, "-o", "log.st", "--force", "--log", "mine.txt", code=5)
    assert Path("mine.txt").read_text() == "my notes\n"
    assert "mine.txt is no log of a training" in capsys.readouterr().err
