"""Implausible results of a training, as warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hydractl.data.base import Dataset
from hydractl.metrics.plausibility import count_warning, loss_warning


def warnings_of_course(outcome: Mapping[str, Any], val_set: Dataset | None, classes: int | None) -> list[str]:
    """Return what looks wrong about a finished training, one sentence each; empty if nothing does.

    There are two checks: whether the loss is clearly above that of a model that gives all classes the same probability,
    and whether the validation accuracy is plausible.

    Args:
        outcome: ``epochs``, a record for each, and ``loss_curve``, the loss over the training in at most 60 points.
        val_set: the validation data, if there are any.
        classes: the number of classes if the loss is the cross-entropy of one model. None for other losses, which are
            not compared with the loss of a uniform prediction.
    """
    warnings: list[str | None] = []

    # Compare the loss over the last quarter of the curve with that of a uniform prediction, log(classes).
    curve = outcome["loss_curve"]
    if classes is not None and classes > 1:
        quarter = math.ceil(len(curve) / 4)
        points = max(2, quarter)  # two or more, to see how much they vary
        last_quarter = curve[-points:]
        losses = np.array(last_quarter)
        warnings.append(loss_warning(losses, classes))
    if val_set is not None:
        warnings.append(_warning_of_validation(outcome, val_set))
    return [warning for warning in warnings if warning is not None]


def _warning_of_validation(outcome: Mapping[str, Any], val_set: Dataset) -> str | None:
    """Return a warning if the validation accuracy after the last epoch is no better than guessing; else None.

    None, too, if nothing was validated. The epoch whose weights are kept would say less: if the validation labels are
    in another order than the training labels, it is one of the first, before anything was learned.
    """
    accuracy = outcome["epochs"][-1].get("val_accuracy")
    if accuracy is None or val_set.labels is None:
        return None
    correct = round(accuracy * len(val_set))
    warning = count_warning(correct, val_set.labels)
    if warning is None:
        return None
    return (
        f"--val at the end: {warning}: are these samples of the same classes, in the same order, as those of --train?"
    )
