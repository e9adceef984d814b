"""Reads the predictions files of several models like one file of their ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydractl.errors import InputError
from hydractl.evaluation.predictions.reading import Predictions
from hydractl.files.model_records import CostRecord, TrainingRecord
from hydractl.files.predictions_header import PredictedModelRecord, PredictedSiteRecord
from hydractl.jsonio import differences

_MAY_DIFFER = ("name", "sha256", "heads", "cost", "calibration", "threshold", "ood_score", "training")
"""Entries of the header in which the models of an ensemble may differ. All others decide logits or name classes."""

_MOST_PROBLEMS = 20


def concatenated(files: Sequence[Predictions]) -> Predictions:
    """Return the predictions of an ensemble whose members are those of two or more files, one file after another.

    The data sets are in the order of the first file. Of each set, the number of seen samples, on which a model was
    trained or fitted, is the largest in any file.

    Raises:
        InputError: if the files have different samples, classes or settings; up to 20 differences are listed.
    """
    origin = "+".join(file.origin for file in files)
    first_file = files[0]
    settings = _settings_in_common(first_file)
    problems: list[str] = []
    for other_file in files[1:]:
        found = differences(settings, _settings_in_common(other_file), f"in {first_file.origin}")
        problems += [f"{other_file.origin}: {difference}" for difference in found]
    if problems:
        raise InputError(
            f"{origin} are no predictions of one ensemble",
            hint="make them by the same eval, with the same data and settings",
            problems=problems[:_MOST_PROBLEMS],
        )

    # Files may have their sets in other orders: for each file, list the indices of its sets in the order of the first.
    tensors_and_indices = []
    sets = list(first_file.sets)
    for file in files:
        index_of_set = {(dataset.role, dataset.name): index for index, dataset in enumerate(file.sets)}
        indices = [index_of_set[dataset.role, dataset.name] for dataset in sets]
        for place, index in enumerate(indices):
            seen = max(sets[place].seen, file.sets[index].seen)
            sets[place] = replace(sets[place], seen=seen)
        ((tensors, _),) = file.files
        tensors_and_indices.append((tensors, indices))

    # One header for all. It has no calibration, threshold or OOD score, as these were chosen for a single model.
    models = [file.record for file in files]
    digests: list[str | None] = []  # a file may have predictions of several models
    for model in models:
        digests += model.sha256 if isinstance(model.sha256, list) else [model.sha256]
    header = first_file.record.model_copy(
        update={
            "sha256": digests,
            "heads": heads_of_all_members([model.heads or [] for model in models]),
            "training": _all_trainings(models, [file.members for file in files]),
            "cost": total_cost([model.cost or CostRecord() for model in models]),
            "calibration": None,
            "threshold": None,
            "ood_score": None,
        }
    )
    return Predictions(origin, header, sets, tensors_and_indices)


def _settings_in_common(file: Predictions) -> dict[str, object]:
    """Return by name what is the same in all files of an ensemble: what decides logits, the classes, and the sets."""
    settings = file.record.to_dict()
    for key in _MAY_DIFFER:
        settings.pop(key, None)
    settings["classes"] = file.classes
    for dataset in file.sets:
        name = f"{dataset.role} {dataset.name}"
        settings[f"samples of {name}"] = len(dataset.ids)
        settings[f"fingerprint of {name}"] = dataset.fingerprint
        settings[f"group of {name}"] = dataset.group
    return settings


# --- one header for all -----------------------------------------------------------------------------------------------


def _all_trainings(models: Sequence[PredictedModelRecord], members: Sequence[int]) -> list[TrainingRecord]:
    """Return the records of the trainings of all files, with members numbered through the whole ensemble.

    Args:
        models: the records of the models.
        members: the number of members in each file.
    """
    trainings: list[TrainingRecord] = []
    members_before = 0  # the number of members in all previous files
    for model, members_in_file in zip(models, members, strict=True):
        for training in model.training:
            member_in_file = training.member or 0  # None if the file has only one member
            trainings.append(training.model_copy(update={"member": members_before + member_in_file}))
        members_before += members_in_file
    return trainings


def heads_of_all_members(parts: Sequence[Sequence[PredictedSiteRecord]]) -> list[PredictedSiteRecord]:
    """Return one record for each site (attention block), with the heads that the members of all models keep there.

    The list is empty if the models have different sites.

    Args:
        parts: for each model, one record for each of its sites. A record has the path of the site, its number of heads
            before pruning, and for each member of the model the heads that it keeps.
    """
    # All models must have the same sites, whatever heads they keep.
    expected_sites = [_without_kept(site) for site in parts[0]]
    for sites_of_model in parts:
        sites = [_without_kept(site) for site in sites_of_model]
        if sites != expected_sites:
            return []

    # zip() groups the records of all models by site.
    joined_sites = []
    for records_of_site in zip(*parts, strict=True):
        kept_by_member: list[Sequence[int]] = []
        for record in records_of_site:
            kept_by_member += record.kept
        joined_sites.append(records_of_site[0].model_copy(update={"kept": kept_by_member}))
    return joined_sites


def _without_kept(site: PredictedSiteRecord) -> PredictedSiteRecord:
    """Return the record of a site (attention block) without the heads that members keep there."""
    return site.model_copy(update={"kept": ()})


def total_cost(costs: Sequence[CostRecord]) -> CostRecord:
    """Return the cost of several models together; a number is None if it is unknown for any of them.

    If nonzero elements were counted for one model, then all elements of a model without such a count are nonzero.
    """
    total_nonzero = None
    if any(cost.params_nonzero is not None for cost in costs):
        counted = [cost.params if cost.params_nonzero is None else cost.params_nonzero for cost in costs]
        total_nonzero = _sum_if_all_known(counted)
    return costs[0].model_copy(
        update={
            "params": _sum_if_all_known([cost.params for cost in costs]),
            "params_nonzero": total_nonzero,
            "macs": _sum_if_all_known([cost.macs for cost in costs]),
        }
    )


def _sum_if_all_known(values: Sequence[int | None]) -> int | None:
    """Return the sum of values; None if any of them is None."""
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values):
        return None
    return sum(known_values)
