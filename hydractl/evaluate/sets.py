"""The data sets of one evaluation: what is tested on, and what something is chosen on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.corrupted import corruption_sets
from hydractl.data.suites import FoundSuite, find_suite
from hydractl.errors import InputError
from hydractl.evaluate.contenders import Contender
from hydractl.evaluate.eval_set import CORRUPTION, ID, OOD, VAL, VAL_OOD, EvalSet
from hydractl.jsonio import read_json_file
from hydractl.model.agreement import label_differences
from hydractl.settings import EvalSettings, OodSet


def _of(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    labels = dataset.labels if role in (ID, VAL, CORRUPTION) else None
    return EvalSet(name, role, group, dataset.spec, dataset.ids, labels, dataset.fingerprint(), dataset)


def open_sets(settings: EvalSettings, contenders: Sequence[Contender], suite: FoundSuite | None) -> list[EvalSet]:
    """Every data set of the command: the test sets first (ID, then OOD), corrupted ones, then those to choose on.

    Where only prediction files are measured and ``--data`` is not given, the test sets are those of the first file.

    Args:
        settings: of the command.
        contenders: the rows.
        suite: the OOD sets of ``--ood-suite``, which come behind those of ``--ood``.

    Raises:
        UsageError, InputError: for sets that cannot be opened, do not fit the models, or are the same samples.
    """
    labels = _class_names(contenders)
    reads = {one.name: one.reads for one in contenders if one.reads is not None}
    given: dict[str, Any] = {"limit": settings.limit, "reads": reads, "on_bad": settings.on_bad}
    known: dict[str, Any] = {"labels": labels or [], "label_map": _label_map(settings.label_map), **given}
    if settings.data is None:
        found = contenders[0].stored_sets()
    else:
        inside = open_data(settings.data, **known)
        found = [_of("id", ID, inside)]
        for name, group, spec in _ood_sets(settings, suite):
            found.append(_of(name, OOD, open_data(spec, option=f"--ood {name}", ignore_labels=True, **given), group))
        for kind, severity, dataset in corruption_sets(inside, settings.corruption_names(), settings.severities):
            found.append(_of(f"{kind}/{severity}", CORRUPTION, dataset))
    if settings.val is not None:
        found.append(_of("val", VAL, open_data(settings.val, option="--val", need_labels=True, **known)))
    for name, _, spec in settings.val_ood_sets():
        outside = open_data(spec, option=f"--val-ood {name}", ignore_labels=True, **given)
        found.append(_of(name, VAL_OOD, outside))
    _check_apart(found, settings.allow_seen)
    for one in found:
        _check_classes(one, contenders[0])
    return found


def find_ood_suite(settings: EvalSettings) -> FoundSuite | None:
    """The sets of ``--ood-suite``, found below ``--ood-root``.

    Raises:
        InputError: listing those that are missing.
    """
    choice = settings.suite()
    if choice is None:
        return None
    return find_suite(choice, str(settings.ood_root), taken=[one.name for one in settings.ood_sets()])


def _ood_sets(settings: EvalSettings, suite: FoundSuite | None) -> list[OodSet]:
    return [*settings.ood_sets(), *([] if suite is None else suite.sets)]


def tested(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Those that are measured, ID first."""
    return [one for one in sets if one.role in (ID, OOD)]


def chosen_on(sets: Sequence[EvalSet], role: str) -> list[EvalSet]:
    """Those of one role."""
    return [one for one in sets if one.role == role]


_OPTIONS = {ID: "--data", VAL: "--val"}


def called(one: EvalSet) -> str:
    """The option that a person gave it to."""
    return _OPTIONS.get(one.role) or f"--{one.role.replace('_', '-')} {one.name}"


def _check_apart(sets: Sequence[EvalSet], allow_seen: bool) -> None:
    """No test set may be the ID set, and nothing may be chosen on what is tested on, unless that is to be marked."""
    problems = []
    inside = sets[0]
    for one in sets[1:]:
        if one.role == OOD and _same(one, inside):
            problems.append(f"{called(one)} and {called(inside)} are the same samples")
        if one.role in (VAL, VAL_OOD) and not allow_seen:
            problems += [
                f"{called(one)} and {called(other)} are the same samples" for other in tested(sets) if _same(one, other)
            ]
    if problems:
        raise InputError(problems[0], hint="give every set samples of its own", problems=problems[1:])


def _same(one: EvalSet, other: EvalSet) -> bool:
    if one.dataset is None or other.dataset is None:
        return one.fingerprint == other.fingerprint
    return one.dataset.sample_fingerprints() == other.dataset.sample_fingerprints()


def _check_classes(one: EvalSet, contender: Contender) -> None:
    """Labels must be classes of the models, also where neither side has names."""
    if one.labels is None or not len(one.labels) or int(one.labels.max()) < contender.classes:
        return
    first = int((one.labels >= contender.classes).argmax())
    raise InputError(
        f"label {int(one.labels[first])} of sample {one.ids[first]} is outside 0..{contender.classes - 1}, "
        f"the classes of {contender.name}"
    )


def _label_map(path: str | None) -> Mapping[str, str] | None:
    if path is None:
        return None
    found = read_json_file(path)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError(f"{path} is not a JSON object from name to name")
    return found


def _class_names(contenders: Sequence[Contender]) -> Sequence[str] | None:
    """The names of the classes; all rows are measured on the same labels, so they must agree.

    Raises:
        InputError: listing the models that differ from the first.
    """
    first = contenders[0]
    known = next((one.labels for one in contenders if one.labels is not None), None)
    problems = []
    for one in contenders:
        differences = [f"{one.classes} classes, not {first.classes}"] if one.classes != first.classes else []
        problems += [f"{one.name}: {what}" for what in differences or label_differences(known, one.labels)]
    if problems:
        raise InputError("these models do not have the same classes", problems=problems)
    return known
