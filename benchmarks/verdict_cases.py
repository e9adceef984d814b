"""Make the cases that ``verdict_rules.py`` compares rules on: small models, pruned rows of them, and their OOD scores.

    python benchmarks/verdict_cases.py DATA -o FOLDER [--only NAME,...]

Every model is trained (or given), pruned and evaluated by hydractl's own commands, in one process; what an earlier
run left is kept. DATA holds ``images/`` with ``fashion_mnist_train.npz``, ``fashion_mnist_test.npz``,
``cifar10_train.npz``, ``cifar10_test.npz``, ``cifar100_test.npz`` and ``mnist_test.npz`` (arrays ``x``, ``y`` and
``classes``), ``text/`` with ``sst2_train``, ``sst2_test``, ``agnews_val``, ``customer_reviews``, ``trec``, ``20ng`` and
``wmt16`` (``.jsonl.gz``), and ``checkpoints/minilm-sst2``. FOLDER/cases gets one ``NAME.npz`` a model: the arrays
``ROW|SCORE|SET`` (a value a sample, higher is more OOD), ``ROW|correct|SET`` and ``ROW|nll|SET`` of the ID data, and
``about``, a JSON text. The sets are ``val``, ``test``, ``val.NAME`` and ``test.NAME``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors import safe_open

from hydractl.cli.app import main as command_line

ONE_MEMBER_HAS_NOT = ("mi", "variance")
"""Scores that are constant where there is one member."""


@dataclass(frozen=True)
class Family:
    """Data that several models share.

    Attributes:
        heads: of the model, at all sites together.
        fit: training samples that OOD scores on features are fitted to.
        search, search_ood: what circuits are searched with.
        val, ood_val: what a rule decides on.
        test, ood: what its decision is measured on.
        options: of every command.
    """

    heads: int
    fit: str
    search: str
    search_ood: str
    val: str
    ood_val: dict[str, str]
    test: str
    ood: dict[str, str]
    options: str = ""


@dataclass(frozen=True)
class Recipe:
    """A model: its family, what training starts from, and the options of ``finetune``; None: used as it is."""

    family: str
    start: str
    training: str | None = None
    options: str = field(default="")


# --- models and data --------------------------------------------------------------------------------------------------

_TRAINED = "--weight-decay 0.05 --batch-size 64"


def vit(size: int, patch: int, channels: int, width: int, heads: int) -> str:
    """Return the MODEL of a ViT of 6 sites with random weights."""
    return (
        f"timm:vit_tiny_patch16_224?pretrained=0&img_size={size}&patch_size={patch}&in_chans={channels}"
        f"&embed_dim={width}&depth=6&num_heads={heads}&mlp_ratio=2&num_classes=10"
    )


FASHION = vit(28, 7, 1, 64, 4)
WIDE_FASHION = vit(28, 7, 1, 96, 4)
CIFAR = vit(32, 8, 3, 96, 4)
FINE_CIFAR = vit(32, 4, 3, 64, 4)
DIGITS = vit(8, 2, 1, 72, 6)
CLIP = (
    "open_clip:ViT-B-32?pretrained=0&embed_dim=64"
    "&vision_cfg.image_size=28&vision_cfg.patch_size=7&vision_cfg.width=96&vision_cfg.head_width=24&vision_cfg.layers=6"
    "&text_cfg.context_length=16&text_cfg.width=64&text_cfg.heads=4&text_cfg.layers=3"
)


def fashion(part: str, epochs: int, seed: int, rate: str = "2e-3", start: str = FASHION) -> Recipe:
    """Return a ViT on a part of Fashion-MNIST."""
    return Recipe("fashion", start, f"--train {part} --epochs {epochs} --lr {rate} --seed {seed} {_TRAINED}")


def cifar(part: str, epochs: int, seed: int, rate: str = "1e-3", start: str = CIFAR) -> Recipe:
    """Return a ViT on a part of CIFAR-10."""
    return Recipe(
        "cifar", start, f"--train {part} --epochs {epochs} --lr {rate} --seed {seed} --augment flip {_TRAINED}"
    )


def digits(epochs: int, seed: int, rate: str = "2e-3") -> Recipe:
    """Return a ViT on scikit-learn's digits, as in ``make demo``."""
    training = f"--train builtin:digits/train --epochs {epochs} --lr {rate} --weight-decay 0.05 --seed {seed}"
    return Recipe("digits", DIGITS, f"{training} --config '{{warmup: 0.1, label_smoothing: 0.05}}'")


