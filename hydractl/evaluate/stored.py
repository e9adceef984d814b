"""A row of the answer that is read from predictions that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydractl.errors import InputError
from hydractl.evaluate.contenders import Batches, Contender, chosen_before
from hydractl.evaluate.eval_set import CORRUPTION, ID, OOD, EvalSet
from hydractl.evaluate.predictions.joined import Joined
from hydractl.evaluate.predictions.reading import Predictions
from hydractl.files.fingerprints import Entry


class Stored(Contender):
    """Predictions of a model, read from their file; or of an ensemble, from those of its models."""

    def __init__(self, name: str | None, predictions: Predictions | Joined) -> None:
        model = predictions.model
        self._predictions = predictions
        self.name = name or str(model["name"])
        self.labels = model.get("labels")
        self.members, _, self.classes = predictions.shape(0)
        self.reads = None
        self.heads, self.cost = model.get("heads") or [], model.get("cost") or {"params": None, "macs": None}
        self.training = model.get("training") or ()
        self.seen: Sequence[Entry] = []
        self.calibration, self.threshold, self.fitted_on = chosen_before(model, predictions.origin)
        self.conventions = {key: model[key] for key in ("max_length", "prompt") if key in model}
        self.mc_dropout = model.get("mc_dropout")

    @property
    def sha256(self) -> Any:
        """SHA-256 of the models that the predictions are of."""
        return self._predictions.model.get("sha256")

    def stored_sets(self) -> list[EvalSet]:
        """The test sets of the file."""
        spec = self._predictions.origin
        return [
            EvalSet(one.name, one.role, one.group, spec, one.ids, one.labels, one.fingerprint)
            for one in sorted(self._predictions.sets, key=lambda one: one.role != ID)
            if one.role in (ID, OOD, CORRUPTION)
        ]

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Every set must be in the file, sample for sample."""
        missing = [one for one in sets if self._index(one) is None]
        if missing:
            have = ", ".join(one.name for one in self._predictions.sets)
            raise InputError(
                f"{self._predictions.origin} has no predictions of {', '.join(one.name for one in missing)}",
                hint=f"it has {have}; a set with other samples, labels or order is another set",
            )

    def already_seen(self, one: EvalSet) -> int:
        """How many samples of a set the model had seen when it was asked."""
        index = self._index(one)
        return 0 if index is None else self._predictions.sets[index].seen

    def _index(self, one: EvalSet) -> int | None:
        same = [i for i, entry in enumerate(self._predictions.sets) if entry.fingerprint == one.fingerprint]
        return next((i for i in same if self._predictions.sets[i].name == one.name), same[0] if same else None)

    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """Read the file."""
        index = self._index(one)
        assert index is not None  # check_sets() has been here
        yield from self._predictions.batches(index)
