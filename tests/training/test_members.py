"""Several trainings of one command: each as the command for it alone, side by side, failing and stopped."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hydractl.checkpoint import read_header
from hydractl.cli.answer import Answer
from hydractl.cli.app import _parse, main
from hydractl.log import Log
from hydractl.settings import SETTINGS, merge
from hydractl.settings.words import bare_environment, words_of
from hydractl.training.children import Command, run_commands
from hydractl.training.interruptions import Interruptions
from hydractl.training.members import numbered

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
DATA = ["--data", "train.npz", "--val", "val.npz", "--batch-size", "8"]


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


def run(*arguments: str, code: int = 0) -> None:
    assert main(list(arguments)) == code


def pruned(*names: str) -> None:
    for keep, name in enumerate(names):
        run("prune", MODEL, "--method", "magnitude", "--keep", str(keep % 3 + 1), "-o", name, "-q")


def same(one: str, other: str) -> None:
    assert Path(one).read_bytes() == Path(other).read_bytes()


# --- what they write --------------------------------------------------------------------------------------------------


def test_members_are_what_the_single_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a recipe and hydra.yaml too; the variables that start the members do not reach the single trainings."""
    Path("mine.yaml").write_text("epochs: 2\nlabel_smoothing: 0.1\nfreeze: [class_token, words]\nlr: 0.5\n")
    Path("hydra.yaml").write_text("device: cpu\nfinetune:\n  lr: 0.003\n  momentum: 0.5\n  optimizer: sgd\n")
    train = ["finetune", MODEL, *DATA, "--recipe", "mine.yaml", "--dropout", "0.1", "--log", "beside"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRACTL_MEMBERS", "2")
        patch.setenv("HYDRACTL_DEVICES", "cpu,cpu")
        capsys.readouterr()
        run(*train, "--seed", "4", "-o", "deep.st", "--json")
    out, err = capsys.readouterr()
    for index, seed in enumerate((4, 5)):
        run(*train, "-q", "--seed", str(seed), "-o", f"single.{index}.st")
        same(f"deep.{index}.st", f"single.{index}.st")
        assert Path(f"deep.{index}.log.jsonl").exists()
    found = json.loads(out)
    assert found["schema"] == "hydractl.finetunes/1"
    assert [(m["name"], m["seed"], m["output"]) for m in found["members"]] == [
        ("deep.0", 4, "deep.0.st"),
        ("deep.1", 5, "deep.1.st"),
    ]
    assert [m["sha256"] for m in found["members"]] == [
        hashlib.sha256(Path(m["output"]).read_bytes()).hexdigest() for m in found["members"]
    ]
    assert len({m["sha256"] for m in found["members"]}) == 2
    lines = [line for line in err.splitlines() if "epoch 1, " in line]
    assert sorted(line.partition(": ")[0] for line in lines) == ["deep.0", "deep.1"]


def test_one_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    pruned("a.st", "b.st")
    wild = {name: t * np.float32(1e30) if "qkv.weight" in name else t for name, t in load_file("a.st").items()}
    save_file(wild, "a.st", metadata={"format": "pt", "hydractl": json.dumps(read_header("a.st").description)})
    Path("out").mkdir()
    train = [*DATA, "--device", "cpu", "--epochs", "1"]
    run("finetune", "a.st", "b.st", *train, "-o", "out/", code=6)
    err = capsys.readouterr().err
    assert "error: 1 of 2 members failed, first a.tuned; b.tuned finished" in err
    assert "  - a.tuned: the loss is nan at step 1 (exit code 6)" in err
    assert [file.name for file in Path("out").iterdir()] == ["b.tuned.st"]
    run("finetune", "b.st", *train, "-q", "-o", "alone.st")
    same("out/b.tuned.st", "alone.st")
    run("finetune", "a.st", "b.st", *train, "-o", "out/", code=5)
    assert "error: the output exists: out/b.tuned.st" in capsys.readouterr().err


def test_a_signal_stops_all_and_they_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train = ["finetune", MODEL, *DATA, "--steps", "150", "--save-every", "1"]
    members = [*train, "--members", "2", "--devices", "cpu,cpu", "-o", "part.st"]
    states = [Path("part.0.st.state"), Path("part.1.st.state")]

    def stop() -> None:
        while not all(state.exists() for state in states) and not Path("part.0.st").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    run(*members, code=130)
    err = capsys.readouterr().err
    assert "hint: add --resume to the same command to go on; 0 of 2 members are finished" in err
    assert "part.0: stopped, part.0.st.state has step" in err
    assert not Path("part.0.st").exists() and all(state.exists() for state in states)
    run(*members, code=5)
    assert "  - an unfinished run is saved in part.1.st.state" in capsys.readouterr().err
    run(*members, "--lr", "0.5", "--resume", code=3)
    assert "part.0.st.state is of another run" in capsys.readouterr().err

    # The command for one of them may go on with it; what is finished is not begun again.
    run(*train, "--device", "cpu", "--seed", "1", "-q", "-o", "part.1.st", "--resume")
    capsys.readouterr()
    run(*members, "--resume")
    out, err = capsys.readouterr()
    assert out.splitlines() == ["part.0.st", "part.1.st"]
    assert "part.1: finished before, nothing to do" in err
    assert "part.0: going on with the run in part.0.st.state" in err
    run(*train, "--device", "cpu", "-q", "-o", "whole.st")
    same("part.0.st", "whole.st")
    assert not any(state.exists() for state in states)
    monkeypatch.setattr(subprocess, "Popen", None)
    run(*members, "--resume", "--json")
    assert [member["steps"] for member in json.loads(capsys.readouterr().out.partition("\n")[2])["members"]] == [
        150
    ] * 2
    run(*members, "--resume", "--lr", "0.5", code=3)
    assert "part.0.st is the output of another training" in capsys.readouterr().err


# --- what is refused before anything begins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--members", "2", "--devices", "99", "-o", "x.st"], "device 'cuda:99' is not available"),
        (["--members", "2", "--log", "x.jsonl"], "several trainings have a log each: --log beside"),
        (["--devices", "cpu", "--device", "cpu"], "--device has no effect with --devices cpu"),
        (["--members", "2", "--devices", "cpu,gpu"], "--devices must be DEVICE[,DEVICE...], not 'gpu'"),
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
    run("finetune", MODEL, *DATA, "--members", "2", code=2)
    assert "torchrun shares one training among processes, not several" in capsys.readouterr().err
    run("finetune", MODEL, *DATA, "--devices", "cpu", code=2)
    assert "--devices is for several trainings" in capsys.readouterr().err


def test_a_dry_run_lists_what_would_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(4)
    monkeypatch.setattr(subprocess, "Popen", None)
    run("finetune", MODEL, *DATA, "--members", "3", "--devices", "cpu,cpu", "-o", "x/", "--dry-run", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [(m["name"], m["seed"], m["steps"], m["output"]) for m in found["members"]] == [
        ("x.0", 0, 9, "x.0"),
        ("x.1", 1, 9, "x.1"),
        ("x.2", 2, 9, "x.2"),
    ]
    assert (found["devices"], found["threads"]) == (["cpu", "cpu"], 2)
    assert not list(Path().glob("x*"))


@pytest.mark.parametrize(
    ("output", "second"),
    [("a.st", "a.1.st"), ("b/a.x.safetensors", "b/a.x.1.safetensors"), ("a.taylor-8", "a.taylor-8.1"), ("a/", "a.1/")],
)
def test_outputs_are_numbered(output: str, second: str) -> None:
    assert numbered(output, 1) == second


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "env", "yaml"),
    [
        (["--epochs", "3", "--lr", "1e-5,0.1", "--no-force", "--prompt=-a {}", "--prompt=b,c {}"], {}, ""),
        (
            [],
            {"HYDRACTL_STEPS": "7", "HYDRACTL_OPTIMIZER": "sgd"},
            "momentum: 0.8\nfinetune: {epochs: 3, betas: [0.1]}",
        ),
        (["--recipe", "cifar100", "--epochs", "1"], {"HYDRACTL_PROMPT": "a {}\nb {}"}, "val: v.npz\nfreeze: [patch]"),
        (
            ["--recipe", "sst2", "--batch-size", "3"],
            {},
            "finetune: {recipe: imagenet1k, compile: true, min-delta: 1e-7}",
        ),
    ],
)
def test_words_give_the_same_settings_again(flags: list[str], env: dict[str, str], yaml: str, tmp_path: Path) -> None:
    def parsed(words: list[str]) -> Any:
        request = _parse(words, Answer(None, lambda message: None))
        assert request is not None
        return request.given

    kind = SETTINGS["finetune"]
    Path("hydra.yaml").write_text(yaml)
    first = ["finetune", "--data", "d.npz", "--val", "v.npz", *flags, "--", "-odd.st"]
    given = merge(kind, parsed(first), env, tmp_path)
    words = ["finetune", *words_of(given), "--config=/dev/null", "--", *given.model]
    again = merge(kind, parsed(words), bare_environment({**env, "HYDRACTL_LR": "9", "HOME": "/"}), tmp_path)
    again.config = given.config
    assert again == given
    assert again.from_recipe == given.from_recipe  # type: ignore[attr-defined]
    assert bare_environment({"HYDRACTL_LR": "9", "HYDRACTL_DEBUG": "1", "PATH": "p"}) == {
        "HYDRACTL_DEBUG": "1",
        "PATH": "p",
    }


