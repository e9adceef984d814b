"""Predictions of several models concatenated: those of the ensemble that would run them one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.evaluate.predictions.reading import Predictions, in_pieces
from hydractl.evaluate.predictions.store import SetEntry
from hydractl.jsonio import shown

_OWN = ("name", "sha256", "heads", "cost", "calibration", "threshold", "training")
"""What the models of an ensemble may differ in. All else in a header decides logits, or names classes."""

_MOST_PROBLEMS = 20


class Concatenated:
    """An ensemble of predictions files, read like one :class:`hydractl.evaluate.predictions.reading.Predictions`.

    Args:
        parts: the files, two or more; they may hold several members each.

    Attributes:
        origin: what to call it in messages.
        model: what one header would say of the ensemble.
        sets: the data sets, in the order of the first file. ``seen`` is the largest count of a part.

    Raises:
        InputError: listing the differences in samples, classes and settings.
    """

    def __init__(self, parts: Sequence[Predictions]) -> None:
        self._parts = list(parts)
        self.origin = "+".join(one.origin for one in parts)
        self._places = [[_place(part, one) for part in parts] for one in parts[0].sets]
        problems = [line for part in parts[1:] for line in _differences(parts[0], part)]
        if problems:
            raise InputError(
                f"{self.origin} are no predictions of one ensemble",
                hint="make them by the same eval, with the same data and settings",
                problems=problems[:_MOST_PROBLEMS],
            )
        self.model = _concatenated([part.model for part in parts], [part.shape(0)[0] for part in parts])
        self.sets = [
            replace(one, seen=max(part.sets[at].seen for part, at in self._of_parts(index)))
            for index, one in enumerate(parts[0].sets)
        ]

    def _of_parts(self, index: int) -> list[tuple[Predictions, int]]:
        """Every file, and the place of a set in it."""
        places = zip(self._parts, self._places[index], strict=True)
        return [(part, at) for part, at in places if at is not None]

    def shape(self, index: int) -> tuple[int, int, int]:
        """``(members, N, classes)`` of a set."""
        shapes = [part.shape(at) for part, at in self._of_parts(index)]
        return sum(members for members, _, _ in shapes), *shapes[0][1:]

    def batches(self, index: int) -> Iterator[tuple[Sequence[int], npt.NDArray[Any]]]:
        """As of one file, without the samples that a part has no logits of."""

        def piece(rows: range) -> npt.NDArray[Any]:
            return np.concatenate([part.piece(at, rows) for part, at in self._of_parts(index)])

        return in_pieces(self.shape(index), piece)


def _place(part: Predictions, one: SetEntry) -> int | None:
    """Where a file has a set; None where it has none of that role and name."""
    places = (i for i, other in enumerate(part.sets) if (other.role, other.name) == (one.role, one.name))
    return next(places, None)


def _differences(first: Predictions, other: Predictions) -> list[str]:
    """In what two files differ and must not."""
    problems = []
    if first.shape(0)[2] != other.shape(0)[2]:
        problems.append(f"{other.origin}: {other.shape(0)[2]} classes, not {first.shape(0)[2]}")
    for one in first.sets:
        at = _place(other, one)
        if at is None:
            problems.append(f"{other.origin}: has no set {one.name}")
            continue
        there = other.sets[at]
        if len(there.ids) != len(one.ids):
            problems.append(f"{other.origin}: {len(there.ids)} samples of {one.name}, not {len(one.ids)}")
        elif there.fingerprint != one.fingerprint:
            problems.append(f"{other.origin}: other samples of {one.name}, or in another order")
        elif there.group != one.group:
            problems.append(f"{other.origin}: {one.name} has the group {there.group}, not {one.group}")
    for one in other.sets:
        if _place(first, one) is None:
            problems.append(f"{first.origin}: has no set {one.name}")
    for key in sorted({*first.model, *other.model} - set(_OWN)):
        before, now = first.model.get(key), other.model.get(key)
        if before != now:
            said = ["missing" if value is None else shown(value) for value in (now, before)]
            problems.append(f"{other.origin}: {key} is {said[0]}, not {said[1]}")
    return problems


def _concatenated(models: Sequence[Mapping[str, Any]], members: Sequence[int]) -> dict[str, Any]:
    """What the header of the ensemble says of its model: no calibration, as none was fitted for it.

    Args:
        models: what each header says.
        members: how many each has.
    """
    digests = [one.get("sha256") for one in models]
    costs = [one.get("cost") or {} for one in models]
    document = {key: value for key, value in models[0].items() if key not in ("calibration", "threshold")}
    document["sha256"] = [part for one in digests for part in (one if isinstance(one, list) else [one])]
    document["heads"] = _heads([one.get("heads") or [] for one in models])
    document["training"] = [
        {**one, "member": sum(members[:place]) + (one.get("member") or 0)}
        for place, model in enumerate(models)
        for one in model.get("training") or ()
    ]
    document["cost"] = {**costs[0], **{key: _total([one.get(key) for one in costs]) for key in ("params", "macs")}}
    return document


def _heads(parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The heads of all members at every site; none where the sites of the models differ."""
    sites = [[{key: value for key, value in site.items() if key != "kept"} for site in one] for one in parts]
    if any(one != sites[0] for one in sites):
        return []
    each = zip(*parts, strict=True)
    return [{**same[0], "kept": [kept for site in same for kept in site["kept"]]} for same in each]


def _total(values: Sequence[Any]) -> Any:
    return None if None in values else sum(values)
