"""The predictions files of several models, read like the one file of their ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.evaluation.predictions.reading import LogitsBatch, Predictions, in_pieces
from hydractl.evaluation.predictions.store import SetEntry
from hydractl.files.model_records import CostRecord, ProbeRecord, TrainingRecord
from hydractl.files.predictions_header import PredictedModelRecord, PredictedSiteRecord
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
    first_header = first.model.to_json()
    other_header = other.model.to_json()
    keys = {*first_header, *other_header}.difference(_MAY_DIFFER)
    for key in sorted(keys):
        expected = _without_penalties(first_header.get(key))
        value = _without_penalties(other_header.get(key))
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


def _ensemble_header(models: Sequence[PredictedModelRecord], members: Sequence[int]) -> PredictedModelRecord:
    """Return the model entry of the ensemble's header: no calibration, as none was fitted for it.

    Args:
        models: the entries of its files.
        members: how many members each file has.
    """
    first = models[0]
    heads_of_models = [model.heads or [] for model in models]
    costs_of_models = [model.cost or CostRecord() for model in models]
    return replace(
        first,
        sha256=_all_digests(models),
        heads=_all_heads(heads_of_models),
        training=_all_trainings(models, members),
        cost=_total_cost(costs_of_models),
        decisive=replace(first.decisive, probe=_probe_of_all(models)),
        # These were chosen for the predictions of one model alone.
        calibration=None,
        threshold=None,
        ood_score=None,
    )


def _all_digests(models: Sequence[PredictedModelRecord]) -> list[str | None]:
    """Return the SHA-256 of every model; a file may itself be of several. None where it is not known."""
    digests: list[str | None] = []
    for model in models:
        if isinstance(model.sha256, list):
            digests += model.sha256
        else:
            digests.append(model.sha256)
    return digests


def _probe_of_all(models: Sequence[PredictedModelRecord]) -> ProbeRecord | None:
    """Return the probe of all members, with the penalty of each; None where they have none."""
    penalties: list[float | None] = []
    for model in models:
        probe = model.decisive.probe
        if probe is not None:
            penalties += probe.c or []
    first = models[0].decisive.probe
    if first is None or not penalties:
        return first
    return replace(first, c=penalties)


def _all_trainings(models: Sequence[PredictedModelRecord], members: Sequence[int]) -> list[TrainingRecord]:
    """Return the trainings of all files, their members counted on from one file to the next."""
    trainings: list[TrainingRecord] = []
    members_before = 0
    for model, count in zip(models, members, strict=True):
        for training in model.training:
            trainings.append(replace(training, member=members_before + (training.member or 0)))
        members_before += count
    return trainings


def _all_heads(parts: Sequence[Sequence[PredictedSiteRecord]]) -> list[PredictedSiteRecord]:
    """Return the heads of all members at every site; none where the sites of the models differ."""
    first_sites = [_without_kept(site) for site in parts[0]]
    for part in parts:
        if [_without_kept(site) for site in part] != first_sites:
            return []
    heads = []
    for same_site in zip(*parts, strict=True):
        kept: list[Sequence[int]] = []
        for site in same_site:
            kept += site.kept
        heads.append(replace(same_site[0], kept=kept))
    return heads


def _without_kept(site: PredictedSiteRecord) -> PredictedSiteRecord:
    """Return what is said of a site but for the heads that members keep there."""
    return replace(site, kept=())


def _total_cost(costs: Sequence[CostRecord]) -> CostRecord:
    """Return the cost of running all models; what is not known of one is None."""
    first = costs[0]
    nonzero = None
    if first.params_nonzero is not None:
        nonzero = _total([cost.params_nonzero for cost in costs])
    parameters = _total([cost.params for cost in costs])
    mult_adds = _total([cost.macs for cost in costs])
    return replace(first, params=parameters, params_nonzero=nonzero, macs=mult_adds)


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known)
