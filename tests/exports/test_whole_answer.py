"""Scores, flags and sets of exported graphs: the same functions on tensors as on arrays, for every score there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.exports import targets as export
from hydractl.exports.answer import GraphAnswer
from hydractl.exports.formats import Onnx
from hydractl.exports.graph import Graph
from hydractl.exports.graph_arrays import IN_GRAPH
from hydractl.exports.targets import plan_exports
from hydractl.files.calibrate_answer import Conformal
from hydractl.files.checkpoint import FileTensors
from hydractl.files.model_records import Calibration, StoredThreshold
from hydractl.metrics.arrays import ON_ARRAYS
from hydractl.metrics.feature_scores import vilu
from hydractl.metrics.feature_scores.layers import add_to_sums, empty_sums
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining
from hydractl.metrics.ood_scores import SCORES
from hydractl.model.detection import Detector
from hydractl.model.prediction import Chosen, prediction_of
from tests.exports.test_export import plan_of
from tests.spread import marked_release, spread

ALL_SCORES = [*SCORES, *FEATURE_SCORES]
MEMBERS, CLASSES, WIDTH = 2, 5, 12
VECTOR = Calibration(kind="vector", scale=[1.1, 0.7, 0.9, 1.3, 1.0], bias=[0.1, -0.2, 0.0, 0.3, 0.05])


def sets_by(method: Any) -> Conformal:
    return Conformal(method=method, alpha=0.1, qhat=0.871, n_val=10)


def threshold_at(value: float) -> StoredThreshold:
    return StoredThreshold(score="msp", value=value, rule="given")


def training(width: int, seed: int) -> MemberTraining:
    """Training data of one member, and its classifier."""
    generator = np.random.default_rng(seed)
    labels = np.arange(200) % CLASSES
    features = generator.normal(size=(200, width)) + generator.normal(size=(CLASSES, width))[labels]
    weight = generator.normal(size=(CLASSES, width))
    bias = generator.normal(size=CLASSES)
    highest = (features @ weight.T + bias).max(axis=1)
    words = generator.normal(size=(230, width))
    features = features.astype(np.float32).astype(np.float64)
    (layers,) = empty_sums([[5, width - 5]], CLASSES)
    add_to_sums(layers, features, labels)
    return MemberTraining(features, labels, highest, weight, bias, neighbours=7, words=words, layers=layers)


@cache
def detector(name: str, width: int = WIDTH) -> Detector | None:
    """Return what a score on features is fitted to; None for a score on logits."""
    if name not in FEATURE_SCORES:
        return None
    members = [training(width, seed) for seed in range(MEMBERS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vilu, "_FEWEST_STEPS", 3)
        patch.setattr(vilu, "_EPOCHS", 0)
        patch.setattr(vilu, "HIDDEN", (16, 8, 4))
        return Detector([{name: FEATURE_SCORES[name].fit(member)} for member in members])


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "HIDDEN", (16, 8, 4))


def drawn(samples: int, width: int = WIDTH) -> tuple[Tensor, list[Tensor]]:
    """Logits ``[M, B, C]`` and the features of each member, many of them equal: ties are the rule."""
    generator = torch.Generator().manual_seed(samples)
    logits = torch.randn(MEMBERS, samples, CLASSES, generator=generator) * 3
    logits[:, 0] = 0  # all classes alike
    logits[:, 1, :2] = logits[:, 1].amax(dim=1, keepdim=True)  # two of them
    logits[:, 2] = torch.tensor([40.0, 0, 0, 0, 0])  # p is 1
    features = [torch.randn(samples, width, generator=generator).round() for _ in range(MEMBERS)]
    features[1][3] = 0
    features[1][3, 0] = 2
    features[0][3, 0] = 1
    return logits, features


def expected(chosen: Chosen, fitted: Detector | None, logits: Tensor, features: Sequence[Tensor]) -> dict[str, Tensor]:
    """Compute the answer on arrays, as ``predict`` does."""
    by_name = {}
    if fitted is not None:
        for name, scores in fitted.scores(logits, features).items():
            by_name[name] = scores.mean(axis=0)
    prediction = prediction_of(logits, by_name, chosen, None)
    answer = {"probabilities": prediction.probabilities, "member_logits": logits}
    for name, values in (
        ("ood_score", prediction.ood_score),
        ("is_ood", prediction.is_ood),
        ("conformal_set", prediction.sets),
    ):
        if values is not None:
            answer[name] = values
    return answer


def check(answer: Mapping[str, Any], wanted: Mapping[str, Tensor], chosen: Chosen) -> None:
    """Compare an answer with that on arrays: to the bit but for rounding in float64."""
    assert set(answer) == set(wanted)
    scores = torch.as_tensor(answer["ood_score"])
    assert scores.dtype == torch.float64
    size = wanted["ood_score"].abs().clamp(min=1)
    assert bool(((scores - wanted["ood_score"]).abs() <= 1e-9 * size).all())
    probabilities = torch.as_tensor(answer["probabilities"])
    assert float((probabilities - wanted["probabilities"]).abs().max()) < 1e-6
    if chosen.threshold is not None:
        is_near = (wanted["ood_score"] - chosen.threshold.value).abs() <= 1e-9 * size
        same = torch.as_tensor(answer["is_ood"]) == wanted["is_ood"]
        assert bool((same | is_near).all())
    if chosen.conformal is not None:
        assert bool((torch.as_tensor(answer["conformal_set"]) == wanted["conformal_set"]).all())


@pytest.mark.parametrize(
    ("name", "calibration", "method"),
    [
        (name, *rest)
        for name, rest in spread(ALL_SCORES, [(None, "lac"), (Calibration.of_temperature(1.7), "aps"), (VECTOR, "aps")])
    ],
)
def test_a_score_is_the_same_on_tensors(name: str, calibration: Calibration | None, method: Any) -> None:
    logits, features = drawn(40)
    fitted = detector(name)
    without_threshold = Chosen(name, calibration)
    scores = expected(without_threshold, fitted, logits, features)["ood_score"]
    chosen = Chosen(name, calibration, threshold_at(float(scores.median())), sets_by(method))
    answer = GraphAnswer(chosen, fitted, MEMBERS)
    check(answer(logits, features), expected(chosen, fitted, logits, features), chosen)


def test_members_that_are_one_and_scores_that_say_nothing() -> None:
    logits, _ = drawn(6)
    answer = GraphAnswer(Chosen("mi", None, threshold_at(0.1)), None, 1)
    assert list(answer(logits[:1], [])) == ["probabilities", "member_logits"]


def test_a_network_that_had_nothing_to_learn_is_a_constant() -> None:
    logits, features = drawn(6)
    constant = {"vilu": {"constant": np.array([0.1])}}
    answer = GraphAnswer(Chosen("vilu"), Detector([constant, constant]), MEMBERS)
    assert answer(logits, features)["ood_score"].tolist() == [0.1] * 6


@pytest.mark.parametrize("arrays", [ON_ARRAYS, IN_GRAPH], ids=["arrays", "tensors"])
def test_of_equal_values_the_first_comes_first(arrays: Any) -> None:
    values: Any = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    if arrays is IN_GRAPH:
        values = torch.from_numpy(values)
    assert arrays.places_by_falling_value(values).tolist() == [[1, 2, 3, 0], [0, 1, 2, 3]]
    assert arrays.argmax(values, 1).tolist() == [1, 0]
    assert arrays.kth_lowest(values, 3).tolist() == [3.0, 0.0]


class EveryScore(nn.Module):
    """A graph of logits and features that gives every score, with a flag and a set each."""

    def __init__(self, answers: Mapping[str, GraphAnswer]) -> None:
        super().__init__()
        self.answers = nn.ModuleDict(answers)

    def forward(self, logits: Tensor, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        outputs = {}
        for score, answer in self.answers.items():
            for name, values in answer(logits.transpose(0, 1), [first, second]).items():
                outputs[f"{score}_{name}"] = values
        return outputs


# Among them, each way to sort, to choose, to divide and to classify anew that a score has.
KINDS_OF_SCORES = ["msp", "gen", "mi", "variance", "knn", "ash", "hedge", "vilu", "neglabel"]


@pytest.mark.long
@pytest.mark.parametrize("names", [KINDS_OF_SCORES, *marked_release([ALL_SCORES])], ids=["of each kind", "all"])
def test_scores_are_the_same_in_onnx_runtime_and_in_a_program_that_is_opened(names: list[str], tmp_path: Path) -> None:
    answers = {}
    chosen_by_score = {}
    fitted_by_score = {}
    logits, features = drawn(40)
    sets = {
        "msp": sets_by("lac"),
        "gen": sets_by("aps"),
    }
    for name in names:
        fitted_by_score[name] = detector(name)
        calibration = VECTOR if name in sets else None
        scores = expected(Chosen(name, calibration), fitted_by_score[name], logits, features)["ood_score"]
        chosen = Chosen(name, calibration, threshold_at(float(scores.median())), sets.get(name))
        chosen_by_score[name] = chosen
        answers[name] = GraphAnswer(chosen, fitted_by_score[name], MEMBERS)

    def inputs_of(samples: int) -> dict[str, Tensor]:
        logits, features = drawn(samples)
        return {"logits": logits.transpose(0, 1).contiguous(), "first": features[0], "second": features[1]}

    module = EveryScore(answers).eval()
    example = inputs_of(4)
    dynamic = {name: {0: torch.export.Dim("batch")} for name in example}
    exported = torch.export.export(module, (), example, dynamic_shapes=dynamic, strict=False)
    graph = Graph(exported, example, dynamic, module(**example))
    content = tmp_path / "all.onnx"
    with open(content, "wb") as handle:
        Onnx().write(graph, {}, handle)
    session = onnxruntime.InferenceSession(content.read_bytes(), providers=["CPUExecutionProvider"])
    outputs_of_file = [output.name for output in session.get_outputs()]
    for samples in (7, 40):
        logits, features = drawn(samples)
        fed = inputs_of(samples)
        by_runtime = dict(zip(outputs_of_file, session.run(None, {k: v.numpy() for k, v in fed.items()}), strict=True))
        by_torch = exported.module()(**fed)
        for score in names:
            wanted = expected(chosen_by_score[score], fitted_by_score[score], logits, features)
            for outputs in (by_runtime, by_torch):
                answer = {name: outputs[f"{score}_{name}"] for name in wanted}
                check(answer, wanted, chosen_by_score[score])


# --- what is planned --------------------------------------------------------------------------------------------------


def planned(folder: Path, extra: dict[str, Any], beside: Mapping[str, Tensor]) -> dict[str, Path]:
    """Plan the export of a checkpoint with these tensors beside its weights."""
    plan = plan_of("class-token")
    path = folder / "weights.safetensors"
    save_file({"head.weight": torch.zeros(3, 4), **beside}, path)
    return plan_exports(["onnx"], folder / "x", replace(plan.description, extra=extra), FileTensors(path))


def test_what_a_score_was_fitted_to_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score = {"ood_score": {"score": "knn"}}
    bank = {"hydractl.ood.0.bank": torch.zeros(100, 4)}
    assert planned(tmp_path, score, bank) == {"onnx": tmp_path / "x.onnx"}
    monkeypatch.setattr(export, "MOST_IN_ONNX", 1500)
    with pytest.raises(UsageError, match="an ONNX file holds at most 2 GiB of weights"):
        planned(tmp_path, score, bank)