class Heard(Log):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str) -> None:
        self.lines.append(message)

    def warn(self, message: str) -> None:
        self.lines.append(f"warning: {message}")


def test_a_command_that_cannot_be_understood_or_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRACTL_LR", "nonsense")
    monkeypatch.setattr("hydractl.training.children._START", KILLED)
    log = Heard()
    commands = [Command("one", lambda device: [device, "kill"]), Command("two", lambda device: [device, "talk"])]
    with Interruptions() as signals:
        ended = run_commands(commands, ["d0"], 3, log, signals)
    assert (ended["one"].code, ended["one"].message, ended["one"].problems) == (137, "ended by SIGKILL", ["last words"])
    assert (ended["two"].code, ended["two"].message, ended["two"].hint) == (5, "é: no", "do")
    assert ended["two"].answer == "d0 3 none"
    assert ended["two"].problems == ["p: q"]
    assert log.lines == [
        "one: begun on d0",
        "one: last words",
        "warning: one failed with exit code 137: ended by SIGKILL",
        "two: begun on d0",
        "warning: two: careful",
        "warning: two failed with exit code 5: é: no",
    ]


# In the place of hydractl: says what a command may say.
KILLED = """
import os, sys
device, what = sys.argv[2:]
sys.stderr.reconfigure(encoding="utf-8")
if what == "kill":
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 9)
print(device, os.environ["OMP_NUM_THREADS"], os.environ.get("HYDRACTL_LR", "none"), end="")
print("warning: careful\\nerror: é: no\\n  - p: q\\nhint: do", file=sys.stderr)
sys.exit(5)
"""
