"""Are the scores of a CLIP's two towers comparable (paper C.3, Figure 7)?

    hydractl score clip.st --method taylor --order one-shot --data train/ -o scores.json
    python examples/analyses/tower_scores.py clip.st --scores scores.json --remove 24

The table has the mean score of the heads of each layer, by tower, the figure every head by layer and number. Removed
together, the lowest heads of both would be mostly those of one tower where its scores are on a lower scale.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import RUNS, save, show
from matplotlib.figure import Figure

from hydractl.errors import HydraError
from hydractl.files.head_documents import scores_from_json
from hydractl.heads.mask import Head, Site
from hydractl.heads.selection import lowest
from hydractl.jsonio import read_json_file
from hydractl.model.source import open_source

Towers = dict[str, list[tuple[float, ...]]]
"""By tower the scores of the heads of each layer."""


def read(ref: str, file: str, count: int) -> tuple[Towers, list[Head], list[Site]]:
    """The scores of a file by tower, the heads of the lowest ones of all, and the sites."""
    try:
        sites = list(open_source(ref).sites)
        scores = scores_from_json(read_json_file(file), sites, file)
        scored = [site for site in sites if site.path in scores.scores]
        heads = [(site.path, head) for site in scored for head in range(site.heads)]
        removed = lowest(scores, heads)[:count]
    except HydraError as error:
        sys.exit("\n".join([f"error: {error.message}", *error.problems]))
    towers: Towers = {}
    for site in scored:
        towers.setdefault(site.tower, []).append(scores.scores[site.path])
    if len(towers) < 2:
        sys.exit(f"error: {file} has scores of {', '.join(towers)} only: score both towers of a CLIP")
    return towers, removed, scored


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a CLIP with all its heads")
    parser.add_argument("--scores", required=True, metavar="FILE", help="of hydractl score, for both towers")
    parser.add_argument("--remove", type=int, default=24, metavar="N", help="heads to remove from both together")
    parser.add_argument("-o", "--output", type=Path, default=RUNS, metavar="FOLDER", help="where the figure goes")
    asked = parser.parse_args()
    towers, removed, sites = read(asked.model, asked.scores, asked.remove)
    layers = range(max(map(len, towers.values())))
    means = {name: [1000 * sum(layer) / len(layer) for layer in own] for name, own in towers.items()}
    lines = [[i, *(own[i] if i < len(own) else None for own in means.values())] for i in layers]
    show(["layer", *(f"{name}, x 1000" for name in towers)], lines)
    of = {site.path: site.tower for site in sites}
    rows = []
    for name, own in towers.items():
        heads = sum(map(len, own))
        rows.append([name, heads, 1000 * sum(map(sum, own)) / heads, sum(of[path] == name for path, _ in removed)])
    show(["tower", "heads", "mean score, x 1000", f"of the {len(removed)} lowest heads"], rows)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axis = figure.subplots()
    for name, own in towers.items():
        axis.plot([score for layer in own for score in layer], marker=".", label=name)
    axis.set(xlabel="heads, by layer and number", ylabel="score")
    if all(score > 0 for own in towers.values() for layer in own for score in layer):
        axis.set_yscale("log")
    axis.legend(fontsize=8)
    save(figure, asked.output / "tower_scores.png")


if __name__ == "__main__":
    main()