RECIPES = {
    "digits-0": digits(40, 0),
    "fashion-0": fashion("train.npz?take=20000", 4, 0),
    "cifar-0": cifar("train.npz", 25, 0),
    "minilm": Recipe("sst2", "checkpoints/minilm-sst2"),
    "fashion-few": fashion("train.npz?take=2000", 6, 10),
    "fashion-noisy": fashion("noisy.npz", 4, 11),
    "digits-weak": digits(6, 10),
    "fashion-1": fashion("train.npz?from=20000&take=20000", 4, 1),
    "cifar-1": cifar("train.npz", 20, 1, "1e-3", FINE_CIFAR),
    "fashion-wide": fashion("train.npz?take=40000", 3, 3, "1e-3", WIDE_FASHION),
    "clip": Recipe(
        "clip",
        CLIP,
        "--train builtin:digits/train --epochs 30 --lr 1e-3 --config '{warmup: 0.1}' --weight-decay 0.05 --seed 0",
    ),
    "fashion-fast": fashion("train.npz?take=10000", 4, 12, "1e-2"),
    "digits-1": digits(40, 1),
    "fashion-long": fashion("train.npz?take=5000", 15, 13),
    "cifar-noisy": cifar("noisy.npz", 20, 10),
    "minilm-noisy": Recipe(
        "sst2",
        "checkpoints/minilm-sst2",
        "--train noisy.jsonl.gz --steps 60 --lr 5e-5 --batch-size 32 --max-length 40 --seed 0",
    ),
    "fashion-2": fashion("train.npz?take=20000", 4, 2),
    "cifar-few": cifar("train.npz?take=1000", 20, 11),
    "digits-2": digits(40, 2),
    "fashion-3": fashion("train.npz?from=10000&take=30000", 4, 4),
    "cifar-2": cifar("train.npz", 25, 2),
}

_DIGITS = {
    "fit": "builtin:digits/train",
    "search": "builtin:digits/val?part=1/2",
    "search_ood": "builtin:symbols?part=1/2",
    "val": "builtin:digits/val?part=2/2",
    "ood_val": {
        "symbols": "builtin:symbols?part=2/2",
        "made": "builtin:digits/val?part=2/2&ood=auto",
        "blind": "builtin:digits/val?part=1/2&corruption=brightness&severity=1",
    },
    "test": "builtin:digits/test",
    "ood": {
        "letters": "builtin:letters",
        "photos": "builtin:photos",
        "fashion": "fashion.npz?take=600",
        "cifar100": "grey100.npz?take=600",
    },
}

FAMILIES = {
    "fashion": Family(
        heads=24,
        fit="train.npz?take=2000",
        search="val.npz?take=400",
        search_ood="grey10.npz?from=1500&take=400",
        val="val.npz?from=500&take=1500",
        ood_val={
            "photographs": "grey10.npz?take=1500",
            "made": "val.npz?from=500&take=1500&ood=auto",
            "symbols": "builtin:symbols",
            "blind": "val.npz?from=3000&take=1500&corruption=brightness&severity=1",
        },
        test="fashion.npz?take=2000",
        ood={
            "mnist": "mnist.npz?take=1500",
            "cifar100": "grey100.npz?take=1500",
            "letters": "builtin:letters",
            "photos": "builtin:photos",
        },
    ),
    "cifar": Family(
        heads=24,
        fit="train.npz?take=2000",
        search="val.npz?take=300",
        search_ood="fashion.npz?from=700&take=300",
        val="val.npz?from=300&take=700",
        ood_val={
            "fashion": "fashion.npz?take=700",
            "made": "val.npz?from=300&take=700&ood=auto",
            "mixture": "val.npz?from=300&take=700&ood=mixture",
            "blind": "val.npz?from=1000&take=500&corruption=brightness&severity=1",
        },
        test="test.npz?take=1500",
        ood={
            "cifar100": "cifar100.npz?take=1500",
            "mnist": "mnist.npz?take=1500",
            "letters": "builtin:letters",
            "photos": "builtin:photos",
        },
    ),
    "digits": Family(heads=36, **_DIGITS),
    "clip": Family(heads=24, **_DIGITS, options="--prompt 'The digit {label}.'"),
    "sst2": Family(
        heads=72,
        fit="sst2_train.jsonl.gz?from=3000&take=1000",
        search="sst2_train.jsonl.gz?take=100",
        search_ood="agnews_val.jsonl.gz?from=500&take=100",
        val="sst2_train.jsonl.gz?from=100&take=500",
        ood_val={
            "agnews": "agnews_val.jsonl.gz?take=500",
            "made": "sst2_train.jsonl.gz?from=100&take=500&ood=auto",
            "blind": "sst2_train.jsonl.gz?from=1000&take=500",
        },
        test="sst2_test.jsonl.gz",
        ood={
            "reviews": "customer_reviews.jsonl.gz?take=400",
            "trec": "trec.jsonl.gz?take=400",
            "20ng": "20ng.jsonl.gz?take=400",
            "wmt16": "wmt16.jsonl.gz?take=400",
        },
        options="--max-length 32",
    ),
}


