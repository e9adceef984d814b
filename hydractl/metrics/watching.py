"""Watching: have a model's inputs shifted away from the held-out ID samples that its checkpoint keeps as reference?

Three figures are compared, each with a 95 % interval: the share of flagged inputs (Newcombe 1998), the AUROC of the
inputs' OOD scores against those of the reference (DeLong, DeLong and Clarke-Pearson 1988), and how often each class is
predicted (chi-squared homogeneity, and total variation). Rabanser, Guennemann and Lipton 2019, "Failing loudly", found
that a test of scores and a test of predicted classes find the shifts that matter.

A threshold flags some ID samples by design, so a share above it is no news, and a 95 % interval is wrong in one window
of twenty. An alarm is therefore raised only if a shift is sure at :data:`ALARM_LEVEL`, has the expected direction, and
is larger than a margin. :class:`Watch` takes inputs one by one and compares every thousand of them. It keeps only
counts of earlier inputs, so that a service can feed it for ever.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.files.model_records import DataSetRecord
from hydractl.files.watching_records import (
    ClassShiftRecord,
    ReferenceRecord,
    ScoreShiftRecord,
    ShareShiftRecord,
    Verdict,
    WatchedRecord,
    WatchedWindowRecord,
)
from hydractl.metrics.cascade import placements
from hydractl.metrics.confidence import Z_95, ConfidenceInterval, share_difference_interval
from hydractl.metrics.probabilities import Floats

WINDOW = 1000
"""The number of inputs in a window."""

FEWEST = 200
"""The fewest inputs, and the fewest samples of a reference, that are compared."""

MOST_VALUES = 10_000
"""The most scores, and the most confidences, that a reference keeps."""

ALARM_LEVEL = 0.001 / 3
"""The probability that a given figure of a window (one of three) is significant although nothing has changed."""

SHARE_MARGIN = 0.01
AUROC_MARGIN = 0.52
VARIATION_MARGIN = 0.05

_SIGNIFICANT = 0.05
_FEWEST_EXPECTED = 5
"""The fewest samples that a cell (one class, or several rare ones) is expected to have in the smaller of both sets."""
_ALARM_Z = NormalDist().inv_cdf(1 - ALARM_LEVEL)
_MOST_INPUTS = 10_000_000
"""The largest number of inputs that an advice may name."""
_MOST_SAMPLES = 2**53
"""The most samples that a file may claim: float64 counts exactly up to this number."""
_FLOAT64 = "<f8"
_AGAIN = "write it again: calibrate --reference SPEC"


# --- the reference ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reference:
    """A summary of held-out ID samples, with which inputs are compared.

    Attributes:
        n: the number of samples.
        scores: their OOD scores in rising order; of more than :data:`MOST_VALUES` samples only that many quantiles.
        confidences: their confidences in rising order, as many as scores.
        confidence: the mean confidence of all samples.
        classes: how often each class was predicted, 0 included, by its name, or by its number as a text.
        flagged: the number of flagged samples; None if there was no threshold.
        data: the record of the data set; None if it is not known.
    """

    n: int
    scores: Floats
    confidences: Floats
    confidence: float
    classes: Mapping[str, int]
    flagged: int | None
    data: DataSetRecord | None = None

    def fits(self, labels: Sequence[str] | None, classes: int) -> bool:
        """Return whether a model predicts the same classes as this reference.

        Args:
            labels: the names of the model's classes; None if they have only numbers.
            classes: the number of the model's classes.
        """
        names = labels
        if names is None:
            names = [str(index) for index in range(classes)]
        return set(names) == set(self.classes)

    def record(self) -> ReferenceRecord:
        """Return the record of the reference in documents: everything but its scores, confidences and classes."""
        return ReferenceRecord(n=self.n, flagged=self.flagged, confidence=self.confidence, data=self.data)

    def to_json(self) -> dict[str, object]:
        """Return the entry ``reference`` of a checkpoint, which :func:`stored_reference` reads."""
        return {
            **self.record().to_json(),
            "classes": dict(self.classes),
            "scores": _encoded(self.scores),
            "confidences": _encoded(self.confidences),
        }


def reference_of(
    scores: Floats,
    confidences: Floats,
    classes: Mapping[str, int],
    flagged: int | None,
    data: DataSetRecord | None = None,
) -> Reference:
    """Return the reference of N samples.

    Args:
        scores: the OOD scores of the samples in any order, ``[N]``.
        confidences: their confidences in any order, ``[N]``.
        classes, flagged, data: the attributes of :class:`Reference`.

    Raises:
        ValueError: there are fewer than :data:`FEWEST` samples.
    """
    n = len(scores)
    if n < FEWEST:
        raise ValueError(f"a reference needs {FEWEST} samples, not {n}")
    return Reference(
        n=n,
        scores=_rising_quantiles(scores),
        confidences=_rising_quantiles(confidences),
        confidence=float(confidences.mean()),
        classes=classes,
        flagged=flagged,
        data=data,
    )


def _rising_quantiles(values: Floats) -> Floats:
    """Return values in rising order; of more than :data:`MOST_VALUES` values, that many evenly spaced quantiles."""
    rising = np.sort(values)
    n = len(rising)
    if n <= MOST_VALUES:
        return rising
    middles = (np.arange(MOST_VALUES) + 0.5) / MOST_VALUES  # of MOST_VALUES equal parts of 0..1
    indices = (middles * n).astype(np.int64)
    return rising[indices]


def _encoded(values: Floats) -> str:
    """Return values ``[N]`` as text for a file: float64, little-endian, in base64."""
    little_endian = values.astype(_FLOAT64)
    return base64.b64encode(little_endian.tobytes()).decode("ascii")


def stored_reference(entry: Any) -> Reference | None:
    """Read the reference that a checkpoint holds; None if it holds none.

    Args:
        entry: the checkpoint's entry ``reference``; None if it has none.

    Raises:
        InputError: the entry is not one that ``calibrate`` writes.
    """
    if entry is None:
        return None
    broken = InputError("its reference for watching is broken", hint=_AGAIN)
    if not isinstance(entry, Mapping) or not _has_sound_counts(entry):
        raise broken

    # There must be as many scores and confidences as a reference keeps of n samples.
    n = entry["n"]
    values_kept = min(n, MOST_VALUES)
    scores = _decoded_rising(entry.get("scores"))
    if scores is None or len(scores) != values_kept:
        raise broken
    confidences = _decoded_rising(entry.get("confidences"))
    if confidences is None or len(confidences) != values_kept:
        raise broken

    # A reference may have no record of its data set.
    data = entry.get("data")
    data_record = None
    if data is not None:
        data_record = DataSetRecord.from_json(data)
    return Reference(
        n=n,
        scores=scores,
        confidences=confidences,
        confidence=float(entry["confidence"]),
        classes=dict(entry["classes"]),
        flagged=entry.get("flagged"),
        data=data_record,
    )


def _has_sound_counts(entry: Mapping[str, Any]) -> bool:
    """Return whether ``n``, ``confidence``, ``classes``, ``flagged`` and ``data`` of a reference from a file are sound.

    Scores and confidences are not checked here.
    """
    n: Any = entry.get("n")
    if type(n) is not int or not FEWEST <= n <= _MOST_SAMPLES:
        return False
    confidence: Any = entry.get("confidence")
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        return False
    if not _are_counts_of_classes(entry.get("classes"), n):
        return False
    flagged: Any = entry.get("flagged")  # None if there was no threshold
    is_count = type(flagged) is int and 0 <= flagged <= n
    if flagged is not None and not is_count:
        return False
    return isinstance(entry.get("data"), Mapping | None)


def _are_counts_of_classes(classes: Any, n: int) -> bool:
    """Return whether a value from a file counts how often each class was predicted, ``n`` times in all."""
    if not isinstance(classes, Mapping):
        return False
    for name, count in classes.items():
        if not isinstance(name, str) or type(count) is not int or count < 0:
            return False
    return sum(classes.values()) == n


def _decoded_rising(text: Any) -> Floats | None:
    """Return the numbers that :func:`_encoded` wrote; None if the value is no such text, or not finite and rising."""
    if not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
        values = np.frombuffer(raw, dtype=_FLOAT64).astype(np.float64)
    except (binascii.Error, ValueError):
        return None
    is_rising = bool((values[1:] >= values[:-1]).all())
    if not np.isfinite(values).all() or not is_rising:
        return None
    return values


# --- the figures ------------------------------------------------------------------------------------------------------


def share_shift(flagged: int, n: int, reference_flagged: int, reference_n: int) -> ShareShiftRecord:
    """Compare the share of flagged inputs, ``flagged / n``, with that of the reference.

    The record's ``low`` is the lower end of the difference's interval at the level of an alarm.
    """
    interval_95 = share_difference_interval(flagged, n, reference_flagged, reference_n)
    interval_at_alarm = share_difference_interval(flagged, n, reference_flagged, reference_n, _ALARM_Z)
    share = flagged / n
    reference_share = reference_flagged / reference_n
    return ShareShiftRecord(
        share=share,
        reference=reference_share,
        difference=share - reference_share,
        ci=interval_95,
        low=interval_at_alarm.low,
    )


class AurocEstimate(NamedTuple):
    """An AUROC, and the sample variances of the placements of the ID samples and of the OOD samples.

    The placement of a sample is the share of the other side's samples that it is ranked right against.
    """

    value: float
    inside_variance: float
    outside_variance: float

    def interval(self, inside: int, outside: int, z: float = Z_95) -> ConfidenceInterval:
        """Return the interval of the AUROC; it is at most 0..1.

        Args:
            inside: the number of ID samples.
            outside: the number of OOD samples.
            z: the normal quantile of the upper end, e.g. 1.96 for 95 %.
        """
        variance = self.inside_variance / inside + self.outside_variance / outside
        half = z * float(np.sqrt(variance))
        low = max(self.value - half, 0.0)
        high = min(self.value + half, 1.0)
        return ConfidenceInterval(low, high)


def auroc_estimate(inside: Floats, outside: Floats) -> AurocEstimate:
    """Return the AUROC of OOD scores ``[K]`` against ID scores ``[N]``; each side has two samples or more.

    Source: DeLong, DeLong and Clarke-Pearson 1988.
    """
    inside_placements, outside_placements = placements(inside, outside)
    return AurocEstimate(
        value=float(outside_placements.mean()),
        inside_variance=float(inside_placements.var(ddof=1)),
        outside_variance=float(outside_placements.var(ddof=1)),
    )


def score_shift(estimate: AurocEstimate, n: int, reference_n: int) -> ScoreShiftRecord:
    """Return the record of the AUROC of ``n`` inputs against a reference with ``reference_n`` scores.

    The record's ``low`` is the lower end of its interval at the level of an alarm.
    """
    return ScoreShiftRecord(
        auroc=estimate.value,
        ci=estimate.interval(reference_n, n),
        low=estimate.interval(reference_n, n, _ALARM_Z).low,
    )


def class_shift(classes: Mapping[str, int], reference: Mapping[str, int]) -> ClassShiftRecord | None:
    """Compare how often each class was predicted; None if there are no two cells to compare.

    A cell is a class, or several rare classes together, because the chi-squared test needs a few samples in each cell.

    Args:
        classes: how often each class was predicted for the inputs.
        reference: how often each class was predicted for the reference.
    """
    from scipy.special import chdtrc  # imported here because it is slow; scipy.stats would take more than a second

    cells = merged_cells(classes, reference)
    if len(cells) < 2:
        return None
    counts = cells.astype(np.float64)  # [cells, 2]: column 0 the inputs, column 1 the reference
    totals = counts.sum(axis=0)  # [2]
    inputs_in_all, samples_in_all = totals.tolist()

    # Chi-squared test of homogeneity: do both come from the same shares of cells? If so, each cell is expected to hold
    # its count in both together, divided in the ratio of the two totals.
    counts_of_both = counts.sum(axis=1, keepdims=True)  # [cells, 1]
    expected = counts_of_both * totals / totals.sum()
    squared_errors = (counts - expected) ** 2 / expected
    chi_squared = float(squared_errors.sum())
    degrees = len(cells) - 1
    p = float(chdtrc(degrees, chi_squared))

    # Total variation, 0 for equal shares and 1 for no common cell: add up the cells that are more frequent among the
    # inputs, and subtract their share in the reference from their share in the inputs.
    shares = counts / totals
    is_more_frequent = shares[:, 0] > shares[:, 1]
    count_in_inputs, count_in_reference = counts[is_more_frequent].sum(axis=0).tolist()
    total_variation = count_in_inputs / inputs_in_all - count_in_reference / samples_in_all
    low, high = share_difference_interval(count_in_inputs, inputs_in_all, count_in_reference, samples_in_all)

    # The cells were chosen because they are more frequent, so their difference is above 0 by construction. It counts as
    # evidence only if the chi-squared test is significant.
    if p >= _SIGNIFICANT:
        low = 0.0
    return ClassShiftRecord(
        total_variation=total_variation,
        ci=(max(low, 0.0), high),
        chi_squared=chi_squared,
        degrees=degrees,
        p=p,
    )


def merged_cells(classes: Mapping[str, int], reference: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the counts of inputs and reference samples by cell, ``[cells, 2]``; empty if all classes are few.

    A cell is a class, or several rare classes together: the rarest classes are merged until the smaller of both sets is
    expected to have 5 samples in the cell.

    Args:
        classes: how often each class was predicted for the inputs.
        reference: how often each class was predicted for the reference.
    """
    names = dict.fromkeys([*reference, *classes])  # each name once
    input_counts = [classes.get(name, 0) for name in names]
    reference_counts = [reference.get(name, 0) for name in names]
    counts = np.column_stack([input_counts, reference_counts]).astype(np.int64)  # [classes, 2]
    totals = counts.sum(axis=0)  # [2]: all inputs, all reference samples
    no_cells = counts[:0]
    if not totals.all():
        return no_cells

    # A cell with this many samples of both sets together is expected to have 5 of the smaller set. Example: if the
    # inputs are a quarter of all samples, a cell needs 4 * 5 = 20 samples.
    fewest_in_both = _FEWEST_EXPECTED * totals.sum() / totals.min()

    # Go from the rarest class to the most frequent one, and add classes to a cell until it has enough.
    rarest_first = np.argsort(counts.sum(axis=1), kind="stable")
    cells = []
    cell = np.zeros(2, dtype=np.int64)
    for class_index in rarest_first:
        cell = cell + counts[class_index]
        if cell.sum() >= fewest_in_both:
            cells.append(cell)
            cell = np.zeros(2, dtype=np.int64)
    if not cells:
        return no_cells
    cells[-1] = cells[-1] + cell  # the classes left over are too few for another cell
    return np.stack(cells)


