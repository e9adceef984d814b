"""OOD scores on the features of a model: read the features, fit scores for each member, store them in a checkpoint."""

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
from hydractl.files.model_records import ScoreDataRecord
from hydractl.metrics.feature_scores.layers import LayerSums, add_to_sums, empty_sums
from hydractl.metrics.feature_scores.scores import (
    FEATURE_SCORES,
    MemberTraining,
    Statistics,
    held_out_of,
    unit,
)
from hydractl.metrics.ood_scores import OF_LAYERS
from hydractl.metrics.probabilities import Floats
from hydractl.model.chain import Watch
from hydractl.model.laplace import Network, feature_means, has_posterior, heads_of
from hydractl.model.layers import LayerReader, widths_of_layers

FeatureClassifier = tuple[Floats, Floats]
"""A linear function from features to logits: weight ``[classes, D]`` and bias ``[classes]``, float64."""

DETECTOR_START = f"{BESIDE}ood."
"""The beginning of the names of tensors that hold the statistics of an OOD score."""

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""For each dtype of a model: how far W x + b may differ from the logits, as a share of the largest logit."""
_COARSE_TOLERANCE = 0.05
"""The same share for all dtypes with lower precision."""
_ON_LOGITS = "use an --ood-score on logits: msp, energy, ..."
_AGAIN = "write it again: calibrate --ood-score NAME --train SPEC -o F.st"


# --- features and classifier ------------------------------------------------------------------------------------------


class _InputHook:
    """A hook that stores the input of a module, in the thread that created the hook: others may run the same model.

    It does not use the module it is called with, because torch.export runs stand-ins of modules.

    Attributes:
        value: the first argument of the last call; None before the first call.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.value: Tensor | None = None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == self._thread:
            self.value = arguments[0]


def read_features(model: Network, inputs: Any, *, layers: bool = False) -> tuple[Tensor, list[Tensor]]:
    """Run a model, and return its logits and the features that enter the classifier of each member.

    For a zero-shot model the features are the normalised features of the samples. For a classifier that averages two
    linear layers they are the inputs of both layers, concatenated.

    Args:
        model: the model.
        inputs: a batch, as the model takes it.
        layers: whether to read what each block gives, too (:class:`hydractl.model.layers.LayerReader`).

    Returns:
        The logits ``[M, B, classes]``, and for each member its features ``[B, D]``; with ``layers`` what each block
        gives follows them, ``[B, D + sum of widths]``.
    """
    if not layers:
        return _logits_and_features(model, inputs, None)
    reader = LayerReader(model.chain_of_samples)
    logits, features = _logits_and_features(model, inputs, reader)

    # Put the vectors of the blocks behind the features of the classifier, in the dtype of the vectors (float32 or
    # float64): [B, D] and one [B, width] for each vector become [B, D + sum of widths].
    features_and_vectors = []
    for member, features_of_member in enumerate(features):
        vectors = reader.vectors(member)  # one or two for each block
        same_dtype = features_of_member.to(vectors[0].dtype)
        features_and_vectors.append(torch.cat([same_dtype, *vectors], dim=1))
    return logits, features_and_vectors


def _logits_and_features(model: Network, inputs: Any, watch: Watch | None) -> tuple[Tensor, list[Tensor]]:
    """Return the logits ``[M, B, classes]``, and for each member the features ``[B, D]`` that enter its classifier.

    ``watch`` is called after every block; None means nothing is called.
    """
    # A zero-shot model has two towers (encoders), one for samples and one for texts. Its features are what the tower of
    # samples gives.
    if len(model.chains) > 1:
        outputs = model.tower_outputs(inputs, watch)
        features_of_samples = outputs[_tower_of_samples(model)]
        means = feature_means(model, features_of_samples)  # [M, B, D]
        return model.logits(outputs), list(means)

    # A classifier: put a hook on each of its last linear layers that stores their input, and run the model. Most
    # members have one such layer, some have two. The stack removes all hooks when the block ends.
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
        logits = model.logits(model.tower_outputs(inputs, watch))

    # Concatenate the inputs of each member's layers: one [B, D] for each member.
    features = []
    for hooks in hooks_of_members:
        inputs_of_heads = []
        for hook in hooks:
            assert hook.value is not None
            inputs_of_heads.append(hook.value)
        features.append(torch.cat(inputs_of_heads, dim=-1))
    return logits, features


