"""How accuracy, OOD detection and likelihood go as heads are removed, by several criteria (paper B.3).

    hydractl score vit.st --method taylor --order one-shot --data train.npz -o taylor.json
    hydractl extract-circuit vit.st --val val.npz --ood-val oodval.npz --objective avg --budget 35 -o circuit.json
    python examples/analyses/heads_removed.py vit.st --data test.npz --ood svhn=svhn.npz --ood textures=textures/ \\
        --ranking taylor=taylor.json --ranking circuit=circuit.json

Every ranking gives nested masks: what is removed first stays removed. Nothing is trained (Figure 5) unless ``--train``
names data on which every pruned model, and the one with all heads, is fine-tuned before it is measured (Figure 6).
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import Any

from common import arguments, hydractl, named, open_model, orders, rows_of, samples, save, show
from matplotlib.figure import Figure
from removal import removal_curve

from hydractl.jsonio import read_json_file
from hydractl.log import Log

PANELS = (
    ("accuracy", lambda row: row["id"]["accuracy"]),
    ("mean OOD AUROC", lambda row: row["ood_avg"]["auroc"]),
    ("NLL", lambda row: row["id"]["nll"]),
)


def tuned_curve(asked: Namespace, name: str, file: str, counts: list[int]) -> list[dict[str, Any]]:
    """The rows of ``eval`` of the models without the first n heads, each fine-tuned; ``removed`` is n."""
    folder = asked.output / "heads_removed"
    folder.mkdir(parents=True, exist_ok=True)
    circuit = read_json_file(file)["schema"] == "hydractl.circuit/2"
    how = ["--circuit", file] if circuit else ["--scores", file, "--scope", "global"]
    tuning = ["--train", asked.train, *(["--val", asked.val] if asked.val else []), *shlex.split(asked.tuning)]
    models = []
    for count in counts:
        stem = f"{folder}/{name}-{count}"
        hydractl("prune", asked.model, *how, "--remove", str(count), "-o", f"{stem}.pruned.st", "-q")
        hydractl("finetune", f"{stem}.pruned.st", *tuning, "-o", f"{stem}.st", "-q")
        models.append(f"{count}={stem}.st")
    data = ["--test", asked.data, *(word for spec in asked.ood for word in ("--ood", spec))]
    limit = ["--limit", str(asked.limit)] if asked.limit else []
    hydractl("eval", *models, *data, *limit, "-o", f"{folder}/{name}.json", "-q")
    return [{"removed": int(count), **row} for count, row in rows_of(folder / f"{name}.json").items()]


def main() -> None:
    """Read the arguments and run."""
    parser = arguments(__doc__)
    parser.add_argument("model", metavar="MODEL", help="with all its heads")
    parser.add_argument("--ranking", action="append", required=True, metavar="NAME=FILE", help="scores or a circuit")
    parser.add_argument("--step", type=int, default=1, help="how many heads from one measurement to the next")
    parser.add_argument("--train", metavar="SPEC", help="fine-tune every model on these samples")
    parser.add_argument("--val", metavar="SPEC", help="validation samples of fine-tuning")
    parser.add_argument("--tuning", default="--epochs 2 --lr 3e-4", help="options of fine-tuning")
    asked = parser.parse_args()
    model = open_model(asked.model)
    inside = samples(model, asked.data, asked.limit, labelled=True)
    outside = {n: samples(model, spec, asked.limit, labelled=False) for n, spec in named(asked.ood).items()}
    found = {}
    for name, order in orders(model, asked.ranking).items():
        heads = sum(site.heads for site in model.sites)
        counts = [n for n in range(0, heads, asked.step) if n <= len(order)]
        if asked.train:
            found[name] = tuned_curve(asked, name, named(asked.ranking)[name], counts)
        else:
            found[name] = removal_curve(model, order, counts, inside, outside, Log(), title=name)
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, (title, value) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for name, rows in found.items():
            axis.plot([row["removed"] for row in rows], [value(row) for row in rows], marker=".", label=name)
        axis.set_xlabel("heads removed")
        axis.set_title(title)
    axis.set_yscale("log")
    axis.legend(fontsize=8)
    for title, value in PANELS:
        print(f"\n{title}")
        lengths = [row["removed"] for row in max(found.values(), key=len)]
        lines = [[name, *(value(row) for row in rows)] for name, rows in found.items()]
        show(["ranking", *map(str, lengths)], [line + [None] * (len(lengths) + 1 - len(line)) for line in lines])
    save(figure, asked.output / ("heads_removed_tuned.png" if asked.train else "heads_removed.png"))


if __name__ == "__main__":
    main()
