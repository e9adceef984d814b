"""The data sets of one evaluation, each with its role: what is tested on, and what something is fitted on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from hydractl.data import open_data
from hydractl.data.base import Dataset, skipped_document
from hydractl.data.corrupted import CorruptedImages
from hydractl.data.overlap import SETS_APART_HINT, GivenSet, compare_sets, without_training_data
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.data.suites import id_list_of
from hydractl.errors import InputError
from hydractl.evaluation.options import DataOptions
from hydractl.evaluation.predictions.header import DataEntry
from hydractl.evaluation.predictions.store import SetEntry
from hydractl.expressions.data_sets import AUTO, FROST
from hydractl.files.fingerprints import Entry, entry, marked, who_saw
from hydractl.jsonio import read_json_file
from hydractl.model.matching import label_differences

ID, OOD, VAL, OOD_VAL, CORRUPTION, TRAIN = "id", "ood", "val", "ood_val", "corruption", "train"
REFERENCE = "reference"
"""The role of ID samples that inputs are compared with later: nothing is fitted to them, and nothing measured."""


@dataclass(frozen=True)
class EvalSet(SetEntry):
    """One data set of a command.

    Attributes:
        spec: the SPEC that it was opened from.
        dataset: the samples; None if only predictions of them are available.
        left_out: how many samples were removed: of a validation set those that are training data, of a reference those
            that something was fitted to.
    """

    spec: str = ""
    dataset: Dataset | None = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def to_json(self) -> DataEntry:
        """Return the set's entry under ``data`` in the answer."""
        entry: DataEntry = {"spec": self.spec, "n": len(self), "fingerprint": self.fingerprint}
        if self.role == ID:
            openood_list = id_list_of(self.spec)
            if openood_list is not None:
                entry["list"] = openood_list
        if self.dataset is not None:
            skipped = skipped_document(self.dataset)
            if skipped is not None:
                entry["skipped"] = skipped
        if self.left_out:
            entry["left_out"] = self.left_out
        return entry