def _tower_of_samples(model: Network) -> int:
    """Return the index of the tower that reads samples among the towers of a model."""
    index: int = model.chains.index(model.chain_of_samples)
    return index


def ensemble_features(models: Sequence[Network], inputs: Any, *, layers: bool = False) -> tuple[Tensor, list[Tensor]]:
    """Return logits ``[M, B, classes]`` and, for each member, features ``[B, D]`` of all members of several models.

    They are those of :func:`read_features`, the members of the first model first.
    """
    logits = []
    features = []
    for model in models:
        logits_of_model, features_of_model = read_features(model, inputs, layers=layers)
        logits.append(logits_of_model)
        features += features_of_model
    return torch.cat(logits), features


def classifiers(model: Network) -> Iterator[FeatureClassifier]:
    """Yield for each member the linear classifier that takes the features of :func:`read_features`.

    It is a weight ``[classes, D]`` and a bias ``[classes]`` in float64, so that logits = weight @ features + bias.
    """
    # A classifier ends in one linear layer, or in several that are averaged: then it takes their inputs concatenated.
    if len(model.chains) == 1:
        for heads in heads_of(model, _ON_LOGITS):
            weight = torch.cat([head.weight for head in heads], dim=1) / len(heads)  # [classes, sum of widths]
            bias = weight.new_zeros(len(weight))
            for head in heads:
                if head.bias is not None:
                    bias = bias + head.bias
            bias = bias / len(heads)
            yield _in_float64(weight), _in_float64(bias)
        return
    # A zero-shot model compares samples with the features of its classes. The logits of a sample with features x are
    # weight @ x + bias, but each family computes them in its own way. So weight and bias are read off from the logits
    # of special samples: x = 0 gives the bias, and the unit vector i gives the bias plus column i of the weight.
    label_features = model.label_features()
    classes_of_members = feature_means(model, label_features)  # [M, classes, D]
    for network, classes in zip(model.networks, classes_of_members, strict=True):
        # The special samples: D unit vectors, then 0, as the last row of this matrix lies below the diagonal.
        width = classes.shape[1]
        samples = torch.eye(width + 1, width, device=classes.device, dtype=classes.dtype)  # [D + 1, D]

        # The family expects the outputs of the two towers in the order of the towers.
        outputs = [samples, classes] if _tower_of_samples(model) == 0 else [classes, samples]
        logits = model.family.logits(network, outputs)  # [D + 1, classes]

        # Read off the bias, and without it the columns of the weight.
        bias = logits[-1]
        logits_of_unit_vectors = logits[:-1]  # [D, classes]
        weight = (logits_of_unit_vectors - bias).T  # [classes, D]
        yield _in_float64(weight), _in_float64(bias)


def _in_float64(values: Tensor) -> Floats:
    """Return a tensor as a float64 array on the CPU."""
    return values.detach().cpu().double().numpy()


# --- fitting and scoring ----------------------------------------------------------------------------------------------


