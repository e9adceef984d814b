"""Do the heads that a circuit keeps tell ID from OOD samples apart (paper B.2.1, Table 5 and Figure 4)?

    hydractl extract-circuit vit.st --val val.npz --ood-val oodval.npz --objective ood --budget 35 -o circuit.json
    hydractl prune vit.st --circuit circuit.json --remove 12 -o circuit.st
    python examples/analyses/head_distances.py vit.st circuit.st --data test.npz --ood svhn=svhn.npz \\
        --ranking ood=circuit.json

The first table compares the models by the vectors of their heads in the last site, at the tokens that are read out. The
second, and the figure, compare heads of all sites of the first model: the last and the first six that the ranking
removes. Heads that the ranking never removes count as its last.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from centroids import centroid_distances
from common import arguments, named, open_model, orders, samples, save, show
from matplotlib.figure import Figure
from pca import principal_plane

from hydractl.criteria.cahp.head_choice import Batches, head_outputs
from hydractl.heads.mask import Head, all_heads
from hydractl.log import Log
from hydractl.model.runtime import HydraModel

SHOWN = 6


def vectors(model: HydraModel, batches: Batches, heads: list[Head]) -> np.ndarray:
    """The outputs of some heads of a dense model, ``[N, heads, head_dim]``."""
    paths = [site.path for site in model.sites]
    outputs = head_outputs(model, batches, sorted({paths.index(path) for path, _ in heads}), Log())
    return np.stack([outputs[paths.index(path)][:, head] for path, head in heads], axis=1)


def last_site(model: HydraModel, batches: Batches) -> np.ndarray:
    """The outputs of the heads that a model still has in the last site of its samples' tower."""
    site = model.chain_of_samples.sites.stop - 1
    return head_outputs(model, batches, [site], Log())[site]


def compare_models(refs: list[str], data: str, ood: dict[str, str], limit: int | None) -> None:
    """Mean distances over the heads of the last site of each model, for each OOD set."""
    cells: dict[str, list[float]] = {name: [] for name in ood}
    columns = ["OOD set"]
    for ref in refs:
        model, short = open_model(ref), Path(ref).name
        inside = last_site(model, samples(model, data, limit, labelled=False))
        if not inside.shape[1]:
            sys.exit(f"{short} has no heads left in its last site")
        columns += [f"{short}: Euclidean, {inside.shape[1]} heads", f"{short}: Mahalanobis"]
        for name, spec in ood.items():
            found = centroid_distances(inside, last_site(model, samples(model, spec, limit, labelled=False)))
            cells[name] += [float(found.euclidean.mean()), float(found.mahalanobis.mean())]
    average = [float(np.mean(column)) for column in zip(*cells.values(), strict=True)]
    show(columns, [[name, *values] for name, values in cells.items()] + [["mean", *average]])


def main() -> None:
    """Read the arguments and run."""
    parser = arguments(__doc__)
    parser.add_argument("model", nargs="+", metavar="MODEL", help="checkpoints of one member; the first with all heads")
    parser.add_argument("--ranking", metavar="NAME=FILE", help="of heads of the first model")
    asked = parser.parse_args()
    ood = named(asked.ood)
    compare_models(asked.model, asked.data, ood, asked.limit)
    if asked.ranking is None:
        return
    model = open_model(asked.model[0])
    ((title, order),) = orders(model, [asked.ranking]).items()
    order += [head for head in all_heads(model.sites) if head not in order]
    groups = {"most important": order[-SHOWN:], "least important": order[:SHOWN]}
    figure = Figure(figsize=(9, 3.2 * len(ood)), layout="constrained")
    axes = figure.subplots(len(ood), 2, squeeze=False)
    inside_batches = samples(model, asked.data, asked.limit, labelled=False)
    rows = []
    for line, (name, spec) in zip(axes, ood.items(), strict=True):
        outside_batches = samples(model, spec, asked.limit, labelled=False)
        for axis, (which, heads) in zip(line, groups.items(), strict=True):
            inside, outside = vectors(model, inside_batches, heads), vectors(model, outside_batches, heads)
            each, plane = centroid_distances(inside, outside), principal_plane(inside, outside)
            apart = centroid_distances(plane.inside[:, None], plane.outside[:, None]).mahalanobis[0]
            explained = sum(plane.explained)
            figures = (float(each.euclidean.mean()), float(each.mahalanobis.mean()), float(apart), float(explained))
            rows.append([name, f"{SHOWN} {which}", *figures])
            axis.scatter(*plane.inside.T, s=4, alpha=0.5, label="ID")
            axis.scatter(*plane.outside.T, s=4, alpha=0.5, label=name)
            axis.set_title(f"{title}: the {SHOWN} {which} heads, {explained:.0%} of the variance", fontsize=9)
            axis.legend(fontsize=8)
    columns = ["OOD set", "heads", "Euclidean, mean", "Mahalanobis, mean", "Mahalanobis, 2-D", "variance explained"]
    show(columns, rows)
    save(figure, asked.output / "head_distances.png")


if __name__ == "__main__":
    main()
