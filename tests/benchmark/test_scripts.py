"""Every script of benchmarks/ runs to its end, as small as it can be."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hydractl.circuit import session
from hydractl.cli.app import main
from tests.running import read_json
from tests.spread import marked_release

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = (
    "timm:vit_tiny_patch16_224?img_size=8&patch_size=4&in_chans=1&embed_dim=12&depth=2&num_heads=3&mlp_ratio=1"
    "&num_classes=10&pretrained=0"
)
SIZED = TINY.replace("num_classes=10", "num_classes=1000").replace("in_chans=1&", "")
DATA = ("--data", "builtin:digits/val", "--ood", "builtin:symbols", "--limit", "8", "--batch-size", "4")
ONCE = ("--rounds", "1")
STUDY = (
    "--val builtin:digits/val --ood-val builtin:symbols --test builtin:digits/test --ood l=builtin:letters "
    "--limit 12 --search-samples 12 --rows single --bootstrap 100"
)
COMMANDS = {
    "approximate_circuits": ("vit.st", *DATA, "--budget", "1", "--approx", "lazy:2", *ONCE),
    "big_models": ("vit_tiny_patch16_224", "--keep", "2", "--folder", ".", "-o", "out.json"),
    "data_throughput": ("--limit", "4", "--batch-size", "2", "--workers", "0", *ONCE, "-o", "out.json"),
    "ensemble_cost": ("--ways", "heads", *ONCE, "--batch-size", "1", "--folder", "runs", "-o", "out.json"),
    "eval_of_files": ("--before", "..", "--images", "4", "--distinct", "2", "--workers", "1", *ONCE, "-o", "out.json"),
    "eval_overhead": ("--model", SIZED, "--samples", "4", "--batch-size", "4", *ONCE),
    "extract_circuit": ("vit.st", *DATA, "--objective", "avg", "--steps", "1", "-o", "out.json"),
    "finetune_speed": (TINY, "--keep", "2", "--batch-size", "2", *ONCE, "-o", "out.json"),
    "fused_cost": (
        TINY,
        "--heads",
        "2",
        "--members",
        "2",
        "--shared",
        "1",
        "--batch-size",
        "1",
        *ONCE,
        "-o",
        "out.json",
    ),
    "study_cost": ("../before", "vit.st", "--study", STUDY, *ONCE, "-o", "out.json"),
    "start_up": ("--verbs", "predict", *ONCE, "-o", "out.json"),
    "verdict_words": ("--trials", "1", "-o", "out.json"),
    "score_cost": ("--width", "8", "--classes", "3", "--train", "60", "--batch", "2", *ONCE),
}
# They take longer than the others.
BEFORE_A_RELEASE = [
    "big_models",
    "eval_of_files",
    "score_cost",
    "start_up",
    "study_cost",
    "verdict_words",
]
SCRIPTS = [*(script for script in COMMANDS if script not in BEFORE_A_RELEASE), *marked_release(BEFORE_A_RELEASE)]
TESTED_ELSEWHERE = {"gpu_cost", "host_path", "verdict_rules", "verdict_cases", "layered_scores"}
LINUX_ONLY = {"big_models", "eval_of_files"}


def test_every_script_is_run() -> None:
    assert {script.stem for script in BENCHMARKS.glob("*.py")} == {*COMMANDS} | TESTED_ELSEWHERE


def load(script: str) -> ModuleType:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(script, BENCHMARKS / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def run_here(words: Sequence[str]) -> None:
    """Run ``python WORDS`` in this process, which has imported torch already."""
    if list(words[:2]) == ["-m", "hydractl"]:
        assert main(list(words[2:])) == 0
        return
    assert words[0] == "-c"
    before = sys.argv
    sys.argv = ["-c", *words[2:]]
    try:
        exec(words[1], {})
    finally:
        sys.argv = before


def without_processes(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a script run in this process what it starts Python for; what it watches is one that does nothing."""

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[0] == sys.executable
        with contextlib.chdir(options.get("cwd", ".")):
            run_here(command[1:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", run)
    if hasattr(module, "watched"):
        watched = module.watched

        def watched_here(name: str, command: Sequence[str], *where: Any) -> Any:
            run_here(command[1:])
            return watched(name, [sys.executable, "-c", "pass"], *where)

        monkeypatch.setattr(module, "watched", watched_here)


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script in LINUX_ONLY and sys.platform != "linux":
        pytest.skip("for Linux, as it says")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(session, "tell_work", session.tell_work)  # a script wraps it
    words = COMMANDS[script]
    if "vit.st" in words:
        train = ["--train", "builtin:digits/train?take=20", "--steps", "1"]
        assert main(["finetune", TINY, *train, "-o", "vit.st", "-q"]) == 0
    module = load(script)
    if hasattr(module, "subprocess"):
        without_processes(module, monkeypatch)
    if script == "ensemble_cost":
        monkeypatch.setattr(module, "MODEL", TINY)
        few = "builtin:digits/train?take=40"
        monkeypatch.setattr(module, "TRAIN", ["--train", few, "--batch-size", "10"])
        monkeypatch.setattr(module, "PRUNE", ["--data", few, "--batch-size", "10"])
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [script, *words])
    module.main()

    if "out.json" in words:
        assert read_json(tmp_path / "out.json")
    else:
        assert capsys.readouterr().out.strip()
