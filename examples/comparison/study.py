"""The comparison table of the paper, with baselines, for one model and its data sets.

    cd sst2 && python ../study.py DATA MODEL
    cd fashion-mnist && python ../study.py DATA

Run it in a folder with a ``hydra.yaml``, which has the options of every command and, under ``x-study``, those in which
the rows differ, and a ``prepare.py``, which cuts the data. Every command is printed as it could be typed. A step whose
output is there is skipped, so the same call goes on after a break; for other settings change ``hydra.yaml`` and begin
with an empty ``runs``. The answer is ``runs/table.md``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from table import tables

from hydractl.cli.app import main as hydractl

RUNS = Path("runs")
SEEDS = ("0", "1", "2")
OBJECTIVES = ("acc", "ood", "avg")


def run(*words: str) -> None:
    """Run one command in this process, and show it."""
    print(f"\n$ hydractl {shlex.join(words)}", flush=True)
    started = time.process_time()
    code = hydractl(words)
    if code:
        sys.exit(code)
    print(f"({time.process_time() - started:.0f} s of processor time)", flush=True)


def step(output: str, *words: str) -> str:
    """Run one command unless its output is there, and give the path of that."""
    path = RUNS / output
    if not path.exists():
        run(*words, "-o", str(path))
    return str(path)


class Comparison:
    """The rows of the table, each made when it is asked for.

    Args:
        model: MODEL that every row is made of.
        options: ``x-study`` of ``hydra.yaml``: for each way to make members, the options of its command.
    """

    def __init__(self, model: str, options: dict[str, str]) -> None:
        self.model, self.options = model, {name: shlex.split(str(text)) for name, text in options.items()}
        self.rows: dict[str, Callable[[], str]] = {
            "single": lambda: self.predicted("single", model),
            "deep": lambda: self.apart("deep", self.trained("deep")),
            "mc-dropout": lambda: self.predicted("mc-dropout", model, *self.options["mc-dropout"]),
            "batch-ensemble": lambda: self.apart("batch-ensemble", self.trained("batch-ensemble")),
            "lora": lambda: self.fused("lora", self.trained("lora")),
        }
        kinds = {"taylor": [f"taylor{seed}" for seed in SEEDS], "circuit": [f"circuit-{name}" for name in OBJECTIVES]}
        for kind, names in kinds.items():
            for name in names:
                self.rows[name] = lambda name=name: self.predicted(name, self.pruned(name))
            for tuned in ("", "-tuned"):
                self.rows[f"hydra-{kind}{tuned}"] = lambda kind=kind, names=names, tuned=tuned: self.fused(
                    f"hydra-{kind}{tuned}", self.members(names, tuned)
                )
                self.rows[f"members-{kind}{tuned}"] = lambda kind=kind, names=names, tuned=tuned: self.apart(
                    f"members-{kind}{tuned}", self.members(names, tuned)
                )

    # --- predictions --------------------------------------------------------------------------------------------------

    def predicted(self, name: str, model: str, *words: str) -> str:
        """The logits of a model on all test data and on the rows that temperatures are fitted on."""
        path = RUNS / f"{name}.pred.st"
        if not path.exists():
            step(f"{name}.eval.json", "eval", f"{name}={model}", *words, "--predictions", str(path), "--resume", "-q")
        return str(path)

    def apart(self, name: str, members: dict[str, str]) -> str:
        """The logits of members that run one after another."""
        return self.predicted(name, "+".join(members.values()))

    def fused(self, name: str, members: dict[str, str]) -> str:
        """The logits of members that run as one."""
        return self.predicted(name, step(f"{name}.st", "fuse", *members.values(), "-q"))

    # --- members ------------------------------------------------------------------------------------------------------

    def trained(self, kind: str) -> dict[str, str]:
        """Members of the whole model that differ in what was trained, one for each seed."""
        words = ("finetune", self.model, *self.options[kind], "--resume", "-q")
        return {f"{kind}{seed}": step(f"{kind}{seed}.st", *words, "--seed", seed) for seed in SEEDS}

    def pruned(self, name: str) -> str:
        """A member with heads removed."""
        if name.startswith("taylor"):
            return step(f"{name}.st", "prune", self.model, *self.options["taylor"], "--seed", name[-1])
        if not all((RUNS / f"circuit.{objective}.json").exists() for objective in OBJECTIVES):
            run("extract-circuit", self.model, "-o", str(RUNS / "circuit.json"), "--resume", "-q")
        return step(f"{name}.st", "prune", self.model, "--circuit", str(RUNS / f"{name.replace('-', '.')}.json"))

    def members(self, names: Sequence[str], tuned: str) -> dict[str, str]:
        """Pruned members as they are, or fine-tuned."""
        found = {name: self.pruned(name) for name in names}
        if not tuned:
            return found
        words = (*self.options["tuned"], "--resume", "-q")
        return {f"{n}-tuned": step(f"{n}-tuned.st", "finetune", path, *words) for n, path in found.items()}


def study_of(path: Path) -> dict[str, Any]:
    """The settings of this script in ``hydra.yaml``."""
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["x-study"]
    return found


def main() -> None:
    """Read the arguments, run what is missing, write and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", nargs="?", help="MODEL; without it prepare.py trains one")
    parser.add_argument("--rows", metavar="ROW[,ROW...]", help="these rows only, without a table")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path.cwd()))
    from prepare import prepare

    study = study_of(Path("hydra.yaml"))
    model = prepare(arguments.data, RUNS, study, arguments.model, step)
    comparison = Comparison(model, study["members"])
    wanted = arguments.rows.split(",") if arguments.rows else comparison.rows
    named = [f"{name}={comparison.rows[name]()}" for name in wanted]
    if arguments.rows:
        return
    plain = step("eval.json", "eval", *named, "--bootstrap", "1000", "-q")
    fitted = step("calibrated.json", "eval", *named, "--temperature", "fit", "-q")
    text = tables(Path(plain), Path(fitted))
    (RUNS / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
