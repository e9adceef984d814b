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

from hydractl.data.names import folded_name
from hydractl.errors import InputError
from hydractl.files.checkpoint import BESIDE, FileTensors
from hydractl.metrics.feature_scores.scores import (
    BANKS,
    FEATURE_SCORES,
    MemberTraining,
    Statistics,
    smaller_bank,
    unit,
)
from hydractl.metrics.ood_scores import OF_UNSIGNED
from hydractl.metrics.probabilities import Floats
from hydractl.model.laplace import Network, feature_means, has_posterior, heads_of

FeatureClassifier = tuple[Floats, Floats]
"""Weight ``[classes, D]`` and bias ``[classes]`` of a linear function from features to logits, float64."""

DETECTOR_START = f"{BESIDE}ood."
"""The start of the names of tensors that hold what an OOD score was fitted to."""

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""How far W x + b may be from the logits by rounding, as a share of the largest logit, by the format of the model."""
_COARSE_TOLERANCE = 0.05
"""The same for every format with fewer digits."""
_ON_LOGITS = "use an --ood-score on logits: msp, energy, ..."
_AGAIN = "write it again: calibrate --ood-score NAME --train SPEC -o F.st"


# --- features and classifier ------------------------------------------------------------------------------------------


class _InputHook:
    """A hook that keeps what enters a module, in the thread that made it: other threads may run the same model.

    It does not look at the module that it is called with: torch.export runs stand-ins of modules.

    Attributes:
        value: the first argument of the last call; None before the first call.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.value: Tensor | None = None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        thread = threading.get_ident()
        if thread == self._thread:
            self.value = arguments[0]


