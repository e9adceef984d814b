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
    """Return a warning of the accuracy on labelled samples; None if the accuracy is plausible.

    It is implausible if it is no better than always guessing the largest class, or far below an accuracy known from
    elsewhere. The sentence names another order of the labels if that would explain it. Labels of which two are swapped,
    or of which many look drawn at random, are doubted whatever the accuracy is.

    Args:
        predicted, labels: classes ``[N]``.
        classes: the number of classes of the model.
        names: the names of the model's classes; None if they are not known.
        expected: the accuracy of the model elsewhere; None if it is not known.
        confidence: the highest probability of each sample, ``[N]``; None if it is not known.
    """
    total = len(labels)
    if not total:
        return None
    largest = _largest_share(labels)
    if largest == 1.0:  # all labels are of one class: no accuracy can be above guessing
        return None

    # Compare with guessing the largest class, then with the expected accuracy.
    is_correct = predicted == labels
    correct = int(is_correct.sum())
    warning = _below_largest(correct, total, largest) or _below_expected(correct, total, largest, expected)
    if warning is None:
        drawn = None if confidence is None else _drawn_labels(predicted, labels, confidence, classes)
        return _swapped_labels(_confusion(predicted, labels, classes), names) or drawn

    # The labels may be numbered in another order than the model's classes.
    order = _fitting_order(predicted, labels, classes)
    if order is None:
        return f"{warning}: are these the classes, the preprocessing and the tokenizer that the model was trained with?"
    return f"{warning}; {order}: give the labels by name, or in the order of the model's classes"


def count_warning(correct: int, labels: NDArray[np.int64]) -> str | None:
    """Return a warning of a number of right predictions, if the predictions themselves are not available; else None.

    Args:
        correct: the number of right predictions.
        labels: ``[N]``, N > 0.
    """
    largest = _largest_share(labels)
    if largest == 1.0:
        return None
    return _below_largest(correct, len(labels), largest)


def _largest_share(labels: NDArray[np.int64]) -> float:
    """Return the share of the most frequent class among labels [N], N > 0."""
    class_sizes = np.bincount(labels)
    largest_size = int(class_sizes.max())
    return largest_size / len(labels)


def _below_largest(correct: int, total: int, largest: float) -> str | None:
    """Return a warning of an accuracy that is no better than always guessing the largest class; else None.

    Args:
        correct, total: the numbers of right predictions and of samples.
        largest: the share of the largest class.
    """
    high = share_interval(correct, total).high
    if high > largest:
        return None
    accuracy = correct / total
    return (
        f"accuracy {accuracy:.3f} of {total} samples (at most {high:.3f} by its 95 % interval) is not above "
        f"{largest:.3f}, the share of the largest class"
    )


def _below_expected(correct: int, total: int, largest: float, expected: ExpectedAccuracy | None) -> str | None:
    """Return a warning of an accuracy that is nearer to guessing than to the expected accuracy; else None.

    Accuracy is always lost on other data of the same task, and that is no fault: an accuracy in the upper half between
    guessing and the expected accuracy raises no warning.

    Args:
        correct, total: the numbers of right predictions and of samples.
        largest: the share of the largest class, which is the accuracy of guessing.
        expected: the accuracy of the model elsewhere; None if it is not known.
    """
    if expected is None:
        return None
    high = share_interval(correct, total).high
    half_way = (largest + expected.at_least) / 2
    if high >= half_way:
        return None
    accuracy = correct / total
    return (
        f"accuracy {accuracy:.3f} of {total} samples (at most {high:.3f} by its 95 % interval) is far below "
        f"{expected.accuracy:.3f}, {expected.where}"
    )


