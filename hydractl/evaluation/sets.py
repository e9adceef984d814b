"""The data sets of one evaluation, each with a role: sets for testing, and sets for fitting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from hydractl.data import open_data
from hydractl.data.base import Dataset, skipped_document
from hydractl.data.corrupted import CorruptedImages
from hydractl.data.overlap import Findings, GivenSet, compare_sets, left_out_words, without_training_data
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.errors import InputError
from hydractl.evaluation.options import EvalOptions
from hydractl.expressions.data_sets import AUTO
from hydractl.files.fingerprints import Entry, entry, incomparable, marked, other_decoder, who_saw
from hydractl.files.model_records import DataSetRecord
from hydractl.files.predictions_header import PredictedSetRecord, SetGroup, SetRole
from hydractl.jsonio import Document
from hydractl.log import Log
from hydractl.model.matching import check_labels_are_classes, label_differences

ID, OOD, VAL, OOD_VAL, CORRUPTION, TRAIN = "id", "ood", "val", "ood_val", "corruption", "train"


@dataclass(frozen=True)
class EvalSet:
    """One data set of a command, or of a predictions file.

    Attributes:
        name: ``id``, ``val``, the name of an OOD set, or ``CORRUPTION/SEVERITY``.
        role: ``id``, ``ood``, ``val``, ``ood_val``, ``corruption``, or ``train``, which is neither measured nor kept.
        group: the group of an OOD set, ``near`` or ``far``; None for all others.
        ids: the id of each sample.
        labels: the labels, int64 ``[N]``; None if the set is unlabelled, or its labels are not used.
        known_fingerprint: the fingerprint of the samples, their order and their labels, if only predictions for them
            are available.
        seen: the number of its samples that the model of a predictions file had seen before.
        spec: the SPEC from which it was opened.
        dataset: the samples; None if only predictions for them are available.
        left_out: the number of samples that were removed from a validation set because they are also training data.
    """

    name: str
    role: str
    group: str | None
    ids: Sequence[str]
    labels: npt.NDArray[np.int64] | None
    known_fingerprint: str = ""
    seen: int = 0
    spec: str = ""
    dataset: Dataset | None = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of samples, their order and labels; samples that were not read yet are read for it."""
        if self.dataset is None:
            return self.known_fingerprint
        return self.dataset.fingerprint()

    def option_and_spec(self) -> str:
        """Return the option with which the user gave the set, and its SPEC, for messages, e.g. ``--test test.npz``.

        A set of stored predictions has no SPEC of its own, because each row of a command may come from another file.
        """
        option = option_of(self)
        if self.dataset is None:
            return option
        return f"{option} {self.spec}".rstrip()

    def record(self) -> DataSetRecord:
        """Return the record of the set under ``data`` in an answer."""
        return DataSetRecord(
            spec=self.spec,
            n=len(self),
            fingerprint=self.fingerprint,
            skipped=None if self.dataset is None else skipped_document(self.dataset),
            left_out=self.left_out or None,
        )

    def header(self) -> PredictedSetRecord:
        """Return the entry of this set in the header of a predictions file."""
        return PredictedSetRecord(
            name=self.name,
            role=cast("SetRole", self.role),
            group=cast("SetGroup | None", self.group),
            n=len(self.ids),
            fingerprint=self.fingerprint,
            labelled=self.labels is not None,
            seen=self.seen,
        )


