"""The data of a study: all sets are opened and compared with each other before its first step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.overlap import Findings, GivenSet, compare_fitted, compare_sets, shared_samples, trained_on_doubt
from hydractl.data.part import without_places
from hydractl.data.plausibility import sample_doubts
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import parse_ood_set, with_setting
from hydractl.files.fingerprints import Entry, marked, who_saw
from hydractl.log import Log
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.source import Source
from hydractl.settings.studying import StudySettings
from hydractl.studies.rows import DEFAULT, NEED_LABELS

HALVES = 2
"""The validation data are divided into this many parts: one for the search, one to choose by."""

_FEW = 20
"""The largest number of samples of a set that a hint lists."""

_APART = "give --train, --val, --ood-val, --test and each --ood samples of their own"


@dataclass(frozen=True)
class StudySets:
    """The data of a study after all checks.

    Attributes:
        settings: the settings of the study; their validation data lack the samples that would be in both halves.
        fingerprints: the fingerprint of each set, by its option.
        notes: sentences on samples that were left out.
        warnings: sentences on what is odd about the data.
    """

    settings: StudySettings
    fingerprints: Mapping[str, str]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def changes(self, before: Any) -> list[str]:
        """Return a line for every set that has changed since the study was begun.

        Args:
            before: the fingerprints of that time, as read from a file; anything but a mapping counts as none.
        """
        fingerprints_before: Mapping[str, object] = {}
        if isinstance(before, Mapping):
            fingerprints_before = before
        lines = []
        for option, fingerprint in self.fingerprints.items():
            if fingerprints_before.get(option) != fingerprint:
                lines.append(f"{option}: other samples or labels than when the study was begun")
        return lines

    def tell(self, log: Log) -> None:
        """Log the notes and the warnings."""
        for note in self.notes:
            log.info(note)
        for warning in self.warnings:
            log.warn(warning)


@dataclass
class _Sets:
    """The sets of a study by their roles.

    Attributes:
        val, test, train: the ID sets; ``train`` is None without training data.
        ood_val: the OOD validation sets by name, without those that are made from ``val``.
        ood: the OOD test sets.
    """

    val: GivenSet
    test: GivenSet
    train: GivenSet | None = None
    ood_val: dict[str, GivenSet] = field(default_factory=dict)
    ood: list[GivenSet] = field(default_factory=list)

    @property
    def choosing(self) -> list[GivenSet]:
        """The validation sets, ID and OOD."""
        sets = [self.val]
        sets += self.ood_val.values()
        return sets

    @property
    def fitted(self) -> list[GivenSet]:
        """The sets that something is fitted to or chosen by: training and validation sets."""
        if self.train is None:
            return self.choosing
        return [self.train, *self.choosing]

    @property
    def tested(self) -> list[GivenSet]:
        """The test sets, ID and OOD."""
        return [self.test, *self.ood]

    @property
    def every(self) -> list[GivenSet]:
        """All sets."""
        return self.fitted + self.tested


MADE_TEXTS = (
    "--ood-val auto makes OOD texts of the words of --val, which no score may tell from it: then nothing can be "
    "chosen; sentences of another domain, without a file: --ood-val builtin:docstrings"
)


def study_sets(settings: StudySettings, source: Source) -> StudySets:
    """Open all data of a study and compare them with each other.

    Raises:
        InputError: sets do not fit the model, share samples that they must not share, or are too small.
        UsageError: a SPEC or a setting makes no sense.
    """
    sets = _opened(settings, source)
    _check_apart(sets, source, settings.limit)
    findings = _compared(sets)
    notes: list[str] = []
    val = _val_of_halves(settings, sets, notes)
    ood_val = _ood_val_of_halves(settings, sets)
    _check_fit(settings)

    warnings = list(findings.warnings)
    if source.description.reads == "text" and settings.chooses_by_made_samples_alone():
        warnings.append(MADE_TEXTS)
    for given_set in sets.every:
        warnings += sample_doubts(given_set.dataset)
    for given_set in sets.choosing:
        doubt = trained_on_doubt(source.name, source.description.seen, given_set)
        if doubt is not None:
            warnings.append(doubt)

    fingerprints = {}
    for given_set in sets.every:
        fingerprints[given_set.option] = given_set.dataset.fingerprint()
    settings_without_repeats = replace(settings, val=val, ood_val=ood_val)
    return StudySets(settings_without_repeats, fingerprints, notes, warnings)


def _opened(settings: StudySettings, source: Source) -> _Sets:
    """Open every set as the settings give it; of test data only the part that ``--limit`` leaves for the tests."""
    named = named_by_data(source, str(settings.val), None, "--val")
    reads = {source.name: source.description.reads}
    labels = named.description.labels or []
    seed = settings.seed
    limit = settings.limit

    # ID sets
    val = open_data(str(settings.val), option="--val", labels=labels, need_labels=True, reads=reads, seed=seed)
    test = open_data(str(settings.test), option="--test", labels=labels, limit=limit, reads=reads, seed=seed)
    check_labels_are_classes(val, named)
    check_labels_are_classes(test, named)
    sets = _Sets(GivenSet("--val", val), GivenSet("--test", test))
    if settings.train is not None:
        need_labels = _needs_labels(settings)
        train = open_data(
            settings.train,
            labels=labels,
            need_labels=need_labels,
            ignore_labels=not need_labels,
            reads=reads,
            seed=seed,
        )
        sets.train = GivenSet("--train", train)

    # OOD sets, except those that are made from the validation data
    made_of_val = with_setting(str(settings.val), "ood=auto")
    ood_val_sets = [ood_set for ood_set in settings.ood_val_sets() if ood_set.spec != made_of_val]
    for ood_set in ood_val_sets:
        option = f"--ood-val {ood_set.name}"
        if len(ood_val_sets) == 1:
            option = "--ood-val"
        dataset = open_data(ood_set.spec, option=option, ignore_labels=True, reads=reads, seed=seed)
        sets.ood_val[ood_set.name] = GivenSet(option, dataset)
    for text in settings.ood:
        ood_set = parse_ood_set(text)
        option = f"--ood {ood_set.name}"
        dataset = open_data(ood_set.spec, option=option, ignore_labels=True, limit=limit, reads=reads, seed=seed)
        sets.ood.append(GivenSet(option, dataset))
    return sets


def _needs_labels(settings: StudySettings) -> bool:
    """Return whether any row needs labels of the training data.

    A Laplace approximation and OOD scores on features take training data without labels.
    """
    names = set(settings.rows)
    if "default" in names:
        names.update(DEFAULT)
    rows_with_labels = names & NEED_LABELS
    return bool(rows_with_labels)


def _check_apart(sets: _Sets, source: Source, limit: int | None) -> None:
    """Refuse test samples that anything was fitted to or chosen by, in this study or when the model was made.

    Raises:
        InputError: there are some; it lists the pairs of sets.
    """
    findings = compare_fitted(sets.fitted, sets.tested)
    seen = source.description.seen
    for given_set in sets.tested:
        dataset = given_set.dataset
        seen_by_model = marked(seen, dataset)
        count = int(seen_by_model.sum())
        if count:
            findings.problems.append(
                f"{count} of {len(dataset)} samples of {given_set.option} have been seen by {source.name} "
                f"({who_saw(seen, dataset)})"
            )
    if findings.problems:
        findings.refuse(_way_out(sets, seen, limit))


def _way_out(sets: _Sets, seen: Sequence[Entry], limit: int | None) -> str:
    """Return the hint for samples that test sets must not have.

    If they are few, it gives the SPECs of the test sets without them. With ``--limit`` it cannot, because the places of
    samples in a limited set are not those in the whole one.
    """
    if limit is not None:
        return _APART
    fitted: set[str] = set()
    for given_set in sets.fitted:
        fitted.update(given_set.dataset.sample_fingerprints())

    changed = []
    for given_set in sets.tested:
        seen_by_model = marked(seen, given_set.dataset)
        digests = given_set.dataset.sample_fingerprints()
        shared = []
        for place, digest in enumerate(digests):
            if digest in fitted or seen_by_model[place]:
                shared.append(place)
        if len(shared) > _FEW:
            return _APART
        if shared:
            option, _, name = given_set.option.partition(" ")
            value = without_places(given_set.dataset.spec, shared)
            if name:
                value = f"{name}={value}"
            changed.append(f"{option} '{value}'")
    return f"leave these samples out: {' '.join(changed)}"


def _compared(sets: _Sets) -> Findings:
    """Compare all pairs of sets that may share a few samples.

    Training and ID validation data are no such pair, because the samples that they share are left out.

    Raises:
        InputError: sets share most of their samples; it lists the pairs.
    """
    compared = [compare_sets(sets.choosing), compare_sets(sets.tested)]
    if sets.train is not None:
        for ood_val in sets.ood_val.values():
            compared.append(compare_sets([ood_val, sets.train]))
    merged = Findings()
    for findings in compared:
        merged.warnings += findings.warnings
        merged.problems += findings.problems
    merged.refuse(_APART)
    return merged


# --- halves -----------------------------------------------------------------------------------------------------------


def _val_of_halves(settings: StudySettings, sets: _Sets, notes: list[str]) -> str:
    """Return the SPEC of ``--val`` without training samples and without samples that would be in both halves.

    Args:
        notes: gets a sentence for each of the two kinds of samples that were left out.

    Raises:
        InputError: more than half of the validation samples are training samples, or a half is left empty.
    """
    val = sets.val
    train = sets.train

    # Samples of the training data.
    training_digests: set[str] = set()
    if train is not None:
        shared = shared_samples(val, train)
        if 2 * shared.of_first > len(val.dataset):
            raise InputError(str(shared), hint="give a validation set of its own with --val")
        if shared:
            training_digests = set(train.dataset.sample_fingerprints())
            notes.append(f"{shared}, and left out of --val")

    # Samples of both halves.
    gone = _repeated(val.dataset)
    if gone:
        notes.append(f"{len(gone)} samples of --val are in one half of it and again in the other, and left out there")

    for place, digest in enumerate(val.dataset.sample_fingerprints()):
        if digest in training_digests:
            gone.add(place)
    _check_halves(val, gone)
    return without_places(str(settings.val), gone)


def _ood_val_of_halves(settings: StudySettings, sets: _Sets) -> list[str]:
    """Return the texts of ``--ood-val`` without samples that would be in both halves."""
    texts = []
    for text, ood_set in zip(settings.ood_val, settings.ood_val_sets(), strict=True):
        given_set = sets.ood_val.get(ood_set.name)
        if given_set is None:  # made of --val
            texts.append(text)
            continue
        gone = _repeated(given_set.dataset)
        _check_halves(given_set, gone)
        name_and_equals = text.rstrip().removesuffix(ood_set.spec)
        spec = without_places(ood_set.spec, gone)
        texts.append(name_and_equals + spec)
    return texts


def _repeated(dataset: Dataset) -> set[int]:
    """Return the places of samples that occur earlier in the other half; the half of the first occurrence keeps it."""
    half_of_first: dict[str, int] = {}
    repeated = set()
    for place, digest in enumerate(dataset.sample_fingerprints()):
        half = place % HALVES
        if digest not in half_of_first:
            half_of_first[digest] = half
        if half_of_first[digest] != half:
            repeated.add(place)
    return repeated


def _check_halves(given_set: GivenSet, gone: set[int]) -> None:
    """Check that both halves of a set have samples when those at some places are gone.

    Raises:
        InputError: a half is empty.
    """
    all_places = set(range(len(given_set.dataset)))
    left = all_places - gone
    halves = {place % HALVES for place in left}
    if len(halves) < HALVES:
        flag, _, _ = given_set.option.partition(" ")
        raise InputError(
            f"{given_set.option} is divided into halves, and one of them is empty: it has {len(left)} samples",
            hint=f"give more samples with {flag}",
        )


# --- training data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FitSamples:
    """The samples that OOD scores on features are fitted to.

    Attributes:
        spec: the SPEC of the samples.
        count: the number of samples.
    """

    spec: str
    count: int


def fit_spec(settings: StudySettings) -> FitSamples | None:
    """Return the samples that OOD scores on features are fitted to; None if there are to be none.

    They are every n-th training sample, so that about ``--fit-samples`` are taken. Without training data they are the
    half of the validation data that the search has.
    """
    if not settings.fit_samples:
        return None
    if settings.train is None:
        half = with_setting(str(settings.val), "part=1/2")
        half_set = open_data(half, ignore_labels=True, limit=settings.limit)
        return FitSamples(half, len(half_set))

    training_set = open_data(settings.train, ignore_labels=True)
    samples = len(training_set)
    stride = math.ceil(samples / settings.fit_samples)
    count = math.ceil(samples / stride)
    if settings.limit is not None:
        count = min(count, settings.limit)
    spec = settings.train
    if stride > 1:
        spec = with_setting(spec, f"part=1/{stride}")
    return FitSamples(spec, count)


def _check_fit(settings: StudySettings) -> None:
    """Refuse samples for OOD scores on features that no covariance within a class can be computed from.

    Raises:
        UsageError: no two of them are of one class.
    """
    fit = fit_spec(settings)
    if fit is None:
        return
    dataset = open_data(fit.spec, ignore_labels=True, limit=settings.limit, seed=settings.seed)
    largest_class = len(dataset)
    if dataset.labels is not None:
        _, counts = np.unique(dataset.labels, return_counts=True)
        largest_class = int(counts.max())
    if largest_class < 2:
        source = "--train"
        if settings.train is None:
            source = "--val"
        raise UsageError(
            f"OOD scores on features would be fitted to {len(dataset)} samples of {source}, no two of one class",
            hint="raise --limit or --fit-samples, or leave these scores out with --fit-samples 0",
        )