class Classifier(Protocol):
    """The part of a ``LogitsProvider`` that the data sets and the leak guard need."""

    name: str
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    seen: Sequence[Entry]

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets that a predictions file brings along."""

    def already_seen(self, dataset: EvalSet) -> int:
        """Return how many samples of a set the model had seen when its predictions were stored; 0 if it runs now."""


def _eval_set(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    """Return an opened data set in its role; the labels of OOD data, which name other classes, are left out."""
    labels = None
    if role in (ID, VAL, CORRUPTION, TRAIN):
        labels = dataset.labels
    return EvalSet(
        name=name,
        role=role,
        group=group,
        ids=dataset.ids,
        labels=labels,
        fingerprint=dataset.fingerprint(),
        spec=dataset.spec,
        dataset=dataset,
    )


@dataclass
class OpenedSets:
    """The data sets of one command.

    Attributes:
        sets: the test sets first (ID, then OOD), corrupted ones, then validation sets.
        notes: sentences on the samples that were left out of them.
        warnings: sentences on sets that have samples in common.
    """

    sets: list[EvalSet]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def open_sets(options: DataOptions, models: Sequence[Classifier]) -> OpenedSets:
    """Open every data set of the command.

    Without ``--test`` only prediction files are measured, and the test sets are those of the first file.

    Raises:
        UsageError, InputError: for sets that cannot be opened, do not fit the models, or are the same samples.
    """
    opening = _Opening(options, models)
    if options.test is None:
        test_sets = models[0].stored_sets()
    else:
        test_sets = opening.test_sets(options.test)
    return _with_fitted_sets(test_sets, opening, options, models)


def open_fitted_sets(options: DataOptions, model: Classifier) -> OpenedSets:
    """Open the data sets of a command that tests nothing: those that something is fitted to or chosen on.

    Raises:
        UsageError, InputError: as :func:`open_sets` does.
    """
    models = [model]
    opening = _Opening(options, models)
    return _with_fitted_sets([], opening, options, models)


def open_reference(spec: str, options: DataOptions, model: Classifier) -> Dataset:
    """Open the ID samples of ``--reference``, which need no labels.

    Raises:
        UsageError, InputError: they cannot be opened, or do not fit the model.
    """
    opening = _Opening(options, [model])
    return opening.open_labelled(spec, option="--reference")


def reference_set(dataset: Dataset, left_out: int = 0) -> EvalSet:
    """Return held-out samples as a set; ``left_out`` others of the same SPEC are not held out."""
    return replace(_eval_set("reference", REFERENCE, dataset), left_out=left_out)


def _with_fitted_sets(
    test_sets: Sequence[EvalSet], opening: _Opening, options: DataOptions, models: Sequence[Classifier]
) -> OpenedSets:
    """Return the test sets, and after them those that something is fitted to or chosen on, all checked."""
    opened = OpenedSets(list(test_sets))

    # Training data first: the validation set is opened without them.
    training = None
    if options.train is not None:
        training = opening.open_labelled(options.train, option="--train")
    validation = None
    if options.val is not None:
        opened_val = opening.open_labelled(options.val, option="--val", need_labels=True)
        validation_set = _validation_set(opened_val, training, opened.notes)
        validation = validation_set.dataset
        opened.sets.append(validation_set)
    opened.sets += opening.ood_validation_sets(validation)
    if training is not None:
        opened.sets.append(_eval_set("train", TRAIN, training))

    opened.warnings += _check_apart(opened.sets, options.allow_seen)
    for dataset in opened.sets:
        _check_classes(dataset, models[0])
    return opened


class _Opening:
    """Opens the data sets of one command, all with the same options.

    Args:
        options: the options that name the data sets.
        models: the models that are measured on them.

    Raises:
        InputError: if the models do not have the same classes, or the map of labels cannot be read.
    """

    def __init__(self, options: DataOptions, models: Sequence[Classifier]) -> None:
        self._options = options
        labels = _class_names(models) or []
        label_map = _label_map(options.label_map)
        reads = {}
        for model in models:
            if model.reads is not None:
                reads[model.name] = model.reads
        open_any = partial(open_data, limit=options.limit, seed=options.seed, reads=reads, on_bad=options.on_bad)
        # The first opens data of the models' classes, the second OOD data, whose classes are others.
        self.open_labelled = partial(open_any, labels=labels, label_map=label_map)
        self._open_outside = partial(open_any, ignore_labels=True)

    def test_sets(self, spec: str) -> list[EvalSet]:
        """Open the ID test data and the OOD test sets, and make the corrupted ones."""
        options = self._options
        inside = self.open_labelled(spec, option="--test")
        sets = [_eval_set("id", ID, inside)]
        for name, group, ood_spec in options.ood:
            outside = self._open_outside(ood_spec, option=f"--ood {name}")
            sets.append(_eval_set(name, OOD, outside, group))
        for corruption, severity in itertools.product(options.corruptions, options.severities):
            photographs = None
            if corruption == FROST:  # frost is laid over the images from photographs
                photographs = options.photographs
            corrupted = CorruptedImages(inside, corruption, severity, photographs)
            sets.append(_eval_set(f"{corruption}/{severity}", CORRUPTION, corrupted))
        return sets

    def ood_validation_sets(self, validation: Dataset | None) -> list[EvalSet]:
        """Open the OOD validation sets; those given as ``auto`` are made from the ID validation data."""
        sets = []
        for name, _, spec in self._options.ood_val:
            option = f"--ood-val {name}"
            if spec == AUTO and validation is not None:
                outside: Dataset = PseudoOod(validation, AUTO, self._options.seed, option)
            else:
                outside = self._open_outside(spec, option=option)
            sets.append(_eval_set(name, OOD_VAL, outside))
        return sets


def _validation_set(validation: Dataset, training: Dataset | None, notes: list[str]) -> EvalSet:
    """Return the validation set without the samples that are training data, and note in ``notes`` how many these are.

    Scores by nearest neighbours would find such a sample itself among the training data, at distance 0.
    """
    if training is None:
        return _eval_set("val", VAL, validation)
    remaining = without_training_data(GivenSet("--val", validation), GivenSet("--train", training))
    if remaining.left_out:
        notes.append(remaining.words("--val", "--train"))
    validation_set = _eval_set("val", VAL, remaining.dataset)
    return replace(validation_set, left_out=remaining.left_out)


def tested(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the clean sets that are measured, ID first."""
    tested_roles = (ID, OOD)
    return [dataset for dataset in sets if dataset.role in tested_roles]


