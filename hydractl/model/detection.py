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
from hydractl.metrics.feature_scores import FEATURE_SCORES, Statistics, Training
from hydractl.metrics.probabilities import Floats
from hydractl.model.laplace import Network, has_posterior, heads_of, means

# How far W x + b may be from the logits, as a share of the largest one: rounding of the format the model runs in.
_AGREE = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE = 0.05
_ON_LOGITS = "use an --ood-score on logits: msp, energy, ..."
_AGAIN = "write it again: eval --ood-score NAME --fit SPEC --calibrated F.st"


# --- features and classifier ------------------------------------------------------------------------------------------


class _Inputs:
    """A hook that keeps what enters modules, in the thread that made it: other threads may run the same model."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.of: dict[nn.Module, Tensor] = {}

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == self._thread:
            self.of[module] = arguments[0]


def read_features(model: Network, inputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the logits ``[M, B, classes]``, and of each member the features ``[B, D]`` that enter its classifier.

    For a zero-shot model these are the normalised features of the samples; for a classifier that averages two linear
    layers, the inputs of both side by side.
    """
    if len(model.chains) > 1:
        outputs = [model.label_features() if chain.of_labels else chain(inputs) for chain in model.chains]
        (of_samples,) = (out for chain, out in zip(model.chains, outputs, strict=True) if not chain.of_labels)
        return model.logits(outputs), list(means(model, of_samples))
    heads, kept = heads_of(model, _ON_LOGITS), _Inputs()
    with ExitStack() as stack:
        for head in (head for own in heads for head in own):
            stack.callback(head.register_forward_pre_hook(kept).remove)
        logits = model.logits([model.chains[0](inputs)])
    return logits, [torch.cat([kept.of[head] for head in own], dim=-1) for own in heads]


def readout(model: Network, inputs: Any) -> list[Tensor]:
    """Return the features ``[B, D]`` of each member, as :func:`read_features`; of a body too, without class names."""
    if len(model.chains) > 1 or not model.classes:
        return list(means(model, model.chain_of_samples(inputs)))
    return read_features(model, inputs)[1]


def ensemble_features(models: Sequence[Network], inputs: Any) -> tuple[Tensor, list[Tensor]]:
    """Return logits and features as :func:`read_features`, for the members of all models."""
    found = [read_features(model, inputs) for model in models]
    return torch.cat([logits for logits, _ in found]), [own for _, each in found for own in each]


def classifiers(model: Network) -> Iterator[tuple[Floats, Floats]]:
    """Yield weight ``[classes, D]`` and bias ``[classes]`` of each member's classifier of such features, as float64."""
    if len(model.chains) == 1:
        for own in heads_of(model, _ON_LOGITS):
            weight = torch.cat([head.weight for head in own], dim=1) / len(own)
            bias = sum((_bias(head) for head in own), torch.zeros(())) / len(own)
            yield _numbers(weight), _numbers(bias)
        return
    labels = means(model, model.label_features())
    place = next(index for index, chain in enumerate(model.chains) if not chain.of_labels)
    for network, classes in zip(model.networks, labels, strict=True):
        ends = torch.eye(classes.shape[1] + 1, classes.shape[1], device=classes.device, dtype=classes.dtype)
        outputs = [classes, ends] if place else [ends, classes]
        logits = model.family.logits(network, outputs)  # of every unit vector, and of 0
        yield _numbers((logits[:-1] - logits[-1]).T), _numbers(logits[-1])


def _bias(head: nn.Linear) -> Tensor:
    return head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias


def _numbers(values: Tensor) -> Floats:
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
        return [name for name in self.names if all("constant" in fitted[name] for fitted in self.members)]

    def scores(self, logits: Tensor, features: Sequence[Tensor]) -> dict[str, Floats]:
        """Return the scores of samples ``[M, B]`` by name, float64, from what :func:`read_features` gives.

        Raises:
            InputError: what a score was fitted to does not fit the model.
        """
        each = [(fitted, _numbers(x), _numbers(z)) for fitted, x, z in zip(self.members, features, logits, strict=True)]
        try:
            return {
                name: np.stack([FEATURE_SCORES[name].score(fitted[name], x, z) for fitted, x, z in each])
                for name in self.names
            }
        except (LookupError, ValueError):  # parts that are missing, or of other shapes
            raise InputError("what the OOD score was fitted to does not fit the model", hint=_AGAIN) from None

    def with_scores(self, other: Detector) -> Detector:
        """Return a detector with the scores of another one of the same members too."""
        members = [{**one, **more} for one, more in zip(self.members, other.members, strict=True)]
        return Detector(members, self.fitted_on)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what one score was fitted to, by the names of a checkpoint; float32 where that loses nothing."""
        found = {}
        for member, fitted in enumerate(self.members):
            for part, values in fitted[name].items():
                tensor, short = torch.from_numpy(values), torch.from_numpy(values).float()
                found[f"{BESIDE}ood.{member}.{part}"] = short if torch.equal(short.double(), tensor) else tensor
        return found


def stored_detector(score: str, document: Any, tensors: FileTensors, members: int) -> Detector:
    """Read the detector that a checkpoint holds.

    Raises:
        InputError: it is not whole.
    """
    found = []
    for member in range(members):
        start = f"{BESIDE}ood.{member}."
        own = [name for name in tensors.header.tensors if name.startswith(start)]
        found.append({score: {name.removeprefix(start): _numbers(tensors.read(name)) for name in own}})
    if not all(one[score] for one in found):
        raise InputError(f"the checkpoint holds a broken OOD score {score!r}", hint=_AGAIN)
    fitted_on = document.get("fitted_on") if isinstance(document, Mapping) else None
    return Detector(found, fitted_on if isinstance(fitted_on, Mapping) else {})


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
    linear = [classifier for model in models for classifier in classifiers(model)]
    divided = any(map(has_posterior, models))  # logits, by deviations that are no linear function of features
    rows: list[int] = []
    features: list[list[npt.NDArray[np.float32]]] = [[] for _ in linear]
    highest: list[list[Floats]] = [[] for _ in linear]
    for part, inputs in batches:
        rows += part
        for member, (logits, own) in enumerate(zip(*ensemble_features(models, inputs), strict=True)):
            if len(rows) == len(part) and not divided:
                check_linear(logits, own, *linear[member])
            features[member].append(own.float().cpu().numpy())
            highest[member].append(_numbers(logits.max(dim=1).values))
    every = [
        np.concatenate(parts) if parts else _no_features(weight)
        for parts, (weight, _) in zip(features, linear, strict=True)
    ]
    tops = [np.concatenate(parts) if parts else np.zeros(0) for parts in highest]
    return TrainingFeatures(np.asarray(rows, dtype=np.int64), every, tops)


def _no_features(weight: Floats) -> npt.NDArray[np.float32]:
    return np.zeros((0, weight.shape[1]), dtype=np.float32)


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
        read: what :func:`read_training` found; of no sample where no score needs them.
        labels: ``[N]`` of all rows, or None.
        neighbours: k of ``knn``.
        fitted_on: what to say of the data.

    Raises:
        InputError: the data are too few.
    """
    linear = [classifier for model in models for classifier in classifiers(model)]
    known = None if labels is None else labels[read.rows]
    training = []
    for (weight, bias), features, top in zip(linear, read.features, read.highest, strict=True):
        training.append(Training(features.astype(np.float64), known, top, weight, bias, neighbours))
    return detector_of(names, training, fitted_on)


def detector_of(names: Sequence[str], training: Sequence[Training], fitted_on: Mapping[str, Any]) -> Detector:
    """Fit scores to what each member makes of the training data, as :func:`fit_detector` reads it."""
    return Detector([{name: FEATURE_SCORES[name].fit(data) for name in names} for data in training], fitted_on)


def check_linear(logits: Tensor, features: Tensor, weight: Floats, bias: Floats) -> None:
    """Raise InputError where logits ``[B, classes]`` are not the given linear function of features ``[B, D]``."""
    found = _numbers(features) @ weight.T + bias
    known = _numbers(logits)
    if np.abs(found - known).max() > _AGREE.get(logits.dtype, _COARSE) * max(1.0, np.abs(known).max()):
        raise InputError(
            "the logits of this model are no linear function of the features that enter its last layer",
            hint=_ON_LOGITS,
        )
