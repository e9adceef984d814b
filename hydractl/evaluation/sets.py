"""The data sets of one evaluation, each with its role: what is tested on, and what something is fitted on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hydractl.data import open_data
from hydractl.data.base import Dataset, skipped_document
from hydractl.data.corrupted import CorruptedImages
from hydractl.data.overlap import APART, GivenSet, compare_sets, without_training_data
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.data.suites import id_list_of
from hydractl.errors import InputError
from hydractl.evaluation.options import DataOptions
from hydractl.evaluation.predictions.store import SetEntry
from hydractl.expressions.data_sets import AUTO, FROST
from hydractl.files.fingerprints import Entry, entry, marked, who_saw
from hydractl.jsonio import read_json_file
from hydractl.model.matching import label_differences

ID, OOD, VAL, VAL_OOD, CORRUPTION, FIT = "id", "ood", "val", "val_ood", "corruption", "fit"


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

    def to_json(self) -> dict[str, Any]:
        """Return the set's entry under ``data`` in the answer."""
        entry: dict[str, Any] = {"spec": self.spec, "n": len(self), "fingerprint": self.fingerprint}
        if self.role == ID and id_list_of(self.spec) is not None:
            entry["list"] = id_list_of(self.spec)
        if self.dataset is not None and skipped_document(self.dataset) is not None:
            entry["skipped"] = skipped_document(self.dataset)
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
        """How many samples of a set had been seen when its predictions were made; 0 for a model that runs."""


