"""How much do single weights tell? OBA, magnitude and random, as pruned and fine-tuned, over several seeds.

    make demo                                      # trains the model
    python examples/single_weights.py [--model runs/digits/base.st] [--shares 0.891,0.3] [--seeds 0,1,2]

Every model is pruned to each share of its parameters and fine-tuned, with each seed; what is there already is not made
again. Prints mean and sample standard deviation of accuracy and NLL on the test data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from chain import hydractl
from intervals import rows_of, value_at

RUNS = Path("runs/single-weights")
METHODS = {
    "oba": "--method oba --data builtin:digits/train --samples 128",
    "oba, 1 step": "--method oba --data builtin:digits/train --samples 128 --weight-steps 1",
    "magnitude": "--method magnitude",
    "random": "--method random",
}
TRAINING = "--train builtin:digits/train --val builtin:digits/val --epochs 3 --lr 1e-3"


def made(model: str, share: str, method: str, seed: str) -> tuple[Path, Path]:
    """A model pruned to a share, and fine-tuned."""
    name = f"{method.replace(', ', '-').replace(' ', '-')}-{share}-{seed}"
    pruned, tuned = RUNS / f"{name}.st", RUNS / f"{name}.tuned.st"
    hydractl("prune", model, "--weights", share, *METHODS[method].split(), "--seed", seed, "-q", "-o", str(pruned))
    hydractl("finetune", str(pruned), *TRAINING.split(), "--seed", seed, "-q", "-o", str(tuned))
    return pruned, tuned


def figures(models: list[Path]) -> list[str]:
    """Mean and standard deviation of accuracy and NLL over models, as cells of a table."""
    output = RUNS / f"{models[0].stem}.json"
    output.unlink(missing_ok=True)  # it may be of other seeds
    hydractl("eval", *map(str, models), "--test", "builtin:digits/test", "-q", "-o", str(output))
    cells = []
    for key in ("id.accuracy", "id.nll"):
        values = np.array([value_at(row, key) for row in rows_of(output)])
        cells.append(f"{values.mean():.3f} ± {values.std(ddof=1):.3f}")
    return cells


def main() -> None:
    """Make what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/digits/base.st")
    parser.add_argument("--shares", type=lambda text: text.split(","), default=["0.891", "0.3"])
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["0", "1", "2"])
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    table = ["| left | | accuracy as pruned | NLL as pruned | accuracy, fine-tuned | NLL, fine-tuned |"]
    table.append("|---|---|---:|---:|---:|---:|")
    for share in arguments.shares:
        for method in METHODS:
            pairs = [made(arguments.model, share, method, seed) for seed in arguments.seeds]
            pruned, tuned = (list(models) for models in zip(*pairs, strict=True))
            table.append(f"| {share} | {method} | {' | '.join([*figures(pruned), *figures(tuned)])} |")
    print("\n".join(table))


if __name__ == "__main__":
    main()
