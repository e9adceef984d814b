"""The check of an exported file: its outputs compared with those of its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hydractl.errors import HydraError
from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, PROBABILITIES
from hydractl.exports.formats import Runner
from hydractl.exports.graph import Expectation, NamedTensors
from hydractl.families.reading import first_line
from hydractl.files.export_answer import ExportCheck
from hydractl.metrics.conformal import nonconformity
from hydractl.model.prediction import Chosen

TOLERANCE = 1e-4
"""Largest allowed difference of logits and of probabilities, times max(1, largest logit); of a score, times max(1,
its size); of what a flag or a prediction set is decided by, from the threshold where they differ."""


@dataclass
class _Differences:
    """The largest differences between a file and its model, as they are found.

    Attributes:
        path, runtime: of the file, for messages.
        exact: whether they are held to a tolerance.
        chosen: what ``calibrate`` chose for the model.
        allowed: the largest allowed difference of logits and probabilities.
    """

    path: Path
    runtime: str
    exact: bool
    chosen: Chosen
    allowed: float
    probabilities: float = 0.0
    member_logits: float = 0.0
    score: float = 0.0
    score_allowed: float = 0.0
    flags: int = 0
    sets: int = 0

    def add(self, expectation: Expectation, outputs: NamedTensors) -> None:
        """Compare the outputs for some inputs.

        Raises:
            HydraError: they differ by more than is allowed.
        """
        size = _size_in_words(expectation.inputs)
        if outputs.keys() != expectation.outputs.keys():
            raise _failed(self.path, f"in {self.runtime}, it gives {', '.join(outputs)} on {size}")
        for name, wanted in expectation.outputs.items():
            if outputs[name].shape != wanted.shape:
                shapes = f"{list(outputs[name].shape)}, not {list(wanted.shape)}"
                raise _failed(self.path, f"in {self.runtime}, {name} on {size} are {shapes}")

        for name in (PROBABILITIES, MEMBER_LOGITS):
            difference = _largest_difference(outputs[name], expectation.outputs[name])
            self._check(name, size, difference, self.allowed)
            setattr(self, name, max(getattr(self, name), difference))
        if OOD_SCORE in outputs:
            self._add_scores(expectation, outputs, size)
        if CONFORMAL_SET in outputs:
            self._add_sets(expectation, outputs, size)

    def _add_scores(self, expectation: Expectation, outputs: NamedTensors, size: str) -> None:
        """Compare scores and flags."""
        wanted = expectation.outputs[OOD_SCORE]
        allowed = TOLERANCE * wanted.abs().clamp(min=1.0)  # of each sample
        differences = (outputs[OOD_SCORE] - wanted).abs()
        agrees = bool((differences <= allowed).all())
        if self.exact and not agrees and bool((expectation.by_rounding > allowed).any()):
            raise self._depends_on_rounding(size, float(differences.max()))
        self._check(OOD_SCORE, size, float(differences.max()), float(allowed.max()), agrees=agrees)
        self.score = max(self.score, float(differences.max()))
        self.score_allowed = max(self.score_allowed, float(allowed.max()))
        if IS_OOD not in outputs:
            return

        assert self.chosen.threshold is not None
        changed = outputs[IS_OOD] != expectation.outputs[IS_OOD]
        self.flags += int(changed.sum())
        from_threshold = (wanted - self.chosen.threshold).abs()
        if self.exact and bool((changed & (from_threshold > allowed)).any()):
            raise _failed(self.path, f"in {self.runtime}, {IS_OOD} on {size} differs from the model")

    def _add_sets(self, expectation: Expectation, outputs: NamedTensors, size: str) -> None:
        """Compare prediction sets."""
        conformal = self.chosen.conformal
        assert conformal is not None
        changed = outputs[CONFORMAL_SET] != expectation.outputs[CONFORMAL_SET]  # [B, classes]
        self.sets += int(changed.any(dim=1).sum())
        probabilities = expectation.outputs[PROBABILITIES].double().numpy()
        scores = torch.from_numpy(nonconformity(probabilities, conformal.method))
        from_threshold = (scores - conformal.qhat).abs()
        if self.exact and bool((changed & (from_threshold > self.allowed)).any()):
            raise _failed(self.path, f"in {self.runtime}, {CONFORMAL_SET} on {size} differs from the model")

    def _depends_on_rounding(self, size: str, difference: float) -> HydraError:
        """Return the error of a score that no graph can give, as rounding in float32 changes it."""
        score = self.chosen.score
        return HydraError(
            f"{score} of this checkpoint cannot be exported: rounding of features in float32 alone moves it by more"
            f" than 1e-4 max(1, |{score}|), and in {self.runtime}, on {size}, by {difference:.2e}",
            hint="fit it to more training data (calibrate --train), or choose another --ood-score",
        )

    def _check(self, name: str, size: str, difference: float, allowed: float, *, agrees: bool | None = None) -> None:
        """Refuse a difference that is not allowed; NaN is none that is."""
        if not self.exact:
            return
        if agrees is None:
            agrees = difference <= allowed
        if not math.isfinite(difference) or not agrees:
            by_how_much = f"differ from the model by {difference:.2e} (allowed {allowed:.2e})"
            raise _failed(self.path, f"in {self.runtime}, {name} on {size} {by_how_much}")


def _three_digits(number: float) -> float:
    """Return a number rounded to three significant digits."""
    return float(f"{number:.3g}")


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], chosen: Chosen, *, exact: bool
) -> ExportCheck:
    """Run a file and compare it with its model.

    Args:
        path: of the file, for messages.
        run: the file.
        runtime: what runs it, for messages.
        expected: inputs, and the outputs of the model for them.
        chosen: what ``calibrate`` chose for the model.
        exact: whether the outputs have to be the same but for rounding in float32.

    Returns:
        The largest differences, and the tolerance they were held to.

    Raises:
        HydraError: where they differ by more than the tolerance, or the file does not run.
    """
    largest_logits = []
    for expectation in expected:
        member_logits = expectation.outputs[MEMBER_LOGITS]
        largest_logits.append(float(member_logits.abs().max()))
    largest_logit = max(largest_logits)
    allowed = TOLERANCE * max(1.0, largest_logit)

    worst = _Differences(path, runtime, exact, chosen, allowed)
    for expectation in expected:
        try:
            outputs = run(expectation.inputs)
        except Exception as error:  # whatever a runtime raises
            size = _size_in_words(expectation.inputs)
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        worst.add(expectation, outputs)
    named = expected[0].outputs
    return ExportCheck(
        runtime=runtime,
        inputs=[_shapes_of(expectation.inputs) for expectation in expected],
        probabilities_max_abs=_three_digits(worst.probabilities),
        member_logits_max_abs=_three_digits(worst.member_logits),
        max_abs_logit=_three_digits(largest_logit),
        tolerance=_three_digits(allowed) if exact else None,
        score=chosen.score if OOD_SCORE in named else None,
        score_max_abs=_three_digits(worst.score) if OOD_SCORE in named else None,
        score_tolerance=_three_digits(worst.score_allowed) if exact and OOD_SCORE in named else None,
        flags_changed=worst.flags if IS_OOD in named else None,
        sets_changed=worst.sets if CONFORMAL_SET in named else None,
    )


def _largest_difference(output: Tensor, wanted: Tensor) -> float:
    """Return the largest absolute difference, in float64."""
    differences = output.double() - wanted.double()
    return float(differences.abs().max())


def _shapes_of(inputs: NamedTensors) -> dict[str, list[int]]:
    """Return the shape of each input, by name."""
    shapes = {}
    for name, tensor in inputs.items():
        shapes[name] = list(tensor.shape)
    return shapes


def _size_in_words(inputs: NamedTensors) -> str:
    """Return ``a batch of 3``, of texts with their tokens."""
    first = next(iter(inputs.values()))
    words = f"a batch of {len(first)}"
    if "input_ids" in inputs:
        words += f" texts of {first.shape[1]} tokens"
    return words


def _failed(path: Path, why: str) -> HydraError:
    return HydraError(
        f"the export {path} failed its check: {why}",
        hint="this is a defect of hydractl or of a library it exports with: nothing was written",
    )
