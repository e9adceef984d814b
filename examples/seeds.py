"""What may one hope for? A recipe trained with several seeds, each studied beside a deep ensemble.

    python examples/seeds.py DATA [--seeds 0,1,2,3,4] [--deep 0,1,2] [-o runs/seeds]
    python examples/seeds.py DATA --cifar10 IMAGES [--seeds 0,1,2] [-o runs/seeds-cifar10]

The first is the recipe of ``study.py``, on Fashion-MNIST, and DATA is as there. The second trains on CIFAR-10 in
colour: IMAGES holds all of it as ``train/CLASS/*.png`` and ``test/CLASS/*.png``, and DATA is as before.

The model of seed S goes through ``hydractl study`` with its default rows. Its deep ensemble has members of the seeds
S, S+100 and S+200, so no two of them share a member; with ``--cifar10`` there is one deep ensemble, of all seeds that
were asked for. One seed is done with its deep ensemble before the next one begins, so that the first seeds can be read
while the others are made. Beside the default rows stand the paper's own recipe, members that are fine-tuned after
pruning, and the model itself trained as long as one of these. All rows are measured under the same scores, of the last
layer and of all layers, each with the temperature that validation data give it. ``seeds.json`` is written anew after
every evaluation, with all seeds that are in the folder; from it ``docs/make_results.py`` makes the tables of
docs/numbers/seeds.md. The same call goes on after a break, and calls with other seeds may run beside it in the same
folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import study as fashion_mnist
from intervals import mult_adds, rows_of
from PIL import Image
from study import run

SCORES = ("msp", "energy", "mahalanobis", "mahalanobis-layers", "knn", "vim", "mi")
"""The scores that all rows are measured under."""
ROWS = "whole-avg,whole-late,whole-three,circuits,taylor,circuits-tuned,trained"
"""The default rows by name, so that all of them run on the test data, and those that are trained."""
TUNING = "--epochs 1 --lr 2e-4"
"""How rows are trained."""
MEASURE = f"--ood-score {','.join(SCORES)} -q"
OTHER_MEMBERS = (100, 200)
"""What is added to a seed for the other members of its deep ensemble."""


@dataclass(frozen=True)
class Recipe:
    """How models are trained and studied.

    Attributes:
        training: the command that trains one, without ``--seed`` and ``-o``.
        study: options of ``hydractl study``.
        tests: options of ``hydractl eval`` that measure a deep ensemble on the same data as the study's rows.
    """

    training: str
    study: str
    tests: str


FASHION_MNIST = Recipe(
    training=fashion_mnist.TRAINING,
    study=f"{fashion_mnist.STUDY} --no-timed",
    tests="--test test.npz --ood cifar100:far=cifar100.npz --ood mnist:far=mnist.npz --train 'train.npz?part=1/11'",
)
CIFAR10_MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=32&patch_size=8"
    "&embed_dim=128&depth=6&num_heads=4&mlp_ratio=2&num_classes=10"
)
CIFAR10_TESTS = "--ood 'cifar100:near=cifar100.npz?without=254' --ood mnist:far=mnist.npz"
"""OOD test sets. One image of CIFAR-100 is a training image of CIFAR-10, which a study refuses to test on."""
CIFAR10 = Recipe(
    training=(
        f"finetune '{CIFAR10_MODEL}' --train train.npz --val val.npz --epochs 12 --batch-size 64 --lr 1e-3 "
        "--weight-decay 0.05 --augment flip --resume"
    ),
    study=(
        "--train train.npz --val val.npz --ood-val fashion=fashion.npz --ood-val made=auto --test test.npz "
        f"{CIFAR10_TESTS} --search-samples 1000 --no-timed"
    ),
    tests=f"--test test.npz {CIFAR10_TESTS} --train 'train.npz?part=1/10'",
)


def cut_cifar10(data: Path, images: Path, folder: Path) -> None:
    """Write the sets of the study on CIFAR-10: 47,000 images to train on, 3,000 to validate, 10,000 to test."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "mnist.npz").exists():
        return
    pixels, labels, classes = images_of(images / "train")
    # Files are sorted by class: a fixed order mixes them.
    order = np.random.RandomState(0).permutation(len(labels))
    for name, rows in (("train", order[:47000]), ("val", order[47000:])):
        np.savez(folder / f"{name}.npz", x=pixels[rows], y=labels[rows], classes=classes)
    pixels, labels, classes = images_of(images / "test")
    np.savez(folder / "test.npz", x=pixels, y=labels, classes=classes)
    for name, source, count in (
        ("cifar100", "cifar100_test", None),
        ("fashion", "fashion_mnist_train", 2500),
        ("mnist", "mnist_test", None),
    ):
        with np.load(data / f"{source}.npz") as whole:
            np.savez(folder / f"{name}.npz", x=in_colour(whole["x"][:count]))