# --- a window ---------------------------------------------------------------------------------------------------------


@dataclass
class WatchedInputs:
    """Counts of some inputs that came one after another.

    Attributes:
        first: the index of the first of them among all inputs.
        n: the number of inputs.
        flagged: the number of flagged inputs.
        confidence: the sum of the confidences of the inputs that had one.
        with_confidence: the number of inputs that had a confidence.
        classes: how often each class was predicted, by its name.
        scores: the OOD scores.
    """

    first: int = 0
    n: int = 0
    flagged: int = 0
    confidence: float = 0.0
    with_confidence: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    scores: array[float] = field(default_factory=lambda: array("d"))

    def add(self, score: float, flagged: bool, predicted: str, confidence: float | None) -> None:
        """Count one input."""
        self.n += 1
        self.flagged += flagged
        self.classes[predicted] += 1
        self.scores.append(score)
        if confidence is not None:
            self.confidence += confidence
            self.with_confidence += 1

    def include(self, later: WatchedInputs) -> None:
        """Add the counts and scores of inputs that came later."""
        self.n += later.n
        self.flagged += later.flagged
        self.confidence += later.confidence
        self.with_confidence += later.with_confidence
        self.classes.update(later.classes)
        self.scores.extend(later.scores)

    @property
    def mean_confidence(self) -> float | None:
        """The mean of the confidences; None if no input had one."""
        if not self.with_confidence:
            return None
        return self.confidence / self.with_confidence


