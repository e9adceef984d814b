"""Which source of chance makes members differ (paper B.5, Tables 8 and 9)?

    hydractl extract-circuit vit.st --val val.npz --ood-val oodval.npz --objective acc,ood,avg --budget 30 \\
        -o circuit.json
    python examples/analyses/diversity_sources.py vit.st --circuit circuit.avg.json --remove 12 --sample-from 30 \\
        --circuits circuit.acc.json,circuit.ood.json,circuit.avg.json \\
        --train train.npz --val val.npz --data test.npz --ood svhn=svhn.npz

Three members each. *Pruning*: the heads of each member are drawn by a seed from the first of one ranking (the paper: 48
of 100). *Order*: the seed of fine-tuning, which orders the samples. *Samples*: the calibration sample of Taylor scores.
*Circuits*: one for each objective. What is not varied is the same in all members. On one processor and one thread the
order of sums is fixed, so what the paper calls backpropagation does not vary here.
"""

from __future__ import annotations

import json
import shlex
from itertools import combinations
from pathlib import Path

from common import arguments, hydractl, mean_diversity, rows_of, show

from hydractl.heads.overlap import jaccard

SEEDS = (0, 1, 2)


def removed(mask: Path) -> list[tuple[str, int]]:
    """The removed heads of a mask file."""
    sites = json.loads(mask.read_text())["sites"]
    return [(path, h) for path, entry in sites.items() for h in range(entry["heads"]) if h not in entry["kept"]]


def main() -> None:
    """Read the arguments and run."""
    parser = arguments(__doc__)
    parser.add_argument("model", metavar="MODEL", help="with all its heads")
    parser.add_argument("--circuit", required=True, help="the ranking to draw from")
    parser.add_argument("--circuits", default="", help="three of them, with commas")
    parser.add_argument("--remove", required=True, help="heads, from each member")
    parser.add_argument("--sample-from", required=True, help="draw them from so many first of the ranking")
    parser.add_argument("--train", required=True, metavar="SPEC")
    parser.add_argument("--val", required=True, metavar="SPEC")
    parser.add_argument("--samples", default="128", help="of the Taylor scores")
    parser.add_argument("--tuning", default="--epochs 2 --lr 3e-4", help="options of fine-tuning")
    asked = parser.parse_args()
    folder = asked.output / "diversity"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = ["--circuit", asked.circuit, "--remove", asked.remove, "--sample-from", asked.sample_from]
    taylor = ["--method", "taylor", "--scope", "global", "--remove", asked.remove, "--data", asked.train]
    taylor += ["--samples", asked.samples]
    # How each member is pruned, its seed there, and its seed of fine-tuning.
    ensembles: dict[str, list[tuple[list[str], int, int]]] = {
        "nothing": [(drawn, 0, 0) for _ in SEEDS],
        "order": [(drawn, 0, seed) for seed in SEEDS],
        "pruning": [(drawn, seed, 0) for seed in SEEDS],
        "pruning, order": [(drawn, seed, seed) for seed in SEEDS],
        "samples (Taylor)": [(taylor, seed, 0) for seed in SEEDS],
    }
    if asked.circuits:
        each = [["--circuit", file, "--remove", asked.remove] for file in asked.circuits.split(",")]
        ensembles["circuits"] = [(how, 0, 0) for how in each]
    made: dict[tuple[str, int, int], str] = {}
    models, overlaps = [f"single={asked.model}"], {}
    for name, members in ensembles.items():
        files, masks = [], []
        for how, seed, order in members:
            key = (shlex.join(how), seed, order)
            if key not in made:
                made[key] = f"{folder}/{len(made)}"
                hydractl("prune", asked.model, *how, "--seed", str(seed), "-o", f"{made[key]}.pruned.st", "-q")
                data = ["--train", asked.train, "--val", asked.val, "--seed", str(order)]
                tuned = f"{made[key]}.st"
                hydractl("finetune", f"{made[key]}.pruned.st", *data, *shlex.split(asked.tuning), "-o", tuned, "-q")
            files.append(f"{made[key]}.st")
            masks.append(removed(Path(f"{made[key]}.pruned.mask.json")))
        pairs = [jaccard(a, b) or 0.0 for a, b in combinations(masks, 2)]
        overlaps[name] = sum(pairs) / len(pairs) if pairs else None
        models.append(f"{name}={'+'.join(files)}")
    data = ["--test", asked.data, *(word for spec in asked.ood for word in ("--ood", spec))]
    limit = ["--limit", str(asked.limit)] if asked.limit else []
    hydractl("eval", *models, *data, *limit, "-o", f"{folder}/eval.json", "-q")
    rows = []
    for name, row in rows_of(folder / "eval.json").items():
        inside, ood, spread = row["id"], row["ood_avg"], row["diversity"]["id"]
        alone = [member["accuracy"] for member in row["members"]]
        accuracy = sum(alone) / len(alone) if alone else inside["accuracy"]
        figures = [accuracy, inside["accuracy"], inside["nll"], ood["auroc"], ood["fpr95"], overlaps.get(name)]
        figures += [spread["mi"], spread["disagreement"]]
        rows.append([name, *figures, mean_diversity(row, "mi"), mean_diversity(row, "disagreement")])
    columns = ["varied", "member accuracy", "accuracy", "NLL", "OOD AUROC", "FPR95", "overlap of heads removed"]
    show([*columns, "MI, ID", "disagreement, ID", "MI, OOD", "disagreement, OOD"], rows)


if __name__ == "__main__":
    main()
