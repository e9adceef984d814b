"""Several trainings of one command: each as the command for it alone, failing and stopped."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydractl
from hydractl.errors import NonFiniteError
from hydractl.training import loop
from hydractl.training.checkpointing import Interruptions
from hydractl.training.outputs import numbered
from hydractl.verbs import finetune_training
from tests.image_data import write_images
from tests.running import run

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
DATA = ["--train", "train.npz", "--val", "val.npz", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_images(train=20, val=11)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pruned(*names: str) -> None:
    for keep, name in enumerate(names):
        run("prune", MODEL, "--method", "magnitude", "--keep", str(keep % 3 + 1), "-o", name, "-q")


def same(one: str, other: str) -> None:
    assert Path(one).read_bytes() == Path(other).read_bytes()


# --- what they write --------------------------------------------------------------------------------------------------


def test_the_first_that_fails_ends_the_command_and_what_was_finished_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Training(loop.Training):
        def run(self) -> loop.History:
            if self.options.seed == 1:
                raise NonFiniteError("the loss is nan at step 1", "lower --lr")
            return super().run()

    train = ["finetune", MODEL, *DATA, "--device", "cpu", "--steps", "2", "-o", "x.st", "--ensemble", "deep:3"]
    with monkeypatch.context() as patch:
        patch.setattr("hydractl.training.grid.Training", Training)
        run(*train, code=6)
    err = capsys.readouterr().err
    assert "error: x.1: the loss is nan at step 1\nhint: lower --lr" in err
    assert "1 of 3 members are finished; --resume goes on with the others" in err
    assert sorted(map(str, Path().glob("x*"))) == ["x.0.st"]
    run(*train, "--resume")
    assert "x.0: finished before, nothing to do" in capsys.readouterr().err
    assert sorted(map(str, Path().glob("x*"))) == ["x.0.st", "x.1.st", "x.2.st"]


def test_a_model_is_gone_before_the_next_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[Any]] = []

    def build(*arguments: Any) -> Any:
        assert not any(model() for model in models)
        model = built(*arguments)
        models.append(weakref.ref(model))
        return model

    built = finetune_training._build_model
    monkeypatch.setattr(finetune_training, "_build_model", build)
    hydractl.finetune(MODEL, train="train.npz", steps=2, ensemble="deep:3", device="cpu", checkpoint_blocks=True)
    assert len(models) == 3


def test_what_the_check_of_all_warns_of_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("one.npz", x=np.load("train.npz")["x"], y=np.zeros(20, dtype=int))
    train = ["finetune", MODEL, "--train", "one.npz", "--device", "cpu", "--steps", "1", "--batch-size", "8"]
    run(*train, "-o", "x.st", "--ensemble", "deep:2")
    assert capsys.readouterr().err.count("all 20 samples are of one class") == 1


def test_of_several_models_with_several_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    pruned("a.st", "b.st")
    Path("out").mkdir()
    capsys.readouterr()
    both = ["finetune", "a.st", "b.st", *DATA, "--steps", "1", "--ensemble", "deep:2", "--device", "cpu"]
    run(*both, "--seed", "6", "-o", "out/", "--json", "-q")
    found = json.loads(capsys.readouterr().out)["members"]
    named = [(m["name"], m["seed"]) for m in found]
    assert named == [(f"{n}.tuned.seed6.{i}", 6 + i) for n in "ab" for i in (0, 1)]
    for member in found:
        digest = hashlib.sha256(Path(f"out/{member['name']}.st").read_bytes()).hexdigest()
        assert (member["output"], member["sha256"]) == (f"out/{member['name']}.st", digest)
    Path("out/b.tuned.0.st").touch()
    run(*both, "-o", "out/", code=5)
    assert "error: the output exists: out/b.tuned.0.st" in capsys.readouterr().err


@pytest.mark.long
def test_members_are_stopped_go_on_and_are_what_the_single_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """With a recipe and hydra.yaml too; the variables that start the members do not reach the single trainings."""
    Path("mine.yaml").write_text("steps: 60\nlabel_smoothing: 0.1\nfreeze: [class_token, words]\nlr: 0.5\n")
    Path("hydra.yaml").write_text("device: cpu\nfinetune:\n  lr: 0.003\n  momentum: 0.5\n  optimizer: sgd\n")
    train = ["finetune", MODEL, *DATA, "--recipe", "mine.yaml", "--dropout", "0.1", "--log", "beside"]
    train += ["--save-every", "1"]
    members = [*train, "--seed", "4", "-o", "part.st"]
    states = [Path("part.0.st.state"), Path("part.1.st.state")]

    def stop() -> None:
        while not any(state.exists() for state in states):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRACTL_ENSEMBLE", "deep:2")
        threading.Thread(target=stop).start()
        run(*members, code=130)
        err = capsys.readouterr().err
        assert "hint: add --resume to the same command to go on; part.0.st.state has step" in err
        assert "of 60; 0 of 2 members are finished" in err
        assert states[0].exists() and not states[1].exists() and not list(Path().glob("part.*.st"))
        run(*members, code=5)
        assert "an unfinished run is saved in part.0.st.state" in capsys.readouterr().err
        run(*members, "--lr", "0.5", "--resume", code=3)
        assert "part.0.st.state is of another run" in capsys.readouterr().err
    # The command for one of them may go on with it; what is finished is not begun again.
    run(*train, "--seed", "4", "-q", "-o", "part.0.st", "--resume")
    capsys.readouterr()
    run(*members, "--ensemble", "deep:2", "--resume", "--json")
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["schema"] == "hydractl.finetunes/2"
    assert [(m["name"], m["seed"], m["output"], m["steps"]) for m in found["members"]] == [
        ("part.0", 4, "part.0.st", 60),
        ("part.1", 5, "part.1.st", 60),
    ]
    assert "part.0: finished before, nothing to do" in err
    assert "training part.1: 1 of 2 members are finished" in err.splitlines()
    assert not any(state.exists() for state in states)
    for index, member in enumerate(found["members"]):
        run(*train, "--seed", str(4 + index), "-q", "-o", f"whole.{index}.st")
        same(f"part.{index}.st", f"whole.{index}.st")
        assert member["sha256"] == hashlib.sha256(Path(f"whole.{index}.st").read_bytes()).hexdigest()
        assert Path(f"part.{index}.log.jsonl").exists()
    assert len({member["sha256"] for member in found["members"]}) == 2

    capsys.readouterr()
    run(*members, "--ensemble", "deep:2", "--resume")
    assert capsys.readouterr().out.splitlines() == ["part.0.st", "part.1.st"]
    run(*members, "--ensemble", "deep:2", "--resume", "--lr", "0.5", code=3)
    assert "part.0.st is the output of another training" in capsys.readouterr().err


def test_a_signal_between_two_trainings_is_not_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the first is written, and is as good as one that comes while it trains."""
    before = signal.getsignal(signal.SIGTERM)
    write = finetune_training.write_all

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return write(*arguments)

    monkeypatch.setattr(finetune_training, "write_all", interrupted)
    run("finetune", MODEL, *DATA, "--steps", "1", "--device", "cpu", "-o", "x.st", "--ensemble", "deep:2", code=130)
    err = capsys.readouterr().err
    assert "1 of 2 members are finished" in err and "x.1" not in err
    assert sorted(map(str, Path().glob("x*"))) == ["x.0.st"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.long
def test_a_signal_to_all_processes_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    """As a scheduler sends it: to those that read data, and to the training twice; it saves, and goes on as ever."""
    train = ["finetune", MODEL, *DATA, "--device", "cpu", "--epochs", "12", "--augment", "flip"]

    def stop() -> None:
        while not Path("part.st.state").exists() or not multiprocessing.active_children():
            time.sleep(0.001)
        pids = [str(child.pid) for child in multiprocessing.active_children()]
        subprocess.run(["kill", "-TERM", *pids, str(os.getpid()), str(os.getpid())], stderr=subprocess.DEVNULL)

    threading.Thread(target=stop).start()
    run(*train, "--workers", "2", "--save-every", "1", "-o", "part.st", code=130)
    assert "part.st.state has step" in capsys.readouterr().err
    run(*train, "-o", "part.st", "--resume", "-q")
    run(*train, "-q", "-o", "whole.st")
    same("part.st", "whole.st")


@pytest.mark.fault(5)
def test_a_second_signal_ends_the_process() -> None:
    def twice(apart: float) -> int:
        child = os.fork()
        if child == 0:
            with Interruptions() as signals:
                os.kill(os.getpid(), signal.SIGTERM)
                signals._since -= apart
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(10 + signals.requested)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert twice(0) == 11
    assert twice(2) == -signal.SIGTERM


# --- what is refused before anything begins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--ensemble", "deep:2", "--device", "cuda:99", "-o", "x.st"], "device 'cuda:99' is not available"),
        (["--ensemble", "deep:2", "--log", "x.jsonl"], "several trainings have a log each: --log beside"),
        (["other.st", "-o", "x.st"], "of several MODELs --output names their folder, as in out/, not x.st"),
    ],
)
def test_what_cannot_be_is_refused(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("finetune", MODEL, *DATA, *more, code=2)
    assert said in capsys.readouterr().err


def test_names_must_differ(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other").mkdir()
    pruned("a.st", "other/a.st")
    run("finetune", "a.st", "other/a.st", *DATA, code=2)
    assert "error: several trainings would write a.tuned" in capsys.readouterr().err


def test_torchrun_and_members_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    run("finetune", MODEL, *DATA, "--ensemble", "deep:2", code=2)
    assert "torchrun shares one training among processes, not several" in capsys.readouterr().err
    run("finetune", MODEL, *DATA, "--device", "cuda:0", code=2)
    assert "--device cuda:0 is one GPU for all processes" in capsys.readouterr().err


def test_a_dry_run_lists_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    run("finetune", MODEL, *DATA, "--ensemble", "deep:3", "-o", "x/", "--dry-run", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [(m["name"], m["seed"], m["steps"], m["output"]) for m in found["members"]] == [
        ("x.0", 0, 9, "x.0"),
        ("x.1", 1, 9, "x.1"),
        ("x.2", 2, 9, "x.2"),
    ]
    together = ["--steps", "4", "--ensemble", "classifiers:2", "-o", "./"]
    pruned("a.st", "b.st")
    capsys.readouterr()
    run("finetune", "a.st", "b.st", *DATA, *together, "--dry-run", "--json")
    found = json.loads(capsys.readouterr().out)
    outputs = [[one["output"] for one in member["files"]] for member in found["members"]]
    assert outputs == [[f"{n}.tuned.{number}.st" for number in (1, 2)] for n in "ab"]
    assert not list(Path().glob("x*"))


@pytest.mark.parametrize(
    ("output", "second"),
    [("a.st", "a.1.st"), ("b/a.x.safetensors", "b/a.x.1.safetensors"), ("a.taylor-8", "a.taylor-8.1"), ("a/", "a.1/")],
)
def test_outputs_are_numbered(output: str, second: str) -> None:
    assert numbered(output, 1) == second


@pytest.mark.long
def test_the_loop_of_the_page_makes_the_same_bytes(with_hydractl: dict[str, str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    lines = page.partition("### Members side by side")[2].partition("```sh\n")[2].partition("```")[0]
    options = [*DATA, "--steps", "2", "--device", "cpu"]
    here = lines.replace("--train train/ --val val/", " ".join(options))
    assert here != lines
    run("prune", MODEL, "--method", "magnitude", "--keep", "2", "-o", "vit.st", "-q")
    run("finetune", "vit.st", *options, "--ensemble", "deep:3", "-o", "one.st", "-q")
    subprocess.run(["sh", "-e", "-c", here], env=with_hydractl, check=True)
    for index in range(3):
        same(f"deep.{index}.st", f"one.{index}.st")
