"""What an exported file says of itself before it is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.errors import InputError
from hydractl.exports import metadata
from hydractl.exports.opened import ExportedFile, exported_at
from hydractl.exports.targets import claimed, plan_exports
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from tests.exports.test_export import plan_of
from tests.pico import shared_stock, source_of
from tests.spread import ONE_OF_EACH

METADATA = {"macs": "1000", "members": "3", "preprocess": json.dumps({"kind": "text", "max_length": 16})}


def test_its_size_is_that_of_the_file_and_of_the_weights_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(b"x" * 10)
    assert ExportedFile("a", path, METADATA).file_bytes == 10
    (tmp_path / "a.onnx.data").write_bytes(b"y" * 500)
    assert ExportedFile("a", path, METADATA).file_bytes == 510


def test_mult_adds_were_counted_for_texts_of_one_length(tmp_path: Path) -> None:
    file = ExportedFile("a", tmp_path / "a.onnx", METADATA)
    assert file.macs == 1000 and file.at_length(16).macs == 1000
    shorter = file.at_length(8)
    assert shorter.preprocess["max_length"] == 8 and shorter.macs is None


# --- what images it takes ---------------------------------------------------------------------------------------------

IMAGES = [variant for variant in ONE_OF_EACH if variant not in ("bert", "modernbert", "llama")]


def pico(variant: str) -> Source:
    """An opened pico model."""
    return source_of(shared_stock(variant), variant)


@pytest.mark.parametrize("variant", IMAGES)
def test_the_size_of_images_is_read_from_the_preprocessing_of_every_family(variant: str) -> None:
    description = pico(variant).description
    collate = pico(variant).family.collate(description.preprocess)
    pixels = collate([Image.new("RGB", (20, 20))])
    assert metadata._image_size(description.family, description.preprocess) == list(pixels.shape[1:])
    assert metadata._size_problems(description.family, description.preprocess) == []


@pytest.mark.fault(70, 84)
@pytest.mark.parametrize("size", [None, 16, [16], [3, 16, 16], [0, 16], ["16", 16], [10**6, 10**6], [2**13, 2**13], {}])
def test_a_size_of_open_clip_that_cannot_be(size: Any) -> None:
    preprocess = {**pico("clip").description.preprocess, "size": size}
    assert len(metadata._size_problems("open_clip", preprocess)) == 1
    # An entry that other families read does not help.
    preprocess["input_size"] = [3, 16, 16]
    assert len(metadata._size_problems("open_clip", preprocess)) == 1


Exported = Callable[[str, str, str], tuple[HydraModel, Path]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A fused model and a file of it, by variant, format and input; each is written once."""

    def export(variant: str, kind: str, taken: str) -> tuple[HydraModel, Path]:
        plan = plan_of(variant)
        folder = tmp_path_factory.mktemp("exported")
        targets = plan_exports([kind], folder / "x", plan.description, plan.tensors)
        with claimed(targets, force=False) as claim:
            build = partial(HydraModel, plan.description, plan.tensors)
            claim.write(build, ["a", "b"], 1, 0, Log(), uint8=taken == "uint8")
            (path,) = claim.commit()
        return HydraModel(plan.description, plan.tensors), path

    return cache(export)


OF_OPEN_CLIP = [
    ("clip", "pt2", "float32"),
    ("clip", "onnx", "float32"),
    ("clip", "onnx", "uint8"),
    ("custom-text-own-attention", "pt2", "uint8"),
]


@pytest.mark.long
@pytest.mark.parametrize(("variant", "kind", "taken"), OF_OPEN_CLIP)
def test_a_file_of_open_clip_predicts_what_its_model_predicts(
    exported: Exported, variant: str, kind: str, taken: str
) -> None:
    model, path = exported(variant, kind, taken)
    file = exported_at(path)
    assert (file.family.name, file.metadata["input"]) == ("open_clip", taken)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 20, 25, 3), dtype=np.uint8)
    opened = file.build()
    inputs = model.preprocess(list(pixels))
    wanted = model.predict(inputs)
    answer = opened.predict(opened.preprocess(list(pixels)))
    tolerance = 1e-4 * max(1.0, float(model.member_logits(inputs).detach().abs().max()))
    assert float((answer.probabilities - wanted.probabilities).abs().max()) <= tolerance
    assert answer.ood_score is not None and wanted.ood_score is not None
    assert float((answer.ood_score - wanted.ood_score).abs().max()) <= tolerance
    assert list(file.example_inputs().shape) == [1, 3, 16, 16]


@pytest.mark.long
@pytest.mark.fault(70, 84)
def test_a_file_of_open_clip_with_another_size_is_refused(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = exported("clip", "pt2", "float32")
    facts = metadata.FORMATS["pt2"].facts

    def told(path: Path, size: list[int]) -> Any:
        values, shapes, weights = facts(path)
        preprocess = {**json.loads(values["preprocess"]), "size": size}
        return {**values, "preprocess": json.dumps(preprocess)}, shapes, weights

    wrong = {
        (16, 24): "pixel_values as float32 [batch, 3, 16, 16], and it would be float32 [batch, 3, 16, 24]",
        (2**13, 2**13): "images of [3, 8192, 8192]",
    }
    for size, problem in wrong.items():
        monkeypatch.setattr(metadata.FORMATS["pt2"], "facts", lambda path, size=size: told(path, list(size)))
        with pytest.raises(InputError, match="says of itself what cannot be") as caught:
            exported_at(path)
        assert [re.sub("['\"]", "", line) for line in caught.value.problems] == [problem]
