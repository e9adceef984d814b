"""Effect of averaging the MLPs of members (paper B.7, Table 11): fused, fused without averaging, and one by one.

    python examples/analyses/fused_or_not.py a.st b.st c.st --data test.npz --ood svhn=svhn.npz

The members must have been trained apart: those of one checkpoint have the same MLPs, and nothing is averaged.
"""

from __future__ import annotations

import json

from common import arguments, hydractl, mean_diversity, rows_of, show


def main() -> None:
    """Read the arguments and run."""
    parser = arguments(__doc__)
    parser.add_argument("member", nargs="+", metavar="MEMBER", help="pruned checkpoints of one architecture")
    asked = parser.parse_args()
    folder = asked.output / "fused_or_not"
    folder.mkdir(parents=True, exist_ok=True)
    merges = {"everything averaged": "mlp,norm,embed", "MLPs only": "mlp", "nothing averaged": "none"}
    models = [f"member {number}={path}" for number, path in enumerate(asked.member)]
    for number, (name, merge) in enumerate(merges.items()):
        hydractl("fuse", *asked.member, "--merge", merge, "-o", f"{folder}/{number}.st", "-q")
        models.append(f"{name}={folder}/{number}.st")
    models.append(f"one after another={'+'.join(asked.member)}")
    data = ["--test", asked.data, *(word for spec in asked.ood for word in ("--ood", spec))]
    limit = ["--limit", str(asked.limit)] if asked.limit else []
    hydractl("eval", *models, *data, *limit, "-o", f"{folder}/eval.json", "-q")
    hydractl("bench", *models, "--batch-size", "32", "--rounds", "1", "-o", f"{folder}/bench.json", "-q")
    costs = {row["model"]: row for row in json.loads((folder / "bench.json").read_text())["results"]}
    rows = []
    for name, row in rows_of(folder / "eval.json").items():
        inside, ood, spread = row["id"], row["ood_avg"], row["diversity"]["id"]
        figures = [inside[key] for key in ("accuracy", "nll", "ece", "aece")] + [ood[key] for key in ("auroc", "fpr95")]
        figures += [spread["mi"], spread["disagreement"], mean_diversity(row, "mi")]
        rows.append([name, *figures, costs[name]["params"]])
    columns = ["model", "accuracy", "NLL", "ECE", "aECE", "OOD AUROC", "FPR95"]
    show([*columns, "MI, ID", "disagreement, ID", "MI, OOD", "parameters"], rows)


if __name__ == "__main__":
    main()
