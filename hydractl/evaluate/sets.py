"""The data sets of one evaluation: what is tested on, and what something is chosen on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError

if TYPE_CHECKING:
    from hydractl.data.base import Dataset
    from hydractl.evaluate.contenders import Contender
    from hydractl.settings import EvalSettings

ID, OOD, VAL, VAL_OOD = "id", "ood", "val", "val_ood"


@dataclass(frozen=True)
class EvalSet:
    """One data set.

    Attributes:
        name: ``id``, ``val``, or the name of an OOD set.
        role: ``id``, ``ood``, ``val`` or ``val_ood``.
        group: of an OOD set: ``near``, ``far`` or None.
        spec: where it was opened from.
        ids: one for each sample.
        labels: int64 ``[N]``; None where unlabelled or not asked for.
        fingerprint: of its samples, their order and labels.
        dataset: the samples; None where only predictions of them are at hand.
    """

    name: str
    role: str
    group: str | None
    spec: str
    ids: Sequence[str]
    labels: npt.NDArray[np.int64] | None
    fingerprint: str
    dataset: Dataset | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def to_json(self) -> dict[str, Any]:
        """As it stands under ``data`` in the answer."""
        return {"spec": self.spec, "n": len(self), "fingerprint": self.fingerprint}


def _of(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    labels = dataset.labels if role in (ID, VAL) else None
    return EvalSet(name, role, group, dataset.spec, dataset.ids, labels, dataset.fingerprint(), dataset)


def open_sets(settings: EvalSettings, contenders: Sequence[Contender]) -> list[EvalSet]:
    """Every data set of the command: the test sets first (ID, then OOD), then those to choose on.

    Where only prediction files are measured and ``--data`` is not given, the test sets are those of the first file.

    Raises:
        UsageError, InputError: for sets that cannot be opened, do not fit the models, or are the same samples.
    """
    from hydractl.data import open_data

    labels = _class_names(contenders)
    reads = {one.name: one.reads for one in contenders if one.reads is not None}
    given: dict[str, Any] = {"limit": settings.limit, "reads": reads}
    known: dict[str, Any] = {"labels": labels or [], "label_map": _label_map(settings.label_map), **given}
    if settings.data is None:
        found = contenders[0].stored_sets()
    else:
        found = [_of("id", ID, open_data(settings.data, **known))]
        for name, group, spec in settings.ood_sets():
            found.append(_of(name, OOD, open_data(spec, option=f"--ood {name}", ignore_labels=True, **given), group))
    if settings.val is not None:
        found.append(_of("val", VAL, open_data(settings.val, option="--val", need_labels=True, **known)))
    for name, _, spec in settings.val_ood_sets():
        outside = open_data(spec, option=f"--val-ood {name}", ignore_labels=True, **given)
        found.append(_of(name, VAL_OOD, outside))
    _check_apart(found)
    for one in found:
        _check_classes(one, contenders[0])
    return found


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


def _check_apart(sets: Sequence[EvalSet]) -> None:
    """No test set may be the ID set, and nothing may be chosen on what is tested on."""
    problems = []
    inside = sets[0]
    for one in sets[1:]:
        if one.role == OOD and _same(one, inside):
            problems.append(f"{called(one)} and {called(inside)} are the same samples")
        if one.role in (VAL, VAL_OOD):
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
    from hydractl.models import read_json_file

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
    from hydractl.fusion.plan import label_differences

    first = contenders[0]
    known = next((one.labels for one in contenders if one.labels is not None), None)
    problems = []
    for one in contenders:
        differences = [f"{one.classes} classes, not {first.classes}"] if one.classes != first.classes else []
        problems += [f"{one.name}: {what}" for what in differences or label_differences(known, one.labels)]
    if problems:
        raise InputError("these models do not have the same classes", problems=problems)
    return known
