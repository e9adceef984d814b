"""Compare OOD scores over all blocks: which Mahalanobis distances, of which tokens, put together in which way.

    python benchmarks/layered_scores.py DATA -o runs/layered --result docs/results/layered-scores.json

Small models are trained by hydractl's own commands, in one process; DATA is as ``verdict_cases.py`` describes it, and
what an earlier run left is kept. Of every block of a model, the tokens that are read out and the mean of the tokens are
read for every sample; Gaussians are fitted to those of 2,000 training samples (of digits and texts 1,000; or 300 of
any), and the Mahalanobis distances of all other samples to them are put together to one score. No OOD sample is seen.

A variant is one choice each of:

* *tokens*: those that are read out (``read``: the class token, or the last one), the mean of all others (``rest``) or
  of all (``all``), or two of these; of a model that reads all tokens, their mean is all there is. With *last read*, the
  last block gives the tokens that are read alone: hydractl does not compute the others;
* *Gaussian*: one mean a ``class`` and a shared covariance, the nearest class counting; or ``one``;
* *inverse*: the pseudo-inverse (``pinv``), or the inverse of a covariance that was shrunk by as much as ``oas`` finds
  best, or by 1 % (``ridge``);
* *length*: features as they are, or scaled to length 1 first (Mahalanobis++);
* *blocks*: all, or the last half; with or without the features that enter the classifier;
* *sum*: of the squared distances (``squared``), of the distances (``distance``), or of their logarithms (``log``); or
  of the logarithms standardised (``standard``), of the positive ones of these (``positive``), or of the squares of
  these (``squares``); or the highest one (``highest``);
* *by*: standardised by the mean and deviation over ID validation samples (``val``), or over the training samples
  themselves (``train``).

What is measured is the mean AUROC over OOD test sets, near and far. A choice is proved by leaving one model out: the
variant that is best on average on the other models is measured on that one. The sum of standardised scores, hydractl's
``hedge``, is measured with and without the score over blocks, also on models of :data:`HELD_OUT`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from verdict_cases import (
    CLIP,
    DIGITS,
    FAMILIES,
    FASHION,
    RECIPES,
    Place,
    Recipe,
    cifar,
    cut_images,
    cut_texts,
    fashion,
    train,
)

import hydractl
from hydractl.data import batches, open_data
from hydractl.families.torchvision_operators import declare_operators
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining
from hydractl.metrics.samples import samples_of
from hydractl.model.detection import classifiers, read_features
from hydractl.model.runtime import HydraModel

Floats = NDArray[np.float64]

READ, REST, ALL = "read", "rest", "all"
TOKENS = (READ, REST, ALL)
GAUSSIANS = ("class", "one")
INVERSES = ("pinv", "oas", "ridge")
LENGTHS = ("as it is", "1")
CLASSIFIER = "classifier"
"""The name of the features that enter the classifier, beside the blocks."""

ON_LOGITS = ("msp", "entropy", "gen", "energy", "maxlogit")
ON_FEATURES = ("mahalanobis", "rmd", "knn", "vim")
HEDGE = ("gen", "energy", "mahalanobis", "rmd", "knn", "vim")
"""The scores whose standardised sum is compared, too."""
BATCH = 100
MOST = 1000
"""So many samples of each test set count."""
EPSILON = float(np.finfo(np.float32).eps)


# --- models and data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sets:
    """The data of several models.

    Attributes:
        fit: training samples that Gaussians are fitted to.
        val: ID validation samples.
        test: ID test samples.
        near, far: OOD test sets by name.
    """

    fit: str
    val: str
    test: str
    near: dict[str, str]
    far: dict[str, str]


_DIGITS = Sets(
    fit="builtin:digits/train",
    val="builtin:digits/val",
    test="builtin:digits/test",
    near={"letters": "builtin:letters", "symbols": "builtin:symbols", "turned": "turned.npz"},
    far={"photos": "builtin:photos", "fashion": "fashion.npz?take=600", "noise": "noise.npz"},
)
_FASHION = Sets(
    fit="train.npz?take=2000",
    val="val.npz?from=500&take=1500",
    test="fashion.npz?take=1500",
    near={"turned": "turned.npz", "mixed": "fashion.npz?from=2000&take=1000&ood=mixture"},
    far={
        "mnist": "mnist.npz?take=1000",
        "cifar100": "grey100.npz?take=1000",
        "letters": "builtin:letters",
        "noise": "noise.npz",
    },
)
SETS = {
    "digits": _DIGITS,
    "clip": _DIGITS,
    "fashion": _FASHION,
    "fashion8": replace(_FASHION, near={"unseen": "unseen.npz?take=1000", **_FASHION.near}),
    "cifar": Sets(
        fit="train.npz?take=2000",
        val="val.npz?from=300&take=1200",
        test="test.npz?take=1500",
        near={"cifar100": "cifar100.npz?take=1000", "turned": "turned.npz"},
        far={
            "mnist": "mnist.npz?take=1000",
            "fashion": "fashion.npz?take=1000",
            "letters": "builtin:letters",
            "noise": "noise.npz",
        },
    ),
    "sst2": Sets(
        fit="sst2_train.jsonl.gz?from=3000&take=1000",
        val="sst2_train.jsonl.gz?from=100&take=500",
        test="sst2_test.jsonl.gz",
        near={"reviews": "customer_reviews.jsonl.gz?take=400", "shuffled": "shuffled.jsonl"},
        far={
            "trec": "trec.jsonl.gz?take=400",
            "20ng": "20ng.jsonl.gz?take=400",
            "wmt16": "wmt16.jsonl.gz?take=400",
            "rte": "rte.jsonl",
        },
    ),
}

SWIN = "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[2,2]"
FASHION_SWIN = f"{SWIN}&img_size=28&patch_size=2&in_chans=1&embed_dim=32&num_heads=[2,4]&window_size=7&num_classes=10"
_TRAINED = "--weight-decay 0.05 --batch-size 64"
_ON_PHRASES = "--train sst2_train.jsonl.gz?from=3000&take=20000 --epochs 2 --batch-size 32 --max-length 32 --seed 0"

MODELS = {
    "digits": RECIPES["digits-0"],
    "digits, weak": RECIPES["digits-weak"],
    "digits, registers": Recipe(
        "digits",
        f"{DIGITS}&reg_tokens=2&no_embed_class=true",
        "--train builtin:digits/train --epochs 20 --lr 2e-3 --weight-decay 0.05 --seed 3",
    ),
    "digits, CLIP": RECIPES["clip"],
    "fashion": fashion("train.npz?take=20000", 3, 0),
    "fashion, few": RECIPES["fashion-few"],
    "fashion, 8 classes": Recipe(
        "fashion8",
        FASHION.replace("num_classes=10", "num_classes=8"),
        f"--train train.npz?take=16000 --epochs 3 --lr 2e-3 --seed 5 {_TRAINED}",
    ),
    "fashion, mean": fashion(
        "train.npz?take=10000", 4, 6, start=f"{FASHION}&reg_tokens=4&global_pool=avg&class_token=false"
    ),
    "fashion, Swin": fashion("train.npz?take=6000", 3, 0, "1e-3", FASHION_SWIN),
    "cifar": cifar("train.npz", 20, 0),
    "MiniLM": RECIPES["minilm"],
    "BERT, small": Recipe("sst2", "bert", f"{_ON_PHRASES} --lr 5e-4"),
    "Llama, small": Recipe("sst2", "llama", f"{_ON_PHRASES} --lr 1e-3"),
}
"""ViTs read their class token unless the name says otherwise."""
HELD_OUT = {
    "digits, seed 1": RECIPES["digits-1"],
    "digits, CLIP, seed 1": replace(RECIPES["clip"], training=RECIPES["clip"].training.replace("--seed 0", "--seed 1")),
    "fashion, other half": RECIPES["fashion-1"],
    "fashion, noisy labels": RECIPES["fashion-noisy"],
    "cifar, few": RECIPES["cifar-few"],
    "MiniLM, noisy labels": RECIPES["minilm-noisy"],
}
"""Models that nobody looked at when the score was made; on them the sum with it is compared with the one without."""

_DRAWN = {
    "bert": ("BertForSequenceClassification", "BertConfig", {}),
    "llama": ("LlamaForSequenceClassification", "LlamaConfig", {"num_key_value_heads": 2}),
}
_SIZES = {
    "vocab_size": 30522,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "id2label": {0: "negative", 1: "positive"},
    "label2id": {"negative": 0, "positive": 1},
}
UNSEEN = (6, 9)
"""The classes, shirts and ankle boots, that the model of 8 classes does not learn."""


def cut_data(source: Path, folder: Path) -> None:
    """Write the data sets of every family, each in its folder."""
    cut_images(source / "images", folder)
    cut_texts(source / "text", folder / "sst2")
    for family, file in (("fashion", "fashion.npz"), ("cifar", "test.npz")):
        with np.load(folder / family / file) as stored:
            images = stored["x"][1500:2500]
        np.savez(folder / family / "turned.npz", x=np.ascontiguousarray(np.rot90(images, axes=(1, 2))))
        np.savez(folder / family / "noise.npz", x=soft_noise(500, images.shape[1:]))
    turned = turned_digits()
    for family in ("digits", "clip"):
        np.savez(folder / family / "turned.npz", x=turned)
        np.savez(folder / family / "noise.npz", x=soft_noise(500, (8, 8)))
    seen = [label for label in range(10) if label not in UNSEEN]
    shutil.copytree(folder / "fashion", folder / "fashion8", dirs_exist_ok=True)
    for file in ("train", "val", "fashion"):
        with np.load(folder / "fashion" / f"{file}.npz") as stored:
            images, labels, classes = stored["x"], stored["y"], stored["classes"]
        known = np.isin(labels, seen)
        if file == "fashion":
            np.savez(folder / "fashion8" / "unseen.npz", x=images[~known])
        labels_of_known = np.searchsorted(seen, labels[known])
        np.savez(folder / "fashion8" / f"{file}.npz", x=images[known], y=labels_of_known, classes=classes[seen])
    write_texts(folder / "sst2")


def soft_noise(n: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return images of blurred noise."""
    random = np.random.default_rng(0)
    made = []
    for image in random.integers(0, 256, (n, *shape), dtype=np.uint8):
        blurred = Image.fromarray(image).filter(ImageFilter.GaussianBlur(random.uniform(0, 2)))
        made.append(np.asarray(blurred))
    return np.stack(made)


