"""The row of one model as ``eval.json`` holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.evaluate.choosing import Chosen
from hydractl.evaluate.contenders import Contender
from hydractl.evaluate.gathering import Gathered
from hydractl.evaluate.sets import EvalSet
from hydractl.metrics.curves import curves
from hydractl.metrics.rows import id_block, row_blocks
from hydractl.metrics.threshold import threshold_block


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
        sets: the test sets, ID first.
        gathered: what was found on each, by name.
        chosen: what it was measured with.
        extras: what only some commands ask for (``conformal``, ``seen``, ``ci``, ...); None is left out.
    """
    inside = gathered[sets[0].name].samples
    outside = {one.name: gathered[one.name].samples for one in sets[1:]}
    row: dict[str, Any] = {
        "name": contender.name,
        "sha256": contender.sha256,
        **row_blocks(inside, outside, {one.name: one.group for one in sets[1:]}),
        "members": [id_block(member) for member in gathered[sets[0].name].members],
        "curves": curves(inside, outside),
        "heads": contender.heads,
        "cost": contender.cost,
    }
    calibration = chosen.calibration_json(stored=chosen.fitted_on is None and contender.calibration is not None)
    if calibration is not None:
        row["calibration"] = calibration
    if chosen.threshold is not None:
        score, value, rule = (chosen.threshold[key] for key in ("score", "value", "rule"))
        scores = {name: samples.score for name, samples in outside.items()}
        row["threshold"] = threshold_block(score, value, rule, inside.score, scores)
    row.update({key: value for key, value in extras.items() if value is not None})
    return row
