"""OOD scores on the features of a model: read while it runs, fitted for each member, kept in its checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.files.checkpoint import BESIDE, FileTensors
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining, Statistics
from hydractl.metrics.probabilities import Floats
from hydractl.model.laplace import Network, feature_means, has_posterior, heads_of

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""How far W x + b may be from the logits by rounding, as a share of the largest logit, by the format of the model."""
_COARSE_TOLERANCE = 0.05
"""The same for every format with fewer digits."""
_ON_LOGITS = "use an --ood-score on logits: msp, energy, ..."
_AGAIN = "write it again: calibrate --ood-score NAME --train SPEC -o F.st"


# --- features and classifier ------------------------------------------------------------------------------------------


class _Inputs:
    """A hook that keeps what enters modules, in the thread that made it: other threads may run the same model.

    Attributes:
        by_module: the first argument of the last call of each module.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.by_module: dict[nn.Module, Tensor] = {}

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == self._thread:
            self.by_module[module] = arguments[0]


def read_features(model: Network, inputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the logits ``[M, B, classes]``, and of each member the features ``[B, D]`` that enter its classifier.

    For a zero-shot model these are the normalised features of the samples; for a classifier that averages two linear
    layers, the inputs of both side by side.
    """
    if len(model.chains) > 1:
        outputs = model.tower_outputs(inputs)
        features_of_samples = outputs[_tower_of_samples(model)]
        return model.logits(outputs), list(feature_means(model, features_of_samples))
    heads = heads_of(model, _ON_LOGITS)
    entering = _Inputs()
    with ExitStack() as stack:
        for heads_of_member in heads:
            for head in heads_of_member:
                hook = head.register_forward_pre_hook(entering)
                stack.callback(hook.remove)
        logits = model.logits([model.chains[0](inputs)])
    features = []
    for heads_of_member in heads:
        inputs_of_heads = [entering.by_module[head] for head in heads_of_member]
        features.append(torch.cat(inputs_of_heads, dim=-1))
    return logits, features


def _tower_of_samples(model: Network) -> int:
    """Return the place of the tower that reads samples among the towers of a model."""
    return next(index for index, chain in enumerate(model.chains) if not chain.of_labels)


def readout(model: Network, inputs: Any) -> list[Tensor]:
    """Return the features ``[B, D]`` of each member, as :func:`read_features`; of a body too, without class names."""
    if len(model.chains) > 1 or not model.classes:
        return list(feature_means(model, model.chain_of_samples(inputs)))
    _, features = read_features(model, inputs)
    return features