def turned_digits() -> NDArray[np.uint8]:
    """Return scikit-learn's digits of the test part, turned by 90 degrees, without those that look the same."""
    dataset = open_data("builtin:digits/test", need_labels=True)
    made = []
    for place in range(len(dataset)):
        if dataset.labels[place] not in (0, 1, 8):
            made.append(np.rot90(np.asarray(dataset[place].convert("L"))))
    return np.stack(made)


def write_texts(folder: Path) -> None:
    """Write test sentences with their words in another order, and pairs as one text each."""
    import gzip

    def samples(file: str) -> list[dict[str, Any]]:
        with gzip.open(folder / file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    random = np.random.default_rng(0)
    shuffled = [" ".join(random.permutation(sample["text"].split())) for sample in samples("sst2_test.jsonl.gz")]
    pairs = [f"{sample['text_a']} {sample['text_b']}" for sample in samples("rte_dev.jsonl.gz")]
    for file, texts in (("shuffled.jsonl", shuffled), ("rte.jsonl", pairs)):
        (folder / file).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def draw(name: str, folder: Path, source: Path) -> Path:
    """Write a model of texts with random weights, and MiniLM's tokenizer, unless it is there."""
    if folder.exists():
        return folder
    declare_operators()
    import transformers

    class_name, config_name, more = _DRAWN[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**_SIZES, **more)
    getattr(transformers, class_name)(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / "checkpoints" / "minilm-sst2" / file, folder / file)
    return folder


def trained(name: str, recipe: Recipe, place: Place, source: Path, folder: Path) -> HydraModel:
    """Train the model of a recipe, unless its file is there, and load it."""
    if recipe.start in _DRAWN:
        recipe = replace(recipe, start=str(draw(recipe.start, folder / "start" / recipe.start, source)))
    path = train(recipe, place, source)
    if recipe.family == "sst2":
        return hydractl.load(hydractl.open(path, max_length=32), device="cpu")
    if recipe.start == CLIP:
        return hydractl.load(hydractl.open(path, prompt="The digit {label}."), device="cpu")
    return hydractl.load(path, device="cpu")


# --- features ---------------------------------------------------------------------------------------------------------


@dataclass
class SetFeatures:
    """What a model says of a data set.

    Attributes:
        labels: [N]; None for an OOD set.
        logits: [N, C].
        classifier: the features that enter the classifier, [N, D].
        blocks: of each block the features by kind of tokens, [N, d]; without ``read`` and ``rest`` for a model that
            reads all tokens.
    """

    labels: NDArray[np.int64] | None
    logits: Floats
    classifier: Floats
    blocks: list[dict[str, Floats]]


def features_of(model: HydraModel, spec: str, labelled: bool) -> SetFeatures:
    """Run a model on a data set."""
    dataset = open_data(spec, labels=model.labels or [], need_labels=labelled, ignore_labels=not labelled)
    labels: list[Any] = []
    logits: list[torch.Tensor] = []
    of_classifier: list[torch.Tensor] = []
    of_blocks: list[list[dict[str, torch.Tensor]]] = []
    with torch.inference_mode():
        for batch in batches(dataset, model.preprocess, BATCH):
            if batch.labels is not None:
                labels.append(batch.labels.numpy())
            logits_of_batch, (features,) = read_features(model, batch.inputs)
            logits.append(logits_of_batch[0])
            of_classifier.append(features)
            of_blocks.append(block_features(model, batch.inputs))
    blocks = []
    for of_block in zip(*of_blocks, strict=True):
        blocks.append({kind: joined([part[kind] for part in of_block]) for kind in of_block[0]})
    all_labels = np.concatenate(labels) if labelled else None
    return SetFeatures(all_labels, joined(logits), joined(of_classifier), blocks)


def joined(parts: Sequence[torch.Tensor]) -> Floats:
    """Return the tensors of all batches as one array."""
    return torch.cat(list(parts)).double().numpy()


def block_features(model: HydraModel, inputs: Any) -> list[dict[str, torch.Tensor]]:
    """Return the features [B, d] of a batch after each block, by kind of tokens."""
    chain = model.chain_of_samples
    state = chain.stem(inputs)
    reads = chain._stages[0].reads
    features = []
    for site in chain.sites:
        state = chain.block(site, state)
        hidden = state.hidden  # [B, T, d]
        counts = torch.ones(hidden.shape[:2])  # of the tokens that are no padding
        if isinstance(inputs, Mapping) and "attention_mask" in inputs:
            counts = inputs["attention_mask"].to(hidden.dtype)
        of_block = {ALL: mean_of(hidden, counts)}
        if reads is not None:
            positions = reads(state)  # [B, k]
            index = positions[:, :, None].expand(-1, -1, hidden.shape[2])
            of_block[READ] = hidden.gather(1, index).flatten(1)
            of_block[REST] = mean_of(hidden, counts.scatter(1, positions, 0.0))
        features.append(of_block)
    return features


def mean_of(hidden: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean [B, d] of the tokens [B, T, d] that count; those of a text without any are 0."""
    total = (hidden * counts[:, :, None]).sum(dim=1)
    return total / counts.sum(dim=1, keepdim=True).clamp(min=1)


# --- distances --------------------------------------------------------------------------------------------------------


def log_distances(fit: Floats, labels: NDArray[np.int64], others: Mapping[str, Floats]) -> dict[str, Floats]:
    """Fit all kinds of Gaussians to features; return the logarithms of squared distances of others.

    Args:
        fit: [N, d].
        labels: [N].
        others: sets of features [n, d] by name.

    Returns:
        By name [Gaussians, inverses, lengths, n].
    """
    made = {name: np.empty((len(GAUSSIANS), len(INVERSES), len(LENGTHS), len(one))) for name, one in others.items()}
    for length_place, length in enumerate(LENGTHS):
        scaled = fit if length == "as it is" else of_length_1(fit)
        for gaussian_place, gaussian in enumerate(GAUSSIANS):
            groups = labels if gaussian == "class" else np.zeros_like(labels)
            gaussians = Gaussians.of(scaled, groups)
            for name, one in others.items():
                scaled_others = one if length == "as it is" else of_length_1(one)
                for inverse_place, inverse in enumerate(INVERSES):
                    squared = gaussians.squared_distances(scaled_others, inverse)
                    made[name][gaussian_place, inverse_place, length_place] = np.log(np.maximum(squared, 1e-12))
    return made


def of_length_1(features: Floats) -> Floats:
    """Return features scaled to length 1."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(lengths, 1e-12)


@dataclass
class Gaussians:
    """Gaussians with one covariance.

    Attributes:
        samples: of the fit.
        directions: eigenvectors of the covariance [d, d], a column each.
        variances: along them [d].
        centre: the mean of the means [d].
        means: in these directions, from the centre [K, d].
    """

    samples: int
    directions: Floats
    variances: Floats
    centre: Floats
    means: Floats

    @classmethod
    def of(cls, features: Floats, groups: NDArray[np.int64]) -> Gaussians:
        """Fit them to features [N, d] in groups."""
        names, places = np.unique(groups, return_inverse=True)
        means = np.stack([features[groups == name].mean(axis=0) for name in names])
        within = features - means[places]
        variances, directions = np.linalg.eigh(within.T @ within / len(features))
        centre = means.mean(axis=0)
        return cls(len(features), directions, np.maximum(variances, 0), centre, (means - centre) @ directions)

    def weights(self, inverse: str) -> Floats:
        """Return the inverse of the variance along each direction [d], shrunk or not."""
        variances = self.variances
        mean = variances.mean()
        if inverse == "ridge":
            return 1 / (variances + 0.01 * mean)
        if inverse == "oas":
            share = oas(variances, self.samples)
            return 1 / ((1 - share) * variances + share * mean)
        large = variances > variances.max() * len(variances) * EPSILON**2
        return np.where(large, 1 / np.where(large, variances, 1), 0)

    def squared_distances(self, features: Floats, inverse: str) -> Floats:
        """Return the squared distances of features [n, d] to the nearest mean, [n]."""
        roots = np.sqrt(self.weights(inverse))
        points = (features - self.centre) @ self.directions * roots
        nearest = np.full(len(points), np.inf)
        for mean in self.means * roots:
            difference = points - mean
            nearest = np.minimum(nearest, (difference * difference).sum(axis=1))
        return nearest


def oas(variances: Floats, samples: int) -> float:
    """Return by how much to shrink a covariance of these variances. Source: Chen et al. 2010, equation 23."""
    dimensions = len(variances)
    squares = (variances**2).sum()
    square = variances.sum() ** 2
    over = (1 - 2 / dimensions) * squares + square
    under = (samples + 1 - 2 / dimensions) * (squares - square / dimensions)
    return float(min(1.0, over / under)) if under > 0 else 1.0


# --- cases ------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A model with what is measured of its samples.

    Attributes:
        about: its family, accuracy, blocks and OOD sets.
        distances: by set, [blocks and classifier, kinds of tokens, Gaussians, inverses, lengths, n] logarithms.
        references: by set, other scores by name [n].
    """

    about: dict[str, Any]
    distances: dict[str, Floats]
    references: dict[str, dict[str, Floats]]


def read_sets(recipe: Recipe, model: HydraModel, data: Path) -> dict[str, SetFeatures]:
    """Run a model on all its data sets, which lie in a folder."""
    sets = SETS[recipe.family]
    specs = {"fit": sets.fit, "val": sets.val, "test": sets.test, **sets.near, **sets.far}
    read = {}
    for key, spec in specs.items():
        where = spec if spec.startswith("builtin:") else f"{data}/{spec}"
        read[key] = features_of(model, where, labelled=key in ("fit", "val", "test"))
    return read


def case_of(read: Mapping[str, SetFeatures], recipe: Recipe, model: HydraModel, samples: int | None) -> Case:
    """Fit everything to what was read of a model."""
    sets = SETS[recipe.family]
    fit = read["fit"]
    assert fit.labels is not None
    labels = fit.labels[:samples]
    blocks = len(fit.blocks)
    shape = (blocks + 1, len(TOKENS), len(GAUSSIANS), len(INVERSES), len(LENGTHS))
    distances = {key: np.empty((*shape, len(one.logits))) for key, one in read.items()}
    for block in range(blocks + 1):
        for place, kind in enumerate(TOKENS):
            features = {key: layer_features(one, block, kind) for key, one in read.items()}
            if kind != READ and features["fit"] is layer_features(fit, block, READ):
                for key in read:  # it has no tokens of other kinds
                    distances[key][block, place] = distances[key][block, 0]
                continue
            made = log_distances(features["fit"][:samples], labels, features)
            for key, values in made.items():
                distances[key][block, place] = values
    distances["fit"] = distances["fit"][..., :samples]  # as the others were fitted
    test = read["test"]
    about = {
        "family": recipe.family,
        "accuracy": float((test.logits.argmax(axis=1) == test.labels).mean()),
        "blocks": blocks,
        "width": fit.blocks[-1][ALL].shape[1],
        "reads_all": READ not in fit.blocks[0],
        "samples": len(labels),
        "near": list(sets.near),
        "far": list(sets.far),
    }
    references = {key: references_of(one, fit, model, samples) for key, one in read.items() if key != "fit"}
    return Case(about, {key: values.astype(np.float32) for key, values in distances.items()}, references)


def layer_features(one: SetFeatures, block: int, kind: str) -> Floats:
    """Return the features of a block, or those behind the last one; the mean of all where it has no such tokens."""
    if block == len(one.blocks):
        return one.classifier
    of_block = one.blocks[block]
    return of_block.get(kind, of_block[ALL])


def references_of(one: SetFeatures, fit: SetFeatures, model: HydraModel, samples: int | None) -> dict[str, Floats]:
    """Return hydractl's own scores of a set [n], by name."""
    scores = {}
    for name in ON_LOGITS:
        of_samples = samples_of(one.logits[None], scores=[name])
        assert of_samples.score is not None
        scores[name] = of_samples.score
    ((weight, bias),) = classifiers(model)
    highest = fit.logits.max(axis=1)[:samples]
    assert fit.labels is not None
    training = MemberTraining(fit.classifier[:samples], fit.labels[:samples], highest, weight, bias)
    for name in ON_FEATURES:
        score = FEATURE_SCORES[name]
        scores[name] = score.score(score.fit(training), one.classifier, one.logits)
    return scores


# --- variants ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One score over blocks; see the head of this file. Without arguments it is that of hydractl."""

    tokens: tuple[str, ...] = (READ, REST)
    last_read: bool = True
    gaussian: str = "class"
    inverse: str = "pinv"
    length: str = "as it is"
    blocks: str = "all"
    classifier: bool = True
    sum: str = "squared"
    by: str = "val"


STANDARDISED = ("standard", "positive", "squares", "highest")
CHOICES: dict[str, tuple[Any, ...]] = {
    "tokens": ((READ,), (REST,), (ALL,), (READ, REST), (READ, ALL)),
    "last_read": (False, True),
    "gaussian": GAUSSIANS,
    "inverse": INVERSES,
    "length": LENGTHS,
    "blocks": ("all", "last half"),
    "classifier": (True, False),
    "sum": ("squared", "distance", "log", *STANDARDISED),
    "by": ("val", "train"),
}


def variants() -> list[Variant]:
    """Return hydractl's score, and every one that differs from it in one choice or two."""
    made = [Variant()]
    for one, other in itertools.product(CHOICES, CHOICES):
        for value, other_value in itertools.product(CHOICES[one], CHOICES[other]):
            changed = replace(Variant(), **{one: value})
            changed = replace(changed, **{other: other_value})
            if changed not in made and says_something(changed):
                made.append(changed)
    return made


def says_something(variant: Variant) -> bool:
    """Return whether no choice of a variant is without effect, so that no score is measured twice."""
    by_nothing = variant.sum not in STANDARDISED and variant.by != Variant().by
    read_alone = variant.tokens == (READ,) and variant.last_read != Variant().last_read
    return not by_nothing and not read_alone


def changes_of(variant: Variant) -> dict[str, str]:
    """Return the choices of a variant that are not hydractl's."""
    own = asdict(Variant())
    changes = {}
    for choice, value in asdict(variant).items():
        if value != own[choice]:
            changes[choice] = " and ".join(value) if isinstance(value, tuple) else str(value)
    return changes


def layers_of(variant: Variant, about: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the place of each block and kind of tokens that a variant takes of a model."""
    blocks = about["blocks"]
    first = 0 if variant.blocks == "all" else blocks // 2
    layers = []
    for block in range(first, blocks):
        kinds = variant.tokens
        if about["reads_all"]:
            kinds = (ALL,)
        elif variant.last_read and block == blocks - 1:
            kinds = (READ,)
        layers += [(block, TOKENS.index(kind)) for kind in kinds]
    if variant.classifier:
        layers.append((blocks, 0))
    return layers


def scores_of(case: Case, variant: Variant, sets: Iterable[str]) -> dict[str, Floats]:
    """Return the score of a variant [n], by set."""
    layers = layers_of(variant, case.about)
    where = tuple(np.asarray(layers).T)
    kind = (
        GAUSSIANS.index(variant.gaussian),
        INVERSES.index(variant.inverse),
        LENGTHS.index(variant.length),
    )

    def logs(name: str) -> Floats:
        distances: Floats = case.distances[name][:, :, kind[0], kind[1], kind[2]][where]
        return distances

    standard = logs("fit" if variant.by == "train" else "val")
    centre = standard.mean(axis=1, keepdims=True)
    deviation = standard.std(axis=1, keepdims=True)
    scores = {}
    for name in sets:
        values = logs(name)
        if variant.sum in STANDARDISED:
            values = (values - centre) / deviation
        if variant.sum == "squared":
            scores[name] = np.exp(values).sum(axis=0)
        elif variant.sum == "distance":
            scores[name] = np.exp(values / 2).sum(axis=0)
        elif variant.sum == "highest":
            scores[name] = values.max(axis=0)
        elif variant.sum == "positive":
            scores[name] = np.maximum(values, 0).sum(axis=0)
        elif variant.sum == "squares":
            scores[name] = (np.maximum(values, 0) ** 2).sum(axis=0)
        else:
            scores[name] = values.sum(axis=0)
    return scores


# --- measuring --------------------------------------------------------------------------------------------------------


def auroc(inside: Floats, outside: Floats) -> float:
    """Return the share of pairs in which the OOD sample is higher; ties count half."""
    ordered = np.sort(inside)
    lower = np.searchsorted(ordered, outside, side="left")
    not_higher = np.searchsorted(ordered, outside, side="right")
    return float((lower + not_higher).mean() / 2 / len(inside))


class Result(NamedTuple):
    """AUROCs of a score: by set, and their means over near, far and all sets."""

    by_set: dict[str, float]
    near: float
    far: float
    mean: float


def result_of(case: Case, scores: Mapping[str, Floats]) -> Result:
    """Measure the scores of a case's sets."""
    inside = scores["test"][:MOST]
    outside = [*case.about["near"], *case.about["far"]]
    by_set = {name: auroc(inside, scores[name][:MOST]) for name in outside}
    near = statistics.mean(by_set[name] for name in case.about["near"])
    far = statistics.mean(by_set[name] for name in case.about["far"])
    return Result(by_set, near, far, statistics.mean(by_set.values()))


def reference_results(case: Case) -> dict[str, Result]:
    """Measure other scores, and the standardised sum of some of them."""
    results = {}
    sums: dict[str, Floats] = dict.fromkeys(case.references, np.zeros(1))
    for name in (*ON_LOGITS, *ON_FEATURES):
        scores = {key: of_set[name] for key, of_set in case.references.items()}
        results[name] = result_of(case, scores)
        if name in HEDGE:
            centre, deviation = scores["val"].mean(), scores["val"].std()
            sums = {key: sums[key] + (values - centre) / deviation for key, values in scores.items()}
    results["hedge"] = result_of(case, sums)
    return results


def with_hedge(case: Case) -> Result:
    """Measure the standardised sum of :data:`HEDGE` and hydractl's score over blocks."""
    sets = list(case.references)
    parts = [{key: case.references[key][name] for key in sets} for name in HEDGE]
    parts.append(scores_of(case, Variant(), sets))
    sums = {}
    for key in sets:
        sums[key] = sum((part[key] - part["val"].mean()) / part["val"].std() for part in parts)
    return result_of(case, sums)


def table_of(cases: Mapping[str, Case], compared: Sequence[Variant]) -> dict[Variant, dict[str, Result]]:
    """Measure variants on every case."""
    table: dict[Variant, dict[str, Result]] = {}
    for variant in compared:
        table[variant] = {}
        for name, case in cases.items():
            sets = ["test", *case.about["near"], *case.about["far"]]
            table[variant][name] = result_of(case, scores_of(case, variant, sets))
    return table


# --- files ------------------------------------------------------------------------------------------------------------


def write_case(case: Case, path: Path) -> None:
    """Write a case."""
    arrays = {f"distances|{key}": values for key, values in case.distances.items()}
    for key, of_set in case.references.items():
        arrays |= {f"references|{key}|{name}": values for name, values in of_set.items()}
    arrays["about"] = np.asarray(json.dumps(case.about))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def read_case(path: Path) -> Case:
    """Read what :func:`write_case` wrote."""
    distances: dict[str, Floats] = {}
    references: dict[str, dict[str, Floats]] = {}
    with np.load(path) as stored:
        about = json.loads(str(stored["about"]))
        for key in stored.files:
            kind, _, rest = key.partition("|")
            if kind == "distances":
                distances[rest] = stored[key].astype(np.float64)
            elif kind == "references":
                name, _, score = rest.partition("|")
                references.setdefault(name, {})[score] = stored[key]
    return Case(about, distances, references)


# --- the document -----------------------------------------------------------------------------------------------------

FEW = 300
"""So many training samples are fitted to in a second run."""


def document_of(cases: Mapping[str, Case], few: Mapping[str, Case]) -> dict[str, Any]:
    """Return what is measured: of each model, of each variant, and with each model left out."""
    table = table_of(looked_at(cases), variants())
    table_of_few = table_of(looked_at(few), [Variant(), *(Variant(inverse=inverse) for inverse in INVERSES[1:])])
    own = table[Variant()]
    return {
        "models": [model_document(name, case, own[name]) for name, case in cases.items() if name in MODELS],
        "hedge": [hedge_document(name, case, few[name]) for name, case in cases.items()],
        "changes": [change_document(variant, table) for variant in table if len(changes_of(variant)) <= 1],
        "few": [change_document(variant, table_of_few) for variant in table_of_few],
        "left_out": left_out(table),
    }


def looked_at(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the cases that variants are compared on."""
    return {name: case for name, case in cases.items() if name in MODELS}


def hedge_document(name: str, case: Case, few: Case) -> dict[str, Any]:
    """Return what the standardised sum has on a model, with the score over blocks and without, and of few samples."""
    document: dict[str, Any] = {"name": name, "held_out": name in HELD_OUT}
    for key, fitted in (("all", case), ("few", few)):
        references = reference_results(fitted)
        summed = with_hedge(fitted)
        document[key] = {
            "msp": round(references["msp"].mean, 5),
            "without": round(references["hedge"].mean, 5),
            "with": round(summed.mean, 5),
            "lowest": round(min(summed.by_set[each] - references["msp"].by_set[each] for each in summed.by_set), 5),
        }
    return document


def model_document(name: str, case: Case, result: Result) -> dict[str, Any]:
    """Return what is measured of a model."""
    references = reference_results(case)
    means = {score: round(of_score.mean, 5) for score, of_score in references.items()}
    return {
        "name": name,
        **case.about,
        "references": means,
        "by_set": {key: round(value, 5) for key, value in result.by_set.items()},
        "mahalanobis_by_set": {key: round(value, 5) for key, value in references["mahalanobis"].by_set.items()},
        "mean": round(result.mean, 5),
    }


def change_document(variant: Variant, table: Mapping[Variant, Mapping[str, Result]]) -> dict[str, Any]:
    """Return the mean of a variant over models, and its difference to hydractl's score with the standard error."""
    own = Variant()
    results = table[variant]
    differences = [result.mean - table[own][name].mean for name, result in results.items()]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return {
        "changes": changes_of(variant),
        "mean": round(statistics.mean(result.mean for result in results.values()), 5),
        "near": round(statistics.mean(result.near for result in results.values()), 5),
        "far": round(statistics.mean(result.far for result in results.values()), 5),
        "minus": [round(statistics.mean(differences), 5), round(error, 5)],
        "lowest": round(min(differences), 5),
        "highest": round(max(differences), 5),
        "models": {name: round(result.mean, 5) for name, result in results.items()},
    }


def left_out(table: Mapping[Variant, Mapping[str, Result]]) -> list[dict[str, Any]]:
    """Return for each model the variant that is best on average on the others, and what it has on that model."""
    made = []
    for name in table[Variant()]:
        others = [other for other in table[Variant()] if other != name]
        if not others:
            continue
        means = {
            variant: statistics.mean(results[other].mean for other in others) for variant, results in table.items()
        }
        chosen = max(means, key=means.__getitem__)
        best = max(table, key=lambda variant: table[variant][name].mean)
        made.append(
            {
                "model": name,
                "chosen": changes_of(chosen),
                "mean": round(table[chosen][name].mean, 5),
                "own": round(table[Variant()][name].mean, 5),
                "best": round(table[best][name].mean, 5),
                "best_is": changes_of(best),
            }
        )
    return made


def main() -> None:
    """Make every model and case that is not there yet, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/layered"))
    parser.add_argument("--only", metavar="NAME;...", help="these models alone")
    parser.add_argument("--result", type=Path, help="the document with what is measured")
    arguments = parser.parse_args()
    data = arguments.output / "data"
    if not (data / "done").exists():
        cut_data(arguments.data, data)
        (data / "done").touch()
    cases: dict[str, Case] = {}
    few: dict[str, Case] = {}
    for name in arguments.only.split(";") if arguments.only else MODELS | HELD_OUT:
        paths = [arguments.output / "cases" / f"{name}{ending}.npz" for ending in ("", f" {FEW}")]
        if not all(path.exists() for path in paths):
            make_cases(name, arguments.data, arguments.output, paths)
        cases[name], few[name] = (read_case(path) for path in paths)
    if arguments.result:
        document = document_of(cases, few)
        arguments.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def make_cases(name: str, source: Path, output: Path, paths: Sequence[Path]) -> None:
    """Train a model, and write its cases with all training samples and with few."""
    started = time.process_time()
    recipe = (MODELS | HELD_OUT)[name]
    data = output / "data" / recipe.family
    folder = output / name
    folder.mkdir(parents=True, exist_ok=True)
    place = Place(FAMILIES["fashion" if recipe.family == "fashion8" else recipe.family], data, folder)
    model = trained(name, recipe, place, source, output)
    read = read_sets(recipe, model, data)
    for path, samples in zip(paths, (None, FEW), strict=True):
        write_case(case_of(read, recipe, model, samples), path)
    print(f"{name}: {time.process_time() - started:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
