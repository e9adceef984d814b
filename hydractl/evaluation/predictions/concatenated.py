"""The predictions files of several models, read like the one file of their ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.evaluation.predictions.header import ModelHeader, RowCost, SiteHeads
from hydractl.evaluation.predictions.reading import LogitsBatch, Predictions, in_pieces
from hydractl.evaluation.predictions.store import SetEntry
from hydractl.files.training_history import TrainingRecord
from hydractl.jsonio import shown

_MAY_DIFFER = ("name", "sha256", "heads", "cost", "calibration", "threshold", "ood_score", "training")
"""The entries in which the models of an ensemble may differ. All else in a header decides logits, or names classes."""

_MOST_PROBLEMS = 20


class Concatenated:
    """An ensemble of predictions files, read like one :class:`hydractl.evaluation.predictions.reading.Predictions`.

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
        self.origin = "+".join(part.origin for part in parts)
        problems: list[str] = []
        for other in parts[1:]:
            problems += _differences(parts[0], other)
        if problems:
            raise InputError(
                f"{self.origin} are no predictions of one ensemble",
                hint="make them by the same eval, with the same data and settings",
                problems=problems[:_MOST_PROBLEMS],
            )
        members = [part.shape(0)[0] for part in parts]
        self.model = _ensemble_header([part.model for part in parts], members)
        self.sets = []
        for index, dataset in enumerate(parts[0].sets):
            seen = max(part.sets[place].seen for part, place in self._places(index))
            self.sets.append(replace(dataset, seen=seen))

    def _places(self, index: int) -> list[tuple[Predictions, int]]:
        """Return every file, and the place of a set in it."""
        dataset = self._parts[0].sets[index]
        places = []
        for part in self._parts:
            place = _place(part, dataset)
            assert place is not None  # else it would be among the differences
            places.append((part, place))
        return places

    def shape(self, index: int) -> tuple[int, int, int]:
        """Return ``(members, N, classes)`` of a set."""
        shapes = [part.shape(place) for part, place in self._places(index)]
        members = sum(members for members, _, _ in shapes)
        _, samples, classes = shapes[0]
        return members, samples, classes

    @property
    def scores(self) -> list[str]:
        """The OOD scores on features that its files hold, which are the same."""
        return self._parts[0].scores

    def batches(self, index: int) -> Iterator[LogitsBatch]:
        """Yield a set in pieces, as for one file, without the samples that a part has no logits of."""
        places = self._places(index)

        def piece(rows: range, score: str | None) -> npt.NDArray[Any]:
            return np.concatenate([part.piece(place, rows, score) for part, place in places])

        return in_pieces(self.shape(index), piece, self.scores)


def _place(part: Predictions, dataset: SetEntry) -> int | None:
    """Return where a file has a set; None where it has none of that role and name."""
    for place, other in enumerate(part.sets):
        if (other.role, other.name) == (dataset.role, dataset.name):
            return place
    return None


# --- what must be the same --------------------------------------------------------------------------------------------


def _differences(first: Predictions, other: Predictions) -> list[str]:
    """List where two files differ and must not."""
    problems = []
    classes, other_classes = first.shape(0)[2], other.shape(0)[2]
    if classes != other_classes:
        problems.append(f"{other.origin}: {other_classes} classes, not {classes}")
    for dataset in first.sets:
        problem = _set_difference(dataset, other)
        if problem is not None:
            problems.append(f"{other.origin}: {problem}")
    for dataset in other.sets:
        if _place(first, dataset) is None:
            problems.append(f"{first.origin}: has no set {dataset.name}")
    return problems + _header_differences(first, other)


def _set_difference(dataset: SetEntry, other: Predictions) -> str | None:
    """Return where another file does not have the same set; None where it has."""
    place = _place(other, dataset)
    if place is None:
        return f"has no set {dataset.name}"
    stored = other.sets[place]
    if len(stored.ids) != len(dataset.ids):
        return f"{len(stored.ids)} samples of {dataset.name}, not {len(dataset.ids)}"
    if stored.fingerprint != dataset.fingerprint:
        return f"other samples of {dataset.name}, or in another order"
    if stored.group != dataset.group:
        return f"{dataset.name} has the group {stored.group}, not {dataset.group}"
    return None


