"""Compares OOD scores on validation data, to choose one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydractl.errors import InputError
from hydractl.files.calibrate_answer import ComparedScoreRecord
from hydractl.metrics.ood import auroc, curve_of
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.samples import Samples

NEAR_TIE = 0.005
"""Scores whose mean AUROCs differ by less than this count as equally good; the first one in the options is chosen."""


def compare_scores(
    names: Sequence[str], inside: Samples, outside: Mapping[str, Samples], members: int
) -> dict[str, ComparedScoreRecord]:
    """Return the AUROC of each OOD score on every OOD validation set against the ID validation set, and their mean.

    The mean is None for a score that is constant for the model, or without a set that has samples.

    Args:
        names: the names of the scores.
        inside: the calibrated predictions on the ID validation set, with all scores beside the leading one.
        outside: those on each OOD validation set, by the name of the set. Sets without a score are left out.
        members: the number of members of the model; a score of how they differ is constant for one.
    """
    compared = {}
    for name in names:
        id_scores = inside.scores[name]
        auroc_by_set = {}
        for set_name, samples in outside.items():
            ood_scores = samples.scores[name]
            if says_nothing(name, members) or id_scores is None or ood_scores is None:
                continue
            curve = curve_of(id_scores, ood_scores)
            if curve is not None:
                auroc_by_set[set_name] = auroc(curve)
        mean = None
        if auroc_by_set:
            mean = sum(auroc_by_set.values()) / len(auroc_by_set)
        compared[name] = ComparedScoreRecord(auroc=mean, by_set=auroc_by_set)
    return compared


def as_good_as_the_best(compared: Mapping[str, ComparedScoreRecord], model: str) -> list[str]:
    """Return the names of the scores whose mean AUROC is less than :data:`NEAR_TIE` below the best, in their order.

    Args:
        compared: the AUROCs of all scores, by name.
        model: the name of the model, for the message.

    Raises:
        InputError: if all scores are constant.
    """
    means = {}
    for name, score in compared.items():
        if score.auroc is not None:
            means[name] = score.auroc
    if not means:
        raise InputError(f"no OOD score tells anything of {model}: {', '.join(compared)} are constant")
    best_mean = max(means.values())
    return [name for name, mean in means.items() if best_mean - mean < NEAR_TIE]