def compare_with_reference(reference: Reference, inputs: WatchedInputs) -> WatchedWindowRecord:
    """Compare some inputs with the reference, and return the three figures, a verdict and an advice.

    The verdict is "alarm" if a figure has surely shifted beyond its margin, "cannot tell" if one may have, "no shift"
    if none has, and "too few to tell" if there are fewer than :data:`FEWEST` inputs.

    Args:
        reference: the reference of the checkpoint.
        inputs: the counts and scores of the inputs.
    """
    if inputs.n < FEWEST:
        return WatchedWindowRecord(
            first=inputs.first,
            n=inputs.n,
            verdict="too few to tell",
            alarms=[],
            confidence=inputs.mean_confidence,
            advice=f"too few to tell: {inputs.n:,} inputs, and {FEWEST} are needed",
        )

    # The three figures: the share of flagged inputs, the AUROC of their scores, and the predicted classes.
    share = None
    if reference.flagged is not None:
        share = share_shift(inputs.flagged, inputs.n, reference.flagged, reference.n)
    input_scores = np.asarray(inputs.scores, dtype=np.float64)
    estimate = auroc_estimate(reference.scores, input_scores)
    auroc = score_shift(estimate, inputs.n, len(reference.scores))
    classes = class_shift(inputs.classes, reference.classes)

    # The verdict is "alarm"; else "cannot tell", with the number of inputs that would decide, if a shift may be chance;
    # else "no shift".
    alarms = _alarms(share, auroc, classes)
    verdict: Verdict = "no shift"
    needed_inputs = None
    advice = "no shift beyond the margins"
    if alarms:
        verdict = "alarm"
        advice = _alarm_advice(alarms, share, auroc, classes)
    else:
        inputs_to_decide = _inputs_to_decide(reference, inputs, share, estimate, classes)
        if inputs_to_decide:
            verdict = "cannot tell"
            needed_inputs = _smallest_rounded_up(inputs_to_decide)
            advice = _undecided_advice(needed_inputs, reference)
    return WatchedWindowRecord(
        first=inputs.first,
        n=inputs.n,
        verdict=verdict,
        alarms=alarms,
        needed_inputs=needed_inputs,
        confidence=inputs.mean_confidence,
        share=share,
        auroc=auroc,
        classes=classes,
        advice=advice,
    )


