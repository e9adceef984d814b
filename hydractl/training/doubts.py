"""Oddities in the data and the result of a training: one sentence each, for its warnings."""

from __future__ import annotations

import math

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.plausibility import sample_warnings
from hydractl.metrics.plausibility import count_doubt, loss_doubt
from hydractl.training.loop import TrainingOutcome
from hydractl.training.start import Opened


def data_doubts(opened: Opened, *, in_passing: bool) -> list[str]:
    """Return oddities of the training and the validation data; see :func:`sample_warnings`."""
    doubts = sample_warnings(opened.train_set, in_passing=in_passing)
    if opened.val_set is not None:
        doubts += sample_warnings(opened.val_set, in_passing=in_passing)
    return doubts


def course_doubts(outcome: TrainingOutcome, val_set: Dataset | None, classes: int | None) -> list[str]:
    """Return oddities in the course of a training.

    Args:
        outcome: the epochs and the loss curve.
        val_set: the validation data, if there are any.
        classes: the number of classes if the loss is the cross-entropy of one model. None for other losses, which are
            not compared with the loss of a uniform prediction.
    """
    doubts: list[str | None] = []
    curve = outcome["loss_curve"]
    if classes is not None and classes > 1:
        quarter = math.ceil(len(curve) / 4)
        points = max(2, quarter)  # at least two, to see how much they vary
        last_quarter = curve[-points:]
        losses = np.array(last_quarter)
        doubts.append(loss_doubt(losses, classes))
    if val_set is not None:
        doubts.append(_validation_doubt(outcome, val_set))
    return [doubt for doubt in doubts if doubt is not None]


def _validation_doubt(outcome: TrainingOutcome, val_set: Dataset) -> str | None:
    """Return what is odd about the validation accuracy after the last epoch, or None.

    The kept epoch says less: if labels are in another order, it is one of the first, before anything was learned.
    """
    accuracy = outcome["epochs"][-1].get("val_accuracy")
    if accuracy is None or val_set.labels is None:
        return None
    correct = round(accuracy * len(val_set))
    doubt = count_doubt(correct, val_set.labels)
    if doubt is None:
        return None
    return f"--val at the end: {doubt}: are these samples of the same classes, in the same order, as those of --train?"
