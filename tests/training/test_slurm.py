"""Members as jobs, run by submitit on this machine: what a cluster does, but for its queue."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from hydractl.cli.app import main
from hydractl.log import Log
from hydractl.training.checkpointing import Interruptions
from hydractl.verbs.jobs import run_jobs

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--device", "cpu", "-q", "--batch-size", "4", "--epochs", "9"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    pixels = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", x=pixels, y=np.arange(24) % 5)


def children(process: str | int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def near_the_end() -> None:
    """Tell the job of the first member so, when that has saved something."""
    while not Path("m.0.st.state").exists():
        time.sleep(0.01)
    jobs = [job for controller in children(os.getpid()) for job in children(controller)]
    (job,) = [job for job in jobs for own in children(job) if "m.0.st" in Path(f"/proc/{own}/cmdline").read_text()]
    os.kill(int(job), signal.SIGUSR2)


@pytest.mark.release
def test_members_are_those_of_single_commands_also_when_one_is_queued_again(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit", reason="pip install 'hydractl[slurm]'")
    threading.Thread(target=near_the_end, daemon=True).start()
    jobs = ["--ensemble", "deep:2", "--slurm", "cluster=local,time=20", "-o", "m.st", "--json", "--save-every", "1"]
    assert main([*TRAIN, *jobs]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(member["name"], member["steps"]) for member in answer["members"]] == [("m.0", 54), ("m.1", 54)]
    assert sum("Requeued job" in log.read_text() for log in Path("slurm").rglob("*_log.*")) == 1
    for seed in ("0", "1"):
        assert main([*TRAIN, "--seed", seed, "-o", f"alone.{seed}.st"]) == 0
        assert Path(f"m.{seed}.st").read_bytes() == Path(f"alone.{seed}.st").read_bytes()


@pytest.mark.long
def test_a_job_that_fails_says_why() -> None:
    pytest.importorskip("submitit", reason="pip install 'hydractl[slurm]'")
    commands = {"a": [*TRAIN, "--lr", "-1"]}
    (ended,) = run_jobs(commands, {"cluster": "local", "time": "5"}, Path("slurm"), Log(), Interruptions()).values()
    assert (ended.name, ended.code) == ("a", 2)
    assert ended.message is not None and ended.message.startswith("--lr must be greater than 0")


def test_what_cannot_be_submitted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*TRAIN, "--slurm", "partition=gpu"]) == 2
    assert "--slurm (flag) needs time=MINUTES" in capsys.readouterr().err
    assert main([*TRAIN, "--slurm", "time=60", "--devices", "cpu"]) == 2
    assert "--devices has no effect with --slurm" in capsys.readouterr().err
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: find(name, *rest) if name != "submitit" else None
    )
    assert main([*TRAIN, "--slurm", "time=60"]) == 2
    assert "hint: pip install 'hydractl[slurm]'" in capsys.readouterr().err