def as_grey(images: np.ndarray) -> np.ndarray:
    """Return images [N, H, W, 3] as [N, 28, 28]."""
    made = [Image.fromarray(image).convert("L").resize((28, 28), Image.Resampling.BILINEAR) for image in images]
    return np.stack([np.asarray(image) for image in made])


def as_colour(images: np.ndarray) -> np.ndarray:
    """Return images [N, H, W] as [N, 32, 32, 3]."""
    made = [Image.fromarray(image).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR) for image in images]
    return np.stack([np.asarray(image) for image in made])


def half_wrong(labels: np.ndarray, share: float = 0.4) -> np.ndarray:
    """Return the labels, of which a share was put in another order."""
    random = np.random.default_rng(0)
    places = random.permutation(len(labels))[: int(share * len(labels))]
    wrong = labels.copy()
    wrong[places] = labels[random.permutation(places)]
    return wrong


def cut_images(source: Path, folder: Path) -> None:
    """Write the sets of images of every family, each in its folder."""
    arrays = {}
    for name in ("fashion_mnist_train", "fashion_mnist_test", "cifar10_train", "cifar10_test", "cifar100_test"):
        with np.load(source / f"{name}.npz") as stored:
            arrays[name] = stored["x"], stored["y"], stored["classes"]
    with np.load(source / "mnist_test.npz") as stored:
        mnist = stored["x"]
    grey10 = as_grey(arrays["cifar10_train"][0][:2000])
    grey100 = as_grey(arrays["cifar100_test"][0])
    for family, whole, test, boundary in (
        ("fashion", "fashion_mnist_train", "fashion_mnist_test", 54000),
        ("cifar", "cifar10_train", "cifar10_test", 3500),
    ):
        place = folder / family
        place.mkdir(parents=True, exist_ok=True)
        images, labels, classes = arrays[whole]
        noisy = min(10000, boundary)
        np.savez(place / "train.npz", x=images[:boundary], y=labels[:boundary], classes=classes)
        np.savez(place / "noisy.npz", x=images[:noisy], y=half_wrong(labels[:noisy]), classes=classes)
        np.savez(place / "val.npz", x=images[boundary:], y=labels[boundary:], classes=classes)
        test_name = "fashion.npz" if family == "fashion" else "test.npz"
        np.savez(place / test_name, x=arrays[test][0], y=arrays[test][1], classes=classes)
    for family in ("fashion", "digits", "clip"):
        place = folder / family
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / "grey100.npz", x=grey100)
    np.savez(folder / "fashion" / "grey10.npz", x=grey10)
    np.savez(folder / "fashion" / "mnist.npz", x=mnist)
    for family in ("digits", "clip"):
        np.savez(folder / family / "fashion.npz", x=arrays["fashion_mnist_test"][0])
    np.savez(folder / "cifar" / "fashion.npz", x=as_colour(arrays["fashion_mnist_test"][0][:1000]))
    np.savez(folder / "cifar" / "mnist.npz", x=as_colour(mnist))
    np.savez(folder / "cifar" / "cifar100.npz", x=arrays["cifar100_test"][0])


def cut_texts(source: Path, folder: Path) -> None:
    """Link the texts, and write training texts of which many have a wrong label."""
    import gzip

    folder.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.jsonl.gz"):
        link = folder / path.name
        if not link.exists():
            link.symlink_to(path.resolve())
    with gzip.open(source / "sst2_train.jsonl.gz", "rt", encoding="utf-8") as lines:
        samples = [json.loads(line) for _, line in zip(range(8000), lines, strict=False)][5000:]
    labels = half_wrong(np.asarray([sample["label"] for sample in samples]))
    with gzip.open(folder / "noisy.jsonl.gz", "wt", encoding="utf-8") as out:
        for sample, label in zip(samples, labels.tolist(), strict=True):
            out.write(json.dumps({**sample, "label": label}) + "\n")


# --- commands ---------------------------------------------------------------------------------------------------------


def hydractl(*words: str) -> None:
    """Run one command, unless its output is there."""
    output = Path(words[words.index("-o") + 1])
    if output.exists():
        return
    print(f"$ hydractl {shlex.join(words)}", flush=True)
    code = command_line([*words, "-q"])
    if code:
        sys.exit(code)