def of_role(sets: Sequence[EvalSet], role: str) -> list[EvalSet]:
    """Return the sets of one role."""
    return [dataset for dataset in sets if dataset.role == role]


_OPTIONS = {ID: "--test", VAL: "--val", TRAIN: "--train", REFERENCE: "--reference"}


def option_of(dataset: EvalSet) -> str:
    """Return the option that the data set was given with, as messages name it: ``--ood NAME``, say."""
    if dataset.role in _OPTIONS:
        return _OPTIONS[dataset.role]
    flag = dataset.role.replace("_", "-")
    return f"--{flag} {dataset.name}"


def _check_apart(sets: Sequence[EvalSet], allow_seen: bool) -> list[str]:
    """Check that no two sets are the same samples or share most of them, and warn of those that share many.

    Test samples that something was fitted to are left to :func:`seen_samples`, unless they are a whole set.

    Returns:
        The warnings.

    Raises:
        InputError: naming every pair that shares too much.
    """
    problems = _same_sets(sets, allow_seen)
    fitted_roles = (VAL, OOD_VAL, TRAIN)
    fitted = [dataset for dataset in sets if dataset.role in fitted_roles]

    warnings = []
    for compared in (fitted, tested(sets)):
        overlap = compare_sets(_given_sets(compared))
        problems += overlap.problems
        warnings += overlap.warnings

    if problems:
        first, *others = dict.fromkeys(problems)  # each once
        raise InputError(first, hint=SETS_APART_HINT, problems=others)
    return warnings


def _same_sets(sets: Sequence[EvalSet], allow_seen: bool) -> list[str]:
    """Return a sentence on each OOD set that is the ID test data, and each validation set that is test data."""
    test_sets = tested(sets)
    if not test_sets:
        return []
    id_set = sets[0]
    problems = []
    for dataset in sets[1:]:
        if dataset.role == OOD:
            problems += _sentences_on_same(dataset, [id_set])
        if dataset.role in (VAL, OOD_VAL) and not allow_seen:
            problems += _sentences_on_same(dataset, test_sets)
    return problems


def _sentences_on_same(dataset: EvalSet, others: Sequence[EvalSet]) -> list[str]:
    """Return a sentence on each other set that has the same samples as the data set."""
    same = [other for other in others if _is_same(dataset, other)]
    return [f"{option_of(dataset)} and {option_of(other)} are the same samples" for other in same]


def _given_sets(sets: Sequence[EvalSet]) -> list[GivenSet]:
    """Return the sets whose samples are available, with their options."""
    given_sets = []
    for dataset in sets:
        if dataset.dataset:  # neither None nor empty
            given_sets.append(GivenSet(option_of(dataset), dataset.dataset))
    return given_sets


def _is_same(dataset: EvalSet, other: EvalSet) -> bool:
    """Return whether two sets hold the same samples; by their fingerprints if only predictions are available."""
    if dataset.dataset is None or other.dataset is None:
        return dataset.fingerprint == other.fingerprint
    return dataset.dataset.sample_fingerprints() == other.dataset.sample_fingerprints()


def _check_classes(dataset: EvalSet, model: Classifier) -> None:
    """Check that every label is the number of one of the model's classes.

    Names are compared where a data set is opened; this also catches labels and models without names.

    Raises:
        InputError: naming the first sample with another label.
    """
    labels = dataset.labels
    if labels is None or not len(labels):
        return
    unknown = labels >= model.classes
    if not unknown.any():
        return
    first = int(unknown.argmax())
    raise InputError(
        f"label {int(labels[first])} of sample {dataset.ids[first]} is outside 0..{model.classes - 1}, "
        f"the classes of {model.name}"
    )


