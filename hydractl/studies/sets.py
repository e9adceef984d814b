"""The data of a study, all of them opened and held against each other before its first step."""

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
"""Parts of the validation data: one for the search, one to choose by."""

_FEW = 20
"""Samples that a hint lists."""

_APART = "give --train, --val, --ood-val, --test and each --ood samples of their own"


@dataclass(frozen=True)
class StudySets:
    """What is known of the data of a study.

    Attributes:
        settings: of the study, its validation data without the samples that may not count in both halves.
        fingerprints: of all sets, by their options.
        notes: what was left out.
        warnings: what is odd about the data.
    """

    settings: StudySettings
    fingerprints: Mapping[str, str]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def changes(self, before: Any) -> list[str]:
        """Return a line for every set that is not what it was at the beginning, by the fingerprints of then."""
        fingerprints_before = before if isinstance(before, Mapping) else {}
        lines = []
        for option, fingerprint in self.fingerprints.items():
            if fingerprints_before.get(option) != fingerprint:
                lines.append(f"{option}: other samples or labels than when the study was begun")
        return lines

    def tell(self, log: Log) -> None:
        """Say what was left out and what is odd."""
        for note in self.notes:
            log.info(note)
        for warning in self.warnings:
            log.warn(warning)


@dataclass
class _Sets:
    """The sets of a study by their roles."""

    val: GivenSet
    test: GivenSet
    train: GivenSet | None = None
    ood_val: dict[str, GivenSet] = field(default_factory=dict)
    ood: list[GivenSet] = field(default_factory=list)

    @property
    def choosing(self) -> list[GivenSet]:
        return [self.val, *self.ood_val.values()]

    @property
    def fitted(self) -> list[GivenSet]:
        if self.train is None:
            return self.choosing
        return [self.train, *self.choosing]

    @property
    def tested(self) -> list[GivenSet]:
        return [self.test, *self.ood]

    @property
    def every(self) -> list[GivenSet]:
        return [*self.fitted, *self.tested]


MADE_TEXTS = (
    "--ood-val auto makes OOD texts of the words of --val, which no score may tell from it: then nothing can be "
    "chosen; sentences of another domain, without a file: --ood-val builtin:docstrings"
)


def study_sets(settings: StudySettings, source: Source) -> StudySets:
    """Open all data of a study and hold them against each other.

    Raises:
        InputError: sets that do not fit the model, that share samples they must not, or are too small.
        UsageError: a SPEC or a setting that makes no sense.
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
    fingerprints = {given_set.option: given_set.dataset.fingerprint() for given_set in sets.every}
    return StudySets(replace(settings, val=val, ood_val=ood_val), fingerprints, notes, warnings)


def _opened(settings: StudySettings, source: Source) -> _Sets:
    """Open every set as it is given; of test data what ``--limit`` takes, as when they are tested on."""
    named = named_by_data(source, str(settings.val), None, "--val")
    reads = {source.name: source.description.reads}
    labels = named.description.labels or []
    seed = settings.seed
    limit = settings.limit
    val = open_data(str(settings.val), option="--val", labels=labels, need_labels=True, reads=reads, seed=seed)
    test = open_data(str(settings.test), option="--test", labels=labels, limit=limit, reads=reads, seed=seed)
    check_labels_are_classes(val, named)
    check_labels_are_classes(test, named)
    sets = _Sets(GivenSet("--val", val), GivenSet("--test", test))
    if settings.train is not None:
        needed = _needs_labels(settings)
        train = open_data(
            settings.train, labels=labels, need_labels=needed, ignore_labels=not needed, reads=reads, seed=seed
        )
        sets.train = GivenSet("--train", train)
    made_of_val = with_setting(str(settings.val), "ood=auto")
    ood_val_sets = [ood_set for ood_set in settings.ood_val_sets() if ood_set.spec != made_of_val]
    for ood_set in ood_val_sets:
        option = "--ood-val" if len(ood_val_sets) == 1 else f"--ood-val {ood_set.name}"
        dataset = open_data(ood_set.spec, option=option, ignore_labels=True, reads=reads, seed=seed)
        sets.ood_val[ood_set.name] = GivenSet(option, dataset)
    for ood_set in map(parse_ood_set, settings.ood):
        option = f"--ood {ood_set.name}"
        dataset = open_data(ood_set.spec, option=option, ignore_labels=True, limit=limit, reads=reads, seed=seed)
        sets.ood.append(GivenSet(option, dataset))
    return sets


def _needs_labels(settings: StudySettings) -> bool:
    """Return whether a row takes labelled training data.

    A Laplace approximation and OOD scores on features do without.
    """
    names = set(settings.rows)
    if "default" in names:
        names.update(DEFAULT)
    return bool(names & NEED_LABELS)


def _check_apart(sets: _Sets, source: Source, limit: int | None) -> None:
    """Refuse test samples that something is fitted to, or chosen by, in this study or in making the model.

    Raises:
        InputError: listing the pairs of sets.
    """
    findings = compare_fitted(sets.fitted, sets.tested)
    seen = source.description.seen
    for given_set in sets.tested:
        count = int(marked(seen, given_set.dataset).sum())
        if count:
            by = who_saw(seen, given_set.dataset)
            findings.problems.append(
                f"{count} of {len(given_set.dataset)} samples of {given_set.option} have been seen by {source.name} "
                f"({by})"
            )
    if findings.problems:
        findings.refuse(_way_out(sets, seen, limit))


def _way_out(sets: _Sets, seen: Sequence[Entry], limit: int | None) -> str:
    """Return the test sets without the samples they must not have, where these are few; a limit moves their places."""
    if limit is not None:
        return _APART
    fitted: set[str] = set()
    for given_set in sets.fitted:
        fitted.update(given_set.dataset.sample_fingerprints())
    changed = []
    for given_set in sets.tested:
        by_model = marked(seen, given_set.dataset)
        digests = given_set.dataset.sample_fingerprints()
        shared = []
        for place, digest in enumerate(digests):
            if digest in fitted or by_model[place]:
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
    """Hold all pairs against each other of which a few samples may be in both.

    Training and validation data are no such pair: what they share is left out.

    Raises:
        InputError: listing the pairs that share most of their samples.
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
    """Return the SPEC of ``--val`` without training data, and without what would be in both halves."""
    val = sets.val
    train = sets.train
    training_digests: set[str] = set()
    if train is not None:
        shared = shared_samples(val, train)
        if 2 * shared.of_first > len(val.dataset):
            raise InputError(str(shared), hint="give a validation set of its own with --val")
        if shared:
            training_digests = set(train.dataset.sample_fingerprints())
            notes.append(f"{shared}, and left out of --val")
    gone = _repeated(val.dataset)
    if gone:
        notes.append(f"{len(gone)} samples of --val are in one half of it and again in the other, and left out there")
    for place, digest in enumerate(val.dataset.sample_fingerprints()):
        if digest in training_digests:
            gone.add(place)
    _check_halves(val, gone)
    return without_places(str(settings.val), gone)


