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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hydractl.errors import NonFiniteError
from hydractl.files.verb_answers import FinetuneAnswer
from hydractl.log import Log
from hydractl.settings.finetuning import FinetuneSettings
from hydractl.training.checkpointing import Interruptions
from hydractl.training.outputs import numbered
from tests.running import run

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
DATA = ["--train", "train.npz", "--val", "val.npz", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    draw = np.random.default_rng(0)
    for name, count in (("train", 20), ("val", 11)):
        pixels = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=pixels, y=np.arange(count) % 5)
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


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Trainings that write nothing: that of seed 1 finds NaN, the others end at once; the seeds that were trained."""
    trained: list[int] = []

    def train(settings: FinetuneSettings, log: Log) -> FinetuneAnswer:
        log.info("begun")
        if settings.seed == 1:
            raise NonFiniteError("the loss is nan at step 1", hint="lower --lr")
        trained.append(settings.seed)
        course = {"epochs": [], "kept_epoch": 0, "stopped_early": False, "lr": 0.1, "sha256": "0"}
        plan = {"output": str(settings.output), "model": settings.model[0], "samples": 1, "steps": 1, "cost": {}}
        return FinetuneAnswer.from_json({"schema": "hydractl.finetune/2", **plan, **course})

    monkeypatch.setattr("hydractl.verbs.finetune._train_member", train)
    return trained


def test_one_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str], seeds: list[int]) -> None:
    train = ["finetune", MODEL, *DATA, "--device", "cpu", "-o", "x.st", "--ensemble", "deep:4"]
    run(*train, code=6)
    err = capsys.readouterr().err
    assert "error: 1 of 4 members failed, first x.1; x.0, x.2, x.3 finished" in err
    assert "  - x.1: the loss is nan at step 1 (exit code 6)" in err and "hint: lower --lr" in err
    assert [line for line in err.splitlines() if line.endswith(": begun")] == [f"x.{i}: begun" for i in range(4)]
    assert "warning: x.1 failed: the loss is nan at step 1" in err and seeds == [0, 2, 3]


def test_several_seeds_of_several_models(capsys: pytest.CaptureFixture[str], seeds: list[int]) -> None:
    pruned("a.st", "b.st")
    Path("out").mkdir()
    capsys.readouterr()
    both = ["finetune", "a.st", "b.st", *DATA, "--ensemble", "deep:2"]
    run(*both, "--seed", "6", "-o", "out/", "--json", "-q", "--force")
    found = json.loads(capsys.readouterr().out)["members"]
    expected = [(f"{n}.tuned.seed6.{i}", 6 + i, f"{n}.st") for n in "ab" for i in (0, 1)]
    assert [(m["name"], m["seed"], m["model"]) for m in found] == expected
    assert [m["output"] for m in found] == [f"out/{name}.st" for name, _, _ in expected]
    Path("out/a.tuned.1.st").touch()
    Path("out/b.tuned.0.st").touch()
    run(*both, "-o", "out/", code=5)
    err = capsys.readouterr().err
    assert "error: 2 outputs are in the way" in err and "  - the output exists: out/b.tuned.0.st" in err


@pytest.mark.long
def test_members_are_stopped_go_on_and_are_what_the_single_command_writes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert (
            "hint: add --resume to the same command to go on; 0 of 2 members are finished; part.0.st.state has" in err
        )
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
    assert any(line.startswith("part.1: epoch ") for line in err.splitlines())
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
        (["--shard"], "--shard needs several processes"),
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
