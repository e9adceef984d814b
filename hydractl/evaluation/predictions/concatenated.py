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
        first, *others = parts
        for other in others:
            problems += _forbidden_differences(first, other)
        if problems:
            raise InputError(
                f"{self.origin} are no predictions of one ensemble",
                hint="make them by the same eval, with the same data and settings",
                problems=problems[:_MOST_PROBLEMS],
            )
        models = []
        members_of_parts = []
        for part in parts:
            members, _, _ = part.shape(0)
            members_of_parts.append(members)
            models.append(part.model)
        self.model = _ensemble_header(models, members_of_parts)
        self.sets = []
        for index, dataset in enumerate(first.sets):
            seen_by_part = []
            for part, index_in_part in self._parts_and_indices(index):
                seen_by_part.append(part.sets[index_in_part].seen)
            self.sets.append(replace(dataset, seen=max(seen_by_part)))

    def _parts_and_indices(self, index: int) -> list[tuple[Predictions, int]]:
        """Return every file with the index that a set has in it; ``index`` is that in the first file."""
        dataset = self._parts[0].sets[index]
        parts_and_indices = []
        for part in self._parts:
            index_in_part = _index_of_same_set(part, dataset)
            assert index_in_part is not None  # else it would be among the differences
            parts_and_indices.append((part, index_in_part))
        return parts_and_indices

    def shape(self, index: int) -> tuple[int, int, int]:
        """Return ``(members, N, classes)`` of a set."""
        shapes = [part.shape(index_in_part) for part, index_in_part in self._parts_and_indices(index)]
        all_members = sum(members for members, _, _ in shapes)
        _, samples, classes = shapes[0]
        return all_members, samples, classes

    @property
    def scores(self) -> list[str]:
        """The OOD scores on features that its files hold, which are the same."""
        return self._parts[0].scores

    def batches(self, index: int) -> Iterator[LogitsBatch]:
        """Yield the logits of all members on a set in pieces, without the samples that a file has no logits of."""
        parts_and_indices = self._parts_and_indices(index)

        def piece_of_all_members(rows: range, score: str | None) -> npt.NDArray[Any]:
            pieces = [part.piece(index_in_part, rows, score) for part, index_in_part in parts_and_indices]
            return np.concatenate(pieces)

        return in_pieces(self.shape(index), piece_of_all_members, self.scores)


def _index_of_same_set(part: Predictions, dataset: SetEntry) -> int | None:
    """Return the index of the set of the same role and name in a file; None where it has none."""
    for index, other in enumerate(part.sets):
        if other.role == dataset.role and other.name == dataset.name:
            return index
    return None


# --- what must be the same --------------------------------------------------------------------------------------------


def _forbidden_differences(first: Predictions, other: Predictions) -> list[str]:
    """Return a sentence on each difference for which two files cannot be of one ensemble."""
    problems = []
    _, _, classes = first.shape(0)
    _, _, other_classes = other.shape(0)
    if classes != other_classes:
        problems.append(f"{other.origin}: {other_classes} classes, not {classes}")
    for dataset in first.sets:
        problem = _set_difference(dataset, other)
        if problem is not None:
            problems.append(f"{other.origin}: {problem}")
    for dataset in other.sets:
        if _index_of_same_set(first, dataset) is None:
            problems.append(f"{first.origin}: has no set {dataset.name}")
    problems += _header_differences(first, other)
    return problems


def _set_difference(dataset: SetEntry, other: Predictions) -> str | None:
    """Return the first difference between a set and that of the same role and name in another file; None for none."""
    index = _index_of_same_set(other, dataset)
    if index is None:
        return f"has no set {dataset.name}"
    stored = other.sets[index]
    samples = len(dataset.ids)
    stored_samples = len(stored.ids)
    if stored_samples != samples:
        return f"{stored_samples} samples of {dataset.name}, not {samples}"
    if stored.fingerprint != dataset.fingerprint:
        return f"other samples of {dataset.name}, or in another order"
    if stored.group != dataset.group:
        return f"{dataset.name} has the group {stored.group}, not {dataset.group}"
    return None


def _header_differences(first: Predictions, other: Predictions) -> list[str]:
    """Return a sentence on each entry in which the headers of two files differ and must not."""
    first_header = first.model.to_json()
    other_header = other.model.to_json()
    all_keys = {*first_header, *other_header}
    compared_keys = all_keys.difference(_MAY_DIFFER)

    problems = []
    for key in sorted(compared_keys):
        expected = _without_penalties(first_header.get(key))
        value = _without_penalties(other_header.get(key))
        if value != expected:
            value_text = _shown_entry(value)
            expected_text = _shown_entry(expected)
            problems.append(f"{other.origin}: {key} is {value_text}, not {expected_text}")
    return problems


def _without_penalties(value: Any) -> Any:
    """Return an entry of a header without ``c``, which is each member's own choice in a probe."""
    if not isinstance(value, Mapping):
        return value
    return {key: part for key, part in value.items() if key != "c"}


def _shown_entry(value: Any) -> str:
    """Return an entry of a header as messages show it; None stands for one that is missing."""
    if value is None:
        return "missing"
    return shown(value)


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
        heads=_heads_of_all_members(heads_of_models),
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
            member_in_file = training.member or 0  # None where the file has one member
            trainings.append(replace(training, member=members_before + member_in_file))
        members_before += count
    return trainings


def _heads_of_all_members(parts: Sequence[Sequence[PredictedSiteRecord]]) -> list[PredictedSiteRecord]:
    """Return the heads that all members keep at every site; an empty list where the sites of the models differ.

    Args:
        parts: the sites of each model, which are attention layers, each with the heads that its members keep there.
    """
    first_sites = [_without_kept(site) for site in parts[0]]
    for part in parts:
        sites = [_without_kept(site) for site in part]
        if sites != first_sites:
            return []

    heads = []
    for same_site_of_models in zip(*parts, strict=True):
        kept_by_member: list[Sequence[int]] = []
        for site in same_site_of_models:
            kept_by_member += site.kept
        heads.append(replace(same_site_of_models[0], kept=kept_by_member))
    return heads


def _without_kept(site: PredictedSiteRecord) -> PredictedSiteRecord:
    """Return the record of a site (an attention layer) without the heads that members keep there."""
    return replace(site, kept=())


def _total_cost(costs: Sequence[CostRecord]) -> CostRecord:
    """Return the cost of running all models; what is not known of one is None."""
    first = costs[0]
    nonzero = None
    if first.params_nonzero is not None:
        nonzero = _sum_if_all_known([cost.params_nonzero for cost in costs])
    parameters = _sum_if_all_known([cost.params for cost in costs])
    mult_adds = _sum_if_all_known([cost.macs for cost in costs])
    return replace(first, params=parameters, params_nonzero=nonzero, macs=mult_adds)


def _sum_if_all_known(values: Sequence[int | None]) -> int | None:
    """Return the sum of values; None where one of them is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known)