def _alarms(share: ShareShiftRecord | None, auroc: ScoreShiftRecord, classes: ClassShiftRecord | None) -> list[str]:
    """Return the names of the figures that raise an alarm: a shift that is sure, and beyond its margin.

    The names are "share", "auroc" and "classes".
    """
    alarms = []
    if share is not None and share.low > SHARE_MARGIN:
        alarms.append("share")
    if auroc.low > AUROC_MARGIN:
        alarms.append("auroc")
    if classes is not None and classes.p < ALARM_LEVEL and classes.total_variation > VARIATION_MARGIN:
        alarms.append("classes")
    return alarms


def _alarm_advice(
    alarms: Sequence[str],
    share: ShareShiftRecord | None,
    auroc: ScoreShiftRecord,
    classes: ClassShiftRecord | None,
) -> str:
    """Return the advice of an alarm: a sentence that says what has shifted, and what to do.

    Args:
        alarms: the names of the figures that raise the alarm, from :func:`_alarms`.
        share, auroc, classes: the figures; None if they could not be compared.
    """
    shifts = []
    if share is not None and "share" in alarms:
        shifts.append(f"{share.share:.1%} are flagged, of the reference {share.reference:.1%}")
    if "auroc" in alarms:
        shifts.append(f"their OOD scores are higher (AUROC {auroc.auroc:.3f})")
    if classes is not None and "classes" in alarms:
        shifts.append(f"other classes are predicted (total variation {classes.total_variation:.3f})")
    shifted = "; ".join(shifts)
    return f"the inputs have shifted: {shifted}. Look at them; if the model is meant for such inputs, recalibrate"


