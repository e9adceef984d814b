"""Circuits chosen with each kind of OOD sample that can be made of ID samples, beside one chosen with real OOD data.

    python examples/ood_validation.py MODEL --val SPEC --real NAME=SPEC --data SPEC --ood NAME=SPEC --budget N

For each kind, and for the real set, an avg circuit is searched on the validation samples and fused with the unpruned
model. The sets of ``--ood`` are only tested on, so they should be unlike those of ``--real``.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from chain import hydractl
from intervals import difference, markdown, mult_adds, rows_of, value_at

from hydractl.data import open_data
from hydractl.data.pseudo_ood import PSEUDO_OOD_KINDS


def sources(val: str, real: list[str]) -> dict[str, str]:
    """The OOD validation sets by name: nothing but accuracy, those that fit the data, all of them mixed, real ones."""
    kind = open_data(val, limit=2).kind
    made = [name for name, one in PSEUDO_OOD_KINDS.items() if one.samples == kind]
    sign = "&" if "?" in val else "?"
    named = dict(text.split("=", 1) for text in real)
    return {name: f"{val}{sign}ood={name}" for name in [*made, "auto"]} | named


def main() -> None:
    """Search, prune, fuse, evaluate and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--val", required=True, help="labelled ID validation data")
    parser.add_argument("--real", action="append", default=[], help="a real OOD validation set, as NAME=SPEC")
    parser.add_argument("--data", required=True, help="labelled ID test data")
    parser.add_argument("--ood", action="append", default=[], help="an OOD test set, as NAME=SPEC")
    parser.add_argument("--budget", required=True, help="heads to remove")
    parser.add_argument("--search", default="", help="more options of extract-circuit")
    parser.add_argument("--evaluation", default="--bootstrap 1000", help="more options of eval")
    parser.add_argument("--runs", type=Path, default=Path("runs/ood-validation"))
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    models, gains = [f"single={asked.model}"], {}
    for name, spec in sources(asked.val, asked.real).items():
        circuit, pruned, fused = (f"{asked.runs}/{name}.{ending}" for ending in ("json", "st", "fused.st"))
        data = ["--val", asked.val, "--ood-val", spec, "--budget", asked.budget, "--resume"]
        hydractl("extract-circuit", asked.model, *data, *shlex.split(asked.search), "-q", "-o", circuit)
        hydractl("prune", asked.model, "--circuit", circuit, "-q", "-o", pruned)
        hydractl("fuse", asked.model, pruned, "-q", "-o", fused)
        models += [f"{name}={fused}"]
        found = json.loads(Path(circuit).read_text(encoding="utf-8"))
        gains[name] = [one["two_u"] / (2 * one["n_id"] * one["n_ood"]) for one in (found["base"], found["removed"][-1])]
    sets = [word for spec in asked.ood for word in ("--ood", spec)]
    evaluation = asked.runs / "eval.json"
    hydractl("eval", *models, "--test", asked.data, *sets, *shlex.split(asked.evaluation), "-q", "-o", str(evaluation))
    rows = rows_of(evaluation)
    names = list(rows[0]["ood"])
    keys = ("id.accuracy", *(f"ood.{name}.auroc" for name in names), "ood_avg.auroc")
    columns = ("accuracy", *(f"AUROC {name}" for name in names), "AUROC mean")
    table = []
    for row in rows:
        before, after = (f"{gain:.3f}" for gain in gains[row["name"]]) if row["name"] in gains else ("", "")
        table.append([row["name"], before, after, *(f"{value_at(row, key):.4f}" for key in keys)])
    markdown(("chosen with", "validation AUROC, whole", "circuit", *columns), table)
    markdown(
        ("minus single", *columns, "mult-adds"),
        [[r["name"], *(difference(r, key) for key in keys), f"{mult_adds(r, rows[0]):.2f}"] for r in rows[1:]],
    )


if __name__ == "__main__":
    main()