def _of(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    labels = dataset.labels if role in (ID, VAL, CORRUPTION, FIT) else None
    return EvalSet(name, role, group, dataset.ids, labels, dataset.fingerprint(), spec=dataset.spec, dataset=dataset)


@dataclass
class Opened:
    """The data sets of one command.

    Attributes:
        sets: the test sets first (ID, then OOD), corrupted ones, then validation sets.
        notes: what was left out of them.
        warnings: of sets with samples in common.
    """

    sets: list[EvalSet]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def open_sets(options: DataOptions, models: Sequence[Classifier]) -> Opened:
    """Open every data set of the command.

    Where only prediction files are measured and ``--data`` is not given, the test sets are those of the first file.

    Raises:
        UsageError, InputError: for sets that cannot be opened, do not fit the models, or are the same samples.
    """
    labels = _class_names(models)
    reads = {model.name: model.reads for model in models if model.reads is not None}
    common: dict[str, Any] = {"limit": options.limit, "seed": options.seed, "reads": reads, "on_bad": options.on_bad}
    known: dict[str, Any] = {"labels": labels or [], "label_map": _label_map(options.label_map), **common}
    if options.data is None:
        sets = models[0].stored_sets()
    else:
        inside = open_data(options.data, **known)
        sets = [_of("id", ID, inside)]
        for name, group, spec in options.ood:
            sets.append(_of(name, OOD, open_data(spec, option=f"--ood {name}", ignore_labels=True, **common), group))
        for kind, severity in itertools.product(options.corruptions, options.severities):
            photographs = options.photographs if kind == FROST else None
            corrupted = CorruptedImages(inside, kind, severity, photographs)
            sets.append(_of(f"{kind}/{severity}", CORRUPTION, corrupted))
    opened = Opened(sets)
    training = None if options.fit is None else open_data(options.fit, option="--fit", **known)
    validation = None
    if options.val is not None:
        validation = open_data(options.val, option="--val", need_labels=True, **known)
        opened.sets.append(_validation_set(validation, training, opened.notes))
        validation = opened.sets[-1].dataset
    for name, _, spec in options.val_ood:
        option = f"--val-ood {name}"
        if spec == AUTO and validation is not None:
            outside: Dataset = PseudoOod(validation, AUTO, options.seed, option)
        else:
            outside = open_data(spec, option=option, ignore_labels=True, **common)
        opened.sets.append(_of(name, VAL_OOD, outside))
    if training is not None:
        opened.sets.append(_of("fit", FIT, training))
    opened.warnings += _check_apart(opened.sets, options.allow_seen)
    for dataset in opened.sets:
        _check_classes(dataset, models[0])
    return opened


def _validation_set(validation: Dataset, training: Dataset | None, notes: list[str]) -> EvalSet:
    """Return the validation set without the samples that are training data.

    Nearest to itself, a training sample would look as if no other could be near.
    """
    if training is None:
        return _of("val", VAL, validation)
    found = without_training_data(GivenSet("--val", validation), GivenSet("--fit", training))
    if found.left_out:
        notes.append(found.words("--val", "--fit"))
    return replace(_of("val", VAL, found.dataset), left_out=found.left_out)


def tested(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the sets that are measured, ID first."""
    return [dataset for dataset in sets if dataset.role in (ID, OOD)]


def of_role(sets: Sequence[EvalSet], role: str) -> list[EvalSet]:
    """Return the sets of one role."""
    return [dataset for dataset in sets if dataset.role == role]


_OPTIONS = {ID: "--data", VAL: "--val", FIT: "--fit"}


def option_of(one: EvalSet) -> str:
    """Return the option that a person gave it to."""
    return _OPTIONS.get(one.role) or f"--{one.role.replace('_', '-')} {one.name}"


def _check_apart(sets: Sequence[EvalSet], allow_seen: bool) -> list[str]:
    """Refuse sets that are the same samples, or share most of them, and return a warning of those that share many.

    What is fitted to samples that are tested on is left to :func:`seen_samples`, unless it is a whole set.

    Raises:
        InputError: naming every such pair.
    """
    problems = []
    inside = sets[0]
    for dataset in sets[1:]:
        if dataset.role == OOD and _same(dataset, inside):
            problems.append(f"{option_of(dataset)} and {option_of(inside)} are the same samples")
        if dataset.role in (VAL, VAL_OOD) and not allow_seen:
            problems += [
                f"{option_of(dataset)} and {option_of(other)} are the same samples"
                for other in tested(sets)
                if _same(dataset, other)
            ]
    fitted = [GivenSet(option_of(one), one.dataset) for one in sets if one.dataset and one.role in (VAL, VAL_OOD, FIT)]
    measured = [GivenSet(option_of(one), one.dataset) for one in tested(sets) if one.dataset]
    findings = [compare_sets(fitted), compare_sets(measured)]
    problems += [problem for found in findings for problem in found.problems]
    if problems:
        problems = list(dict.fromkeys(problems))
        raise InputError(problems[0], hint=APART, problems=problems[1:])
    return [warning for found in findings for warning in found.warnings]


def _same(one: EvalSet, other: EvalSet) -> bool:
    if one.dataset is None or other.dataset is None:
        return one.fingerprint == other.fingerprint
    return one.dataset.sample_fingerprints() == other.dataset.sample_fingerprints()


def _check_classes(one: EvalSet, model: Classifier) -> None:
    """Check that labels are classes of the models, also where neither side has names."""
    if one.labels is None or not len(one.labels) or int(one.labels.max()) < model.classes:
        return
    first = int((one.labels >= model.classes).argmax())
    raise InputError(
        f"label {int(one.labels[first])} of sample {one.ids[first]} is outside 0..{model.classes - 1}, "
        f"the classes of {model.name}"
    )


def _label_map(path: str | None) -> Mapping[str, str]:
    if path is None:
        return {}
    names = read_json_file(path)
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise InputError(f"{path} is not a JSON object from name to name")
    return names


def _class_names(models: Sequence[Classifier]) -> Sequence[str] | None:
    """Return the names of the classes; all rows are measured on the same labels, so they must agree."""
    first = models[0]
    known = next((model.labels for model in models if model.labels is not None), None)
    problems = []
    for model in models:
        differences = [f"{model.classes} classes, not {first.classes}"] if model.classes != first.classes else []
        problems += [f"{model.name}: {what}" for what in differences or label_differences(known, model.labels)]
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
    same = {dataset.fingerprint for role in (VAL, VAL_OOD, FIT) for dataset in of_role(sets, role)}
    seen: Seen = {}
    problems = []
    for model in models:
        entries = [*model.seen, *here]
        for dataset in tested(sets):  # corrupted images are counted where they are clean
            count, by = _count(model, entries, dataset)
            if dataset.fingerprint in same:
                count, by = len(dataset), "all of them chosen on by this eval"
            if not count:
                continue
            seen.setdefault(model.name, {})[dataset.name] = count
            problems.append(f"{model.name}: {count} of {len(dataset)} samples of {option_of(dataset)} ({by})")
    if problems and not allow:
        raise InputError(
            f"test data that has been seen: {problems[0]}" if len(problems) == 1 else "test data that has been seen",
            hint="test on other samples, or add --allow-seen to measure on them all the same, marked",
            problems=problems if len(problems) > 1 else (),
        )
    return seen


def fitted_entries(sets: Sequence[EvalSet]) -> list[Entry]:
    """Return the entries for what this command fits on, as :mod:`hydractl.files.fingerprints` notes it."""
    return [
        entry("eval", "train" if role == FIT else role, part)
        for role in (VAL, VAL_OOD, FIT)
        for dataset in of_role(sets, role)
        if dataset.dataset is not None
        for part in dataset.dataset.origins()
    ]


def _count(model: Classifier, entries: Sequence[Entry], one: EvalSet) -> tuple[int, str]:
    stored = model.already_seen(one)
    if stored:
        return stored, "as its predictions say"
    if one.dataset is None or not entries:
        return 0, ""
    return int(marked(entries, one.dataset).sum()), who_saw(entries, one.dataset)
