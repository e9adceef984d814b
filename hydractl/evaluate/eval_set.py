"""One data set of an evaluation, and its role in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.data.base import Dataset
from hydractl.data.skipping import skipped_document
from hydractl.data.suites import id_list_of

ID, OOD, VAL, VAL_OOD, CORRUPTION = "id", "ood", "val", "val_ood", "corruption"


@dataclass(frozen=True)
class EvalSet:
    """One data set.

    Attributes:
        name: ``id``, ``val``, the name of an OOD set, or ``CORRUPTION/SEVERITY``.
        role: ``id``, ``ood``, ``val``, ``val_ood`` or ``corruption``.
        group: of an OOD set: ``near``, ``far`` or None.
        spec: where it was opened from.
        ids: one for each sample.
        labels: int64 ``[N]``; None where unlabelled or not asked for.
        fingerprint: of its samples, their order and labels.
        dataset: the samples; None where only predictions of them are at hand.
    """

    name: str
    role: str
    group: str | None
    spec: str
    ids: Sequence[str]
    labels: npt.NDArray[np.int64] | None
    fingerprint: str
    dataset: Dataset | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def to_json(self) -> dict[str, Any]:
        """As it stands under ``data`` in the answer."""
        found: dict[str, Any] = {"spec": self.spec, "n": len(self), "fingerprint": self.fingerprint}
        if self.role == ID and id_list_of(self.spec) is not None:
            found["list"] = id_list_of(self.spec)
        if self.dataset is not None and skipped_document(self.dataset) is not None:
            found["skipped"] = skipped_document(self.dataset)
        return found