def read_features(model: Network, inputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the logits ``[M, B, classes]``, and of each member the features ``[B, D]`` that enter its classifier.

    For a zero-shot model these are the normalised features of the samples; for a classifier that averages two linear
    layers, the inputs of both side by side.
    """
    if len(model.chains) > 1:
        outputs = model.tower_outputs(inputs)
        features_of_samples = outputs[_tower_of_samples(model)]
        means = feature_means(model, features_of_samples)  # [M, B, D]
        return model.logits(outputs), list(means)

    # The classifiers are run, with a hook on each of their linear layers that keeps what enters it.
    hooks_of_members: list[list[_InputHook]] = []
    with ExitStack() as stack:
        for heads_of_member in heads_of(model, _ON_LOGITS):
            hooks = []
            for head in heads_of_member:
                hook = _InputHook()
                handle = head.register_forward_pre_hook(hook)
                stack.callback(handle.remove)
                hooks.append(hook)
            hooks_of_members.append(hooks)
        (chain,) = model.chains
        logits = model.logits([chain(inputs)])

    features = []
    for hooks in hooks_of_members:
        inputs_of_heads = []
        for hook in hooks:
            assert hook.value is not None
            inputs_of_heads.append(hook.value)
        features.append(torch.cat(inputs_of_heads, dim=-1))
    return logits, features


def _tower_of_samples(model: Network) -> int:
    """Return the place of the tower that reads samples among the towers of a model."""
    place: int = model.chains.index(model.chain_of_samples)
    return place


def readout(model: Network, inputs: Any) -> list[Tensor]:
    """Return the features ``[B, D]`` that enter the classifier of each member.

    Of a model without a classifier, or without class names, they are what its tower of samples reads out.
    """
    has_classifier = len(model.chains) == 1 and model.classes
    if has_classifier:
        _, features = read_features(model, inputs)
        return features
    outputs = model.chain_of_samples(inputs)
    return list(feature_means(model, outputs))


def ensemble_features(models: Sequence[Network], inputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the logits ``[M, B, classes]`` and the features ``[B, D]`` of each member, M counted over all models."""
    logits = []
    features = []
    for model in models:
        logits_of_model, features_of_model = read_features(model, inputs)
        logits.append(logits_of_model)
        features += features_of_model
    return torch.cat(logits), features


def classifiers(model: Network) -> Iterator[FeatureClassifier]:
    """Yield the classifier of each member on the features that :func:`read_features` gives."""
    if len(model.chains) == 1:
        for heads in heads_of(model, _ON_LOGITS):
            yield _classifier_of_average(heads)
        return
    label_features = model.label_features()
    classes_of_members = feature_means(model, label_features)  # [M, classes, D]
    for network, classes in zip(model.networks, classes_of_members, strict=True):
        yield _classifier_of_comparison(model, network, classes)


def _classifier_of_average(heads: Sequence[nn.Linear]) -> FeatureClassifier:
    """Return the average of linear layers as one classifier of their inputs side by side."""
    weights = [head.weight for head in heads]
    weight = torch.cat(weights, dim=1) / len(heads)  # [classes, sum of widths]
    bias = torch.zeros(())
    for head in heads:
        bias = bias + _bias_or_zeros(head)
    bias = bias / len(heads)
    return _in_float64(weight), _in_float64(bias)


def _classifier_of_comparison(model: Network, network: nn.Module, classes: Tensor) -> FeatureClassifier:
    """Return a member's comparison of samples with classes as a linear classifier of the features of samples.

    Logits are linear in these features, so those of all unit vectors and of 0 determine the function.

    Args:
        model: a zero-shot model.
        network: that of the member.
        classes: the features of the classes, ``[classes, D]``.
    """
    width = classes.shape[1]
    samples = torch.eye(width + 1, width, device=classes.device, dtype=classes.dtype)  # its last row is 0
    outputs = [classes, samples]
    if _tower_of_samples(model) == 0:
        outputs = [samples, classes]
    logits = model.family.logits(network, outputs)  # [D + 1, classes]
    logits_of_zero = logits[-1]
    logits_of_unit_vectors = logits[:-1]  # [D, classes]
    weight = (logits_of_unit_vectors - logits_of_zero).T  # [classes, D]
    return _in_float64(weight), _in_float64(logits_of_zero)


def _bias_or_zeros(head: nn.Linear) -> Tensor:
    """Return the bias of a layer, zeros where it has none."""
    bias: Tensor | None = head.bias
    if bias is None:
        return head.weight.new_zeros(len(head.weight))
    return bias


def _in_float64(values: Tensor) -> Floats:
    """Return the numbers of a tensor as a float64 array."""
    on_cpu = values.detach().cpu()
    return on_cpu.double().numpy()


# --- fitting and scoring ----------------------------------------------------------------------------------------------


@dataclass
class Detector:
    """Scores on features, fitted for every member.

    Attributes:
        members: for each member what each score was fitted to, by its name.
        fitted_on: the training data, as ``{"spec", "n", "fingerprint", "knn_k"}``, and ``negative_words``, the SHA-256
            of these; empty where none were needed.
        saw_negative: whether some feature was below 0.
    """

    members: Sequence[Mapping[str, Statistics]]
    fitted_on: Mapping[str, object] = field(default_factory=dict)
    saw_negative: bool = field(default=False, init=False)

    @property
    def names(self) -> list[str]:
        """The names of the scores."""
        first_member = self.members[0]
        return list(first_member)

    @property
    def constant(self) -> list[str]:
        """The names of the scores that are the same for every sample, as the training data had nothing to teach."""
        constant = []
        for name in self.names:
            is_constant = ["constant" in fitted[name] for fitted in self.members]
            if all(is_constant):
                constant.append(name)
        return constant

    @property
    def doubtful(self) -> list[str]:
        """The names of the scores that were made for features that are not negative, where some were."""
        if not self.saw_negative:
            return []
        return [name for name in self.names if name in OF_UNSIGNED]

    def scores(self, logits: Tensor, features: Sequence[Tensor]) -> dict[str, Floats]:
        """Return the scores of samples ``[M, B]`` by name, float64, from what :func:`read_features` gives.

        Raises:
            InputError: what a score was fitted to does not fit the model.
        """
        features_of_members = [_in_float64(features_of_member) for features_of_member in features]
        logits_of_members = [_in_float64(logits_of_member) for logits_of_member in logits]
        if not self.saw_negative:
            self.saw_negative = any((features < 0).any() for features in features_of_members)
        scores = {}
        try:
            for name in self.names:
                scores[name] = self._score(name, features_of_members, logits_of_members)
        except (LookupError, ValueError):  # parts that are missing, or of other shapes
            raise InputError("what the OOD score was fitted to does not fit the model", hint=_AGAIN) from None
        return scores

    def _score(self, name: str, features: Sequence[Floats], logits: Sequence[Floats]) -> Floats:
        """Return one score ``[M, B]`` from the features ``[B, D]`` and logits ``[B, classes]`` of each member."""
        score = FEATURE_SCORES[name]
        scores = []
        inputs_of_members = zip(features, logits, strict=True)
        for fitted, (features_of_member, logits_of_member) in zip(self.members, inputs_of_members, strict=True):
            statistics = fitted[name]
            scores.append(score.score(statistics, features_of_member, logits_of_member))
        return np.stack(scores)

    def with_scores(self, other: Detector) -> Detector:
        """Return a detector that has the scores of another one of the same members too."""
        members = []
        for fitted, other_fitted in zip(self.members, other.members, strict=True):
            statistics = {**fitted, **other_fitted}
            members.append(statistics)
        return Detector(members, {**self.fitted_on, **other.fitted_on})

    def with_bank(self, samples: int) -> Detector:
        """Return a detector that keeps so many of the training samples for neighbours, evenly spaced.

        Raises:
            InputError: these are fewer than its neighbours.
        """
        members = []
        for fitted in self.members:
            kept = dict(fitted)
            for name in BANKS:
                if name in fitted:
                    kept[name] = smaller_bank(name, fitted[name], samples)
            members.append(kept)
        return Detector(members, {**self.fitted_on, "knn_bank": samples})

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what one score was fitted to, by the names of a checkpoint; float32 where that loses nothing."""
        tensors = {}
        for member, fitted in enumerate(self.members):
            for part, values in fitted[name].items():
                tensors[f"{DETECTOR_START}{member}.{part}"] = narrowed(values)
        return tensors


def narrowed(values: Floats) -> Tensor:
    """Return numbers as a tensor: in float32 where that loses nothing, else in float64."""
    exact = torch.from_numpy(values)
    narrow = exact.float()
    lossless = torch.equal(narrow.double(), exact)
    return narrow if lossless else exact


def stored_detector(score: str, document: Any, tensors: FileTensors, members: int) -> Detector:
    """Read the detector that a checkpoint holds.

    Args:
        score: the name of its only score.
        document: what the description says of the score.
        tensors: the file.
        members: how many members the model has.

    Raises:
        InputError: it is not whole.
    """
    # What the score was fitted to in each member: tensors beside the weights, such as ``PREFIX.0.mean``.
    fitted_members = []
    for member in range(members):
        prefix = f"{DETECTOR_START}{member}."
        statistics = {}
        for name in tensors.header.tensors:
            if name.startswith(prefix):
                part = name.removeprefix(prefix)
                statistics[part] = _in_float64(tensors.read(name))
        if not statistics:
            raise InputError(f"the checkpoint holds a broken OOD score {score!r}", hint=_AGAIN)
        fitted_members.append({score: statistics})

    # The training data that it was fitted to; a file may say anything there, or nothing.
    fitted_on = None
    if isinstance(document, Mapping):
        fitted_on = document.get("fitted_on")
    if not isinstance(fitted_on, Mapping):
        fitted_on = {}
    return Detector(fitted_members, fitted_on)


@dataclass(frozen=True)
class TrainingFeatures:
    """The features and logits of training data in each member, as scores are fitted to them.

    Attributes:
        rows: which samples of the data, int64 ``[N]``.
        features: of each member float32 ``[N, D]``, in the order of the rows.
        highest: of each member its highest logit, float64 ``[N]``.
    """

    rows: npt.NDArray[np.int64]
    features: Sequence[npt.NDArray[np.float32]]
    highest: Sequence[Floats]


def read_training(models: Sequence[Network], batches: Iterable[tuple[Sequence[int], Any]]) -> TrainingFeatures:
    """Run training data once, and keep what enters the classifiers and the highest logits.

    Args:
        models: whose members make up the row.
        batches: the rows and the inputs of the training data.

    Raises:
        InputError: logits are no linear function of features.
    """
    classifiers_of_members = all_classifiers(models)

    # For each member one array a batch. The first one is empty, so that there is a shape without any batch.
    features: list[list[npt.NDArray[np.float32]]] = []
    highest: list[list[Floats]] = []
    for weight, _ in classifiers_of_members:
        width = weight.shape[1]
        features.append([np.zeros((0, width), dtype=np.float32)])
        highest.append([np.zeros(0)])

    # Logits are checked to be linear in the features, on the first batch: that is enough. Those of a posterior are not
    # linear, as it divides them by deviations.
    is_to_be_checked = not any(has_posterior(model) for model in models)
    rows: list[int] = []
    for rows_of_batch, inputs in batches:
        rows += rows_of_batch
        logits_of_members, features_of_members = ensemble_features(models, inputs)
        for member, (weight, bias) in enumerate(classifiers_of_members):
            logits_of_member = logits_of_members[member]  # [B, classes]
            features_of_member = features_of_members[member]  # [B, D]
            if is_to_be_checked:
                check_linear(logits_of_member, features_of_member, weight, bias)
            highest_logits = logits_of_member.max(dim=1).values
            features[member].append(features_of_member.float().cpu().numpy())
            highest[member].append(_in_float64(highest_logits))
        is_to_be_checked = False
    return TrainingFeatures(
        rows=np.asarray(rows, dtype=np.int64),
        features=[np.concatenate(arrays) for arrays in features],
        highest=[np.concatenate(arrays) for arrays in highest],
    )


def all_classifiers(models: Sequence[Network]) -> list[FeatureClassifier]:
    """Return the classifier of each member of all models, as a weight ``[classes, D]`` and a bias ``[classes]``."""
    classifiers_of_members: list[FeatureClassifier] = []
    for model in models:
        classifiers_of_members.extend(classifiers(model))
    return classifiers_of_members


def fit_detector(
    names: Sequence[str],
    models: Sequence[Network],
    read: TrainingFeatures,
    labels: Any,
    neighbours: int,
    fitted_on: Mapping[str, object],
    words: Sequence[str] = (),
) -> Detector:
    """Fit scores to what the members make of training data.

    Args:
        names: of the scores.
        models: whose members make up the row.
        read: what :func:`read_training` returned; without samples where no score needs any.
        labels: ``[N]`` of all rows of the data, or None.
        neighbours: k of ``knn`` and ``nnguide``.
        fitted_on: what to say of the data.
        words: those of ``neglabel``.

    Raises:
        InputError: the data are too few.
    """
    texts_of_members: list[Floats | None] = []
    for model in models:
        texts_of_members += _texts_of_words(model, words)
    labels_of_rows = None
    if labels is not None:
        labels_of_rows = labels[read.rows]
    training_of_members = []
    for member, (weight, bias) in enumerate(all_classifiers(models)):
        features = read.features[member].astype(np.float64)
        highest = read.highest[member]
        texts = texts_of_members[member]
        training = MemberTraining(features, labels_of_rows, highest, weight, bias, neighbours, texts)
        training_of_members.append(training)
    return detector_of(names, training_of_members, fitted_on)


def _texts_of_words(model: Network, words: Sequence[str]) -> list[Floats | None]:
    """Return the features ``[W, D]``, of length 1, that each member has of words in the prompts of its classes.

    Words that are names of classes are left out; None for each member without words.

    Raises:
        InputError: there are no others.
    """
    if not words:
        return [None] * len(model.networks)
    prompted = model.prompted
    class_names = {folded_name(label) for label in prompted.labels}
    others = [word for word in words if folded_name(word) not in class_names]
    if not others:
        raise InputError("every word of --negative-words names a class", hint="give words for what no class is")
    as_classes = model.zero_shot(others, prompted.templates)
    return [unit(weight) for weight, _ in classifiers(as_classes)]


def detector_of(names: Sequence[str], training: Sequence[MemberTraining], fitted_on: Mapping[str, object]) -> Detector:
    """Fit scores to what each member makes of the training data.

    Args:
        names: of the scores.
        training: for each member its features, labels, highest logits and classifier.
        fitted_on: what to say of the data.
    """
    members = []
    for training_of_member in training:
        fitted = {}
        for name in names:
            score = FEATURE_SCORES[name]
            fitted[name] = score.fit(training_of_member)
        members.append(fitted)
    return Detector(members, fitted_on)


def check_linear(logits: Tensor, features: Tensor, weight: Floats, bias: Floats) -> None:
    """Raise InputError where logits ``[B, classes]`` are not the given linear function of features ``[B, D]``."""
    expected = _in_float64(features) @ weight.T + bias
    actual = _in_float64(logits)
    share = _TOLERANCES.get(logits.dtype, _COARSE_TOLERANCE)
    largest_logit = np.abs(actual).max()
    tolerance = share * max(1.0, largest_logit)
    largest_error = np.abs(expected - actual).max()
    if largest_error > tolerance:
        raise InputError(
            "the logits of this model are no linear function of the features that enter its last layer",
            hint=_ON_LOGITS,
        )
