"""Warnings of results that cannot be meant: an accuracy of guessing, a loss above that of no prediction, full sets.

Every function returns a sentence, or None if nothing is odd. A figure measured on samples is judged by its 95 %
interval: ten samples say little, and raise no warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydractl.files.calibrate_answer import Conformal
from hydractl.files.model_records import Calibration
from hydractl.metrics.calibrators import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE, temperature_interval
from hydractl.metrics.confidence import Z_95, mean_interval, share_interval
from hydractl.metrics.ood import auroc, curve_of
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.requested import Threshold
from hydractl.metrics.threshold import flagged

_MOST_SHOWN = 5
"""The number of moved labels of an order that a sentence lists."""

_CLEAR = 0.5
"""The accuracy that the best of all orders must exceed: there are very many, and some fit a few samples by chance."""

_DRAWN = 0.15
"""Labels are doubted if more than this share of them looks drawn at random, at the lower end of an interval."""

_SAMPLES_PER_CELL = 4
"""Confident samples for each pair of a label and a prediction, without which rare pairs are not known to be rare."""


# --- accuracy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedAccuracy:
    """An accuracy of the model that is known from elsewhere, e.g. from its training.

    Attributes:
        accuracy: the figure.
        samples: the number of samples it was measured on; None if that is not known.
        where: a clause that follows the figure in a sentence and says where it was measured.
    """

    accuracy: float
    samples: int | None = None
    where: str = "which training recorded"

    @property
    def at_least(self) -> float:
        """The lower end of the accuracy's 95 % interval; the accuracy itself if the number of samples is not known."""
        if self.samples is None:
            return self.accuracy
        correct = round(self.accuracy * self.samples)
        return share_interval(correct, self.samples).low


def accuracy_warning(
    predicted: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    names: Sequence[str] | None = None,
    expected: ExpectedAccuracy | None = None,
    confidence: Floats | None = None,
) -> str | None:
    """Return a warning of the accuracy on labelled samples, or of the labels; None if both are plausible.

    The accuracy is implausible if it is no better than always guessing the largest class, or far below the expected
    accuracy. The sentence then names another order of the labels, if one clearly fits the predictions. Otherwise the
    labels are doubted if two of them look swapped, or many look drawn at random.

    Args:
        predicted, labels: classes ``[N]``.
        classes: the number of classes of the model.
        names: the names of the model's classes; None if they are not known.
        expected: the accuracy of the model elsewhere; None if it is not known.
        confidence: the highest probability of each sample, ``[N]``; None if it is not known.
    """
    if not len(labels):
        return None
    warning = count_warning(int((predicted == labels).sum()), labels, expected)
    confusion = _confusion(predicted, labels, classes)
    if warning is None:  # a plausible accuracy: some of the labels may still be wrong
        drawn = None if confidence is None else _drawn_labels(predicted, labels, confidence, classes)
        return _swapped_labels(confusion, names) or drawn

    # An implausible accuracy: the labels may be numbered in another order than the model's classes.
    order = _fitting_order(confusion)
    if order is None:
        return f"{warning}: are these the classes, the preprocessing and the tokenizer that the model was trained with?"
    return f"{warning}; {order}: give the labels by name, or in the order of the model's classes"


def count_warning(correct: int, labels: NDArray[np.int64], expected: ExpectedAccuracy | None = None) -> str | None:
    """Return a warning of an accuracy that is no better than guessing, or far below the expected one; else None.

    Guessing means to always predict the largest class. Other data of the same task always cost some accuracy, so half
    way from guessing to the expected accuracy is enough: where guessing gets 0.1 and 0.9 are expected, there is no
    warning if the upper end of the accuracy's 95 % interval is 0.5 or more.

    Args:
        correct: the number of right predictions.
        labels: ``[N]``, N > 0.
        expected: the accuracy of the model elsewhere; None if it is not known.
    """
    total = len(labels)
    largest = int(np.bincount(labels).max()) / total
    if largest == 1.0:  # all labels are of one class: no accuracy can be above guessing
        return None
    high = share_interval(correct, total).high
    accuracy = f"{correct / total:.3f} of {total} samples (at most {high:.3f} by its 95 % interval)"
    if high <= largest:
        return f"accuracy {accuracy} is not above {largest:.3f}, the share of the largest class"
    if expected is None:
        return None
    half_way = (largest + expected.at_least) / 2  # at_least: the lower end of the expected accuracy
    if high >= half_way:
        return None
    return f"accuracy {accuracy} is far below {expected.accuracy:.3f}, {expected.where}"