# --- how many inputs would do -----------------------------------------------------------------------------------------


def _inputs_to_decide(
    reference: Reference,
    inputs: WatchedInputs,
    share: ShareShiftRecord | None,
    estimate: AurocEstimate,
    classes: ClassShiftRecord | None,
) -> list[int | None]:
    """Return, for each figure that may have shifted without raising an alarm, how many inputs would decide.

    A figure may have shifted if it is beyond its margin and its 95 % interval excludes "no shift". An entry is None if
    no number of inputs would decide with this reference, because it is too small.

    Args:
        reference: the reference.
        inputs: the inputs.
        share, classes: their figures; None if they could not be compared.
        estimate: the AUROC of the inputs' scores.
    """
    needed_inputs: list[int | None] = []

    # The share of flagged inputs; without a shift the difference is 0.
    if share is not None:
        low, _ = share.ci
        is_significant = low is not None and low > 0
        if is_significant and share.difference > SHARE_MARGIN:
            needed_inputs.append(_inputs_for_share(share, reference))

    # The AUROC; without a shift it is 0.5.
    reference_scores = len(reference.scores)
    lowest_auroc = estimate.interval(reference_scores, inputs.n).low
    if estimate.value > AUROC_MARGIN and lowest_auroc > 0.5:
        needed_inputs.append(_inputs_for_auroc(estimate, reference_scores))

    # The predicted classes; without a shift p is not significant.
    if classes is not None and classes.p < _SIGNIFICANT and classes.total_variation > VARIATION_MARGIN:
        needed_inputs.append(_inputs_for_classes(classes, inputs.n, reference.n))
    return needed_inputs


