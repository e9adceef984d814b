"""The row of one model as ``eval.json`` holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.evaluate.choosing import Chosen
from hydractl.evaluate.contenders import Contender
from hydractl.evaluate.eval_set import CORRUPTION, EvalSet
from hydractl.evaluate.gathering import Gathered
from hydractl.evaluate.sets import chosen_on, tested
from hydractl.metrics.curves import curves
from hydractl.metrics.rows import id_block, row_blocks
from hydractl.metrics.samples import Samples
from hydractl.metrics.threshold import threshold_block

BY_SEVERITY = ("accuracy", "brier", "ece")
"""What is said of each corruption at each severity."""


def row_of(
    contender: Contender,
    sets: Sequence[EvalSet],
    gathered: Mapping[str, Gathered],
    chosen: Chosen,
    extras: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that is measured of one model.

    Args:
        contender: the row.
        sets: the data sets.
        gathered: what was found on those that are measured, by name.
        chosen: what it was measured with.
        extras: what only some commands ask for (``conformal``, ``seen``, ``ci``, ...); None is left out.
    """
    tests, corrupted = tested(sets), chosen_on(sets, CORRUPTION)
    inside = gathered[tests[0].name].samples
    outside = {one.name: gathered[one.name].samples for one in tests[1:]}
    row: dict[str, Any] = {
        "name": contender.name,
        "sha256": contender.sha256,
        **row_blocks(inside, outside, {one.name: one.group for one in tests[1:]}),
        "members": [id_block(member) for member in gathered[tests[0].name].members],
        "curves": curves(inside, outside),
        "heads": contender.heads,
        "cost": contender.cost,
    }
    if contender.training:
        row["training"] = list(contender.training)
    calibration = chosen.calibration_json()
    if calibration is not None:
        row["calibration"] = calibration
    if chosen.threshold is not None:
        score, value, rule = (chosen.threshold[key] for key in ("score", "value", "rule"))
        scores = {name: samples.score for name, samples in outside.items()}
        row["threshold"] = threshold_block(score, value, rule, inside.score, scores)
    row.update(corruptions([(one, gathered[one.name].samples) for one in corrupted]))
    row.update({key: value for key, value in extras.items() if value is not None})
    return row


def corruptions(found: Sequence[tuple[EvalSet, Samples]]) -> dict[str, Any]:
    """Accuracy, Brier score and ECE by corruption and severity, and their means over corruptions by severity.

    Only n where the images have no labels; empty without corruptions.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for one, samples in found:
        name, _, severity = one.name.rpartition("/")
        block = id_block(samples)
        table.setdefault(name, {})[severity] = {key: block[key] for key in ("n", *BY_SEVERITY) if key in block}
    if not table:
        return {}
    severities = list(next(iter(table.values())))
    means = {
        severity: {
            key: math.fsum(rows[severity][key] for rows in table.values()) / len(table)
            for key in BY_SEVERITY
            if all(key in rows[severity] for rows in table.values())
        }
        for severity in severities
    }
    return {"corruptions": table, "corruption_avg": means}