def _label_map(path: str | None) -> Mapping[str, str]:
    """Return the map from the names of classes in the data to names of the models' classes; empty without a file.

    Raises:
        InputError: if the file holds anything else.
    """
    if path is None:
        return {}
    names = read_json_file(path)
    is_map = isinstance(names, dict) and all(isinstance(value, str) for value in names.values())
    if not is_map:
        raise InputError(f"{path} is not a JSON object from name to name")
    return names


def _class_names(models: Sequence[Classifier]) -> Sequence[str] | None:
    """Return the names of the classes, from the first model that has names; None if none has.

    Raises:
        InputError: if the models differ in their classes, as all are measured on the same labels.
    """
    named_models = [model for model in models if model.labels is not None]
    class_names = None
    if named_models:
        class_names = named_models[0].labels

    # All models must have these names, or none, and as many classes.
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
"""The number of samples of each data set that each model has seen, by model and set; zeros are left out."""


def seen_samples(models: Sequence[Classifier], sets: Sequence[EvalSet], *, allow: bool) -> Seen:
    """Count the test samples that a model, or this command, has seen.

    Args:
        models: the models that are measured.
        sets: all data sets of the command.
        allow: count them instead of refusing them.

    Raises:
        InputError: listing every model and test set that share samples, and by whom these were seen.
    """
    entries_of_command = fitted_entries(sets)
    fitted_fingerprints = {dataset.fingerprint for dataset in _fitted_sets(sets)}
    seen: Seen = {}
    problems = []
    for model in models:
        entries = [*model.seen, *entries_of_command]
        for dataset in tested(sets):  # which hold the clean images of the corrupted sets
            if dataset.fingerprint in fitted_fingerprints:  # the whole set, even if only predictions are available
                count = len(dataset)
                seen_by = "all of them chosen on by this eval"
            else:
                count, seen_by = _seen_count(model, entries, dataset)
            if not count:
                continue
            seen_by_this_model = seen.setdefault(model.name, {})
            seen_by_this_model[dataset.name] = count
            option = option_of(dataset)
            problems.append(f"{model.name}: {count} of {len(dataset)} samples of {option} ({seen_by})")
    if problems and not allow:
        raise _seen_error(problems)
    return seen


def _seen_error(problems: Sequence[str]) -> InputError:
    """Return the error on test samples that were seen; a single problem stands in its first line."""
    hint = "test on other samples, or add --allow-seen to measure on them all the same, marked"
    if len(problems) == 1:
        return InputError(f"test data that has been seen: {problems[0]}", hint=hint)
    return InputError("test data that has been seen", hint=hint, problems=problems)


def _fitted_sets(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the sets that this command chooses on and fits to, in the order of the roles."""
    fitted = of_role(sets, VAL)
    fitted += of_role(sets, OOD_VAL)
    fitted += of_role(sets, TRAIN)
    return fitted


def fitted_entries(sets: Sequence[EvalSet], verb: str = "eval") -> list[Entry]:
    """Return the entries for the data that a verb fits to, in the form of :mod:`hydractl.files.fingerprints`."""
    entries = []
    for dataset in _fitted_sets(sets):
        if dataset.dataset is None:
            continue
        for origin in dataset.dataset.origins():
            entries.append(entry(verb, dataset.role, origin))
    return entries


def _seen_count(model: Classifier, entries: Sequence[Entry], dataset: EvalSet) -> tuple[int, str]:
    """Return how many samples of a test set have been seen, and by whom, in words; 0 and "" where nobody has.

    Args:
        model: the model, which may hold stored predictions that tell the number.
        entries: the data that the model was trained on, and those that this command fits to.
        dataset: the test set.
    """
    seen_when_stored = model.already_seen(dataset)
    if seen_when_stored:
        return seen_when_stored, "as its predictions say"
    if dataset.dataset is None or not entries:
        return 0, ""
    seen = marked(entries, dataset.dataset)
    return int(seen.sum()), who_saw(entries, dataset.dataset)
