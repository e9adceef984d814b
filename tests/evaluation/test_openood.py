"""OpenOOD as its evaluator runs it: a folder laid out like its download, and the table that it would write."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics as sk

import hydractl
from tests.running import run

# Benchmark and list, folder of its images, number of images; as OpenOOD v1.5 names them. OOD images are labelled -1.
DOWNLOADED = """
imagenet/test_imagenet     images_largescale/imagenet_1k/val/n01440764      21
imagenet/test_imagenet_v2  images_largescale/imagenet_v2/3                  8
imagenet/test_imagenet_c   images_largescale/imagenet_c/gaussian_noise/1    9
imagenet/test_imagenet_r   images_largescale/imagenet_r/n01443537           11
imagenet/val_imagenet      images_largescale/imagenet_1k/val/n01443537      7
imagenet/val_openimage_o   images_largescale/openimage_o/images/val         -7
imagenet/test_ssb_hard     images_largescale/ssb_hard/n00005787             -23
imagenet/test_ninco        images_largescale/ninco/amphiuma_means           -13
imagenet/test_inaturalist  images_largescale/inaturalist/images             -19
imagenet/test_textures     images_classic/texture/banded                    -17
imagenet/test_openimage_o  images_largescale/openimage_o/images             -16
cifar10/test_cifar10       images_classic/cifar10/test/airplane             20
cifar10/test_cifar100      images_classic/cifar100/test/apple               -20
cifar10/test_tin           images_classic/tin/val                           -11
cifar10/test_mnist         images_classic/mnist/test                        -12
cifar10/test_svhn          images_classic/svhn/test                         -13
cifar10/test_texture       images_classic/texture/dotted                    -14
cifar10/test_places365     images_classic/places365/airfield                -15
"""
NEAR = {"imagenet": ["ssb_hard", "ninco"], "cifar10": ["cifar100", "tin"]}
FAR = {"imagenet": ["inaturalist", "textures", "openimage_o"], "cifar10": ["mnist", "svhn", "texture", "places365"]}


@pytest.fixture
def download() -> dict[str, list[tuple[Path, int]]]:
    """The folder ``data``; by benchmark and list its images and labels."""
    random, found = np.random.default_rng(0), {}
    for line in DOWNLOADED.strip().splitlines():
        name, folder, size = line.split()
        lines = []
        for i in range(abs(int(size))):
            image = Path("data", folder, f"{i}.png")
            image.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, int(random.integers(2, 256)), size=(8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(image)
            lines.append((image, int(random.integers(10)) if int(size) > 0 else -1))
        file = Path("data/benchmark_imglist", f"{name}.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        below = Path("data", folder.split("/")[0])
        file.write_text("".join(f"{image.relative_to(below)} {label}\n" for image, label in lines))
        found[name] = lines
    return found


def evaluator(images: list[tuple[Path, int]]) -> list[np.ndarray]:
    """What OpenOOD's postprocessor msp returns: predictions, confidences, labels."""
    model = hydractl.load("base.st", device="cpu")
    with torch.no_grad():
        p = model(model.preprocess([Image.open(path) for path, _ in images])).double().exp()
    return [p.argmax(1).numpy(), p.amax(1).numpy(), np.array([label for _, label in images])]


def all_metrics(inside: list[np.ndarray], outside: list[np.ndarray]) -> list[float]:
    """``FPR@95, AUROC, AUPR_IN, AUPR_OUT, ACC`` by scikit-learn, OOD positive, as its evaluator takes them."""
    _, conf, label = (np.concatenate(pair) for pair in zip(inside, outside, strict=True))
    ood = (label == -1).astype(int)
    fpr, tpr, _ = sk.roc_curve(ood, -conf)
    precision_in, recall_in, _ = sk.precision_recall_curve(1 - ood, conf)
    precision_out, recall_out, _ = sk.precision_recall_curve(ood, -conf)
    areas = [sk.auc(fpr, tpr), sk.auc(recall_in, precision_in), sk.auc(recall_out, precision_out)]
    return [fpr[np.argmax(tpr >= 0.95)], *areas, (inside[0] == inside[2]).mean()]


def expected(benchmark: str, own: list[str], download: Any) -> dict[str, np.ndarray]:
    inside = evaluator([image for name in own for image in download[f"{benchmark}/{name}"]])
    rows: dict[str, np.ndarray] = {}
    for group, sets in (("nearood", NEAR[benchmark]), ("farood", FAR[benchmark])):
        for name in sets:
            outside = evaluator(download[f"{benchmark}/test_{name}"])
            rows[name] = 100 * np.array(all_metrics(inside, outside))
        rows[group] = np.mean([rows[name] for name in sets], axis=0)
    return rows


CASES = {
    "imagenet/test": ["test_imagenet"],
    "imagenet/full-spectrum": ["test_imagenet", "test_imagenet_v2", "test_imagenet_c", "test_imagenet_r"],
    "cifar10/test": ["test_cifar10"],
}


@pytest.mark.parametrize("part", CASES)
@pytest.mark.long
def test_the_table_is_that_of_the_evaluator(download: Any, part: str) -> None:
    benchmark = part.split("/")[0]
    suite = ["--ood-suite", f"openood-{benchmark}:official", "--ood-root", "data"]
    run("eval", "base.st", "--test", f"openood:{part}?root=data", *suite, "-o", "e.json")
    run("report", "e.json", "--openood-csv", "ood.csv")
    head, *rows = csv.reader(Path("ood.csv").read_text().splitlines())
    assert head == ["dataset", "FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC"]
    wanted = expected(benchmark, CASES[part], download)
    assert [row[0] for row in rows] == list(wanted)
    for name, *numbers in rows:
        assert all(len(number.partition(".")[2]) == 2 for number in numbers)
        assert np.array(numbers, float) == pytest.approx(wanted[name], abs=0.0051)  # two digits
    found = json.loads(Path("e.json").read_text())
    assert "OpenOOD's" in found["test"]["id"]["list"] and found["suite"]["notes"] == []


def test_of_several_rows_each_has_a_table_also_without_groups() -> None:
    sets = ["--test", "builtin:digits/test", "--limit", "30", "--ood", "letters=builtin:letters"]
    run("eval", "base.st", "two=t0.st", *sets, "-o", "e.json")
    run("report", "e.json", "--openood-csv", "ood.csv")
    for name in ("base", "two"):
        assert [line.split(",")[0] for line in Path(f"ood.{name}.csv").read_text().split()] == ["dataset", "letters"]


def test_the_full_spectrum_and_a_limit(download: Any) -> None:
    from hydractl.data import open_data

    spec = "openood:imagenet/full-spectrum?root=data"
    whole, some = open_data(spec), open_data(spec, limit=25)
    assert len(whole) == 49 and whole.labels is not None
    lists = [download[f"imagenet/{name}"] for name in CASES["imagenet/full-spectrum"]]
    assert whole.labels.tolist() == [label for own in lists for _, label in own]
    sizes, taken = (Counter(name.split("/")[0] for name in one.ids) for one in (whole, some))
    assert len(some) == 25 and all(abs(taken[name] - 25 / 49 * size) < 1 for name, size in sizes.items())
    assert {*open_data(spec, limit=12).ids} < {*some.ids}
    outside = open_data("openood:imagenet/ood-val?root=data", ignore_labels=True)
    assert len(outside) == 7 and outside.labels is None
