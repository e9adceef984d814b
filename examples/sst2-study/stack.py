"""Predictions of members side by side: those of an ensemble that runs them one after another.

The logits, the samples and the sums of parameters and mult-adds are those that ``hydractl eval a.st+b.st+c.st`` would
find, byte for byte; no member runs again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.predictions.store import PredictionsWriter, read_predictions

OWN = ("name", "sha256", "heads", "cost")
"""What members of an ensemble may differ in."""


def joined(name: str, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the header says of the ensemble."""
    settings = [{key: value for key, value in one.items() if key not in OWN} for one in models]
    if any(one != settings[0] for one in settings):
        sys.exit("these predictions were made with different settings")
    heads = [
        {**parts[0], "kept": [kept for part in parts for kept in part["kept"]]}
        for parts in zip(*(one["heads"] for one in models), strict=True)
    ]
    cost = {key: sum(one["cost"][key] for one in models) for key in ("params", "macs")}
    own = {"name": name, "sha256": [one["sha256"] for one in models], "heads": heads}
    return {**models[0], **own, "cost": {**models[0]["cost"], **cost}}


def stack(sources: Sequence[Path], target: Path) -> None:
    """Read the predictions of the members, check that they are of the same samples, and write those of all."""
    members = [read_predictions(path) for path in sources]
    first = members[0]
    if any([one.to_json() for one in other.sets] != [one.to_json() for one in first.sets] for other in members):
        sys.exit("these predictions are of different samples")
    shapes = [one.shape(0) for one in members]
    model = joined(target.name.removesuffix(".pred.st"), [dict(one.model) for one in members])
    part = target.with_name(f"{target.name}.part")
    with PredictionsWriter(part, model, first.sets, members=sum(m for m, _, _ in shapes), classes=shapes[0][2]) as out:
        for index in range(len(first.sets)):
            for pieces in zip(*(one.batches(index) for one in members), strict=True):
                out.write(index, pieces[0][0], np.concatenate([logits for _, logits in pieces]))
    os.replace(part, target)
