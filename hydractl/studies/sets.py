"""The data of a study: all data sets are opened and compared with each other before the first step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hydractl.data import open_data
from hydractl.data.base import Dataset, first_ids
from hydractl.data.overlap import (
    Findings,
    GivenSet,
    compare_fitted,
    compare_sets,
    left_out_words,
    trained_on_warning,
    without_training_data,
)
from hydractl.data.part import DatasetPart, places_left_out, without_places
from hydractl.data.plausibility import sample_warnings
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import AUTO, DataSpec
from hydractl.files.fingerprints import incomparable, marked, who_saw
from hydractl.log import Log
from hydractl.metrics.calibrators import check_enough_to_fit
from hydractl.metrics.ood_scores import LAYERS
from hydractl.metrics.threshold import stored_score
from hydractl.model.layers import layers_may_not_fit
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.source import Source
from hydractl.studies.request import StudyRequest
from hydractl.studies.rows import asked_for

HALVES = 2
"""The validation data are divided into two parts: one for the search, one to choose rows and scores by."""

_MOST_MEMBERS = 4
"""The most members that a row of a study has: the whole model and three circuits."""

_APART = "give --train, --val, --ood-val, --test and each --ood samples of their own"


@dataclass(frozen=True)
class FittedSet(GivenSet):
    """A set that something is fitted to or chosen by, without the samples that cannot be read.

    Attributes:
        spec: the SPEC that it was opened by.
        left_out: the places of samples that the SPEC leaves out, or that cannot be read. Places count all samples, as
            the parts of a SPEC do.
        places: the place of each sample, [N], rising.
    """

    spec: DataSpec
    left_out: set[int]
    places: Sequence[int]

    def without(self, places: set[int]) -> DataSpec:
        """Return the SPEC of these samples without those at some places."""
        text = without_places(self.spec.text, self.left_out | places)
        return DataSpec.of_option(self.spec.option, text, self.spec.held)


@dataclass(frozen=True)
class FitSamples:
    """The samples that OOD scores on features are fitted to.

    Attributes:
        spec: the samples.
        count: the number of samples.
    """

    spec: DataSpec
    count: int


@dataclass
class StudySets:
    """The data of a study after all checks.

    Attributes:
        request: what is asked of the study; its training and validation data lack the samples that cannot be read, its
            validation data those that would be in both halves, too.
        val, test, train: the ID (in-distribution) sets; ``train`` is None without training data.
        ood_val: the OOD validation sets by name, without those that are made from ``val``.
        ood: the OOD test sets.
        warnings: sentences on what is odd about the data.
        fit: the samples that OOD scores on features are fitted to; None to leave these scores out.
        layers_fit: whether there is memory for the scores of all layers, in every row.
    """

    request: StudyRequest
    val: FittedSet
    test: GivenSet
    train: FittedSet | None
    ood_val: dict[str, FittedSet]
    ood: list[GivenSet]
    warnings: list[str]
    fit: FitSamples | None = None
    layers_fit: bool = True

    @property
    def choosing(self) -> list[FittedSet]:
        """The validation sets, ID and OOD."""
        return [self.val, *self.ood_val.values()]

    @property
    def halves(self) -> list[int]:
        """The number of samples in half of each set that rows are chosen by, at most ``--limit``, the ID set first.

        An OOD set that is made of ``val`` has as many samples as ``val``, e.g. [500, 300, 500] with ``val`` of 1000
        samples, an OOD file of 600, and one set that is made; [400, 300, 400] with ``--limit 400``.
        """
        # The sets of the choice are val and the OOD validation sets. Those that were not opened are made of val.
        made_of_val = len(self.request.choosing_sets()) - len(self.ood_val)
        sizes = [len(given_set.dataset) for given_set in [*self.choosing, *[self.val] * made_of_val]]
        limit = self.request.limit or max(sizes)
        return [min(size // HALVES, limit) for size in sizes]

    @property
    def fitted(self) -> list[FittedSet]:
        """The sets that something is fitted to or chosen by: the training and validation sets."""
        return self.choosing if self.train is None else [self.train, *self.choosing]

    @property
    def tested(self) -> list[GivenSet]:
        """The test sets, ID and OOD."""
        return [self.test, *self.ood]

    @property
    def every(self) -> list[GivenSet]:
        """All sets."""
        return [*self.fitted, *self.tested]


MADE_TEXTS = (
    "--ood-val auto makes OOD texts of the words of --val, which no score may tell from it: then nothing can be "
    "chosen; sentences of another domain, without a file: --ood-val builtin:docstrings"
)


def _set_aside(source: Source) -> str | None:
    """Return a sentence on what ``calibrate`` has stored in the studied model, which the study does not use.

    None if it has stored nothing: no calibration, OOD score, threshold or prediction sets.
    """
    stored = source.description.extra
    names_by_key = {
        "calibration": "a calibration",
        "ood_score": f"the OOD score {stored_score(stored)}",
        "threshold": "a threshold",
        "conformal": "prediction sets",
    }
    chosen = [name for key, name in names_by_key.items() if key in stored]
    if not chosen:
        return None
    return (
        f"{source.name} holds {', '.join(chosen)}, which the study sets aside: its single model has MSP and no "
        "temperature, and best.st gets a temperature, a score and a threshold of its own (prediction sets: hydractl "
        "calibrate --conformal)"
    )


def study_sets(request: StudyRequest, source: Source, log: Log) -> StudySets:
    """Return the opened data of a study, checked against each other and without repeated samples.

    Training and validation sets may hold no test sample. The result has warnings for what is odd and may pass.

    Args:
        request: what is asked of the study.
        source: the studied model.
        log: receives which samples are left out, and the warnings.

    Raises:
        InputError: data sets do not fit the model, share samples that they must not share, or are too small.
        UsageError: a SPEC or a setting is wrong.
    """
    # Refuse data that cannot be right. Leave training samples, and samples of both halves, out of the validation data.
    # The order matters: comparisons need the opened sets, and the last step changes the request.
    sets = _open_sets(request, source)
    overlaps = _check_apart(sets, source)
    _leave_out_repeats(sets, log)
    request = sets.request
    sets.fit = _samples_to_fit_to(sets)

    # Collect warnings: what the study does not use of the model, and data that are odd. Some are None for nothing odd.
    warnings = [_set_aside(source), *sets.warnings, *overlaps]
    older = incomparable(source.description.seen)
    if older is not None:
        warnings.append(f"{source.name}: {older}")
    if source.description.reads == "text" and request.chooses_by_made_samples_alone():
        warnings.append(MADE_TEXTS)
    for given_set in sets.every:
        warnings += sample_warnings(given_set.dataset)
    for given_set in sets.choosing:
        warnings.append(trained_on_warning(source.name, source.description.seen, given_set))

    # Check that there is memory for scores of all layers, in the row with the most members.
    sets.layers_fit = not layers_may_not_fit([named_by_data(source, request.val, None)] * _MOST_MEMBERS)
    if sets.fit is not None and not sets.layers_fit:
        warnings.append(f"{LAYERS} is left out: its sums over all layers may need too much memory")
    sets.warnings = [warning for warning in warnings if warning is not None]
    log.warn_all(sets.warnings)
    return sets


def _open_sets(request: StudyRequest, source: Source) -> StudySets:
    """Return every data set that the request names, opened, with a warning for each that has unreadable samples.

    All samples are read. What cannot be read is left out of training and validation sets; of test sets (which
    ``--limit`` may shorten) it is left out by each command that reads them.

    The ID sets must have the classes of the model; a zero-shot model without class names gets those of ``--val``.

    Raises:
        InputError: there are such samples, and ``--on-bad`` is ``error``; it names them.
    """
    named_source = named_by_data(source, request.val, None)
    reads = {source.name: source.description.reads}
    labels = named_source.description.labels or []
    seed = request.seed
    limit = request.limit
    unreadable = []  # a sentence for each set with such samples; opened() appends to it

    def opened(spec: DataSpec, **how: Any) -> Dataset:
        """Return an opened set whose samples were all read; add a sentence to ``unreadable`` if some cannot be."""
        dataset = open_data(spec, reads=reads, seed=seed, on_bad="skip", **how)
        dataset.sample_fingerprints()  # reads every sample; only then is "skipped" known
        if dataset.skipped:
            ids = [dataset.ids[index] for index in sorted(dataset.skipped)]
            listed = first_ids(ids, len(ids))
            unreadable.append(f"{len(ids)} of {len(dataset)} {dataset.kind}s of {spec.option} cannot be read: {listed}")
        return dataset

    def fitted(option: str, spec: DataSpec, **how: Any) -> FittedSet:
        """Return a training or validation set without the samples that cannot be read."""
        dataset = opened(spec, **how)
        left_out = places_left_out(spec)
        places = [place for place in range(len(dataset) + len(left_out)) if place not in left_out]
        if dataset.skipped:
            left_out.update(places[index] for index in dataset.skipped)
            readable = [index for index in range(len(dataset)) if index not in dataset.skipped]
            dataset = DatasetPart(dataset, dataset.spec, readable)
            places = [places[index] for index in readable]
        return FittedSet(option, dataset, spec, left_out, places)

    # Open the ID sets: validation and test data, and training data if there are any.
    val = fitted("--val", request.val, labels=labels, need_labels=True)
    test = GivenSet("--test", opened(request.test, labels=labels, limit=limit))
    for id_set in (val, test):
        check_labels_are_classes(id_set.dataset, named_source)
    train = None
    if request.train is not None:
        # A Laplace approximation, and OOD scores on features, use training data without labels.
        kinds = asked_for(request.rows).values()
        need_labels = any(kind.needs_training_data and kind.needs_labels for kind in kinds)
        how = {"labels": labels, "need_labels": need_labels, "ignore_labels": not need_labels}
        train = fitted("--train", request.train, **how)

    # Open the OOD validation sets, except those that are made from the validation data. Of several, each is named by
    # its own option in messages; one alone is "--ood-val".
    made_of_val = (AUTO, request.made_of_val.text)
    given_ood_val = [ood_set for ood_set in request.ood_val if ood_set.spec.text not in made_of_val]
    ood_val = {}
    for ood_set in given_ood_val:
        option = ood_set.spec.option if len(given_ood_val) > 1 else "--ood-val"
        ood_val[ood_set.name] = fitted(option, ood_set.spec.under(option), ignore_labels=True)

    # Open the OOD test sets.
    ood = []
    for ood_set in request.ood:
        dataset = opened(ood_set.spec, ignore_labels=True, limit=limit)
        ood.append(GivenSet(ood_set.spec.option, dataset))

    # Raise for all unreadable samples together, or go on with warnings. Without any, nothing is raised.
    if request.on_bad == "error":
        Findings(problems=unreadable).refuse("--on-bad skip leaves such samples out")
    return StudySets(request, val, test, train, ood_val, ood, warnings=unreadable)


def _check_apart(sets: StudySets, source: Source) -> list[str]:
    """Return a warning for each pair of sets that share a few samples, where that may be; raise where it may not.

    No test sample may be a training or validation sample of this study, or have been seen by the model: figures on such
    samples would be too good. A few common samples may have two validation sets, two test sets, and training data with
    an OOD validation set. Training data with ID validation data are not compared here, because their common samples are
    left out later.

    Args:
        sets: the data sets of the study.
        source: the studied model; its description lists the samples that it has seen.

    Raises:
        InputError: it has a line for each pair of sets that share samples which they may not, or most of their samples,
            and for each test set of which the model has seen samples.
    """
    # Test samples that the study itself trains on or chooses by: a list of problems, one for each pair of sets.
    findings = compare_fitted(sets.fitted, sets.tested)

    # Test samples that the model has seen before this study, e.g. in its training: one more problem for each test set.
    seen_by_model = source.description.seen
    for test_set in sets.tested:
        dataset = test_set.dataset
        is_seen = marked(seen_by_model, dataset)  # a bool for each sample, [N]
        count = int(is_seen.sum())
        if count:
            findings.problems.append(
                f"{count} of {len(dataset)} samples of {test_set.option} have been seen by {source.name} "
                f"({who_saw(seen_by_model, dataset)})"
            )

    # Pairs of sets that may share a few samples.
    groups: list[Sequence[GivenSet]] = [sets.choosing, sets.tested]
    if sets.train is not None:
        groups += [[ood_val, sets.train] for ood_val in sets.ood_val.values()]
    for group in groups:
        compared = compare_sets(group)
        findings.warnings += compared.warnings
        findings.problems += compared.problems
    findings.refuse(_APART)  # raises if there are problems
    return findings.warnings


# --- halves -----------------------------------------------------------------------------------------------------------


def _leave_out_repeats(sets: StudySets, log: Log) -> None:
    """Leave out repeated validation samples: those of both halves, and of ``--val`` those of the training data, too.

    Validation data are divided into two halves: one for the search of heads, and one to choose models by. The samples,
    and those that cannot be read, are left out of the SPECs in ``sets.request``, so that every step of the study leaves
    them out; the log gets sentences on them.

    Raises:
        InputError: more than half of ``--val`` are training samples, a half becomes empty, or temperatures cannot be
            fitted to the second half.
    """
    request = sets.request
    val = sets.val
    train_spec = None

    # Samples of --val that are training samples, too: how many, and an error if they are more than half of it.
    training_digests: Sequence[str] = ()
    shared_with_train = 0
    if sets.train is not None:
        remaining, shared_with_train = without_training_data(val.dataset, sets.train.dataset)
        if shared_with_train:
            log.info(left_out_words(remaining, shared_with_train))
        training_digests = sets.train.dataset.sample_fingerprints()
        train_spec = sets.train.without(set())

    # Samples of --val that are in both halves, or in the training data.
    repeated = _repeated_places(val, training_digests)
    in_both_halves = len(repeated) - shared_with_train
    if in_both_halves:
        log.info(f"{in_both_halves} samples of --val are in one half of it and again in the other, and left out there")

    # What remains must be enough to fit temperatures to, which takes the second half: the samples at odd places.
    labels = val.dataset.labels
    assert labels is not None  # --val needs labels
    second_half = [index for index, place in enumerate(val.places) if place % HALVES and place not in repeated]
    check_enough_to_fit(labels[second_half], "the second half of --val")

    # Samples in both halves of an OOD validation set. A set that is made from --val was not opened, and stays as it is.
    ood_val = []
    for ood_set in request.ood_val:
        given_set = sets.ood_val.get(ood_set.name)
        if given_set is not None:
            ood_set = ood_set.with_spec(given_set.without(_repeated_places(given_set)))
        ood_val.append(ood_set)
    sets.request = replace(request, val=val.without(repeated), train=train_spec, ood_val=ood_val)


def _repeated_places(given_set: FittedSet, elsewhere: Sequence[str] = ()) -> set[int]:
    """Return the places of samples that also occur earlier, in the other half, or elsewhere; empty without any.

    Samples at even places are one half, those at odd places the other. The half of the first occurrence keeps the
    sample: of the samples a, b, c, a (places 0 to 3) the last one is repeated, of a, b, a none is.

    Args:
        given_set: the data set.
        elsewhere: the digests of samples that neither half may have.

    Raises:
        InputError: a half has no sample left.
    """
    # By the digest of each sample met so far the half that keeps it, 0 or 1; -1 for samples that neither half may have.
    neither = -1
    half_that_keeps = dict.fromkeys(elsewhere, neither)
    repeated = set()
    halves_left = set()  # the halves that keep any sample
    for place, digest in zip(given_set.places, given_set.dataset.sample_fingerprints(), strict=True):
        half = place % HALVES
        keeper = half_that_keeps.setdefault(digest, half)  # this half if the digest is new, else that of its first
        if half == keeper:
            halves_left.add(half)
        else:
            repeated.add(place)
    if len(halves_left) < HALVES:
        flag, _, _ = given_set.option.partition(" ")
        count = len(given_set.places) - len(repeated)
        raise InputError(
            f"{given_set.option} is divided into halves, and one of them is empty: it has {count} samples",
            hint=f"give more samples with {flag}",
        )
    return repeated


# --- training data ----------------------------------------------------------------------------------------------------


def _samples_to_fit_to(sets: StudySets) -> FitSamples | None:
    """Return the samples that OOD scores on features are fitted to; None if ``--fit-samples`` is 0.

    These are at most ``--fit-samples`` training samples, evenly spaced. Without training data, they are the half of the
    validation data that the search uses. ``--limit`` reduces either of them.

    Raises:
        UsageError: they give no covariance within a class, because no two of them have the same class. Samples without
            labels count as one class.
    """
    request = sets.request
    if not request.fit_samples:
        return None

    # The samples: half of the validation data, or every n-th training sample.
    if sets.train is None or request.train is None:
        spec = request.val.with_setting("part=1/2")
    else:
        # The smallest n that gives at most --fit-samples: of 10,000 samples and 4,000 to fit, n = ceil(2.5) = 3.
        spec = request.train
        every_nth = math.ceil(len(sets.train.dataset) / request.fit_samples)
        if every_nth > 1:
            spec = spec.with_setting(f"part=1/{every_nth}")

    # A covariance within classes needs at least two samples of one class.
    dataset = open_data(spec, ignore_labels=True, limit=request.limit, seed=request.seed)
    largest_class = len(dataset)
    if dataset.labels is not None:
        _, counts = np.unique(dataset.labels, return_counts=True)
        largest_class = int(counts.max())
    if largest_class < 2:
        raise UsageError(
            f"OOD scores on features would be fitted to {len(dataset)} samples of {spec.option}, no two of one class",
            hint="raise --limit or --fit-samples, or leave these scores out with --fit-samples 0",
        )
    return FitSamples(spec, count=len(dataset))
