"""From batches of logits to what metrics take: a few numbers a sample, the logits are let go of batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError, NonFiniteError
from hydractl.evaluate.contenders import Batches
from hydractl.evaluate.eval_set import EvalSet
from hydractl.evaluate.sets import called
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.samples import Samples, samples_of

Sink = Callable[[Sequence[int], npt.NDArray[Any]], None]
"""Is given the rows and the logits ``[M, rows, C]`` of each batch."""


@dataclass
class Gathered:
    """One contender on one data set.

    Attributes:
        samples: of the averaged prediction, in the order of the data set.
        rows: which samples of the data set, ascending: all but those that could not be read.
        members: of each member alone; empty for one.
    """

    samples: Samples
    rows: npt.NDArray[np.int64]
    members: list[Samples] = field(default_factory=list)


def gather(
    batches: Batches,
    one: EvalSet,
    name: str,
    *,
    score: str,
    calibration: Calibration | None,
    alone: bool = False,
    pairs: bool = True,
    sinks: Sequence[Sink] = (),
) -> Gathered:
    """Reduce the logits of a data set.

    Args:
        batches: every sample that can be read once, in any order.
        one: the data set.
        name: of the contender, for errors.
        score: the OOD score.
        calibration: of the averaged prediction.
        alone: whether the members are wanted one by one as well.
        pairs: whether each two members are compared.
        sinks: who else wants the logits.

    Raises:
        InputError: there is not a single sample.
        NonFiniteError: at the first batch with a logit that is not finite, naming a sample.
    """
    rows: list[Sequence[int]] = []
    pooled: list[Samples] = []
    members: list[list[Samples]] = []
    for part, logits in batches:
        check_finite(logits, part, one, name)
        labels = None if one.labels is None else one.labels[list(part)]
        rows.append(part)
        pooled.append(samples_of(logits, labels, score=score, calibration=calibration, pairs=pairs))
        if alone and len(logits) > 1:
            members.append([samples_of(logits[m : m + 1], labels, score=score) for m in range(len(logits))])
        for sink in sinks:
            sink(part, logits)
    if not rows:
        raise InputError(f"{name} has no predictions of {called(one)}: none of its {len(one)} samples could be read")
    found = np.concatenate([np.asarray(part, dtype=np.int64) for part in rows])
    order = np.argsort(found, kind="stable")
    by_member = list(map(list, zip(*members, strict=True)))
    return Gathered(joined(pooled, order), found[order], [joined(parts, order) for parts in by_member])


def joined(parts: Sequence[Samples], order: npt.NDArray[np.int64]) -> Samples:
    """Samples of several batches, sorted into the order of the data set."""
    values: dict[str, Any] = {}
    counts = np.array([len(part) for part in parts])
    for one in fields(Samples):
        own = [getattr(part, one.name) for part in parts]
        if one.name == "pair_mi":  # a mean over samples already
            values[one.name] = (np.stack(own) * counts[:, None]).sum(axis=0) / counts.sum()
        else:
            values[one.name] = None if own[0] is None else np.concatenate(own, axis=-1)[..., order]
    return Samples(**values)


def check_finite(logits: npt.NDArray[Any], rows: Sequence[int], one: EvalSet, name: str) -> None:
    """Refuse logits that are no numbers.

    Raises:
        NonFiniteError: naming a sample.
    """
    # A sum is finite only where every number is; the other way round it may overflow, which is looked at again.
    if np.isfinite(logits.sum()):
        return
    bad = ~np.isfinite(logits).all(axis=(0, 2))
    if bad.any():
        first = one.ids[int(list(rows)[int(bad.argmax())])]
        raise NonFiniteError(
            f"{name} gives NaN or infinite logits for {int(bad.sum())} samples of one batch, the first is {first}",
            hint="run with --dtype float32, or check the checkpoint's weights",
        )


class Kept:
    """A sink that keeps all logits, for validation data, which are few."""

    def __init__(self) -> None:
        self._rows: list[Sequence[int]] = []
        self._logits: list[npt.NDArray[Any]] = []

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Keep one batch."""
        self._rows.append(rows)
        self._logits.append(logits)

    @property
    def _found(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in self._rows])

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Which samples, ascending."""
        return np.sort(self._found)

    def logits(self) -> npt.NDArray[Any]:
        """``[M, N, C]``, in the order of the data set."""
        order = np.argsort(self._found, kind="stable")
        return np.concatenate(self._logits, axis=1)[:, order]