def _confusion(predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Count samples by label and prediction, ``[C, C]``."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


def _swapped_labels(confusion: NDArray[np.int64], names: Sequence[str] | None) -> str | None:
    """Return a warning of two labels of which each stands for the class of the other; None if there are none.

    Of the samples with either label that are predicted as one of the two classes, the other class has more than half,
    by an interval. A model that confuses two classes prefers one of them for both labels.

    Args:
        confusion: samples by label and prediction.
        names: the names of the classes; None if they are not known.
    """
    prefers_other = confusion > confusion.diagonal()[:, None]
    both_prefer = np.triu(prefers_other & prefers_other.T)
    swapped = []
    for first, second in np.argwhere(both_prefer):
        shares = []
        for label, other in ((first, second), (second, first)):
            as_other, as_itself = int(confusion[label, other]), int(confusion[label, label])
            shares.append(share_interval(as_other, as_other + as_itself).low)
        if min(shares) > 0.5:
            swapped.append(" and ".join(str(label) if names is None else names[label] for label in (first, second)))
    if not swapped:
        return None
    return (
        f"the labels {', '.join(swapped[:_MOST_SHOWN])} look swapped: most samples of each are predicted as the other"
    )


def _drawn_labels(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], confidence: Floats, classes: int
) -> str | None:
    """Return a warning if many labels look drawn at random, which the confusion of the model does not explain.

    A model confuses some classes and others never. Labels drawn at random fall on all pairs of a label and a prediction
    alike. So the rarer half of all pairs of different classes is found in one half of the samples, and counted in the
    other: if a share r of the labels is drawn, it has r times what chance would give. Only the confident half of the
    samples is taken, in which a model errs least, and random labels have to explain most of its errors.

    Two classes have no rare pairs, and few samples do not tell which are: there is no warning of these.

    Args:
        predicted, labels: classes ``[N]``.
        confidence: the highest probability of each sample, ``[N]``.
        classes: C, the number of classes of the model.
    """
    confident = confidence >= np.median(confidence)
    predicted, labels = predicted[confident], labels[confident]
    total = len(labels)
    right = int((predicted == labels).sum())
    if classes < 3 or total < _SAMPLES_PER_CELL * classes**2 or share_interval(right, total).low <= _CLEAR:
        return None

    # Count the rarer pairs of each half in the other half.
    is_error = ~np.eye(classes, dtype=bool)
    halves = [_confusion(predicted[start::2], labels[start::2], classes) for start in (0, 1)]
    chances = [np.broadcast_to(half.sum(axis=0) / classes, half.shape) for half in halves]  # if all labels were drawn
    found = by_chance = 0.0
    for here, other in ((0, 1), (1, 0)):
        pairs = np.flatnonzero(is_error & (chances[here] > 0))
        rates = halves[here].flat[pairs] / chances[here].flat[pairs]
        rarer = pairs[np.argsort(rates, kind="stable")[: len(pairs) // 2]]
        found += halves[other].flat[rarer].sum()
        by_chance += chances[other].flat[rarer].sum()
    if not by_chance:
        return None
    low = share_interval(int(found), total).low * total / by_chance
    errors = 1 - right / total
    explained = low * (1 - 1 / classes)
    if low <= _DRAWN or explained <= errors / 2:
        return None
    return (
        f"about {min(found / by_chance, 1.0):.0%} of the labels look drawn at random (at least {low:.0%} by the 95 % "
        "interval): confident predictions are wrong for all classes alike; are these the labels of these samples?"
    )


def _fitting_order(predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> str | None:
    """Return, as the end of a sentence, an order of the labels that clearly fits the predictions; None if none does.

    None also if the labels fit best as they are.

    Args:
        predicted, labels: classes ``[N]``.
        classes: C, the number of classes of the model.
    """
    from scipy.optimize import linear_sum_assignment  # imported here because it is slow

    # Find the best of all orders: the assignment of labels to classes with the most right predictions. A label that no
    # sample has gets an arbitrary class, which changes nothing.
    confusion = _confusion(predicted, labels, classes)
    every_label, places = linear_sum_assignment(confusion, maximize=True)
    total = len(labels)
    most_correct = int(confusion[every_label, places].sum())

    # Accept it only if its accuracy is clearly above guessing, and it is better than the labels as they are.
    low = share_interval(most_correct, total).low
    is_clear = low > max(_largest_share(labels), _CLEAR)
    is_better = most_correct != int(confusion.trace())
    if not is_clear or not is_better:
        return None

    # Name only labels that stand for another class than before.
    moved_labels = np.flatnonzero(places != every_label)
    moves = [f"{label} as {places[label]}" for label in moved_labels[:_MOST_SHOWN]]
    if len(moved_labels) > _MOST_SHOWN:
        moves.append("...")
    listed = ", ".join(moves)
    return f"with another order of the labels (label {listed}) it would be {most_correct / total:.3f}"


# --- losses -----------------------------------------------------------------------------------------------------------


def nll_warning(label_log_probs: Floats, classes: int) -> str | None:
    """Return a warning of the log probabilities of the labels, ``[N]``, in nats; None if they are plausible.

    If their mean is below that of the uniform prediction, the probabilities are worse than no prediction at all.
    """
    uniform = math.log(classes)
    losses = -label_log_probs
    low = mean_interval(losses).low
    if low <= uniform:
        return None
    nll = losses.mean()
    return (
        f"NLL {nll:.4g} of {len(losses)} samples (at least {low:.4g} by its 95 % "
        f"interval) is above {uniform:.3f}, that of the uniform prediction"
    )


def loss_warning(losses: Floats, classes: int) -> str | None:
    """Return a warning of the cross-entropies of the last steps of a training, ``[steps]``, in nats; else None.

    They are implausible if their mean is clearly above the cross-entropy of the uniform prediction.
    """
    uniform = math.log(classes)
    low = mean_interval(losses).low
    if low <= uniform:
        return None
    mean_loss = losses.mean()
    return (
        f"the training ends with a loss of {mean_loss:.4g} (at least {low:.4g} by its 95 % interval), above "
        f"{uniform:.3f}, that of the uniform prediction: it diverged or has not begun to learn; lower --lr, or train "
        "longer"
    )


# --- calibrations -----------------------------------------------------------------------------------------------------


_WIDEST_RATIO = 2.0
"""The upper end of a temperature's 95 % interval may be at most so many times the lower one."""

FEWEST_OF_A_QUANTILE = 20
"""A threshold or prediction sets, which are quantiles of validation samples, need at least so many of them."""


def calibration_warning(calibration: Calibration, log_probs: Floats, labels: NDArray[np.int64]) -> str | None:
    """Return a warning of a calibration that was just fitted: too many numbers, or an uncertain temperature; or None.

    Args:
        calibration: the fitted calibration.
        log_probs, labels: log p ``[N, C]`` and the classes ``[N]`` of the samples that it was fitted to.
    """
    samples = len(log_probs)
    temperature = calibration.temperature
    if temperature is None:
        numbers = 2 * len(calibration.scales)  # a scale and a bias for each class
        fitted_to = f"{samples} validation samples"
        if samples >= numbers:
            classes = log_probs.shape[1]
            absent = classes - len(np.unique(labels))
            if not absent:
                return None
            fitted_to += f", of which {absent} of {classes} classes have none"
        return (
            f"--temperature vector fits {numbers} numbers to {fitted_to}: give more of them, or fit one number with "
            "--temperature fit"
        )
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
    """Return a warning of a threshold that was chosen by too few samples, or flags none or all of them; else None.

    ``id:0`` flags none, and ``ood:1`` all, because they are to.

    Args:
        asked: how the threshold was chosen, or given.
        value: the threshold.
        scores: the OOD scores of the validation samples ``[N]``: those that it counts, or for a given score all.
        option: the option that names the samples.
    """
    n = len(scores)
    share_flagged = flagged(scores, value)
    flags = None  # what it flags, if that is not what was asked for
    is_given = asked.side == "score"
    if share_flagged == 0 and (is_given or asked.number > 0):
        flags = "none"
    if share_flagged == 1 and (is_given or asked.number < 1):
        flags = "all"
    if is_given:
        return None if flags is None else f"the threshold score:{value:g} flags {flags} of the {n} samples of {option}"
    if n < FEWEST_OF_A_QUANTILE:
        advice = f"give {FEWEST_OF_A_QUANTILE} samples or more"
        return f"the threshold {asked.rule} ({value:.6g}) is a quantile of {n} samples of {option}: {advice}"
    if flags is None:
        return None
    flagged_samples = f"{flags} of the {n} samples of {option} that it was chosen by"
    return f"the threshold {asked.rule} ({value:.6g}) flags {flagged_samples}"


def chance_warning(score: str, inside: Floats | None, outside: Mapping[str, Floats]) -> str | None:
    """Return a warning of an OOD score that tells no OOD validation set from the ID samples; else None.

    It tells a set if its AUROC is above the 95 % interval of that of equally distributed scores.

    Args:
        score: its name.
        inside: its values on the ID validation samples ``[N]``; None without any.
        outside: by OOD validation set its values ``[K]``.
    """
    if inside is None or not outside:
        return None
    aurocs = []
    for values in outside.values():
        curve = curve_of(inside, values)
        assert curve is not None  # both sets have samples
        aurocs.append(auroc(curve))
        deviation = math.sqrt((len(inside) + len(values) + 1) / (12 * len(inside) * len(values)))
        if aurocs[-1] > 0.5 + Z_95 * deviation:
            return None
    chance = f"chance may with {len(inside)} samples of --val (AUROC {max(aurocs):.3f})"
    advice = "give more, choose another, or hedge with --train, which needs no OOD samples"
    return f"{score} tells --ood-val from --val no better than {chance}: {advice}"


# --- prediction sets --------------------------------------------------------------------------------------------------


def full_sets_warning(fitted: Conformal, mean_size: float | None, classes: int) -> str | None:
    """Return a warning of conformal sets if every set holds every class; else None.

    If that is so because of too few validation samples, :func:`few_for_sets_warning` has said it.

    Args:
        fitted: the threshold of the sets.
        mean_size: the mean number of classes in a set; None without samples.
        classes: the number of classes of the model.
    """
    if mean_size is None or mean_size < classes or _holds_every_class(fitted):
        return None
    return f"{_says_nothing(classes)}: allow more misses (--conformal), or give a model that tells the classes apart"


def few_for_sets_warning(fitted: Conformal, classes: int) -> str | None:
    """Return a warning of conformal sets that were fitted to too few validation samples; else None.

    Args:
        fitted: the threshold of the sets.
        classes: the number of classes of the model.
    """
    if _holds_every_class(fitted):
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


def _holds_every_class(fitted: Conformal) -> bool:
    """Return whether validation samples are so few that every set holds every class."""
    return fitted.n_val < _needed(fitted)


def _says_nothing(classes: int) -> str:
    """Return words for conformal sets that hold all of so many classes."""
    return f"every conformal set holds all {classes} classes, which says nothing"
