"""What is fitted for one model: its calibration, threshold, prediction sets and OOD score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hydractl.files.calibrate_answer import ComparedScoreRecord
from hydractl.metrics.samples import Samples
from hydractl.model.prediction import Chosen


@dataclass(frozen=True)
class Fit(Chosen):
    """What was fitted for one model; a field is None or empty if it was not.

    Attributes:
        flagged: the share of ``val`` and of each OOD validation set that the threshold flags, as far as they ran.
        compared: the AUROCs of all scores from which the score was chosen, by name; empty if there was no choice.
        near_ties: other scores that are about as good as the chosen one.
        validation: the uncalibrated predictions on the ID validation set; None if they were not needed.
        warnings: sentences on what is odd about what was fitted, such as a temperature by few samples.
    """

    flagged: Mapping[str, float | None] = field(default_factory=dict)
    compared: Mapping[str, ComparedScoreRecord] = field(default_factory=dict)
    near_ties: Sequence[str] = ()
    validation: Samples | None = None
    warnings: Sequence[str] = ()