class Classifier(Protocol):
    """The part of a ``LogitsProvider`` that opening data sets and the check for seen samples need."""

    name: str
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    seen: Sequence[Entry]

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets in a predictions file."""

    def already_seen(self, dataset: EvalSet) -> int:
        """Return how many samples of a set the model had seen when its predictions were stored; 0 if it runs now."""


def _eval_set(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    """Return an opened data set with a name and a role; OOD data get no labels, because their classes are others."""
    labels = None
    if role in (ID, VAL, CORRUPTION, TRAIN):
        labels = dataset.labels
    return EvalSet(
        name=name,
        role=role,
        group=group,
        ids=dataset.ids,
        labels=labels,
        spec=dataset.spec,
        dataset=dataset,
    )


def open_sets(options: EvalOptions, models: Sequence[Classifier], log: Log) -> list[EvalSet]:
    """Return all data sets of a command, opened: ID test set, OOD test sets, corrupted sets, validation, training data.

    Without ``--test`` all models are predictions files, and the test sets are those in the first file. Whether sets
    share samples is checked later, by :func:`check_apart` and :func:`seen_samples`.

    Args:
        options: the data options of the command.
        models: the models.
        log: is told of validation samples that are left out.

    Raises:
        UsageError, InputError: if a set cannot be opened or does not fit the models, or most validation samples are
            training data.
    """
    # Two functions that open a SPEC, the description of a data set on the command line: one for data with the models'
    # classes, one for OOD data, whose labels are ignored.
    labels = _class_names(models) or []
    label_map = _label_map(options.label_map)
    reads = {model.name: model.reads for model in models if model.reads is not None}
    open_any = partial(open_data, limit=options.limit, seed=options.seed, reads=reads, on_bad=options.on_bad)
    open_labelled = partial(open_any, labels=labels, label_map=label_map)
    open_outside = partial(open_any, ignore_labels=True)

    # The test sets, and corrupted copies of the ID set.
    sets: list[EvalSet] = []
    if options.test is not None:
        id_data = open_labelled(options.test)
        sets.append(_eval_set("id", ID, id_data))
        for ood_set in options.ood:
            sets.append(_eval_set(ood_set.name, OOD, open_outside(ood_set.spec), ood_set.group))
        for corruption, severity in itertools.product(options.corruptions, options.severities):
            corrupted_data = CorruptedImages(id_data, corruption, severity)
            sets.append(_eval_set(f"{corruption}/{severity}", CORRUPTION, corrupted_data))
    elif options.tests:
        sets += models[0].stored_sets()

    # The validation set is used without samples that are also training data: a score by nearest neighbours would find
    # such a sample itself, at distance 0.
    training = None if options.train is None else open_labelled(options.train)
    validation: Dataset | None = None
    if options.val is not None:
        validation = open_labelled(options.val, need_labels=options.needs_val_labels)
        left_out = 0
        if training is not None:
            validation, left_out = without_training_data(validation, training)
            if left_out:
                log.info(left_out_words(validation, left_out))
        sets.append(replace(_eval_set("val", VAL, validation), left_out=left_out))

    # OOD validation sets; `auto` makes one of the validation samples. Then the training data.
    for ood_set in options.ood_val:
        spec = ood_set.spec
        if spec.text == AUTO and validation is not None:
            outside: Dataset = PseudoOod(validation, AUTO, options.seed, spec.option)
        else:
            outside = open_outside(spec)
        sets.append(_eval_set(ood_set.name, OOD_VAL, outside))
    if training is not None:
        sets.append(_eval_set("train", TRAIN, training))

    for dataset in sets:
        check_labels_are_classes(dataset, models[0])
    return sets


def tested(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the ID and OOD test sets, without corrupted ones, in their order (ID first)."""
    tested_roles = (ID, OOD)
    return [dataset for dataset in sets if dataset.role in tested_roles]


def of_role(sets: Sequence[EvalSet], role: str) -> list[EvalSet]:
    """Return the sets with a role, e.g. ``val``."""
    return [dataset for dataset in sets if dataset.role == role]


def only(sets: Sequence[EvalSet], role: str) -> EvalSet | None:
    """Return the set with a role that one set has at most, e.g. ``train``; None if there is none."""
    return next(iter(of_role(sets, role)), None)


_OPTIONS = {ID: "--test", VAL: "--val", TRAIN: "--train"}


def option_of(dataset: EvalSet) -> str:
    """Return the option with which the user gave a data set, for messages, e.g. ``--ood NAME``."""
    if dataset.role in _OPTIONS:
        return _OPTIONS[dataset.role]
    flag = dataset.role.replace("_", "-")
    return f"--{flag} {dataset.name}"


def check_apart(sets: Sequence[EvalSet]) -> list[str]:
    """Return warnings of data sets that share many samples; raise an error if two share most of them.

    Shared samples are counted among the sets for fitting, and among the test sets. A test set that shares samples with
    a set for fitting is left to :func:`seen_samples`. Samples that were not read yet are read for it, so it is best
    done when the model has run on them.

    Args:
        sets: all data sets of the command; those without samples are left out.

    Returns:
        The warnings.

    Raises:
        InputError: with every pair of sets that shares too many samples.
    """
    problems: list[str] = []
    warnings: list[str] = []
    for compared_sets in (_fitted_sets(sets), tested(sets)):
        with_samples = [GivenSet(option_of(each), each.dataset) for each in compared_sets if each.dataset]
        overlap = compare_sets(with_samples)
        problems += overlap.problems
        warnings += overlap.warnings
    Findings(problems=problems).refuse()
    return warnings


def _label_map(document: Document | None) -> Mapping[str, str]:
    """Read the map from class names in the data to class names of the models; empty if there is no file.

    Raises:
        InputError: if the file is not a JSON object from text to text.
    """
    if document is None:
        return {}
    names = document.content
    is_map = isinstance(names, dict) and all(isinstance(value, str) for value in names.values())
    if not is_map:
        raise InputError(f"{document} is not a JSON object from name to name")
    return names


def _class_names(models: Sequence[Classifier]) -> Sequence[str] | None:
    """Return the class names of the first model that has names; None if no model has.

    All models are measured on the same labels, so they must have the same classes.

    Raises:
        InputError: if the models have different names or numbers of classes; all differences are listed.
    """
    class_names = next((model.labels for model in models if model.labels is not None), None)

    # Every model must have the number of classes of the first model, and these names or no names.
    classes = models[0].classes
    problems = []
    for model in models:
        if model.classes != classes:
            problems.append(f"{model.name}: {model.classes} classes, not {classes}")
            continue
        for difference in label_differences(class_names, model.labels):
            problems.append(f"{model.name}: {difference}")
    if problems:
        raise InputError("these models do not have the same classes", problems=problems)
    return class_names


