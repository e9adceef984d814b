"""Features and classifiers of every family, and OOD scores on them, against the libraries' own models."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.model.detection import classifiers, fit_detector, read_features, read_training
from hydractl.model.runtime import HydraModel
from tests.pico import VARIANTS, close, inputs, model_of, shared_source, shared_stock
from tests.spread import marked_release


def built(variant: str) -> HydraModel:
    source = shared_source(variant)
    return model_of(source).with_classes()


# One of each kind of classifier.
KINDS = (
    *("class-token", "distilled", "map-pooling", "swin", "bert", "roberta", "distilbert"),
    *("modernbert", "llama", "hf-deit-distilled", "hf-dinov2", "clip-bias", "hf-siglip"),
)


@torch.no_grad()
@pytest.mark.parametrize("variant", [*KINDS, *marked_release(v for v in VARIANTS if v not in KINDS)])
def test_the_classifier_of_the_features_gives_the_logits(variant: str) -> None:
    model = built(variant)
    logits, features = read_features(model, inputs(variant))
    close(logits, model.member_logits(inputs(variant)))
    ((weight, bias),) = classifiers(model)
    assert features[0].numpy() @ weight.T + bias == pytest.approx(logits[0].numpy(), abs=1e-4)
    assert not any(module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
@pytest.mark.parametrize("variant", ["class-token", "bert", "clip", "clip-bias"])
def test_features_are_the_library_s(variant: str) -> None:
    stock: Any = shared_stock(variant)
    given = inputs(variant)
    if variant == "class-token":
        expected = stock.forward_head(stock.forward_features(given), pre_logits=True)
    elif variant == "bert":
        expected = stock.bert(**given).pooler_output
    else:
        expected = F.normalize(stock.encode_image(given), dim=-1)
    close(read_features(built(variant), given)[1][0], expected)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["distilled", "bert", "clip-bias"])
def test_every_score_can_be_fitted(variant: str) -> None:
    model = built(variant)
    given = inputs(variant)
    count = len(next(iter(given.values())) if isinstance(given, dict) else given)
    labels = np.arange(count) % 2
    names = list(ON_FEATURES)
    words = ["lamp", "river"]
    if model.prompted is None:
        names.remove("neglabel")
        words = []
    training = read_training([model], [(range(count), given)], labels)
    detector = fit_detector(names, [model], training, labels, 1, None, words)
    scores = detector.scores(*read_features(model, given, layers=True))
    assert list(scores) == names
    assert all(values.shape == (1, count) and np.isfinite(values).all() for values in scores.values())
    assert scores["knn"] == pytest.approx(0, abs=1e-3), "the training samples themselves"


@torch.no_grad()
def test_threads_do_not_read_each_other_s_features() -> None:
    model, given = built("class-token"), inputs("class-token")
    expected = [read_features(model, given[i : i + 1])[1][0] for i in range(2)]
    found: list[bool] = []

    def work(i: int) -> None:
        with torch.no_grad():
            each = [read_features(model, given[i : i + 1])[1][0] for _ in range(20)]
        found.extend(torch.allclose(one, expected[i], atol=1e-6) for one in each)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(found)
