"""A model called by the names that transformers gives inputs: in its Trainer, its pipelines, and in Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from hydractl.errors import UsageError
from hydractl.model.loading import build_model
from hydractl.model.runtime import HydraModel
from hydractl.model.source import open_source
from tests.pico import close, images, inputs, published


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HydraModel]:
    """One model of images and one of texts, as their folders are opened."""
    models = {}
    for variant in ("hf-vit", "bert"):
        folder = published(variant, tmp_path_factory.mktemp(variant))
        models[variant] = build_model(open_source(str(folder)))
    return models


@torch.no_grad()
def test_inputs_by_name_are_the_same_inputs(classifiers: dict[str, HydraModel]) -> None:
    images_model, texts_model = classifiers["hf-vit"], classifiers["bert"]
    labels = torch.tensor([0, 2, 1])
    by_place = images_model(images())
    by_name = images_model(pixel_values=images(), labels=labels)
    assert torch.equal(by_name["logits"], by_place)
    close(by_name["loss"], functional.cross_entropy(by_place.exp().log(), labels))
    tokens = inputs("bert")
    assert torch.equal(texts_model(**tokens)["logits"], texts_model(tokens))
    assert list(texts_model(**tokens)) == ["logits"]
    assert texts_model(tokens, labels=labels[: len(tokens["input_ids"])])["loss"].ndim == 0


def test_no_inputs_and_two_kinds_of_them_are_refused(classifiers: dict[str, HydraModel]) -> None:
    for given in ({}, {"pixel_values": images(), "input_ids": torch.ones(1, 2)}):
        with pytest.raises(UsageError, match="takes its inputs, or pixel_values="):
            classifiers["hf-vit"](**given)


def test_pipelines_of_transformers_give_the_probabilities(classifiers: dict[str, HydraModel]) -> None:
    from transformers import ImageClassificationPipeline, TextClassificationPipeline, ViTImageProcessor

    model = classifiers["hf-vit"]
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    answers = ImageClassificationPipeline(model=model, image_processor=processor, device="cpu")(picture, top_k=3)
    with torch.no_grad():
        expected = model(**processor(picture, return_tensors="pt"))["logits"][0].exp()
    names = model.config.id2label
    assert {answer["label"]: pytest.approx(answer["score"], abs=1e-5) for answer in answers} == {
        names[place]: float(expected[place]) for place in range(3)
    }
    model = classifiers["bert"]
    tokenizer = model.preprocess._tokenizer
    (answer,) = TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")(["a fine film"])
    with torch.no_grad():
        log_probs = model(model.preprocess(["a fine film"]))[0]
    assert answer["label"] == model.config.id2label[int(log_probs.argmax())]
    assert answer["score"] == pytest.approx(float(log_probs.max().exp()), abs=1e-5)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random images, as a Trainer takes them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": images(8)[place], "labels": torch.tensor(place % 3)}


def test_the_trainer_of_transformers_trains_and_evaluates(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    from transformers import Trainer, TrainingArguments

    model = build_model(open_source(str(published("hf-vit", tmp_path))))
    arguments = TrainingArguments(
        str(tmp_path / "run"),
        num_train_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows())
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    predicted: Any = trainer.predict(Rows()).predictions
    with torch.no_grad():
        close(torch.as_tensor(predicted), model(images(8)))