# --- the leak guard: samples that something was fitted or chosen on are no test data ---------------------------------

Seen = dict[str, dict[str, int]]
"""The number of seen samples by the name of the model and then by the name of the data set; zeros are left out."""


def seen_samples(models: Sequence[Classifier], sets: Sequence[EvalSet], *, allow: bool) -> Seen:
    """Return how many test samples were used before, by model and test set; zeros are left out.

    A sample was used (seen) if a model was trained or fitted on it, or this command fits or chooses something on it.

    Args:
        models: the models that are measured.
        sets: all data sets of the command.
        allow: whether seen samples are only counted; otherwise they are an error.

    Raises:
        InputError: unless ``allow``, if there are seen samples, or samples that were seen cannot be compared; every
            model and test set is listed with the commands that used the samples.
    """
    entries_of_command = fitted_entries(sets)
    fitted_fingerprints = {dataset.fingerprint for dataset in _fitted_sets(sets)}
    seen: Seen = {}
    problems = []
    for model in models:
        older = incomparable(model.seen)  # None, or why what it has seen cannot be compared with these samples
        if older is not None:
            problems.append(f"{model.name}: {older}")
        entries = [*model.seen, *entries_of_command]
        # Corrupted sets need no check, because they have the images of the ID test set.
        for dataset in tested(sets):
            # This command fits to the whole test set. The fingerprint shows this even without samples.
            if dataset.fingerprint in fitted_fingerprints:
                count = len(dataset)
                seen_by = "all of them chosen on by this eval"
            else:
                count, seen_by = _seen_count(model, entries, dataset)
            if not count:
                continue
            counts_of_model = seen.setdefault(model.name, {})
            counts_of_model[dataset.name] = count
            option = option_of(dataset)
            problems.append(f"{model.name}: {count} of {len(dataset)} samples of {option} ({seen_by})")
    if problems and not allow:
        hint = "test on other samples, or add --allow-seen to measure on them all the same, marked"
        if len(problems) == 1:
            raise InputError(f"test data that has been seen: {problems[0]}", hint=hint)
        raise InputError("test data that has been seen", hint=hint, problems=problems)
    return seen


def warnings_of_seen(models: Sequence[Classifier], sets: Sequence[EvalSet]) -> list[str]:
    """Return a sentence for each model of which it is not certain whether it has seen test samples."""
    warnings = []
    for model in models:
        older = incomparable(model.seen)
        if older is not None:
            warnings.append(f"{model.name}: {older}")
        for dataset in tested(sets):
            decoder = None if dataset.dataset is None else other_decoder(model.seen, dataset.dataset)
            if decoder is not None and dataset.dataset is not None:
                warnings.append(
                    f"{model.name}: what it has seen was decoded by {decoder}, {option_of(dataset)} by "
                    f"{dataset.dataset.decoder}: pixels of JPEGs may differ in bits, and seen ones not be recognised"
                )
    return warnings


def _fitted_sets(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the sets to which this command fits something, or on which it chooses: validation, then training data."""
    return [*of_role(sets, VAL), *of_role(sets, OOD_VAL), *of_role(sets, TRAIN)]


def fitted_entries(sets: Sequence[EvalSet], verb: str = "eval") -> list[Entry]:
    """Return the entries that record to which data a command fits something, see :mod:`hydractl.files.fingerprints`.

    Args:
        sets: all data sets of the command.
        verb: the name of the command.
    """
    entries = []
    for dataset in _fitted_sets(sets):
        if dataset.dataset is None:
            continue
        for origin in dataset.dataset.origins():
            entries.append(entry(verb, dataset.role, origin))
    return entries


def _seen_count(model: Classifier, entries: Sequence[Entry], dataset: EvalSet) -> tuple[int, str]:
    """Return how many samples of a test set a model was trained or fitted on, and words on the command that did it.

    If there are none, these are 0 and "".

    Args:
        model: the model; for stored predictions it knows the number.
        entries: the records of the data to which the model or this command was fitted.
        dataset: the test set.
    """
    seen_when_stored = model.already_seen(dataset)
    if seen_when_stored:
        return seen_when_stored, "as its predictions say"
    # Of stored predictions without samples, a whole set is recognised.
    for use in entries:
        if use["data"] == dataset.fingerprint:
            return len(dataset), f"all of them by {use['by']} ({use['as']})"
    if dataset.dataset is None or not entries:
        return 0, ""
    seen = marked(entries, dataset.dataset)
    return int(seen.sum()), who_saw(entries, dataset.dataset)
