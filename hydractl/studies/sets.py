"""The data of a study, all of them opened and held against each other before its first step."""

from __future__ import annotations

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
from hydractl.model.matching import check_labels, named_by_data
from hydractl.model.source import Source
from hydractl.settings.studying import StudySettings
from hydractl.studies.rows import DEFAULT, NEED_LABELS

HALVES = 2
"""Parts of the validation data: one for the search, one to choose by."""

_FEW = 20
"""Samples that a hint lists."""

_APART = "give --data, --val, --ood-val, --test and each --ood samples of their own"


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
        """A line for every set that is not what it was when the study was begun, by the fingerprints of then."""
        there = before if isinstance(before, Mapping) else {}
        return [
            f"{option}: other samples or labels than when the study was begun"
            for option, fingerprint in self.fingerprints.items()
            if there.get(option) != fingerprint
        ]

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
        return self.choosing if self.train is None else [self.train, *self.choosing]

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
    changed: dict[str, Any] = {
        "val": _val_of_halves(settings, sets, notes),
        "ood_val": _ood_val_of_halves(settings, sets),
    }
    _check_fit(settings)
    warnings = list(findings.warnings)
    if source.description.reads == "text" and settings.chooses_by_made_samples_alone():
        warnings.append(MADE_TEXTS)
    for given in sets.every:
        warnings += sample_doubts(given.dataset)
    for given in sets.choosing:
        doubt = trained_on_doubt(source.name, source.description.seen, given)
        warnings += [] if doubt is None else [doubt]
    fingerprints = {given.option: given.dataset.fingerprint() for given in sets.every}
    return StudySets(replace(settings, **changed), fingerprints, notes, warnings)


def _opened(settings: StudySettings, source: Source) -> _Sets:
    """Every set as it is given; of test data what ``--limit`` takes, as when they are tested on."""
    named = named_by_data(source, str(settings.val), None, "--val")
    reads = {source.name: source.description.reads}
    labels = named.description.labels or []
    few: dict[str, Any] = {"limit": settings.limit, "seed": settings.seed, "reads": reads}
    val = open_data(str(settings.val), option="--val", labels=labels, need_labels=True, reads=reads, seed=settings.seed)
    test = open_data(str(settings.test), option="--test", labels=labels, **few)
    check_labels(val, named)
    check_labels(test, named)
    sets = _Sets(GivenSet("--val", val), GivenSet("--test", test))
    if settings.data is not None:
        needed = _needs_labels(settings)
        how: dict[str, Any] = {"need_labels": needed, "ignore_labels": not needed, "seed": settings.seed}
        train = open_data(settings.data, labels=labels, reads=reads, **how)
        sets.train = GivenSet("--data", train)
    made = with_setting(str(settings.val), "ood=auto")
    given = [one for one in settings.ood_val_sets() if one.spec != made]
    for one in given:
        option = "--ood-val" if len(given) == 1 else f"--ood-val {one.name}"
        dataset = open_data(one.spec, option=option, ignore_labels=True, reads=reads, seed=settings.seed)
        sets.ood_val[one.name] = GivenSet(option, dataset)
    for one in map(parse_ood_set, settings.ood):
        option = f"--ood {one.name}"
        sets.ood.append(GivenSet(option, open_data(one.spec, option=option, ignore_labels=True, **few)))
    return sets


def _needs_labels(settings: StudySettings) -> bool:
    """Whether a row takes labelled training data; a Laplace approximation and OOD scores on features do without."""
    names = {*settings.rows, *(DEFAULT if "default" in settings.rows else ())}
    return bool(names & NEED_LABELS)


def _check_apart(sets: _Sets, source: Source, limit: int | None) -> None:
    """Refuse test samples that something is fitted to, or chosen by, in this study or in making the model.

    Raises:
        InputError: listing the pairs of sets.
    """
    found = compare_fitted(sets.fitted, sets.tested)
    seen = source.description.seen
    for given in sets.tested:
        count = int(marked(seen, given.dataset).sum())
        if count:
            by = who_saw(seen, given.dataset)
            found.problems.append(
                f"{count} of {len(given.dataset)} samples of {given.option} have been seen by {source.name} ({by})"
            )
    if found.problems:
        found.refuse(_way_out(sets, seen, limit))


def _way_out(sets: _Sets, seen: Sequence[Entry], limit: int | None) -> str:
    """The test sets without the samples they must not have, where these are few; a limit moves their places."""
    fitted = {digest for given in sets.fitted for digest in given.dataset.sample_fingerprints()}
    changed = []
    for given in sets.tested:
        by_model = marked(seen, given.dataset)
        digests = given.dataset.sample_fingerprints()
        shared = [place for place, digest in enumerate(digests) if digest in fitted or by_model[place]]
        if len(shared) > _FEW or limit is not None:
            return _APART
        if shared:
            option, _, name = given.option.partition(" ")
            spec = without_places(given.dataset.spec, shared)
            changed.append(f"{option} '{name}={spec}'" if name else f"{option} '{spec}'")
    return f"leave these samples out: {' '.join(changed)}"