@dataclass(frozen=True)
class Place:
    """Where the commands of a model read and write."""

    family: Family
    data: Path
    folder: Path

    def spec(self, text: str) -> str:
        """Return a SPEC of the family's folder as one from here."""
        return text if text.startswith("builtin:") else f"{self.data}/{text}"

    def options(self) -> list[str]:
        """Return the options of every command."""
        return shlex.split(self.family.options)


def train(recipe: Recipe, place: Place, source: Path) -> str:
    """Return the MODEL of a recipe, trained if it has to be."""
    start = recipe.start if recipe.start.startswith(("timm:", "open_clip:")) else str(source / recipe.start)
    if recipe.training is None:
        return start
    words = shlex.split(recipe.training)
    where = words.index("--train") + 1
    words[where] = place.spec(words[where])
    output = place.folder / "base.st"
    more = [] if "--max-length" in words else place.options()
    hydractl("finetune", start, *words, *more, "--resume", "-o", str(output))
    return str(output)


def rows_of(model: str, place: Place) -> Iterator[tuple[str, str]]:
    """Make and yield every row with its MODEL."""
    family, folder = place.family, place.folder
    third, sixth, twelfth = (max(1, round(family.heads / part)) for part in (3, 6, 12))
    tower = ["--tower", "visual"] if "open_clip:" in RECIPES[folder.name].start else []
    data = ["--val", place.spec(family.search), "--ood-val", place.spec(family.search_ood)]
    search = [*data, "--objective", "acc,ood,avg", "--budget", str(third), "--approx", "lazy:3", "--batch-size", "100"]
    if not all((folder / f"circuit.{objective}.json").exists() for objective in ("acc", "ood", "avg")):
        hydractl(
            "extract-circuit", model, *search, *tower, *place.options(), "--resume", "-o", f"{folder}/circuit.json"
        )
    yield "single", model
    for count in (twelfth, sixth):
        member = pruned(model, place, "avg", count)
        yield f"whole-avg@{count}", fused(f"whole-avg@{count}", [model, member], place)
    members = [pruned(model, place, objective, third) for objective in ("acc", "ood", "avg")]
    yield "circuits", fused("circuits", members, place)
    calibration = ["--data", place.spec(family.fit), "--samples", "128", "--scope", "global", "--remove", str(third)]
    members = []
    for seed in ("0", "1", "2"):
        members.append(f"{folder}/taylor-{seed}.st")
        scoring = ["--method", "taylor", *calibration, "--seed", seed]
        hydractl("prune", model, *scoring, *tower, *place.options(), "-o", members[-1])
    yield "taylor", fused("taylor", members, place)


def pruned(model: str, place: Place, objective: str, count: int) -> str:
    """Return the file of a member that a circuit leaves."""
    output = f"{place.folder}/{objective}@{count}.st"
    circuit = ["--circuit", f"{place.folder}/circuit.{objective}.json", "--remove", str(count)]
    hydractl("prune", model, *circuit, "-o", output)
    return output


def fused(name: str, members: list[str], place: Place) -> str:
    """Return the file of members that are fused."""
    output = f"{place.folder}/{name}.st"
    hydractl("fuse", *members, "-o", output)
    return output


def predicted(row: str, model: str, place: Place) -> Path:
    """Return the predictions of a row on all its sets, with every score on features."""
    family = place.family
    output = place.folder / f"{row}.pred.st"
    words = ["--test", place.spec(family.test), "--val", place.spec(family.val)]
    for name, spec in family.ood.items():
        words += ["--ood", f"{name}={place.spec(spec)}"]
    for name, spec in family.ood_val.items():
        words += ["--ood-val", f"val.{name}={place.spec(spec)}"]
    words += ["--train", place.spec(family.fit), "--ood-score", "all", "--predictions", str(output)]
    hydractl("eval", model, *words, *place.options(), "-o", f"{place.folder}/{row}.eval.json")
    return output


# --- scores of samples ------------------------------------------------------------------------------------------------


def log_mean_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log of the members' averaged probabilities [N, C], from logits [M, N, C]."""
    of_members = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    return np.logaddexp.reduce(of_members, axis=0) - np.log(len(logits))


def tempered(log_p: np.ndarray, temperature: float) -> np.ndarray:
    """Return log probabilities at a temperature."""
    scaled = log_p / temperature
    return scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)


