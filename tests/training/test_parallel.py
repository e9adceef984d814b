"""Training by several processes: the weights of one, whoever is stopped or killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.files.header import read_header
from tests.forked import ROOT, Forked, team
from tests.image_data import write_images
from tests.running import tensors

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"
# 41 samples: the last step of an epoch has 9, its second batch one, which is of the first process alone.
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--val", "val.npz", "--device", "cpu", "-q", "--batch-size", "8",
         "--accumulate", "2", "--optimizer", "sgd", "--lr", "0.05", "--augment", "crop,flip"]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(train=41, val=21)


def ends(processes: list[Forked]) -> list[tuple[int, str, str]]:
    """Code, stdout and stderr of each."""
    said = [process.communicate(timeout=200) for process in processes]
    return [(process.returncode, *one) for process, one in zip(processes, said, strict=True)]


def history(path: str) -> Any:
    return read_header(path).description["provenance"]["settings"]["history"]  # type: ignore[index]


def agree(path: str, other: str, within: float = 1e-6, began: str = MODEL) -> None:
    """Only the order in which gradients are added up differs."""
    one, two, start = tensors(path), tensors(other), hydractl.load(began, device="cpu").stock_tensors()
    assert max(float((one[n] - start[n]).abs().max()) for n in one if one[n].numel()) > 1e-3
    assert all(torch.allclose(tensor, two[name], rtol=0, atol=within) for name, tensor in one.items())


def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def wait_for(path: str, processes: list[Forked]) -> None:
    while not Path(path).exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)


@pytest.mark.fault(38)
def test_two_processes_give_the_weights_of_one() -> None:
    assert main([*TRAIN, "--epochs", "2", "-o", "one.st"]) == 0
    done = ends(team(2, [*TRAIN, "--epochs", "2", "-o", "two.st", "--checkpoint-blocks"]))
    assert [code for code, _, _ in done] == [0, 0], done
    assert [out for _, out, _ in done] == ["two.st\n", ""]
    agree("one.st", "two.st")
    # 21 samples of two processes, each counted once.
    assert [e["val_accuracy"] for e in history("one.st")] == [e["val_accuracy"] for e in history("two.st")]
    assert [e["val_nll"] for e in history("one.st")] == pytest.approx(
        [e["val_nll"] for e in history("two.st")], abs=1e-5
    )


@pytest.mark.long
@pytest.mark.fault(37)
def test_one_is_stopped_and_another_number_goes_on() -> None:
    """A signal to one of two processes stops both at the same step; one process alone finishes the work."""
    long = [*TRAIN, "--epochs", "6"]
    two = team(2, [*long, "-o", "part.st", "--save-every", "1"])
    wait_for("part.st.state", two)
    two[1].send_signal(signal.SIGTERM)
    done = ends(two)
    assert [code for code, _, _ in done] == [130, 130], done
    assert "add --resume to the same command to go on; part.st.state has step" in done[0][2]
    assert main([*long, "-o", "part.st", "--resume"]) == 0
    assert main([*long, "-o", "whole.st"]) == 0
    one, other = tensors("whole.st"), tensors("part.st")
    assert max(float((one[n] - other[n]).abs().max()) for n in one) < 1e-3  # rounding, grown over 18 steps
    assert len(history("part.st")) == 6


@pytest.mark.fault(36)
def test_a_killed_process_ends_the_other() -> None:
    two = team(2, [*TRAIN, "--epochs", "2000", "-o", "killed.st", "--save-every", "1"])
    wait_for("killed.st.state", two)
    two[1].kill()
    (code, out, err), _ = ends(two)
    assert (code, out) == (1, "")
    assert "another process of this run has ended" in err
    assert "run the same command with --resume" in err
    assert Path("killed.st.state").exists() and not Path("killed.st").exists()


# As a command under torchrun, whose second process is killed once, as soon as something is saved.
KILLED_ONCE = """
import os, signal, sys, threading, time
from hydractl.cli.app import main

def kill():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    threading.Thread(target=kill, daemon=True).start()
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.release
def test_a_job_that_torchrun_restarts_gives_the_same_bytes() -> None:
    Path("job.py").write_text(KILLED_ONCE)
    command = [*TRAIN, "--epochs", "6", "--save-every", "1", "--dropout", "0.1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = subprocess.run(
        [*torchrun, "--master-port", port(), "job.py", "restarted.st.state", *command, "-o", "restarted.st"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr and "reducer.cpp" not in done.stderr
    assert [code for code, _, _ in ends(team(2, [*command, "-o", "undisturbed.st"]))] == [0, 0]
    assert Path("restarted.st").read_bytes() == Path("undisturbed.st").read_bytes()