def ensemble_features(models: Sequence[Network], inputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Return logits and features as :func:`read_features`, for the members of all models."""
    logits = []
    features = []
    for model in models:
        logits_of_model, features_of_model = read_features(model, inputs)
        logits.append(logits_of_model)
        features += features_of_model
    return torch.cat(logits), features


def classifiers(model: Network) -> Iterator[tuple[Floats, Floats]]:
    """Yield weight ``[classes, D]`` and bias ``[classes]`` of each member's classifier of such features, as float64."""
    if len(model.chains) == 1:
        for heads in heads_of(model, _ON_LOGITS):
            weight = torch.cat([head.weight for head in heads], dim=1) / len(heads)
            bias = sum((_bias(head) for head in heads), torch.zeros(())) / len(heads)
            yield _in_float64(weight), _in_float64(bias)
        return
    labels = feature_means(model, model.label_features())  # [M, classes, D]
    for network, classes in zip(model.networks, labels, strict=True):
        # Logits are linear in the features of a sample, so those of all unit vectors and of 0 determine the function.
        width = classes.shape[1]
        samples = torch.eye(width + 1, width, device=classes.device, dtype=classes.dtype)  # its last row is 0
        outputs = [classes, samples]
        if _tower_of_samples(model) == 0:
            outputs = [samples, classes]
        logits = model.family.logits(network, outputs)  # [D + 1, classes]
        logits_of_zero = logits[-1]
        weight = (logits[:-1] - logits_of_zero).T
        yield _in_float64(weight), _in_float64(logits_of_zero)


def _bias(head: nn.Linear) -> Tensor:
    """Return the bias of a layer, zeros where it has none."""
    bias: Tensor | None = head.bias
    if bias is None:
        return head.weight.new_zeros(len(head.weight))
    return bias


def _in_float64(values: Tensor) -> Floats:
    """Return the numbers of a tensor as a float64 array."""
    return values.detach().cpu().double().numpy()


# --- fitting and scoring ----------------------------------------------------------------------------------------------


@dataclass
class Detector:
    """Scores on features, fitted for every member.

    Attributes:
        members: for each member what each score was fitted to, by its name.
        fitted_on: the training data, as ``{"spec", "n", "fingerprint", "knn_k"}``; empty where none were needed.
    """

    members: Sequence[Mapping[str, Statistics]]
    fitted_on: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The scores."""
        return list(self.members[0])

    @property
    def constant(self) -> list[str]:
        """The scores that are the same for every sample, as the training data had nothing to teach them."""
        constant = []
        for name in self.names:
            if all("constant" in fitted[name] for fitted in self.members):
                constant.append(name)
        return constant

    def scores(self, logits: Tensor, features: Sequence[Tensor]) -> dict[str, Floats]:
        """Return the scores of samples ``[M, B]`` by name, float64, from what :func:`read_features` gives.

        Raises:
            InputError: what a score was fitted to does not fit the model.
        """
        features_of_members = [_in_float64(features_of_member) for features_of_member in features]
        logits_of_members = [_in_float64(logits_of_member) for logits_of_member in logits]
        try:
            return {name: self._score(name, features_of_members, logits_of_members) for name in self.names}
        except (LookupError, ValueError):  # parts that are missing, or of other shapes
            raise InputError("what the OOD score was fitted to does not fit the model", hint=_AGAIN) from None

    def _score(self, name: str, features: Sequence[Floats], logits: Sequence[Floats]) -> Floats:
        """Return one score ``[M, B]`` from the features ``[B, D]`` and logits ``[B, classes]`` of each member."""
        score = FEATURE_SCORES[name]
        scores = []
        for fitted, features_of_member, logits_of_member in zip(self.members, features, logits, strict=True):
            scores.append(score.score(fitted[name], features_of_member, logits_of_member))
        return np.stack(scores)

    def with_scores(self, other: Detector) -> Detector:
        """Return a detector that has the scores of another one of the same members too."""
        members = []
        for fitted, other_fitted in zip(self.members, other.members, strict=True):
            members.append({**fitted, **other_fitted})
        return Detector(members, self.fitted_on)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what one score was fitted to, by the names of a checkpoint; float32 where that loses nothing."""
        tensors = {}
        for member, fitted in enumerate(self.members):
            for part, values in fitted[name].items():
                exact = torch.from_numpy(values)
                narrow = exact.float()
                lossless = torch.equal(narrow.double(), exact)
                tensors[f"{BESIDE}ood.{member}.{part}"] = narrow if lossless else exact
        return tensors


def stored_detector(score: str, document: Any, tensors: FileTensors, members: int) -> Detector:
    """Read the detector that a checkpoint holds.

    Raises:
        InputError: it is not whole.
    """
    fitted_members = []
    for member in range(members):
        prefix = f"{BESIDE}ood.{member}."
        statistics = {}
        for name in tensors.header.tensors:
            if name.startswith(prefix):
                statistics[name.removeprefix(prefix)] = _in_float64(tensors.read(name))
        if not statistics:
            raise InputError(f"the checkpoint holds a broken OOD score {score!r}", hint=_AGAIN)
        fitted_members.append({score: statistics})
    fitted_on = document.get("fitted_on") if isinstance(document, Mapping) else None
    if not isinstance(fitted_on, Mapping):
        fitted_on = {}
    return Detector(fitted_members, fitted_on)


@dataclass(frozen=True)
class TrainingFeatures:
    """What members make of training data, as scores are fitted to it.

    Attributes:
        rows: which samples of the data, int64 ``[N]``.
        features: of each member float32 ``[N, D]``, in the order of the rows.
        highest: of each member its highest logit, float64 ``[N]``.
    """

    rows: npt.NDArray[np.int64]
    features: Sequence[npt.NDArray[np.float32]]
    highest: Sequence[Floats]


def read_training(models: Sequence[Network], batches: Iterable[tuple[Sequence[int], Any]]) -> TrainingFeatures:
    """Run training data once.

    Args:
        models: whose members make up the row.
        batches: the rows and the inputs of the training data.

    Raises:
        InputError: logits are no linear function of features.
    """
    classifiers_of_members = all_classifiers(models)
    # A posterior divides logits by deviations, which makes them no linear function of features.
    to_check = not any(has_posterior(model) for model in models)
    rows: list[int] = []
    # Of each member a part for each batch, behind an empty part: without any batch there is a shape all the same.
    features = [[np.zeros((0, weight.shape[1]), dtype=np.float32)] for weight, _ in classifiers_of_members]
    highest = [[np.zeros(0)] for _ in classifiers_of_members]
    for rows_of_batch, inputs in batches:
        rows += rows_of_batch
        logits_of_members, features_of_members = ensemble_features(models, inputs)
        for member, (weight, bias) in enumerate(classifiers_of_members):
            logits_of_member = logits_of_members[member]
            features_of_member = features_of_members[member]
            if to_check:
                check_linear(logits_of_member, features_of_member, weight, bias)
            features[member].append(features_of_member.float().cpu().numpy())
            highest[member].append(_in_float64(logits_of_member.max(dim=1).values))
        to_check = False  # the first batch is enough
    return TrainingFeatures(
        rows=np.asarray(rows, dtype=np.int64),
        features=[np.concatenate(parts) for parts in features],
        highest=[np.concatenate(parts) for parts in highest],
    )


def all_classifiers(models: Sequence[Network]) -> list[tuple[Floats, Floats]]:
    """Return the classifiers, as :func:`classifiers` gives them, of the members of all models."""
    classifiers_of_members: list[tuple[Floats, Floats]] = []
    for model in models:
        classifiers_of_members.extend(classifiers(model))
    return classifiers_of_members


def fit_detector(
    names: Sequence[str],
    models: Sequence[Network],
    read: TrainingFeatures,
    labels: Any,
    neighbours: int,
    fitted_on: Mapping[str, Any],
) -> Detector:
    """Fit scores to what the members make of training data.

    Args:
        names: of the scores.
        models: whose members make up the row.
        read: what :func:`read_training` returned; without samples where no score needs any.
        labels: ``[N]`` of all rows of the data, or None.
        neighbours: k of ``knn``.
        fitted_on: what to say of the data.

    Raises:
        InputError: the data are too few.
    """
    labels_read = None if labels is None else labels[read.rows]
    training = []
    for member, (weight, bias) in enumerate(all_classifiers(models)):
        features = read.features[member].astype(np.float64)
        highest = read.highest[member]
        training.append(MemberTraining(features, labels_read, highest, weight, bias, neighbours))
    return detector_of(names, training, fitted_on)


def detector_of(names: Sequence[str], training: Sequence[MemberTraining], fitted_on: Mapping[str, Any]) -> Detector:
    """Fit scores to what each member makes of the training data, as :func:`fit_detector` reads it."""
    members = []
    for training_of_member in training:
        fitted = {name: FEATURE_SCORES[name].fit(training_of_member) for name in names}
        members.append(fitted)
    return Detector(members, fitted_on)


def check_linear(logits: Tensor, features: Tensor, weight: Floats, bias: Floats) -> None:
    """Raise InputError where logits ``[B, classes]`` are not the given linear function of features ``[B, D]``."""
    expected = _in_float64(features) @ weight.T + bias
    actual = _in_float64(logits)
    share = _TOLERANCES.get(logits.dtype, _COARSE_TOLERANCE)
    tolerance = share * max(1.0, np.abs(actual).max())
    if np.abs(expected - actual).max() > tolerance:
        raise InputError(
            "the logits of this model are no linear function of the features that enter its last layer",
            hint=_ON_LOGITS,
        )
