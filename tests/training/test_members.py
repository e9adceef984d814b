"""Several trainings of one command: each as the command for it alone, side by side, failing and stopped."""

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
from typing import Any

import numpy as np
import pytest
import torch

import hydractl
from hydractl.cli.answer import Answer
from hydractl.cli.app import _parse
from hydractl.log import Log
from hydractl.options.sources import bare_environment
from hydractl.options.verbs import SETTINGS
from hydractl.settings.sources import merge, to_argv
from hydractl.training.checkpointing import Interruptions
from hydractl.training.outputs import numbered
from hydractl.verbs.children import run_commands
from tests.forked import ForkedPopen, server
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


# In the place of hydractl: training 1 fails, the others say what they were called with.
FAILS = """
import json, sys
words = sys.argv[2:]
if "--seed=1" in words:
    sys.exit("error: the loss is nan at step 1\\nhint: lower --lr")
plan = {"output": "x.st", "model": "x", "samples": 1, "steps": 1, "cost": {}}
course = {"epochs": [], "kept_epoch": 0, "stopped_early": False, "lr": 0.1, "sha256": "0"}
print(json.dumps({"schema": "hydractl.finetune/2", **plan, **course, "words": words}))
"""


def test_one_that_fails_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydractl.verbs.children._START", FAILS)
    train = ["finetune", MODEL, *DATA, "--device", "cpu", "-o", "x.st", "--ensemble", "deep:4"]
    run(*train, code=1)
    err = capsys.readouterr().err
    assert "error: 1 of 4 members failed, first x.1; x.0, x.2, x.3 finished" in err
    assert "  - x.1: the loss is nan at step 1 (exit code 1)" in err and "hint: lower --lr" in err
    assert [line for line in err.splitlines() if ": begun on" in line] == [f"x.{i}: begun on cpu" for i in range(4)]

    # Several models, a folder for the outputs, and several seeds of each.
    pruned("a.st", "b.st")
    Path("out").mkdir()
    capsys.readouterr()
    both = ["finetune", "a.st", "b.st", *DATA, "--ensemble", "deep:2"]
    run(*both, "--seed", "6", "-o", "out/", "--json", "-q", "--force")
    found = json.loads(capsys.readouterr().out)["members"]
    named = [(m["name"], m["seed"]) for m in found]
    assert named == [(f"{n}.tuned.seed6.{i}", 6 + i) for n in "ab" for i in (0, 1)]
    for member, output in zip(found, [name for name, _ in named], strict=True):
        words = member["words"]
        assert words[-2:] == ["--", f"{output[0]}.st"]
        assert {f"--output=out/{output}.st", f"--seed={member['seed']}", "--quiet", "--force", "--json"} <= set(words)
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
    server()  # is started before
    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)
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
        patch.setenv("HYDRACTL_DEVICES", "cpu,cpu")
        threading.Thread(target=stop).start()
        run(*members, code=130)
        err = capsys.readouterr().err
        assert "hint: add --resume to the same command to go on; 0 of 2 members are finished" in err
        first = next(index for index, state in enumerate(states) if state.exists())
        assert f"part.{first}: stopped, part.{first}.st.state has step" in err
        assert not list(Path().glob("part.*.st"))
        run(*members, code=5)
        assert f"an unfinished run is saved in part.{first}.st.state" in capsys.readouterr().err
        run(*members, "--lr", "0.5", "--resume", code=3)
        assert f"part.{first}.st.state is of another run" in capsys.readouterr().err
    # The command for one of them may go on with it; what is finished is not begun again.
    run(*train, "--seed", str(4 + first), "-q", "-o", f"part.{first}.st", "--resume")
    capsys.readouterr()
    run(*members, "--ensemble", "deep:2", "--devices", "cpu,cpu", "--resume", "--json")
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["schema"] == "hydractl.finetunes/2"
    assert [(m["name"], m["seed"], m["output"], m["steps"]) for m in found["members"]] == [
        ("part.0", 4, "part.0.st", 60),
        ("part.1", 5, "part.1.st", 60),
    ]
    assert f"part.{first}: finished before, nothing to do" in err and f"part.{1 - first}: begun on cpu" in err
    assert any(line.startswith(f"part.{1 - first}: epoch ") for line in err.splitlines())
    assert not any(state.exists() for state in states)
    for index, member in enumerate(found["members"]):
        run(*train, "--seed", str(4 + index), "-q", "-o", f"whole.{index}.st")
        same(f"part.{index}.st", f"whole.{index}.st")
        assert member["sha256"] == hashlib.sha256(Path(f"whole.{index}.st").read_bytes()).hexdigest()
        assert Path(f"part.{index}.log.jsonl").exists()
    assert len({member["sha256"] for member in found["members"]}) == 2

    monkeypatch.setattr(subprocess, "Popen", None)
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
        (["--ensemble", "deep:2", "--devices", "99", "-o", "x.st"], "device 'cuda:99' is not available"),
        (["--ensemble", "deep:2", "--log", "x.jsonl"], "several trainings have a log each: --log beside"),
        (["--shard"], "--shard needs several processes"),
        (["--devices", "cpu", "--device", "cpu"], "--device has no effect with --devices cpu"),
        (["--ensemble", "deep:2", "--devices", "cpu,gpu"], "--devices must be DEVICE[,DEVICE...], such as 0,1"),
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
    run("finetune", MODEL, *DATA, "--devices", "cpu", code=2)
    assert "--devices is for several trainings" in capsys.readouterr().err
    run("finetune", MODEL, *DATA, "--device", "cuda:0", code=2)
    assert "--device cuda:0 is one GPU for all processes" in capsys.readouterr().err


def test_a_dry_run_lists_what_would_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(4)
    monkeypatch.setattr(subprocess, "Popen", None)
    run("finetune", MODEL, *DATA, "--ensemble", "deep:3", "--devices", "cpu,cpu", "-o", "x/", "--dry-run", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [(m["name"], m["seed"], m["steps"], m["output"]) for m in found["members"]] == [
        ("x.0", 0, 9, "x.0"),
        ("x.1", 1, 9, "x.1"),
        ("x.2", 2, 9, "x.2"),
    ]
    assert (found["devices"], found["threads"]) == (["cpu", "cpu"], 2)
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
    first = ["finetune", "--train", "d.npz", "--val", "v.npz", *flags, "--", "-odd.st"]
    given = merge(kind, parsed(first), env, tmp_path)
    words = ["finetune", *to_argv(given), "--", *given.model]
    again = merge(kind, parsed(words), bare_environment({**env, "HYDRACTL_LR": "9", "HOME": "/"}), tmp_path)
    again.config = given.config
    assert again == given
    assert again.from_recipe == given.from_recipe  # type: ignore[attr-defined]
    assert bare_environment({"HYDRACTL_LR": "9", "HYDRACTL_DEBUG": "1", "PATH": "p"}) == {
        "HYDRACTL_DEBUG": "1",
        "PATH": "p",
    }


def test_a_command_is_the_hydractl_of_this_process(tmp_path: Path) -> None:
    """Whatever lies in the working directory."""
    for name in ("hydractl", "json", "ast"):
        Path(f"{name}.py").write_text("raise RuntimeError")
    with Interruptions() as signals:
        ended = run_commands({"one": lambda device: ["--version"]}, ["cpu"], None, Log(), signals)
    assert (ended["one"].code, ended["one"].answer) == (0, f"hydractl {hydractl.__version__}\n")


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
    monkeypatch.setattr("hydractl.verbs.children._START", KILLED)
    log = Heard()
    commands = {"one": lambda device: [device, "kill"], "two": lambda device: [device, "talk"]}
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
