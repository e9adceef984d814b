"""Effect of sharing the leading sites among members on quality, diversity and cost (Fashion-MNIST).

    python examples/fashion_mnist.py DATA      # trains the model and makes the members that share nothing
    python examples/shared_sites.py DATA

Three circuits and three Taylor members of one model, as pruned, with none, half or most of its 6 sites taken from the
avg circuit and from the first Taylor member. Shared sites run once. A run that was stopped goes on where it was, when
the same command is given again; ``--again`` forgets what is there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import fashion_mnist
from chain import OBJECTIVES, SEEDS, Study, hydractl
from intervals import Row, markdown, mult_adds, rows_of, value_at, with_interval
from matplotlib.figure import Figure

from hydractl.heads.overlap import jaccard

RUNS = fashion_mnist.RUNS / "shared"
SHARED = {"circuit": (0, 3, 5), "taylor": (0, 1, 2, 3, 5)}
PER_SITE = 1  # heads that a Taylor member loses of each site; compared over all sites, it would lose whole late sites
SAMPLES = 16  # calibration samples of a Taylor member; of 512, all members lose the same heads of the first five sites
NAMES = {"circuit": "circuits", "taylor": "Taylor"}


def masks(study: Study, kind: str, shared: int) -> list[str]:
    """The masks of three members; circuits that share nothing are the ones of the study itself."""
    if kind == "taylor":
        return taylor(study, shared)
    if shared:
        return circuits(study, shared)
    return [f"{study.runs}/circuit-{objective}.pruned.mask.json" for objective in OBJECTIVES]


def circuits(study: Study, shared: int) -> list[str]:
    """The circuits searched anew behind the shared sites; the avg circuit decides what is removed in those."""
    folder = RUNS / f"circuit-{shared}"
    base, common = f"{study.runs}/base.st", f"{study.runs}/circuit.avg.json"
    if not all((folder / f"circuit.{o}.json").exists() for o in OBJECTIVES):
        folder.mkdir(parents=True, exist_ok=True)
        data = ["--val", study.val, "--ood-val", study.ood_val, "--objective", ",".join(OBJECTIVES)]
        how = ["--share-from", common, "--share-sites", str(shared), *shlex.split(study.search), "--resume", "-q"]
        hydractl("extract-circuit", base, *data, "--budget", str(study.remove), *how, "-o", f"{folder}/circuit.json")
    for objective in OBJECTIVES:
        hydractl("prune", base, "--circuit", f"{folder}/circuit.{objective}.json", "-o", f"{folder}/{objective}.st")
    return [f"{folder}/{objective}.mask.json" for objective in OBJECTIVES]


def taylor(study: Study, shared: int) -> list[str]:
    """Members by scores of their own calibration samples; the first member decides the shared sites."""
    folder = RUNS / f"taylor-{shared}"
    folder.mkdir(parents=True, exist_ok=True)
    data = ["--data", study.train, "--samples", str(SAMPLES)]
    common = ["--with", f"{RUNS}/taylor-0/{SEEDS[0]}.mask.json", "--share-sites", str(shared)] if shared else []
    for seed in SEEDS:
        how = ["--method", "taylor", "--remove", str(PER_SITE), "--seed", seed]
        hydractl("prune", f"{study.runs}/base.st", *how, *common, *data, "-o", f"{folder}/{seed}.st")
    return [f"{folder}/{seed}.mask.json" for seed in SEEDS]


def overlap(paths: Sequence[str]) -> float:
    """Mean Jaccard index of the heads that two members lost, over the pairs."""
    removed = []
    for path in paths:
        sites = json.loads(Path(path).read_text(encoding="utf-8"))["sites"]
        removed.append([(p, h) for p, site in sites.items() for h in range(site["heads"]) if h not in site["kept"]])
    pairs = [jaccard(a, b) for a, b in combinations(removed, 2)]
    return sum(pairs) / len(pairs)


def show(rows: Mapping[str, Row], overlaps: Mapping[tuple[str, int], float]) -> None:
    """The dial as two tables: what is detected at which cost, and how much the members differ."""
    single, sets = rows["single"], list(rows["single"]["ood"])
    detected = ("id.accuracy", *(f"ood.{name}.auroc" for name in sets), "ood_avg.auroc")
    data = ("id", *sets)
    differ = [f"diversity.{name}.{metric}" for metric in ("mi", "disagreement") for name in data]
    first = [["single", "", "1.00", *(with_interval(single, key) for key in detected)]]
    second = []
    for kind, shared in overlaps:
        row = rows[f"{kind}-{shared}"]
        ratio = f"{mult_adds(row, single):.2f}"
        first.append([NAMES[kind], str(shared), ratio, *(with_interval(row, key) for key in detected)])
        own = f"{overlaps[kind, shared]:.2f}"
        second.append([NAMES[kind], str(shared), ratio, own, *(with_interval(row, key) for key in differ)])
    markdown(("members", "shared", "mult-adds", "accuracy", *(f"AUROC {s}" for s in sets), "AUROC mean"), first)
    names = [f"{metric} {name.replace('id', 'ID')}" for metric in ("MI", "disagreement") for name in data]
    markdown(("members", "shared", "mult-adds", "overlap", *names), second)


def draw(rows: Mapping[str, Row], path: Path) -> None:
    """Mean OOD AUROC with its interval, and mutual information on OOD data, over the mult-adds."""
    single, sets = rows["single"], list(rows["single"]["ood"])
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    points(left, [single], single, ["ood_avg.auroc"], label="single model", color="black", marker="s")
    for (kind, name), color, shift in zip(NAMES.items(), ("tab:blue", "tab:orange"), (-0.01, 0.01), strict=True):
        chosen = [rows[f"{kind}-{shared}"] for shared in SHARED[kind]]
        style = {"label": name, "color": color, "marker": "o"}
        points(left, chosen, single, ["ood_avg.auroc"], shift, **style)
        for metric, line in zip(sets, ("-", ":"), strict=False):
            style = {"label": f"{name}, {metric}", "color": color, "marker": "o", "linestyle": line}
            points(right, chosen, single, [f"diversity.{metric}.mi"], shift, **style)
        places: dict[tuple[float, float | None], list[str]] = {}
        for shared, row in zip(SHARED[kind], chosen, strict=True):
            places.setdefault((mult_adds(row, single) + shift, value_at(row, "ood_avg.auroc")), []).append(str(shared))
        for place, names in places.items():
            above = {"xytext": (5, 4), "textcoords": "offset points"}
            left.annotate(f"{', '.join(names)} shared", place, fontsize=7, color=color, **above)
    left.margins(x=0.15)
    left.set_title("mean OOD AUROC")
    right.set_title("mutual information of the members, OOD data")
    for axis in (left, right):
        axis.set_xlabel("mult-adds, single model = 1")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    print(f"\nfigure: {path}")


def points(axis, rows, single, keys, shift=0.0, **style) -> None:  # type: ignore[no-untyped-def]
    """Values with 95 % intervals; ``shift`` keeps two series apart where they have the same cost."""
    for key in keys:
        values = [value_at(row, key) for row in rows]
        ends = [row["ci"][key] for row in rows]
        low = [max(v - e[0], 0) for v, e in zip(values, ends, strict=True)]
        high = [max(e[1] - v, 0) for v, e in zip(values, ends, strict=True)]
        axis.errorbar([mult_adds(row, single) + shift for row in rows], values, yerr=[low, high], capsize=3, **style)


def main() -> None:
    """Make what is missing, evaluate, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--again", action="store_true", help="forget the results of an earlier run")
    parser.add_argument("--figure", type=Path, default=RUNS / "shared-sites.png")
    asked = parser.parse_args()
    if asked.again:
        shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True, exist_ok=True)
    study = fashion_mnist.study(asked.data, fashion_mnist.RUNS / "data")
    models, overlaps = [f"single={study.runs}/base.st"], {}
    for kind in NAMES:
        for shared in SHARED[kind]:
            kept = masks(study, kind, shared)
            overlaps[kind, shared] = overlap(kept)
            fused = f"{RUNS}/{kind}-{shared}.st"
            hydractl("fuse", *(path.replace(".mask.json", ".st") for path in kept), "-o", fused)
            models.append(f"{kind}-{shared}={fused}")
    ood = [word for spec in study.ood_test for word in ("--ood", spec)]
    evaluation = RUNS / "eval.json"
    hydractl("eval", *models, "--test", study.test, *ood, *shlex.split(study.evaluation), "-o", str(evaluation))
    rows = {row["name"]: row for row in rows_of(evaluation)}
    show(rows, overlaps)
    draw(rows, asked.figure)


if __name__ == "__main__":
    main()
