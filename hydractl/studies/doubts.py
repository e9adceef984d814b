"""Reasons why a verdict is less certain than its intervals say.

Each function returns a list with one sentence, or an empty list if there is no such reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hydractl.files.study_answer import StabilityRecord
from hydractl.metrics.bootstrap import Resampled, paired_differences
from hydractl.metrics.confidence import share_difference_interval, share_interval
from hydractl.report.eval_tables import signed_number, signed_range
from hydractl.report.texts import number, percent
from hydractl.studies.rule import BLIND, Difference
from hydractl.studies.words import AUROC_MARGIN, KINDS, NLL

OFTEN = 0.2
"""If more than this share of the resamples lead to another choice, the choice is called doubtful."""
_LIKELIHOOD_RATIO = 3.84
"""The 0.95 quantile of the chi-squared distribution with one degree of freedom: below it, twice the gain in
log-likelihood by one fitted number may be chance (Wilks 1938)."""


def of_blind_sets(telling: Sequence[str], blind: Sequence[str], searched: str | None = None) -> list[str]:
    """Return sentences on the OOD validation sets that had no vote; empty if all had one.

    A set has a vote if an OOD score of the single model separates it from the ID samples.

    Args:
        telling, blind: the names of the sets with and without a vote.
        searched: the name of the set that heads were searched on; None if no row has a circuit.
    """
    if not blind:
        return []
    # Pronouns for one set, or for several.
    subject, object_ = "it", "it"
    if len(blind) > 1:
        subject, object_ = "they", "them"
    # If other sets had a vote, the choice was made by those.
    if telling:
        consequence = f"{subject} had no vote"
    else:
        consequence = f"nothing could be chosen on {object_}"
    names = ", ".join(blind)
    reason = f"no score of the single model separates them with an AUROC whose interval lies above {BLIND:g}"
    sentences = [f"OOD validation data that tell nothing: {names} ({reason}), so {consequence}."]
    if searched in blind:
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
            "if it was trained on the validation data, these choose and calibrate badly, so give others; if not, the "
            "test set is harder"
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


def of_temperature(temperature: float, validation_gain: float, calibrated: Resampled, raw: Resampled) -> list[str]:
    """Return a sentence if a temperature below 1 makes the NLL of the test data worse; else an empty list.

    Both must be significant, that it suits the validation data and that it harms the test data: a temperature that is
    fitted to few samples may lie below 1 by chance.

    Args:
        temperature: the temperature of the row to use.
        validation_gain: by how much it lowers the negative log-likelihood of all validation samples together, in nats.
        calibrated, raw: the mean NLL of that row on the test data, with the temperature and without.
    """
    if temperature >= 1:  # such a temperature makes predictions more careful, not sharper
        return []
    if 2 * validation_gain < _LIKELIHOOD_RATIO:  # the validation data do not contradict a temperature of 1
        return []
    # NLL with the temperature minus NLL without: the interval must lie above 0, as lower is better.
    change = paired_differences(raw, calibrated)[NLL]
    assert change["value"] is not None and change["ci"] is not None  # no test set is empty
    low, high = change["ci"]
    if low <= 0:
        return []

    temperature_text = number(temperature, 3)
    rise = signed_number(change["value"])
    return [
        f"The temperature {temperature_text} sharpens probabilities, and makes the NLL of the test data worse by "
        f"{rise} ({signed_range(low, high)}): it suits the validation data alone; was the model trained on them?"
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


def of_threshold(promised: float, flagged: int, n: int, chosen_flagged: int, chosen_n: int) -> list[str]:
    """Return a sentence if a threshold flags significantly more ID test samples than the ID samples it was chosen on.

    Args:
        promised: the share of ID samples that it was to flag.
        flagged, n: how many ID test samples it flags, and how many there are.
        chosen_flagged, chosen_n: the same for the ID validation samples that it was chosen on; few of them decide
            little.
    """
    low, high = share_interval(flagged, n)
    difference = share_difference_interval(flagged, n, chosen_flagged, chosen_n)
    if low <= promised or difference.low <= 0:
        return []
    return [
        f"The threshold was chosen to flag {100 * promised:g} % of the ID validation data, and flags "
        f"{percent(flagged / n)} of the ID test data ({percent(low)} to {percent(high)}): expect that of "
        "inputs like the test data."
    ]


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

    # What another choice would have changed on average; None if that is not known.
    consequence = ""
    if stability.difference is not None:
        is_small = abs(stability.difference) < AUROC_MARGIN
        if is_small and changed_shares["model"] <= OFTEN:
            return []
        consequence = f", on average by {signed_number(stability.difference)} of mean OOD AUROC on these data"
    return [f"Not certain: resamples of the validation data would have led to {' and '.join(changes)}{consequence}."]