def images_of(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pixels [N, 32, 32, 3], labels [N] and names of classes of a folder ``CLASS/*.png``."""
    classes = sorted(path.name for path in folder.iterdir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("*.png"))]
    pixels = [np.asarray(Image.open(path).convert("RGB")) for path, _ in files]
    return np.stack(pixels), np.array([label for _, label in files]), np.array(classes)


def in_colour(images: np.ndarray) -> np.ndarray:
    """Return images [N, H, W] or [N, H, W, 3] as [N, 32, 32, 3]."""
    size, filter_ = (32, 32), Image.Resampling.BILINEAR
    return np.stack([np.asarray(Image.fromarray(image).convert("RGB").resize(size, filter_)) for image in images])


def train(seed: int, recipe: Recipe, folder: Path) -> str:
    """Train the model of a seed unless it is there."""
    model = f"vit-{seed}.st"
    if not (folder / model).exists():
        run(f"{recipe.training} --seed {seed} -o {model}", folder)
    return model


def study(seed: int, recipe: Recipe, folder: Path) -> None:
    """Study the model of a seed, and measure all rows."""
    model, into = train(seed, recipe, folder), f"study-{seed}"
    if not (folder / into / "study.json").exists():
        run(f"study {model} {recipe.study} --rows {ROWS} {TUNING} -o {into}", folder)
    if (folder / f"rows-{seed}.json").exists():
        return
    rows = [row["name"] for row in read(folder / into / "study.json")["rows"]]
    # The study has run every row on the test data: its predictions are measured, and nothing runs again.
    models = [f"{row}={into}/test/{row}.pred.st" for row in rows]
    calibrations = [f"--calibration {into}/choose/{row}.calibration.json" for row in rows]
    run(f"eval {shlex.join(models)} {' '.join(calibrations)} {MEASURE} -o rows-{seed}.json", folder)


def deep(name: str, seeds: list[int], recipe: Recipe, folder: Path) -> None:
    """Train the members of a deep ensemble that are missing, and measure it."""
    if (folder / f"{name}.json").exists():
        return
    members = [train(seed, recipe, folder) for seed in seeds]
    temperature = "--val 'val.npz?part=2/2' --temperature fit"
    run(f"eval deep={'+'.join(members)} {recipe.tests} {temperature} {MEASURE} -o {name}.json", folder)


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
        measured = [figures(row, rows[0]) for row in rows]
        own_ensemble, shared_ensemble = folder / f"deep-{seed}.json", folder / "deep.json"
        if own_ensemble.exists():
            measured += [figures(row, rows[0]) for row in rows_of(own_ensemble)]
        elif shared_ensemble.exists():
            measured += [{**figures(row, rows[0]), "shared": True} for row in rows_of(shared_ensemble)]
        found[seed] = {"rows": measured, "verdict": verdict(read(folder / f"study-{seed}" / "study.json"))}
    (folder / "seeds.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def numbers(text: str) -> list[int]:
    """The numbers of a list with commas."""
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    """Make what is missing and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cifar10", type=Path, metavar="IMAGES", help="train on these images instead")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--deep",
        type=numbers,
        help="the seeds among them whose deep ensemble is trained, or with --cifar10 that are in it; default: all",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/seeds"))
    arguments = parser.parse_args()
    folder = arguments.output
    if arguments.cifar10 is None:
        recipe = FASHION_MNIST
        fashion_mnist.prepare(arguments.data, folder)
    else:
        recipe = CIFAR10
        cut_cifar10(arguments.data, arguments.cifar10, folder)
    ensembles = arguments.seeds if arguments.deep is None else arguments.deep
    for seed in arguments.seeds:
        study(seed, recipe, folder)
        write(folder)
        if arguments.cifar10 is None and seed in ensembles:
            deep(f"deep-{seed}", [seed, *(seed + more for more in OTHER_MEMBERS)], recipe, folder)
            write(folder)
    if arguments.cifar10 is not None and len(ensembles) > 1:
        deep("deep", ensembles, recipe, folder)
        write(folder)


if __name__ == "__main__":
    main()
