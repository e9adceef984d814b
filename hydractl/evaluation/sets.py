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


@dataclass(frozen=True)
class EvalSet(SetEntry):
    """One data set of a command.

    Attributes:
        spec: where it was opened from.
        dataset: the samples; None where only predictions of them are at hand.
        left_out: how many samples of a validation set are not in it, as they are training data.
    """

    spec: str = ""
    dataset: Dataset | None = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def to_json(self) -> DataEntry:
        """Return the set's entry under ``data`` in the answer."""
        entry: DataEntry = {"spec": self.spec, "n": len(self), "fingerprint": self.fingerprint}
        openood_list = id_list_of(self.spec) if self.role == ID else None
        if openood_list is not None:
            entry["list"] = openood_list
        skipped = None if self.dataset is None else skipped_document(self.dataset)
        if skipped is not None:
            entry["skipped"] = skipped
        if self.left_out:
            entry["left_out"] = self.left_out
        return entry


class Classifier(Protocol):
    """What the data sets and the leak guard need of each row, a ``LogitsProvider``."""

    name: str
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    seen: Sequence[Entry]

    def stored_sets(self) -> list[EvalSet]:
        """The test sets that a predictions file brings along."""

    def already_seen(self, dataset: EvalSet) -> int:
        """Return how many samples had been seen when its predictions were made; 0 for a model that runs."""