def _confusion(predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Count samples by label and prediction, ``[C, C]``."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


def _swapped_labels(confusion: NDArray[np.int64], names: Sequence[str] | None) -> str | None:
    """Return a warning of pairs of labels that look swapped, each standing for the class of the other; else None.

    Two labels a and b look swapped if most samples labelled a are predicted as b, and most labelled b as a, both by the
    lower end of a 95 % interval; other predictions do not count. A model that merely confuses two classes prefers one
    of them for both labels.

    Args:
        confusion: samples by label (row) and prediction (column), [C, C].
        names: the names of the classes; None if they are not known.
    """
    # Candidates are pairs of labels of which both have more samples predicted as the other label than as themselves.
    right = confusion.diagonal()  # the samples of each label that are predicted as it, [C]
    prefers_other = confusion > right[:, None]  # [label, other]
    both_prefer = np.triu(prefers_other & prefers_other.T)  # only above the diagonal, so that a pair occurs once

    # Of these, take the pairs in which this is certain for both labels.
    swapped = []
    for first, second in np.argwhere(both_prefer):
        lowest_shares = []  # for each label the lower end of the share of its samples predicted as the other
        for label, other in ((first, second), (second, first)):
            as_other = int(confusion[label, other])
            as_itself = int(confusion[label, label])
            lowest_shares.append(share_interval(as_other, as_other + as_itself).low)
        if min(lowest_shares) > 0.5:
            pair = (str(first), str(second)) if names is None else (names[first], names[second])
            swapped.append(" and ".join(pair))
    if not swapped:
        return None
    shown_pairs = ", ".join(swapped[:_MOST_SHOWN])
    return f"the labels {shown_pairs} look swapped: most samples of each are predicted as the other"


def _drawn_labels(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], confidence: Floats, classes: int
) -> str | None:
    """Return a warning if more than 15 % of the labels look drawn at random; None if not, or if it cannot be told.

    A model confuses some pairs of classes often and others hardly ever, but labels drawn at random fall on all pairs of
    a label and a prediction alike. So count the samples on the pairs that the model confuses least: share of drawn
    labels = this count / the count if all labels were drawn. For example 30 samples, where 120 would be expected of
    drawn labels alone: a share of 25 %.

    It cannot be told with two classes, few samples, or an accuracy that is not clearly above 0.5.

    Args:
        predicted, labels: classes ``[N]``.
        confidence: the highest probability of each sample, ``[N]``.
        classes: C, the number of classes of the model.
    """
    # Take only the more confident half of the samples, in which a model errs least.
    confident = confidence >= np.median(confidence)
    predicted, labels = predicted[confident], labels[confident]
    total = len(labels)
    right = int((predicted == labels).sum())
    if classes < 3 or total < _SAMPLES_PER_CELL * classes**2 or share_interval(right, total).low <= _CLEAR:
        return None

    # The counts by label and prediction of the samples at even and at odd places, [C, C] each.
    even, odd = (_confusion(predicted[start::2], labels[start::2], classes) for start in (0, 1))

    # Take the half of the pairs that are confused least among the even samples, and count them among the odd ones, then
    # the other way round. Counted in the same samples they would be too few, as they are the least by their noise, too.
    # If all labels were drawn, the samples of each prediction would be spread evenly over the labels.
    is_error = ~np.eye(classes, dtype=bool)
    counted = counted_if_drawn = 0.0
    for here, other in ((even, odd), (odd, even)):
        if_drawn, other_if_drawn = (
            np.broadcast_to(counts.sum(axis=0) / classes, counts.shape) for counts in (here, other)
        )
        pairs = np.flatnonzero(is_error & (if_drawn > 0))  # indices in the flattened [C, C]
        least_confused_first = pairs[np.argsort(here.flat[pairs] / if_drawn.flat[pairs], kind="stable")]
        least_confused = least_confused_first[: len(pairs) // 2]
        counted += other.flat[least_confused].sum()
        counted_if_drawn += other_if_drawn.flat[least_confused].sum()
    if not counted_if_drawn:
        return None

    # Warn if the share is high even at the lower end of its 95 % interval, and drawn labels then explain most errors; a
    # drawn label still is the right one with chance 1/C.
    share = counted / counted_if_drawn
    low = share_interval(int(counted), total).low * total / counted_if_drawn
    errors = 1 - right / total
    explained = low * (1 - 1 / classes)
    if low <= _DRAWN or explained <= errors / 2:
        return None
    return (
        f"about {min(share, 1.0):.0%} of the labels look drawn at random (at least {low:.0%} by the 95 % "
        "interval): confident predictions are wrong for all classes alike; are these the labels of these samples?"
    )


def _fitting_order(confusion: NDArray[np.int64]) -> str | None:
    """Return words on a renumbering of the labels that fits the predictions better; None if none clearly does.

    They end a sentence, e.g. "with another order of the labels (label 0 as 1, 1 as 0) it would be 0.912", which is the
    accuracy after renumbering.

    Args:
        confusion: samples by label (row) and prediction (column), [C, C].
    """
    from scipy.optimize import linear_sum_assignment  # imported here because it is slow

    # Assign to each label another class, none of them twice, such that the most predictions are right: label l becomes
    # class new_classes[l]. A label that no sample has gets an arbitrary class, which changes nothing.
    every_label, new_classes = linear_sum_assignment(confusion, maximize=True)  # every_label: 0..C-1
    total = int(confusion.sum())
    most_correct = int(confusion[every_label, new_classes].sum())

    # Accept it only if its accuracy is clearly above guessing and above 0.5, and better than with the labels as they
    # are, which have the diagonal right.
    low = share_interval(most_correct, total).low
    share_of_largest_class = confusion.sum(axis=1).max() / total
    is_clear = low > max(share_of_largest_class, _CLEAR)
    is_better = most_correct > int(confusion.trace())
    if not is_clear or not is_better:
        return None

    # Name only labels that stand for another class than before.
    moved_labels = np.flatnonzero(new_classes != every_label)
    moves = [f"{label} as {new_classes[label]}" for label in moved_labels[:_MOST_SHOWN]]
    if len(moved_labels) > _MOST_SHOWN:
        moves.append("...")
    listed = ", ".join(moves)
    return f"with another order of the labels (label {listed}) it would be {most_correct / total:.3f}"


# --- losses -----------------------------------------------------------------------------------------------------------


def nll_warning(label_log_probs: Floats, classes: int) -> str | None:
    """Return a warning of a mean NLL that is clearly above log C, that of the uniform prediction; else None.

    The probabilities are then worse than no prediction at all. For 10 classes, log C is 2.303.

    Args:
        label_log_probs: log p of the label of each sample, in nats, ``[N]``.
        classes: C, the number of classes of the model.
    """
    above = _above_uniform(-label_log_probs, classes)
    if above is None:
        return None
    return f"NLL {-label_log_probs.mean():.4g} of {len(label_log_probs)} samples {above}"


def loss_warning(losses: Floats, classes: int) -> str | None:
    """Return a warning of the cross-entropies of the last steps of a training, ``[steps]``, in nats; else None.

    They are implausible if their mean is clearly above the cross-entropy of the uniform prediction.
    """
    above = _above_uniform(losses, classes)
    if above is None:
        return None
    return (
        f"the mean loss {losses.mean():.4g} of the last steps {above}: the training diverged or has not begun to "
        "learn; lower --lr, or train longer"
    )


def _above_uniform(losses: Floats, classes: int) -> str | None:
    """Return words on losses whose mean is clearly above log C, the loss of the uniform prediction; else None."""
    uniform = math.log(classes)
    low = mean_interval(losses).low
    if low <= uniform:
        return None
    return f"(at least {low:.4g} by its 95 % interval) is above {uniform:.3f}, that of the uniform prediction"


# --- calibrations -----------------------------------------------------------------------------------------------------


_WIDEST_RATIO = 2.0
"""The upper end of a temperature's 95 % interval may be at most so many times the lower one."""

FEWEST_OF_A_QUANTILE = 20
"""A threshold or prediction sets, which are quantiles of validation samples, need at least so many of them."""


def calibration_warning(calibration: Calibration, log_probs: Floats, labels: NDArray[np.int64]) -> str | None:
    """Return a warning of a calibration that was just fitted to N samples; None if it looks well fitted.

    * Vector scaling: it fits more numbers than there are samples, or some class has no sample.
    * A temperature: it is at an end of its range, or the upper end of its 95 % interval is more than twice the lower.

    Args:
        calibration: the fitted calibration.
        log_probs, labels: log p ``[N, C]`` and the classes ``[N]`` of the samples that it was fitted to.
    """
    samples, classes = log_probs.shape
    temperature = calibration.temperature

    # Vector scaling: a scale and a bias for each class.
    if temperature is None:
        numbers = 2 * len(calibration.scales)
        classes_without_samples = classes - len(np.unique(labels))
        if samples < numbers:
            fitted_to = f"{samples} validation samples"
        elif classes_without_samples:
            fitted_to = (
                f"{samples} validation samples, of which {classes_without_samples} of {classes} classes have none"
            )
        else:
            return None
        return (
            f"--temperature vector fits {numbers} numbers to {fitted_to}: give more of them, or fit one number with "
            "--temperature fit"
        )

    # A temperature.
    if temperature == LOWEST_TEMPERATURE:
        return (
            f"the temperature {temperature:g} is at the end of its range: all {samples} validation samples, or nearly "
            "all, are predicted right, so that nothing bounds it; give more of them"
        )
    if temperature == HIGHEST_TEMPERATURE:
        return (
            f"the temperature {temperature:g} is at the end of its range: of the {samples} validation samples the "
            "labels are no more probable than the other classes; are these their labels?"
        )
    low, high = temperature_interval(calibration, log_probs)
    if high <= _WIDEST_RATIO * low:
        return None
    return (
        f"the temperature {temperature:.3g} is uncertain: {low:.3g} to {high:.3g} is its 95 % interval by {samples} "
        "validation samples; give more of them"
    )


# --- thresholds -------------------------------------------------------------------------------------------------------


def threshold_warning(asked: Threshold, value: float, scores: Floats, option: str) -> str | None:
    """Return a warning of a threshold on the OOD score, at or above which samples are flagged; None if it looks right.

    ===========================  ==================================================================
    the user asked for           warned of if
    ===========================  ==================================================================
    ``score:X``, the value       it flags none or all of the samples
    ``id:S`` or ``ood:S``        it was chosen by fewer than 20 samples
    the same, with enough        it flags none though S is above 0, or all though S is below 1
    ===========================  ==================================================================

    Args:
        asked: what the user asked for, the share S or the value itself.
        value: the threshold.
        scores: the OOD scores ``[N]`` of the validation samples that it was chosen by, or for ``score:X`` is tried on.
        option: the option that names these samples.
    """
    n = len(scores)
    is_given = asked.side == "score"
    threshold = f"score:{value:g}" if is_given else f"{asked.rule} ({value:.6g})"
    if n < FEWEST_OF_A_QUANTILE and not is_given:
        advice = f"give {FEWEST_OF_A_QUANTILE} samples or more"
        return f"the threshold {threshold} is a quantile of {n} samples of {option}: {advice}"
    share_flagged = flagged(scores, value)
    flags_none_or_all = share_flagged in (0, 1)
    as_asked = not is_given and share_flagged == asked.number  # id:0 asks that none is flagged, ood:1 that all are
    if not flags_none_or_all or as_asked:
        return None
    flags = "all" if share_flagged else "none"
    chosen_by = "" if is_given else " that it was chosen by"
    return f"the threshold {threshold} flags {flags} of the {n} samples of {option}{chosen_by}"


def chance_warning(score: str, inside: Floats | None, outside: Mapping[str, Floats]) -> str | None:
    """Return a warning of an OOD score that separates no OOD validation set from the ID validation set; else None.

    It separates a set if its AUROC is above what chance reaches: above 0.5 + 1.96 * sqrt((N + K + 1) / (12 N K)), the
    standard deviation of the AUROC of N and K equally distributed scores. For N = K = 100 that is 0.58.

    Args:
        score: the name of the score.
        inside: its values on the ID validation samples ``[N]``; None without ID validation data.
        outside: its values ``[K]`` on each OOD validation set, by the name of the set.
    """
    if inside is None or not outside:
        return None
    n_id = len(inside)
    aurocs = []
    for values in outside.values():
        n_ood = len(values)
        curve = curve_of(inside, values)
        assert curve is not None  # both sets have samples
        area = auroc(curve)
        deviation = math.sqrt((n_id + n_ood + 1) / (12 * n_id * n_ood))
        if area > 0.5 + Z_95 * deviation:  # one set that is separated is enough
            return None
        aurocs.append(area)
    chance = f"chance may with {len(inside)} samples of --val (AUROC {max(aurocs):.3f})"
    advice = "give more, choose another, or hedge with --train, which needs no OOD samples"
    return f"{score} tells --ood-val from --val no better than {chance}: {advice}"


# --- prediction sets --------------------------------------------------------------------------------------------------


def full_sets_warning(fitted: Conformal, mean_size: float | None, classes: int) -> str | None:
    """Return a warning of conformal prediction sets if every set holds every class; else None.

    None also if too few validation samples are the reason, of which :func:`few_for_sets_warning` warns.

    Args:
        fitted: the threshold of the sets.
        mean_size: the mean number of classes in a set; None without samples.
        classes: the number of classes of the model.
    """
    if mean_size is None or mean_size < classes or fitted.n_val < _needed(fitted):
        return None
    return f"{_says_nothing(classes)}: allow more misses (--conformal), or give a model that tells the classes apart"


def few_for_sets_warning(fitted: Conformal, classes: int) -> str | None:
    """Return a warning of conformal prediction sets that were fitted to too few validation samples; else None.

    There are two warnings: of so few samples that every set holds every class (for an error rate alpha of 0.1 fewer
    than 9), and of fewer than 20.

    Args:
        fitted: the threshold of the sets.
        classes: the number of classes of the model.
    """
    if fitted.n_val < _needed(fitted):
        samples = f"{fitted.n_val} validation samples are fewer than the {_needed(fitted)} that --conformal needs"
        return f"{_says_nothing(classes)}: {samples}"
    if fitted.n_val < FEWEST_OF_A_QUANTILE:
        return (
            f"the prediction sets are by a quantile of {fitted.n_val} samples of --val: give {FEWEST_OF_A_QUANTILE} or "
            "more"
        )
    return None


def _needed(fitted: Conformal) -> int:
    """Return the fewest validation samples for which qhat is not 1 whatever their scores are."""
    return math.ceil(1 / fitted.alpha) - 1


def _says_nothing(classes: int) -> str:
    """Return words for conformal sets that hold all of so many classes."""
    return f"every conformal set holds all {classes} classes, which says nothing"