def _ood_val_of_halves(settings: StudySettings, sets: _Sets) -> list[str]:
    """Return the texts of ``--ood-val`` without what would be in both halves."""
    texts = []
    for text, ood_set in zip(settings.ood_val, settings.ood_val_sets(), strict=True):
        given_set = sets.ood_val.get(ood_set.name)
        if given_set is None:  # made of --val
            texts.append(text)
            continue
        gone = _repeated(given_set.dataset)
        _check_halves(given_set, gone)
        name = text.rstrip().removesuffix(ood_set.spec)
        texts.append(name + without_places(ood_set.spec, gone))
    return texts


def _repeated(dataset: Dataset) -> set[int]:
    """Return places of the samples of one half that are in the other half too, which has the first of them."""
    half_of_first: dict[str, int] = {}
    repeated = set()
    for place, digest in enumerate(dataset.sample_fingerprints()):
        half = place % HALVES
        if half_of_first.setdefault(digest, half) != half:
            repeated.add(place)
    return repeated


def _check_halves(given_set: GivenSet, gone: set[int]) -> None:
    """Refuse a set one of whose halves is empty."""
    left = set(range(len(given_set.dataset))) - gone
    halves = {place % HALVES for place in left}
    if len(halves) < HALVES:
        raise InputError(
            f"{given_set.option} is divided into halves, and one of them is empty: it has {len(left)} samples",
            hint=f"give more samples with {given_set.option.partition(' ')[0]}",
        )


# --- training data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FitSamples:
    """The samples that OOD scores on features are fitted to: their SPEC, and how many they are."""

    spec: str
    count: int


def fit_spec(settings: StudySettings) -> FitSamples | None:
    """Return the samples that OOD scores on features are fitted to; None without.

    Without training data it is the half of the validation data that the search has.
    """
    if not settings.fit_samples:
        return None
    if settings.train is None:
        half = with_setting(str(settings.val), "part=1/2")
        return FitSamples(half, len(open_data(half, ignore_labels=True, limit=settings.limit)))
    samples = len(open_data(settings.train, ignore_labels=True))
    stride = math.ceil(samples / settings.fit_samples)
    count = math.ceil(samples / stride)
    if settings.limit is not None:
        count = min(count, settings.limit)
    if stride == 1:
        return FitSamples(settings.train, count)
    return FitSamples(with_setting(settings.train, f"part=1/{stride}"), count)


def _check_fit(settings: StudySettings) -> None:
    """Refuse training samples that no covariance can be taken of.

    Raises:
        UsageError: they are too few.
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
        source = "--val" if settings.train is None else "--train"
        raise UsageError(
            f"OOD scores on features would be fitted to {len(dataset)} samples of {source}, no two of one class",
            hint="raise --limit or --fit-samples, or leave these scores out with --fit-samples 0",
        )
