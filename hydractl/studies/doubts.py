"""Reasons why a verdict is less certain than its intervals say.

Each function returns a list with one sentence, or an empty list if there is no such reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hydractl.files.study_answer import StabilityRecord
from hydractl.metrics.bootstrap import Resampled, paired_differences
from hydractl.metrics.confidence import share_difference_interval
from hydractl.report.eval_tables import signed_number, signed_range
from hydractl.report.texts import number
from hydractl.studies.rule import BLIND, Difference
from hydractl.studies.words import AUROC_MARGIN, KINDS, NLL

OFTEN = 0.2
"""If more than this share of the resamples lead to another choice, the choice is called doubtful."""


def of_blind_sets(
    telling: Sequence[str], blind: Sequence[str], *, made: Sequence[str] = (), searched: str | None = None
) -> list[str]:
    """Return sentences on the OOD validation sets that had no vote, and on those that decided; empty if all had one.

    A set has a vote if an OOD score of the single model separates it from the ID samples.

    Args:
        telling, blind: the names of the sets with and without a vote.
        made: the names of sets that were made of the ID validation data, which the sentences say.
        searched: the name of the set that heads were searched on; None if no row has a circuit.
    """
    if not blind:
        return []
    # If other sets had a vote, the choice was made by those.
    consequence = f"{' and '.join(telling)} decided" if telling else "nothing could be chosen"
    reason = f"no score of the single model tells them from ID data with an AUROC whose interval lies above {BLIND:g}"
    named = [f"{name} (made of --val)" if name in made else name for name in blind]
    sentences = [f"OOD validation data without a vote: {', '.join(named)}, as {reason}; {consequence}."]
    if searched in blind:  # never if it is None
        sentences.append(
            f"Heads were searched on {searched} all the same, so the models of circuits say nothing of what a search "
            "on other data would find: give another set as the first --ood-val."
        )
    return sentences


def of_accuracies(correct: npt.NDArray[np.bool_], test_correct: npt.NDArray[np.bool_]) -> list[str]:
    """Return a sentence if the single model's accuracy differs significantly between validation data and test data.

    Args:
        correct: whether it is right about each sample of the validation data, [N].
        test_correct: the same of the test data.
    """
    # The 95 % interval of accuracy on validation data minus that on test data: above 0, below 0, or around it.
    low, high = share_difference_interval(int(correct.sum()), len(correct), int(test_correct.sum()), len(test_correct))
    if low > 0:
        why = (
            "if it was trained on the validation data, they are unfit to choose and calibrate by, so give other "
            "validation data; if not, the test set is harder"
        )
    elif high < 0:
        why = "if it was trained on the test data, their figures are too good; if not, the test set is easier"
    else:
        return []
    accuracy = correct.mean()
    test_accuracy = test_correct.mean()
    difference = signed_number(accuracy - test_accuracy)
    return [
        f"The single model's accuracy is {number(accuracy)} on the validation data and {number(test_accuracy)} on the "
        f"test data (a difference of {difference}, {signed_range(low, high)}): {why}."
    ]


def of_temperature(temperature: float, calibrated: Resampled, raw: Resampled) -> list[str]:
    """Return a sentence if a temperature below 1 makes the NLL of the test data significantly worse; else nothing.

    Args:
        temperature: the temperature of the row to use.
        calibrated, raw: the mean NLL of that row on the test data, with the temperature and without.
    """
    if temperature >= 1:  # such a temperature makes predictions more careful, not sharper
        return []
    # NLL with the temperature minus NLL without: the interval must lie above 0, as lower is better.
    change = paired_differences(raw, calibrated)[NLL]
    assert change["value"] is not None and change["ci"] is not None  # no test set is empty
    low, high = change["ci"]
    if low <= 0:
        return []

    rise = f"{signed_number(change['value'])} ({signed_range(low, high)})"
    return [
        f"The temperature {number(temperature, 3)} sharpens probabilities, and makes the NLL of the test data worse by "
        f"{rise}: it suits the validation data alone, because they are few, or the model was trained on them."
    ]


def of_limits(row: str, losses: Mapping[str, Difference], limits: Mapping[str, float]) -> list[str]:
    """Return a sentence for each figure of a row that is beyond its limit, though not significantly worse.

    Args:
        row: the name of the row.
        losses: by metric, how much worse it is than the single model on the validation data.
        limits: by metric, how much worse it may be.
    """
    sentences = []
    for metric, loss in losses.items():
        interval = signed_range(loss.low, loss.high)
        sentences.append(
            f"On validation data the {KINDS[metric].words} of {row} is worse by {number(loss.value)} ({interval}), "
            f"more than the {limits[metric]:g} allowed; the samples cannot tell whether it is worse at all, so it was "
            "not ruled out."
        )
    return sentences


def of_stability(stability: StabilityRecord) -> list[str]:
    """Return a sentence if more than a fifth of the resamples of validation data led to another model or score.

    Empty else. Another score alone is no doubt where it would have changed the mean AUROC by less than the margin.
    """
    changes = []
    # The shares of resamples that led to another one: 1 minus the shares that led to the same.
    changed_shares = {"model": 1 - stability.row, "score": 1 - stability.score}
    for what, share in changed_shares.items():
        if share > OFTEN:
            changes.append(f"another {what} in {100 * share:.0f} % of cases")
    if not changes:
        return []

    # How much better or worse the other choices are on average; None if that is not known.
    consequence = ""
    if stability.difference is not None:
        is_small = abs(stability.difference) < AUROC_MARGIN
        if is_small and changed_shares["model"] <= OFTEN:
            return []
        side = "less" if stability.difference < 0 else "more"
        size = number(abs(stability.difference))
        consequence = f", on average for {size} {side} of mean OOD AUROC on these data"
    return [f"Not certain: other draws of the validation data would have chosen {' and '.join(changes)}{consequence}."]