def _eval_set(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    """Return an opened data set in its role; labels of OOD data are left alone."""
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
        notes: what was left out of them.
        warnings: of sets with samples in common.
    """

    sets: list[EvalSet]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def open_sets(options: DataOptions, models: Sequence[Classifier]) -> OpenedSets:
    """Open every data set of the command.

    Where only prediction files are measured and ``--test`` is not given, the test sets are those of the first file.

    Raises:
        UsageError, InputError: for sets that cannot be opened, do not fit the models, or are the same samples.
    """
    opening = _Opening(options, models)
    tests = models[0].stored_sets() if options.test is None else opening.test_sets(options.test)
    return _with_fitted_sets(tests, opening, options, models)


def open_fitted_sets(options: DataOptions, model: Classifier) -> OpenedSets:
    """Open the data sets of a command that tests nothing: those that something is fitted to or chosen on.

    Raises:
        UsageError, InputError: as :func:`open_sets` does.
    """
    return _with_fitted_sets([], _Opening(options, [model]), options, [model])


def _with_fitted_sets(
    tests: Sequence[EvalSet], opening: _Opening, options: DataOptions, models: Sequence[Classifier]
) -> OpenedSets:
    """Return the test sets, and behind them those that something is fitted to or chosen on, all checked."""
    opened = OpenedSets(list(tests))
    training = None if options.train is None else opening.labelled(options.train, option="--train")
    validation = None
    if options.val is not None:
        opened_val = opening.labelled(options.val, option="--val", need_labels=True)
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
        options: the data sets.
        models: that are measured on them.
    """

    def __init__(self, options: DataOptions, models: Sequence[Classifier]) -> None:
        self._options = options
        labels = _class_names(models) or []
        label_map = _label_map(options.label_map)
        reads = {model.name: model.reads for model in models if model.reads is not None}
        opened_alike = partial(open_data, limit=options.limit, seed=options.seed, reads=reads, on_bad=options.on_bad)
        self.labelled = partial(opened_alike, labels=labels, label_map=label_map)
        """Opens data of the models' classes."""
        self._outside = partial(opened_alike, ignore_labels=True)
        """Opens OOD data, whose classes are others."""

    def test_sets(self, spec: str) -> list[EvalSet]:
        """Open the ID test data and the OOD test sets, and make the corrupted ones."""
        options = self._options
        inside = self.labelled(spec, option="--test")
        sets = [_eval_set("id", ID, inside)]
        for name, group, ood_spec in options.ood:
            sets.append(_eval_set(name, OOD, self._outside(ood_spec, option=f"--ood {name}"), group))
        for kind, severity in itertools.product(options.corruptions, options.severities):
            photographs = options.photographs if kind == FROST else None
            corrupted = CorruptedImages(inside, kind, severity, photographs)
            sets.append(_eval_set(f"{kind}/{severity}", CORRUPTION, corrupted))
        return sets

    def ood_validation_sets(self, validation: Dataset | None) -> list[EvalSet]:
        """Open the OOD validation sets, or make them of the ID validation data."""
        sets = []
        for name, _, spec in self._options.ood_val:
            option = f"--ood-val {name}"
            if spec == AUTO and validation is not None:
                outside: Dataset = PseudoOod(validation, AUTO, self._options.seed, option)
            else:
                outside = self._outside(spec, option=option)
            sets.append(_eval_set(name, OOD_VAL, outside))
        return sets


def _validation_set(validation: Dataset, training: Dataset | None, notes: list[str]) -> EvalSet:
    """Return the validation set without the samples that are training data, which is noted.

    Nearest to itself, a training sample would look as if no other could be near.
    """
    if training is None:
        return _eval_set("val", VAL, validation)
    remaining = without_training_data(GivenSet("--val", validation), GivenSet("--train", training))
    if remaining.left_out:
        notes.append(remaining.words("--val", "--train"))
    return replace(_eval_set("val", VAL, remaining.dataset), left_out=remaining.left_out)


def tested(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the sets that are measured, ID first."""
    return [dataset for dataset in sets if dataset.role in (ID, OOD)]


def of_role(sets: Sequence[EvalSet], role: str) -> list[EvalSet]:
    """Return the sets of one role."""
    return [dataset for dataset in sets if dataset.role == role]


_OPTIONS = {ID: "--test", VAL: "--val", TRAIN: "--train"}


def option_of(dataset: EvalSet) -> str:
    """Return the option that a person gave it to."""
    if dataset.role in _OPTIONS:
        return _OPTIONS[dataset.role]
    flag = dataset.role.replace("_", "-")
    return f"--{flag} {dataset.name}"


def _check_apart(sets: Sequence[EvalSet], allow_seen: bool) -> list[str]:
    """Refuse sets that are the same samples, or share most of them, and return a warning of those that share many.

    What is fitted to samples that are tested on is left to :func:`seen_samples`, unless it is a whole set.

    Raises:
        InputError: naming every such pair.
    """
    problems = _same_sets(sets, allow_seen)
    fitted = [dataset for dataset in sets if dataset.role in (VAL, OOD_VAL, TRAIN)]
    overlaps = [compare_sets(_given_sets(fitted)), compare_sets(_given_sets(tested(sets)))]
    for overlap in overlaps:
        problems += overlap.problems
    if problems:
        problems = list(dict.fromkeys(problems))
        raise InputError(problems[0], hint=SETS_APART_HINT, problems=problems[1:])
    warnings = []
    for overlap in overlaps:
        warnings += overlap.warnings
    return warnings


def _same_sets(sets: Sequence[EvalSet], allow_seen: bool) -> list[str]:
    """Name the OOD sets that are the ID test data, and the validation sets that are test data."""
    if not tested(sets):
        return []
    problems = []
    inside = sets[0]
    for dataset in sets[1:]:
        if dataset.role == OOD and _is_same(dataset, inside):
            problems.append(f"{option_of(dataset)} and {option_of(inside)} are the same samples")
        if dataset.role not in (VAL, OOD_VAL) or allow_seen:
            continue
        for other in tested(sets):
            if _is_same(dataset, other):
                problems.append(f"{option_of(dataset)} and {option_of(other)} are the same samples")
    return problems


def _given_sets(sets: Sequence[EvalSet]) -> list[GivenSet]:
    """Return the sets whose samples are at hand, with their options."""
    return [GivenSet(option_of(dataset), dataset.dataset) for dataset in sets if dataset.dataset]


def _is_same(dataset: EvalSet, other: EvalSet) -> bool:
    if dataset.dataset is None or other.dataset is None:
        return dataset.fingerprint == other.fingerprint
    return dataset.dataset.sample_fingerprints() == other.dataset.sample_fingerprints()


def _check_classes(dataset: EvalSet, model: Classifier) -> None:
    """Check that labels are classes of the models, also where neither side has names."""
    labels = dataset.labels
    if labels is None or not len(labels) or int(labels.max()) < model.classes:
        return
    first = int((labels >= model.classes).argmax())
    raise InputError(
        f"label {int(labels[first])} of sample {dataset.ids[first]} is outside 0..{model.classes - 1}, "
        f"the classes of {model.name}"
    )


def _label_map(path: str | None) -> Mapping[str, str]:
    if path is None:
        return {}
    names = read_json_file(path)
    is_map = isinstance(names, dict) and all(isinstance(value, str) for value in names.values())
    if not is_map:
        raise InputError(f"{path} is not a JSON object from name to name")
    return names


def _class_names(models: Sequence[Classifier]) -> Sequence[str] | None:
    """Return the names of the classes; all rows are measured on the same labels, so they must agree."""
    first = models[0]
    known = next((model.labels for model in models if model.labels is not None), None)
    problems = []
    for model in models:
        if model.classes != first.classes:
            problems.append(f"{model.name}: {model.classes} classes, not {first.classes}")
        else:
            problems += [f"{model.name}: {difference}" for difference in label_differences(known, model.labels)]
    if problems:
        raise InputError("these models do not have the same classes", problems=problems)
    return known


# --- the leak guard: samples that something was fitted or chosen on are no test data ---------------------------------

Seen = dict[str, dict[str, int]]
"""The number of samples of each data set that each row has seen, by row and set; what is 0 is left out."""


def seen_samples(models: Sequence[Classifier], sets: Sequence[EvalSet], *, allow: bool) -> Seen:
    """Count the test samples that a model, or this command, has seen.

    Args:
        models: the rows.
        sets: all data sets of the command.
        allow: count them instead of refusing them.

    Raises:
        InputError: listing every row and test set that share samples, and by whom these were seen.
    """
    here = fitted_entries(sets)
    chosen_on = {dataset.fingerprint for dataset in _fitted_sets(sets)}
    seen: Seen = {}
    problems = []
    for model in models:
        entries = [*model.seen, *here]
        for dataset in tested(sets):  # corrupted images are counted where they are clean
            if dataset.fingerprint in chosen_on:
                count, by = len(dataset), "all of them chosen on by this eval"
            else:
                count, by = _count(model, entries, dataset)
            if not count:
                continue
            seen.setdefault(model.name, {})[dataset.name] = count
            problems.append(f"{model.name}: {count} of {len(dataset)} samples of {option_of(dataset)} ({by})")
    if problems and not allow:
        raise _seen_error(problems)
    return seen


def _seen_error(problems: Sequence[str]) -> InputError:
    hint = "test on other samples, or add --allow-seen to measure on them all the same, marked"
    if len(problems) == 1:
        return InputError(f"test data that has been seen: {problems[0]}", hint=hint)
    return InputError("test data that has been seen", hint=hint, problems=problems)


def _fitted_sets(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the sets that this command chooses on and fits to."""
    return [*of_role(sets, VAL), *of_role(sets, OOD_VAL), *of_role(sets, TRAIN)]


def fitted_entries(sets: Sequence[EvalSet], verb: str = "eval") -> list[Entry]:
    """Return the entries for what a verb fits on, as :mod:`hydractl.files.fingerprints` notes it."""
    entries = []
    for dataset in _fitted_sets(sets):
        if dataset.dataset is None:
            continue
        use = "train" if dataset.role == TRAIN else dataset.role
        entries += [entry(verb, use, origin) for origin in dataset.dataset.origins()]
    return entries


def _count(model: Classifier, entries: Sequence[Entry], dataset: EvalSet) -> tuple[int, str]:
    """Return how many samples of a test set have been seen, and by whom."""
    stored = model.already_seen(dataset)
    if stored:
        return stored, "as its predictions say"
    if dataset.dataset is None or not entries:
        return 0, ""
    return int(marked(entries, dataset.dataset).sum()), who_saw(entries, dataset.dataset)