def _compared(sets: _Sets) -> Findings:
    """Hold all pairs against each other of which a few samples may be in both.

    Training and validation data are no such pair: what they share is left out.

    Raises:
        InputError: listing the pairs that share most of their samples.
    """
    findings = compare_sets(sets.choosing)
    every = [findings, compare_sets(sets.tested)]
    if sets.train is not None:
        every += [compare_sets([one, sets.train]) for one in sets.ood_val.values()]
    merged = Findings(
        [warning for found in every for warning in found.warnings],
        [problem for found in every for problem in found.problems],
    )
    merged.refuse(_APART)
    return merged


# --- halves -----------------------------------------------------------------------------------------------------------


def _val_of_halves(settings: StudySettings, sets: _Sets, notes: list[str]) -> str:
    """The SPEC of ``--val`` without training data, and without what would be in both halves."""
    val, train = sets.val, sets.train
    known: set[str] = set()
    if train is not None:
        common = shared_samples(val, train)
        if 2 * common.of_first > len(val.dataset):
            raise InputError(str(common), hint="give a validation set of its own with --val")
        if common:
            known = set(train.dataset.sample_fingerprints())
            notes.append(f"{common}, and left out of --val")
    again = _repeated(val.dataset)
    if again:
        notes.append(f"{len(again)} samples of --val are in one half of it and again in the other, and left out there")
    digests = val.dataset.sample_fingerprints()
    gone = again | {place for place, digest in enumerate(digests) if digest in known}
    _check_halves(val, gone)
    return without_places(str(settings.val), gone)


def _ood_val_of_halves(settings: StudySettings, sets: _Sets) -> list[str]:
    """The texts of ``--ood-val`` without what would be in both halves."""
    texts = []
    for text, one in zip(settings.ood_val, settings.ood_val_sets(), strict=True):
        given = sets.ood_val.get(one.name)
        if given is None:  # made of --val
            texts.append(text)
            continue
        gone = _repeated(given.dataset)
        _check_halves(given, gone)
        texts.append(text.rstrip().removesuffix(one.spec) + without_places(one.spec, gone))
    return texts


def _repeated(dataset: Dataset) -> set[int]:
    """Places of the samples of one half that are in the other half too, which has the first of them."""
    half: dict[str, int] = {}
    gone = set()
    for place, digest in enumerate(dataset.sample_fingerprints()):
        if half.setdefault(digest, place % HALVES) != place % HALVES:
            gone.add(place)
    return gone


def _check_halves(given: GivenSet, gone: set[int]) -> None:
    """Refuse a set one of whose halves is empty."""
    left = set(range(len(given.dataset))) - gone
    if len({place % HALVES for place in left}) < HALVES:
        raise InputError(
            f"{given.option} is divided into halves, and one of them is empty: it has {len(left)} samples",
            hint=f"give more samples with {given.option.partition(' ')[0]}",
        )


# --- training data ----------------------------------------------------------------------------------------------------


def fit_spec(settings: StudySettings) -> tuple[str, int] | None:
    """Return the SPEC of the samples that OOD scores on features are fitted to, and how many; None without.

    Without training data it is the half of the validation data that the search has.
    """
    if not settings.fit_samples:
        return None
    if settings.data is None:
        half = with_setting(str(settings.val), "part=1/2")
        return half, len(open_data(half, ignore_labels=True, limit=settings.limit))
    samples = len(open_data(settings.data, ignore_labels=True))
    every = -(-samples // settings.fit_samples)
    spec = settings.data if every == 1 else with_setting(settings.data, f"part=1/{every}")
    count = -(-samples // every)
    return spec, count if settings.limit is None else min(count, settings.limit)


def _check_fit(settings: StudySettings) -> None:
    """Refuse training samples that no covariance can be taken of.

    Raises:
        UsageError: they are too few.
    """
    found = fit_spec(settings)
    if found is None:
        return
    dataset = open_data(found[0], ignore_labels=True, limit=settings.limit, seed=settings.seed)
    labels = dataset.labels
    most = len(dataset) if labels is None else int(np.unique(labels, return_counts=True)[1].max())
    if most < 2:
        source = "--val" if settings.data is None else "--data"
        raise UsageError(
            f"OOD scores on features would be fitted to {len(dataset)} samples of {source}, no two of one class",
            hint="raise --limit or --fit-samples, or leave these scores out with --fit-samples 0",
        )
