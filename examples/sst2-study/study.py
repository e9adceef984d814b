"""The comparison table of the paper on SST-2, from a fine-tuned BERT and the data sets to ``runs/table.md``.

    python study.py DATA MODEL

Run it in this folder: ``hydra.yaml`` has the options of every command, and each command is printed as it could be
typed. A step whose output is there is skipped, so the same call goes on after a break; for other sizes change
``hydra.yaml`` or give ``--train`` and ``--ood``, and begin with an empty ``runs``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from prepare import prepare
from stack import stack
from table import tables

from hydractl.cli.app import main as hydractl

RUNS = Path("runs")
SEEDS = ("0", "1", "2")
TAYLOR = [f"taylor{seed}" for seed in SEEDS]
CIRCUIT = [f"circuit-{objective}" for objective in ("acc", "ood", "avg")]
DEEP = [f"deep{seed}" for seed in SEEDS]
ENSEMBLES = {
    "taylor": TAYLOR,
    "circuit": CIRCUIT,
    "circuit-tuned": [f"{name}-tuned" for name in CIRCUIT],
    "taylor-tuned": [f"{name}-tuned" for name in TAYLOR],
}


def step(output: str, *words: str) -> str:
    """Run one command unless its output is there, and give the path of that."""
    path = RUNS / output
    if not path.exists():
        print(f"\n$ hydractl {shlex.join(words)} -o {path}", flush=True)
        started = time.process_time()
        code = hydractl([*words, "-o", str(path)])
        if code:
            sys.exit(code)
        print(f"({time.process_time() - started:.0f} s of processor time)", flush=True)
    return str(path)


def predictions(name: str, model: str) -> Path:
    """The logits of a model on all test data and on the rows that temperatures are fitted on."""
    path = RUNS / f"{name}.pred.st"
    if not path.exists():
        step(f"{name}.eval.json", "eval", f"{name}={model}", "--predictions", str(path), "--resume", "-q")
    return path


def member(name: str, model: str) -> str:
    """The path of a model of one member: as pruned, fine-tuned, or a further fine-tuning of the whole model."""
    if name.endswith("-tuned"):
        return step(f"{name}.st", "finetune", member(name.removesuffix("-tuned"), model), "--resume", "-q")
    kind, which = name.rstrip("012"), name[-1]
    if kind == "deep":
        return step(f"{name}.st", "finetune", model, "--seed", which, "--resume", "-q")
    if kind == "taylor":
        return step(f"{name}.st", "prune", model, "--method", "taylor", "--keep", "8", "--seed", which)
    if not (RUNS / "circuit.avg.json").exists():  # the last of the three files of one search
        code = hydractl(["extract-circuit", model, "-o", str(RUNS / "circuit.json"), "--resume", "-q"])
        if code:
            sys.exit(code)
    return step(f"{name}.st", "prune", model, "--circuit", str(RUNS / f"{name.replace('-', '.')}.json"))


def ensemble(name: str, members: Sequence[str], model: str) -> Path:
    """Members one after another; none of them runs twice for it."""
    path = RUNS / f"{name}.pred.st"
    parts = [predictions(one, member(one, model)) for one in members]
    if not path.exists():
        print(f"\nstack {' '.join(map(str, parts))}: {path}", flush=True)
        stack(parts, path)
    return path


def measured(model: str) -> dict[str, Path]:
    """Predictions of every row of the table."""
    rows = {"single": predictions("single", model), "deep": ensemble("deep", DEEP, model)}
    for kind, members in ENSEMBLES.items():
        if not kind.endswith("-tuned"):
            rows.update({name: predictions(name, member(name, model)) for name in members})
        fused = step(f"hydra-{kind}.st", "fuse", *(member(name, model) for name in members))
        rows[f"hydra-{kind}"] = predictions(f"hydra-{kind}", fused)
        rows[f"members-{kind}"] = ensemble(f"members-{kind}", members, model)
    return rows


def main() -> None:
    """Read the arguments, run what is missing, write and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--train", type=int, default=1000, metavar="N", help="phrases to fine-tune on")
    parser.add_argument("--ood", type=int, default=100, metavar="N", help="the first N samples of every OOD set")
    arguments = parser.parse_args()
    if not (RUNS / "data" / "overlap.json").exists():
        prepare(arguments.data, RUNS / "data", arguments.train, arguments.ood)
    rows = measured(arguments.model)
    named = [f"{name}={path}" for name, path in rows.items()]
    plain = step("eval.json", "eval", *named, "--bootstrap", "1000", "-q")
    fitted = step("calibrated.json", "eval", *named, "--temperature", "fit", "-q")
    text = tables(Path(plain), Path(fitted))
    (RUNS / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