def _header_differences(first: Predictions, other: Predictions) -> list[str]:
    """List the entries of the headers that differ and must not."""
    problems = []
    keys = {*first.model, *other.model}.difference(_MAY_DIFFER)
    for key in sorted(keys):
        expected = _without_penalties(first.model.get(key))
        value = _without_penalties(other.model.get(key))
        if value != expected:
            problems.append(f"{other.origin}: {key} is {_shown_entry(value)}, not {_shown_entry(expected)}")
    return problems


def _without_penalties(value: Any) -> Any:
    """Return an entry of a header without ``c``, which is each member's own choice in a probe."""
    if not isinstance(value, Mapping):
        return value
    return {key: part for key, part in value.items() if key != "c"}


def _shown_entry(value: Any) -> str:
    return "missing" if value is None else shown(value)


# --- one header for all -----------------------------------------------------------------------------------------------


def _ensemble_header(models: Sequence[ModelHeader], members: Sequence[int]) -> ModelHeader:
    """Return the model entry of the ensemble's header: no calibration, as none was fitted for it.

    Args:
        models: the entries of its files.
        members: how many members each file has.
    """
    header = models[0].copy()
    # These were chosen for the predictions of one model alone.
    header.pop("calibration", None)
    header.pop("threshold", None)
    header.pop("ood_score", None)
    header["sha256"] = _all_digests(models)
    header["heads"] = _all_heads([model.get("heads") or [] for model in models])
    header["training"] = _all_trainings(models, members)
    penalties = _all_penalties(models)
    if penalties:
        header["probe"] = {**models[0]["probe"], "c": penalties}
    header["cost"] = _total_cost([model.get("cost") or {} for model in models])
    return header


def _all_digests(models: Sequence[ModelHeader]) -> list[str]:
    """Return the SHA-256 of every model; a file may itself be of several."""
    digests: list[Any] = []
    for model in models:
        digest = model.get("sha256")
        if isinstance(digest, list):
            digests += digest
        else:
            digests.append(digest)  # None where it is not known
    return digests


def _all_penalties(models: Sequence[ModelHeader]) -> list[float]:
    """Return the penalty of each member's probe; none where they have no probes, or those of a kind without."""
    penalties: list[float] = []
    for model in models:
        if model.get("probe"):
            penalties += model["probe"].get("c") or []
    return penalties


def _all_trainings(models: Sequence[ModelHeader], members: Sequence[int]) -> list[TrainingRecord]:
    """Return the trainings of all files, their members counted on from one file to the next."""
    trainings: list[TrainingRecord] = []
    members_before = 0
    for model, count in zip(models, members, strict=True):
        for training in model.get("training") or ():
            member = members_before + (training.get("member") or 0)
            trainings.append({**training, "member": member})
        members_before += count
    return trainings


def _all_heads(parts: Sequence[Sequence[SiteHeads]]) -> list[SiteHeads]:
    """Return the heads of all members at every site; none where the sites of the models differ."""
    first_sites = [_without_kept(site) for site in parts[0]]
    for part in parts:
        if [_without_kept(site) for site in part] != first_sites:
            return []
    heads: list[SiteHeads] = []
    for same_site in zip(*parts, strict=True):
        kept: list[list[int]] = []
        for site in same_site:
            kept += site["kept"]
        of_all = same_site[0].copy()
        of_all["kept"] = kept
        heads.append(of_all)
    return heads


def _without_kept(site: SiteHeads) -> dict[str, object]:
    """Return what is said of a site but for the heads that members keep there."""
    return {key: value for key, value in site.items() if key != "kept"}


def _total_cost(costs: Sequence[RowCost]) -> RowCost:
    """Return the cost of running all models; what is not known of one is None."""
    total = costs[0].copy()
    total["params"] = _total([cost.get("params") for cost in costs])
    total["macs"] = _total([cost.get("macs") for cost in costs])
    if "params_nonzero" in costs[0]:
        total["params_nonzero"] = _total([cost.get("params_nonzero") for cost in costs])
    return total


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known)