def best_temperature(log_p: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature of the lowest NLL, on a fine grid."""
    grid = np.exp(np.linspace(np.log(0.1), np.log(10), 461))
    losses = [-tempered(log_p, value)[np.arange(len(labels)), labels].mean() for value in grid]
    return float(grid[np.argmin(losses)])


def entropy(log_p: np.ndarray) -> np.ndarray:
    """Return the entropy of each sample, over the last axis."""
    return -(np.exp(log_p) * np.where(np.isfinite(log_p), log_p, 0)).sum(axis=-1)


def scores_on_logits(logits: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    """Return the OOD scores of docs/metrics.md that need logits [M, N, C] alone, in the order of that page."""
    averaged = log_mean_softmax(logits)
    log_p = tempered(averaged, temperature)
    p = np.exp(log_p)
    ordered = np.sort(p, axis=1)
    scores = {
        "msp": -ordered[:, -1],
        "entropy": entropy(log_p),
        "margin": ordered[:, -2] - ordered[:, -1],
        "gen": ((ordered[:, -100:] * (1 - ordered[:, -100:])) ** 0.1).sum(axis=1),
        "energy": -np.logaddexp.reduce(logits, axis=2).mean(axis=0),
        "maxlogit": -logits.max(axis=2).mean(axis=0),
    }
    if len(logits) > 1:
        of_members = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
        predicted_class = p.argmax(axis=1)
        of_class = np.exp(of_members[:, np.arange(len(p)), predicted_class])
        scores["mi"] = entropy(averaged) - entropy(of_members).mean(axis=0)
        scores["variance"] = of_class.var(axis=0)
    return scores


def written(name: str, rows: dict[str, Path], place: Place, output: Path) -> None:
    """Write the case of a model from the predictions of its rows."""
    arrays: dict[str, np.ndarray] = {}
    about = {"model": name, "family": RECIPES[name].family, "rows": []}
    for row, path in rows.items():
        with safe_open(path, "numpy") as file:
            metadata = json.loads(file.metadata()["hydractl"])
            sets = metadata["sets"]
            roles = [entry["role"] for entry in sets]
            val = roles.index("val")
            val_logits = file.get_tensor(f"sets.{val}.logits").astype(np.float64)
            labels = file.get_tensor(f"sets.{val}.labels")
            temperature = best_temperature(log_mean_softmax(val_logits), labels)
            for place_of_set, entry in enumerate(sets):
                logits = file.get_tensor(f"sets.{place_of_set}.logits").astype(np.float64)
                label = {"id": "test", "val": "val"}.get(entry["role"], entry["name"])
                if entry["role"] == "ood":
                    label = f"test.{entry['name']}"
                scores = scores_on_logits(logits, temperature)
                prefix = f"sets.{place_of_set}.scores."
                for key in sorted(file.keys()):
                    if key.startswith(prefix):
                        scores[key.removeprefix(prefix)] = file.get_tensor(key)[:, :, 0].mean(axis=0)
                for score, values in scores.items():
                    arrays[f"{row}|{score}|{label}"] = values
                if entry["role"] in ("id", "val"):
                    labels = file.get_tensor(f"sets.{place_of_set}.labels")
                    log_p = tempered(log_mean_softmax(logits), temperature)
                    arrays[f"{row}|correct|{label}"] = log_p.argmax(axis=1) == labels
                    arrays[f"{row}|nll|{label}"] = -log_p[np.arange(len(labels)), labels]
            members = file.get_slice(f"sets.{val}.logits").get_shape()[0]
        macs = metadata["model"]["cost"]["macs"]
        about["rows"].append({"name": row, "members": members, "macs": macs, "temperature": temperature})
    arrays["about"] = np.asarray(json.dumps(about))
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, **arrays)


def main() -> None:
    """Make every case that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/verdict"))
    parser.add_argument("--only", metavar="NAME,...", help="these models alone")
    arguments = parser.parse_args()
    data = arguments.output / "data"
    if not (data / "done").exists():
        cut_images(arguments.data / "images", data)
        cut_texts(arguments.data / "text", data / "sst2")
        (data / "done").touch()
    names = arguments.only.split(",") if arguments.only else list(RECIPES)
    for name in names:
        output = arguments.output / "cases" / f"{name}.npz"
        if output.exists():
            continue
        started = time.process_time()
        recipe = RECIPES[name]
        place = Place(FAMILIES[recipe.family], data / recipe.family, arguments.output / name)
        place.folder.mkdir(parents=True, exist_ok=True)
        model = train(recipe, place, arguments.data)
        trained = time.process_time()
        rows = {row: predicted(row, path, place) for row, path in rows_of(model, place)}
        written(name, rows, place, output)
        ended = time.process_time()
        print(f"{name}: trained in {trained - started:.0f} s, the rest {ended - trained:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