def _smallest_rounded_up(needed_inputs: Sequence[int | None]) -> int | None:
    """Return the smallest of the numbers that are not None, rounded up to two digits; None if there is none.

    Example: 1234 becomes 1300.
    """
    known = [number for number in needed_inputs if number is not None]
    if not known:
        return None
    smallest = min(known)
    digits = len(str(smallest))
    unit = 10 ** max(digits - 2, 0)
    units = -(-smallest // unit)  # rounded up
    return units * unit


def _undecided_advice(needed_inputs: int | None, reference: Reference) -> str:
    """Return the advice for inputs that may or may not have shifted.

    Args:
        needed_inputs: how many inputs would decide; None if no number would.
        reference: the reference.
    """
    if needed_inputs is None:
        return f"cannot tell whether the inputs have shifted: the reference, of {reference.n:,} samples, is too small"
    return f"cannot tell whether the inputs have shifted: about {needed_inputs:,} inputs are needed"


def _inputs_for_share(share: ShareShiftRecord, reference: Reference) -> int | None:
    """Return how many inputs with this share of flagged ones would raise an alarm; None if too many."""
    reference_flagged = share.reference * reference.n

    def is_alarm(n: int) -> bool:
        """Return whether n inputs with the same share of flagged ones would raise an alarm."""
        flagged = share.share * n
        interval = share_difference_interval(flagged, n, reference_flagged, reference.n, _ALARM_Z)
        return interval.low > SHARE_MARGIN

    return _fewest_inputs(is_alarm)


def _inputs_for_auroc(estimate: AurocEstimate, reference_n: int) -> int | None:
    """Return how many inputs with this AUROC would raise an alarm; None if too many."""

    def is_alarm(n: int) -> bool:
        """Return whether n inputs with the same AUROC would raise an alarm."""
        interval = estimate.interval(reference_n, n, _ALARM_Z)
        return interval.low > AUROC_MARGIN

    return _fewest_inputs(is_alarm)


def _inputs_for_classes(classes: ClassShiftRecord, n: int, reference_n: int) -> int | None:
    """Return how many inputs with these shares of classes would raise an alarm; None if too many.

    If nothing has shifted, the chi-squared statistic equals its degrees of freedom on average. What it exceeds them by
    is proportional to n m / (n + m), for n inputs and m reference samples with the same shares of classes.

    Args:
        classes: the comparison of the predicted classes so far.
        n: the number of inputs so far.
        reference_n: the number of reference samples.
    """
    from scipy.special import chdtri

    # Extrapolate the excess of the statistic over its degrees of freedom. An alarm needs the excess at ALARM_LEVEL.
    excess = classes.chi_squared - classes.degrees
    if excess <= 0:  # more inputs would not raise it
        return None
    alarm_excess = float(chdtri(classes.degrees, ALARM_LEVEL)) - classes.degrees
    size_now = n * reference_n / (n + reference_n)

    def is_alarm(inputs: int) -> bool:
        """Return whether this many inputs with the same shares of classes would raise an alarm."""
        size = inputs * reference_n / (inputs + reference_n)
        return excess * size / size_now > alarm_excess

    return _fewest_inputs(is_alarm)


def _fewest_inputs(holds: Callable[[int], bool]) -> int | None:
    """Return the smallest number of inputs for which a condition holds; None if it is more than 10 million.

    Found by bisection, so that the condition must hold for every larger number, too.
    """
    if not holds(_MOST_INPUTS):
        return None
    largest_without = 0
    smallest_with = _MOST_INPUTS
    while smallest_with - largest_without > 1:
        middle = (largest_without + smallest_with) // 2
        if holds(middle):
            smallest_with = middle
        else:
            largest_without = middle
    return smallest_with


# --- inputs as they come ----------------------------------------------------------------------------------------------


class Watch:
    """Counts inputs as they come, and compares every :data:`WINDOW` of them with the reference.

    It is not safe for several threads at once: threads that share it must take a lock.

    Args:
        reference: the reference of the checkpoint; None if it holds none, and then inputs are only counted.

    Attributes:
        inputs: the number of inputs so far.
        flagged: the number of flagged inputs.
        classes: how often each class was predicted, by its name.
        windows: the number of windows that were compared.
        alarms: the number of windows that raised an alarm.
        latest: the comparison of the last complete window; None before the first.
    """

    def __init__(self, reference: Reference | None) -> None:
        """Begin with no inputs, and an empty first window."""
        self.reference = reference
        self.inputs = 0
        self.flagged = 0
        self.classes: Counter[str] = Counter()
        self.windows = 0
        self.alarms = 0
        self.latest: WatchedWindowRecord | None = None
        self._window = WatchedInputs()

    def add(
        self, score: float | None, flagged: bool | None, predicted: str | int, confidence: float | None = None
    ) -> WatchedWindowRecord | None:
        """Count one input, and compare the window if this input completes it.

        Args:
            score: its OOD score; None if the model has none.
            flagged: whether it was flagged; None without a threshold.
            predicted: the predicted class: its name, or its number if it has none.
            confidence: the confidence of the prediction; None if it is not known.

        Returns:
            The comparison of the window that this input completes; else None.
        """
        predicted_class = str(predicted)
        is_flagged = bool(flagged)
        self.inputs += 1
        self.flagged += is_flagged
        self.classes[predicted_class] += 1
        if self.reference is None or score is None:  # nothing to compare with
            return None

        self._window.add(score, is_flagged, predicted_class, confidence)
        if self._window.n < WINDOW:
            return None
        return self._compare_window(self.reference)

    def last_window(self) -> WatchedWindowRecord | None:
        """Compare the inputs that came after the last complete window; None if there are none."""
        if self.reference is None or not self._window.n:
            return None
        return self._compare_window(self.reference)

    def _compare_window(self, reference: Reference) -> WatchedWindowRecord:
        """Compare the inputs of the current window, update the counts and :attr:`latest`, and begin a new window."""
        compared = compare_with_reference(reference, self._window)
        next_first = self._window.first + self._window.n
        self._window = WatchedInputs(first=next_first)
        self.windows += 1
        if compared.verdict == "alarm":
            self.alarms += 1
        self.latest = compared
        return compared


class WatchOfAll:
    """Compares the inputs of one or more files: window by window, and at the end all of them together.

    Args:
        reference: the reference of the checkpoint.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._windows: list[WatchedWindowRecord] = []
        self._window = WatchedInputs()
        self._before = WatchedInputs()

    def add(self, score: float, flagged: bool | None, predicted: str | int, confidence: float | None = None) -> None:
        """Count one input; the arguments are those of :meth:`Watch.add`."""
        self._window.add(score, bool(flagged), str(predicted), confidence)
        if self._window.n == WINDOW:
            self._finish_window()

    def finished(self) -> WatchedRecord:
        """Compare the last, incomplete window and then all inputs together, and return the comparisons."""
        if self._window.n:
            self._finish_window()
        return WatchedRecord(
            reference=self._reference.record(),
            windows=self._windows,
            whole=compare_with_reference(self._reference, self._before),
        )

    def _finish_window(self) -> None:
        """Compare the inputs of the current window, add them to the earlier ones, and begin a new window."""
        compared = compare_with_reference(self._reference, self._window)
        self._windows.append(compared)
        self._before.include(self._window)
        self._window = WatchedInputs(first=self._before.n)
