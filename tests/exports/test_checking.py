"""What an exported file does on data: every sample is compared with itself, calibrated as the model is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydractl.data import open_data
from hydractl.exports.checking import CheckData
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.model.prediction import Chosen, Prediction, prediction_of

LENGTHS = [3, 7, 1, 7, 2, 5]
LOGITS = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
"""Of two members, by the length of a text."""


class Model:
    """As much of a model as a check asks for; its inputs are the lengths of texts."""

    def __init__(self, **extra: Any) -> None:
        self.chosen = Chosen.of(extra)
        self.preprocess = lambda texts: torch.tensor([len(text) for text in texts])

    def predict(self, inputs: torch.Tensor) -> Prediction:
        return prediction_of(LOGITS[:, inputs], {}, self.chosen, None)


def check_data(folder: Path) -> CheckData:
    lines = [json.dumps({"text": "a" * length, "label": length % 3}) for length in LENGTHS]
    for name in ("in", "out"):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    inside = open_data(f"{folder}/in.jsonl")
    outside = open_data(f"{folder}/out.jsonl")
    return CheckData(inside, {"out": outside}, batch_size=2, workers=0)


def pooled() -> np.ndarray:
    return LOGITS.double().softmax(-1).mean(0).numpy()[LENGTHS]


def test_answers_stand_in_the_order_of_the_data_though_longer_texts_run_first(tmp_path: Path) -> None:
    answers = check_data(tmp_path).measure(Model(), Log())
    assert len(answers) == 2
    for predicted, scores, flagged in answers:
        assert not flagged.any()
        assert predicted.tolist() == pooled().argmax(-1).tolist()
        assert np.abs(scores + pooled().max(-1)).max() < 1e-6


def test_a_calibrated_model_is_checked_as_calibrated(tmp_path: Path) -> None:
    never_class_0 = Calibration("vector", (1.0, 1.0, 1.0), (-9.0, 0.0, 0.0))
    calibrated_model = Model(calibration=never_class_0.to_json())
    inside, _ = check_data(tmp_path).measure(calibrated_model, Log())
    assert 0 in pooled().argmax(-1), "else the calibration would change nothing"
    best_of_others = pooled()[:, 1:].argmax(-1) + 1
    assert inside.predicted.tolist() == best_of_others.tolist()


def test_what_becomes_of_flags_is_counted(tmp_path: Path) -> None:
    scores = -pooled().max(-1)
    threshold = float(np.median(scores))
    model = Model(threshold={"score": "msp", "value": threshold, "rule": "id:0.5"})
    data = check_data(tmp_path)
    before = data.measure(model, Log())
    assert before[0].flagged.tolist() == (scores >= threshold).tolist()
    inside, outside = before
    turned = [inside._replace(flagged=~inside.flagged, scores=inside.scores + 1.0), outside]
    compared = data.compared(model.chosen, before, turned)
    assert compared.flags is not None
    assert compared.flags["id"].changed == 1 and compared.flags["out"].changed == 0
    assert compared.score_moved == 0.5  # 1 for the ID half of all samples, 0 for the others