@dataclass
class Detector:
    """OOD scores on features, fitted for every member.

    Attributes:
        members: for each member the statistics of each score, by the name of the score.
        fitted_on: the training data and the words; None if the scores needed none.
    """

    members: Sequence[Mapping[str, Statistics]]
    fitted_on: ScoreDataRecord | None = None

    @property
    def names(self) -> list[str]:
        """The names of the scores."""
        return list(self.members[0])

    @property
    def takes_layers(self) -> bool:
        """Whether a score takes what each block gives (``layers`` of :func:`read_features`)."""
        fitted_of_member = self.members[0]
        return any(array in fitted_of_member.get(name, ()) for name, array in OF_LAYERS.items())

    @property
    def constant(self) -> list[str]:
        """The names of the scores that are the same for every sample, because the training data told them nothing."""
        constant = []
        for name in self.names:
            is_constant = ["constant" in fitted[name] for fitted in self.members]
            if all(is_constant):
                constant.append(name)
        return constant

    def scores(self, logits: Tensor, features: Sequence[Tensor]) -> dict[str, Floats]:
        """Return each score of the samples by name, float64 ``[M, B]``.

        Args:
            logits: ``[M, B, classes]``, see :func:`read_features`.
            features: for each member ``[B, D]``; those of all layers if the detector takes them.

        Raises:
            InputError: if the statistics of a score do not fit the model.
        """
        scores: dict[str, Floats] = {}
        # The statistics come from a file. If some are missing or have other shapes, then looking them up or computing
        # with them fails somewhere in this block, and the error says that the file does not fit.
        try:
            for name in self.names:
                scores[name] = np.empty(logits.shape[:2])  # [M, B], filled below
            for member, fitted_of_member in enumerate(self.members):
                # The first D columns are what enters the classifier; what the blocks give follows, if it was read.
                all_layers = _in_float64(features[member])  # [B, D], or [B, D + sum of widths]
                width = _width_of_features(fitted_of_member, all_layers.shape[1])  # D
                features_of_member = all_layers[:, :width]  # [B, D]
                logits_of_member = _in_float64(logits[member])  # [B, classes]
                for name, fitted in fitted_of_member.items():
                    columns = all_layers if name in OF_LAYERS else features_of_member
                    scores[name][member] = FEATURE_SCORES[name].score(fitted, columns, logits_of_member)
        except (LookupError, ValueError):
            raise InputError("what the OOD score was fitted to does not fit the model", hint=_AGAIN) from None
        return scores

    def with_scores(self, other: Detector) -> Detector:
        """Return a detector with the scores of this one and of another one for the same members.

        Its record of the training data is that of one of the two; of two records, entries of the other one win.
        """
        pairs = zip(self.members, other.members, strict=True)
        members = [{**fitted, **other_fitted} for fitted, other_fitted in pairs]
        fitted_on = self.fitted_on or other.fitted_on
        if fitted_on is not None and other.fitted_on is not None:
            fitted_on = fitted_on.model_copy(update=other.fitted_on.to_dict())
        return Detector(members, fitted_on)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the statistics of one score under their names in a checkpoint; float32 if that is lossless."""
        tensors = {}
        for member, fitted in enumerate(self.members):
            for part, values in fitted[name].items():
                tensors[f"{DETECTOR_START}{member}.{part}"] = narrowed(values)
        return tensors


def _width_of_features(fitted: Mapping[str, Statistics], width: int) -> int:
    """Return how many of the columns that a member's scores get are its features; others follow from its blocks.

    Args:
        fitted: the statistics of each score of the member.
        width: the number of columns.
    """
    for name, array in OF_LAYERS.items():
        if array in fitted.get(name, ()):
            return len(fitted[name][array])
    return width


def narrowed(values: Floats) -> Tensor:
    """Return an array as a tensor, in float32 if that is lossless, else in float64."""
    exact = torch.from_numpy(values)
    narrow = exact.float()
    lossless = torch.equal(narrow.double(), exact)
    return narrow if lossless else exact


def stored_detector(score: str, document: Any, tensors: FileTensors, members: int) -> Detector:
    """Return the fitted OOD score that a checkpoint stores beside the weights, with its statistics for each member.

    Args:
        score: the name of the score; a checkpoint stores one.
        document: what the description in the header says about the score.
        tensors: the file.
        members: the number of members of the model.

    Raises:
        InputError: if the statistics of a member are missing, or the record of the training data is broken.
    """
    # The statistics of each member are tensors with names such as ``PREFIX.0.mean``.
    broken = f"the checkpoint holds a broken OOD score {score!r}"
    fitted_members = []
    for member in range(members):
        prefix = f"{DETECTOR_START}{member}."
        statistics = {}
        for name in tensors.header.tensors:
            if name.startswith(prefix):
                part = name.removeprefix(prefix)
                statistics[part] = _in_float64(tensors.read(name))
        if not statistics:
            raise InputError(broken, hint=_AGAIN)
        fitted_members.append({score: statistics})

    # The record of the training data, which scores such as ash have not.
    entry = document.get("fitted_on") if isinstance(document, Mapping) else None
    fitted_on = ScoreDataRecord.checked(entry, broken, _AGAIN) if entry else None
    return Detector(fitted_members, fitted_on)


@dataclass(eq=False)
class MemberFeatures:
    """What the training data give for one member, a batch after another: ``B`` samples in each.

    Attributes:
        weight, bias: its classifier, ``[classes, D]`` and ``[classes]``.
        features: for each batch float32 ``[B, D]``, after an empty one that gives the shape where there are no batches.
        highest: for each batch the highest logit of each sample, float64 ``[B]``, likewise.
        layers: the sums of its layers; empty if they were not asked for.
        held_out: for each batch what its layers give for the samples that ``hedge`` holds out, float32 ``[n, sum of
            widths]``; empty if they were not asked for.
    """

    weight: Floats
    bias: Floats
    features: list[npt.NDArray[np.float32]]
    highest: list[Floats]
    layers: Sequence[LayerSums] = ()
    held_out: list[npt.NDArray[np.float32]] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingFeatures:
    """The features and logits of training data, from which scores are fitted.

    Attributes:
        rows: the indices of the samples in the data, in the order of the batches.
        members: what they give for each member.
    """

    rows: list[int]
    members: Sequence[MemberFeatures]

    @property
    def nbytes(self) -> int:
        """The bytes that features, classifiers and sums take."""
        taken = 0
        for member in self.members:
            arrays: list[npt.NDArray[Any]] = [member.weight, member.bias, *member.features, *member.highest]
            arrays += member.held_out
            taken += sum(array.nbytes for array in arrays)
            taken += sum(sums.nbytes for sums in member.layers)
        return taken


def read_training(
    models: Sequence[Network],
    batches: Iterable[tuple[Sequence[int], Any]],
    labels: npt.NDArray[np.int64] | None,
    *,
    holds_out: bool = False,
) -> TrainingFeatures:
    """Run the training data once, and keep the features that enter each classifier and the highest logits.

    Args:
        models: the models whose members make up the ensemble.
        batches: the training data, each batch as the indices of its samples and their inputs.
        labels: the labels of all samples, ``[N]``; they ask for sums of what each block gives. None: without.
        holds_out: whether what each block gives is kept of the samples that ``hedge`` holds out.

    Raises:
        InputError: if logits are no linear function of the features, or sums need too much memory.
    """
    members: list[MemberFeatures] = []
    for model in models:
        for weight, bias in classifiers(model):
            no_features = np.zeros((0, weight.shape[1]), dtype=np.float32)
            members.append(MemberFeatures(weight, bias, [no_features], [np.zeros(0)]))
    is_held_out = None
    if labels is not None:
        for member, sums in zip(members, _empty_sums(models, members), strict=True):
            member.layers = sums
        if holds_out:
            is_held_out = held_out_of(len(labels))

    # The first batch is enough to check that logits are linear in the features. With a posterior they are not, because
    # it divides them by deviations.
    is_to_be_checked = not any(has_posterior(model) for model in models)
    rows: list[int] = []
    for rows_of_batch, inputs in batches:
        rows += rows_of_batch
        logits_of_members, features_of_members = ensemble_features(models, inputs, layers=labels is not None)
        for member, logits, of_layers in zip(members, logits_of_members, features_of_members, strict=True):
            features = of_layers[:, : member.weight.shape[1]]  # [B, D]; what the blocks give follows, if it was read
            if is_to_be_checked:
                check_linear(logits, features, member.weight, member.bias)
            member.features.append(features.float().cpu().numpy())
            member.highest.append(_in_float64(logits.max(dim=1).values))
            if labels is not None:
                add_to_sums(member.layers, _in_float64(of_layers), labels[rows_of_batch])
            if is_held_out is not None:
                member.held_out.append(of_layers.float().cpu().numpy()[is_held_out[rows_of_batch]])
        is_to_be_checked = False
    return TrainingFeatures(rows, members)


def _empty_sums(models: Sequence[Network], members: Sequence[MemberFeatures]) -> list[list[LayerSums]]:
    """Return sums that are still zero, for each layer of each member: its features, then what each block gives.

    Args:
        models: the models; each has one member or several.
        members: the members of all models, in their order, with their classifiers.

    Raises:
        InputError: from :func:`empty_sums`, if the sums need too much memory.
    """
    # For each member the widths of what its blocks give. All members of a model have the same.
    widths_of_blocks: list[list[int]] = []
    for model in models:
        chain = model.chain_of_samples
        widths_of_tokens = [model.sites[site].d_model for site in chain.sites]
        widths_of_model = widths_of_layers(chain, widths_of_tokens)
        widths_of_blocks += [widths_of_model] * model.members

    # Before them the width of the features that its classifier takes.
    widths = []
    for member, widths_of_member in zip(members, widths_of_blocks, strict=True):
        width_of_features = member.weight.shape[1]
        widths.append([width_of_features, *widths_of_member])
    return empty_sums(widths, classes=len(members[0].weight))


def fit_detector(
    names: Sequence[str],
    models: Sequence[Network],
    read: TrainingFeatures,
    labels: Any,
    neighbours: int,
    fitted_on: ScoreDataRecord | None,
    words: Sequence[str] = (),
) -> Detector:
    """Return a detector: OOD scores that are fitted for every member to the features and logits of training data.

    Args:
        names: the names of the scores.
        models: the models whose members make up the ensemble.
        read: the result of :func:`read_training`; it may be empty if no score needs samples.
        labels: ``[N]``, the labels of all samples of the data, or None.
        neighbours: the number of neighbours of ``knn``.
        fitted_on: the record of the training data and the words; None for none.
        words: the words for ``neglabel``.

    Raises:
        InputError: if there are too few data.
    """
    # The features of the words, for each member (None without words).
    texts_of_members: list[Floats | None] = []
    for model in models:
        texts_of_members += _texts_of_words(model, words)

    # The labels of the samples that were read, and whether the score `hedge` holds each out; None without labels.
    labels_of_rows = None if labels is None else labels[read.rows]
    held_out = None if labels is None else held_out_of(len(labels))[read.rows]

    # Fit each score to what it needs of the training data as the member sees them.
    fitted_members = []
    for member, texts in zip(read.members, texts_of_members, strict=True):
        training = MemberTraining(
            features=np.concatenate(member.features, dtype=np.float64),
            labels=labels_of_rows,
            highest=np.concatenate(member.highest),
            weight=member.weight,
            bias=member.bias,
            neighbours=neighbours,
            words=texts,
            layers=member.layers,
            held_out=held_out,
            layers_held_out=np.concatenate(member.held_out, dtype=np.float64) if member.held_out else None,
        )
        fitted_members.append({name: FEATURE_SCORES[name].fit(training) for name in names})
    return Detector(fitted_members, fitted_on)


def _texts_of_words(model: Network, words: Sequence[str]) -> list[Floats | None]:
    """Return for each member the features ``[W, D]`` of words in the prompts of its classes, scaled to length 1.

    Words that name a class are left out. Without words, return None for each member.

    Raises:
        InputError: if every word names a class.
    """
    if not words:
        return [None] * len(model.networks)

    # Treat the remaining words as the classes of a zero-shot model, whose classifier then holds their features.
    prompted = model.prompted
    class_names = {folded_name(label) for label in prompted.labels}
    others = [word for word in words if folded_name(word) not in class_names]
    if not others:
        raise InputError("every word of --negative-words names a class", hint="give words for what no class is")
    as_classes = model.zero_shot(others, prompted.templates)
    return [unit(weight) for weight, _ in classifiers(as_classes)]


def check_linear(logits: Tensor, features: Tensor, weight: Floats, bias: Floats) -> None:
    """Check that logits ``[B, classes]`` are ``W x + b`` of the features x ``[B, D]``, up to rounding.

    The largest error may be a share of the largest logit, or of 1 if all logits are smaller: in float32, with the
    largest logit 20, the share 1e-3 allows an error of 0.02.

    Args:
        logits, features: what the model computed.
        weight: W, ``[classes, D]``.
        bias: b, ``[classes]``.

    Raises:
        InputError: if an error is larger.
    """
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
