"""What may one hope for? The recipe of ``study.py`` trained with several seeds, each studied beside a deep ensemble.

    python examples/seeds.py DATA [--seeds 0,1,2,3,4] [--deep 0,1,2] [-o runs/seeds]

DATA is that of ``study.py``. The model of seed S goes through ``hydractl study`` with its default rows; its deep
ensemble has members of the seeds S, S+100 and S+200, so no two of them share a member. Trainings and studies of all
seeds come first, then deep ensembles. All rows are measured under the same scores, each with the temperature that
validation data give it. ``seeds.json`` is written anew after every evaluation, with all seeds that are in the folder;
from it ``docs/make_results.py`` makes the tables of docs/numbers/seeds.md. The same call goes on after a break, and
calls with other seeds may run beside it in the same folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from intervals import mult_adds, rows_of
from study import STUDY, TRAINING, prepare, run

SCORES = ("msp", "energy", "mahalanobis", "knn", "vim", "mi")
"""The scores that all rows are measured under."""
TESTS = "--data test.npz --ood cifar100:far=cifar100.npz --ood mnist:far=mnist.npz --fit 'train.npz?part=1/11'"
MEASURE = f"--ood-score {','.join(SCORES)} -q"
OTHER_MEMBERS = (100, 200)
"""What is added to a seed for the other members of its deep ensemble."""


def train(seed: int, folder: Path) -> str:
    """Train the model of a seed unless it is there."""
    model = f"vit-{seed}.st"
    if not (folder / model).exists():
        run(f"{TRAINING} --seed {seed} -o {model}", folder)
    return model


def study(seed: int, folder: Path) -> None:
    """Study the model of a seed, and measure all rows."""
    model, into = train(seed, folder), f"study-{seed}"
    if not (folder / into / "study.json").exists():
        run(f"study {model} {STUDY} --no-timed -o {into}", folder)
    if (folder / f"rows-{seed}.json").exists():
        return
    rows = read(folder / into / "study.json")["rows"]
    # The study has run every row on the test data: its predictions are measured, and nothing runs again.
    models = [f"{row['name']}={into}/test/{row['name']}.pred.st" for row in rows]
    temperatures = [f"--temperature {row['name']}={row['temperature']!r}" for row in rows]
    run(f"eval {shlex.join(models)} {' '.join(temperatures)} {MEASURE} -o rows-{seed}.json", folder)


def deep(seed: int, folder: Path) -> None:
    """Train the other members of the deep ensemble of a seed, and measure it."""
    if (folder / f"deep-{seed}.json").exists():
        return
    members = [train(member, folder) for member in (seed, *(seed + more for more in OTHER_MEMBERS))]
    temperature = "--val 'val.npz?part=2/2' --temperature fit"
    run(f"eval deep={'+'.join(members)} {TESTS} {temperature} {MEASURE} -o deep-{seed}.json", folder)


def read(path: Path) -> Any:
    """A JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))


def figures(row: Any, single: Any) -> dict[str, Any]:
    """What the tables show of one row."""
    quality = {name: row["id"][name] for name in ("accuracy", "nll", "ece")}
    aurocs: dict[str, dict[str, float]] = {}
    for score, measured in row["scores"].items():
        if measured["ood_avg"]["auroc"] is None:
            continue  # the members of a single model do not differ
        by_set = {name: one["auroc"] for name, one in measured["ood"].items()}
        aurocs[score] = {"mean": measured["ood_avg"]["auroc"], **by_set}
    return {"name": row["name"], "mac_ratio": mult_adds(row, single), **quality, "auroc": aurocs}


def verdict(document: Any) -> dict[str, Any]:
    """What the study of one seed chose, what it says to use, and what that gains over the single model with MSP."""
    choice, use = document["choice"], document["use"]
    gains = [one for one in document["verdict"]["against_baseline"] if one["metric"] == "ood_avg.auroc"]
    return {
        "answer": document["verdict"]["answer"],
        "choice": {key: choice[key] for key in ("row", "score")},
        "use": {key: use[key] for key in ("row", "score", "mac_ratio")},
        "gain": {key: gains[0][key] for key in ("value", "ci")} if gains else None,
    }


def write(folder: Path) -> None:
    """Write the figures of all seeds that are there."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("rows-*.json"), key=lambda path: int(path.stem.removeprefix("rows-"))):
        seed = path.stem.removeprefix("rows-")
        rows = rows_of(path)
        ensemble = folder / f"deep-{seed}.json"
        others = rows_of(ensemble) if ensemble.exists() else []
        measured = [figures(row, rows[0]) for row in (*rows, *others)]
        found[seed] = {"rows": measured, "verdict": verdict(read(folder / f"study-{seed}" / "study.json"))}
    (folder / "seeds.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def numbers(text: str) -> list[int]:
    """The numbers of a list with commas."""
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    """Make what is missing and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2, 3, 4])
    parser.add_argument("--deep", type=numbers, help="the seeds whose deep ensemble is trained; default: all of them")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/seeds"))
    arguments = parser.parse_args()
    folder = arguments.output
    prepare(arguments.data, folder)
    for seed in arguments.seeds:
        study(seed, folder)
        write(folder)
    for seed in arguments.seeds if arguments.deep is None else arguments.deep:
        deep(seed, folder)
        write(folder)


if __name__ == "__main__":
    main()
