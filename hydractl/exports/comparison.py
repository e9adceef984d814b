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
    """The largest differences between a file and its model, over all inputs that were compared so far.

    Attributes:
        path, runtime: of the file, for messages.
        exact: whether a difference beyond its tolerance is an error; else differences are only measured.
        chosen: what ``calibrate`` chose for the model.
        allowed: the largest allowed difference of logits and probabilities.
        probabilities, member_logits, score: the largest difference of each.
        score_allowed: the largest difference that was allowed of a score.
        flags, sets: how many samples have another flag, and another prediction set.
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
        """Compare the outputs of the file for some inputs with those of the model, and keep the largest differences.

        Raises:
            HydraError: the outputs have other names or shapes, or differ by more than is allowed.
        """
        wanted = expectation.outputs
        size = _size_in_words(expectation.inputs)
        self._check_shapes(wanted, outputs, size)

        difference = self._checked_difference(PROBABILITIES, wanted, outputs, size)
        self.probabilities = max(self.probabilities, difference)
        difference = self._checked_difference(MEMBER_LOGITS, wanted, outputs, size)
        self.member_logits = max(self.member_logits, difference)
        if OOD_SCORE in outputs:
            scores = outputs[OOD_SCORE]
            self._compare_scores(expectation, scores, size)
        if IS_OOD in outputs:
            flags = outputs[IS_OOD]
            self._compare_flags(wanted, flags, size)
        if CONFORMAL_SET in outputs:
            sets = outputs[CONFORMAL_SET]
            self._compare_sets(wanted, sets, size)

    def _checked_difference(self, name: str, wanted: NamedTensors, outputs: NamedTensors, size: str) -> float:
        """Return the largest difference of one output, once it is known to be allowed."""
        difference = _largest_difference(outputs[name], wanted[name])
        agrees = difference <= self.allowed
        self._refuse_unless_allowed(name, size, difference, self.allowed, agrees=agrees)
        return difference

    def _check_shapes(self, wanted: NamedTensors, outputs: NamedTensors, size: str) -> None:
        """Refuse outputs of other names or shapes than those of the model."""
        if outputs.keys() != wanted.keys():
            names = ", ".join(outputs)
            raise self._failed_in_runtime(f"it gives {names} on {size}")
        for name, wanted_output in wanted.items():
            shape = list(outputs[name].shape)
            wanted_shape = list(wanted_output.shape)
            if shape != wanted_shape:
                raise self._failed_in_runtime(f"{name} on {size} are {shape}, not {wanted_shape}")

    def _failed_in_runtime(self, why: str) -> HydraError:
        """Return the error of a file that runs and is not what its model is."""
        return _failed(self.path, f"in {self.runtime}, {why}")

    def _compare_scores(self, expectation: Expectation, scores: Tensor, size: str) -> None:
        """Compare OOD scores ``[B]``, each of which may differ by a share of its size."""
        wanted = expectation.outputs[OOD_SCORE]
        allowed = _allowed_of_scores(wanted)
        differences = (scores - wanted).abs()
        agrees = differences <= allowed
        all_agree = bool(agrees.all())
        largest_difference = float(differences.max())
        largest_allowed = float(allowed.max())

        # A score that rounding alone moves by more than is allowed cannot agree in any graph: the score is to blame.
        moves_too_far = expectation.by_rounding > allowed
        is_to_blame = bool(moves_too_far.any())
        if self.exact and not all_agree and is_to_blame:
            raise self._depends_on_rounding(size, largest_difference)
        self._refuse_unless_allowed(OOD_SCORE, size, largest_difference, largest_allowed, agrees=all_agree)
        self.score = max(self.score, largest_difference)
        self.score_allowed = max(self.score_allowed, largest_allowed)

    def _compare_flags(self, wanted: NamedTensors, flags: Tensor, size: str) -> None:
        """Compare flags ``[B]``: they may differ for samples whose score is next to the threshold."""
        threshold = self.chosen.threshold
        assert threshold is not None
        changed = flags != wanted[IS_OOD]
        self.flags += int(changed.sum())
        scores = wanted[OOD_SCORE]
        distance = (scores - threshold).abs()
        wrongly_changed = changed & (distance > _allowed_of_scores(scores))
        if self.exact and bool(wrongly_changed.any()):
            raise self._failed_in_runtime(f"{IS_OOD} on {size} differs from the model")

    def _compare_sets(self, wanted: NamedTensors, sets: Tensor, size: str) -> None:
        """Compare prediction sets ``[B, classes]``: they may differ in classes whose score is next to the threshold."""
        conformal = self.chosen.conformal
        assert conformal is not None
        changed = sets != wanted[CONFORMAL_SET]
        samples_changed = changed.any(dim=1)
        self.sets += int(samples_changed.sum())
        probabilities = wanted[PROBABILITIES].double().numpy()
        scores = nonconformity(probabilities, conformal.method)
        distance = (torch.from_numpy(scores) - conformal.qhat).abs()
        wrongly_changed = changed & (distance > self.allowed)
        if self.exact and bool(wrongly_changed.any()):
            raise self._failed_in_runtime(f"{CONFORMAL_SET} on {size} differs from the model")

    def _depends_on_rounding(self, size: str, difference: float) -> HydraError:
        """Return the error of a score that no graph can give, as rounding in float32 changes it."""
        score = self.chosen.score
        return HydraError(
            f"{score} of this checkpoint cannot be exported: rounding of features in float32 alone moves it by more"
            f" than 1e-4 max(1, |{score}|), and in {self.runtime}, on {size}, by {difference:.2e}",
            hint="fit it to more training data (calibrate --train), or choose another --ood-score",
        )

    def _refuse_unless_allowed(self, name: str, size: str, difference: float, allowed: float, *, agrees: bool) -> None:
        """Refuse the largest difference of an output unless it agrees; NaN and infinity never do.

        A file that is not exact may differ by anything.
        """
        if not self.exact:
            return
        if not math.isfinite(difference) or not agrees:
            by_how_much = f"differ from the model by {difference:.2e} (allowed {allowed:.2e})"
            raise self._failed_in_runtime(f"{name} on {size} {by_how_much}")


def _allowed_of_scores(scores: Tensor) -> Tensor:
    """Return by how much each score ``[B]`` may differ: by a share of its size, or of 1 where it is smaller."""
    sizes = scores.abs().clamp(min=1.0)
    return TOLERANCE * sizes


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
    largest_logit = _largest_logit(expected)
    allowed = TOLERANCE * max(1.0, largest_logit)
    worst = _Differences(path, runtime, exact, chosen, allowed)
    for expectation in expected:
        try:
            outputs = run(expectation.inputs)
        except Exception as error:  # whatever a runtime raises
            size = _size_in_words(expectation.inputs)
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        worst.add(expectation, outputs)
    return _check_record(worst, expected)


def _largest_logit(expected: Sequence[Expectation]) -> float:
    """Return the largest absolute logit that any member of the model gave."""
    largest_logits = []
    for expectation in expected:
        member_logits = expectation.outputs[MEMBER_LOGITS]
        largest_logits.append(float(member_logits.abs().max()))
    return max(largest_logits)


def _check_record(worst: _Differences, expected: Sequence[Expectation]) -> ExportCheck:
    """Return what an answer says of a check: None for outputs that the graph has not, and for tolerances not held."""
    outputs = expected[0].outputs
    tolerance = None
    if worst.exact:
        tolerance = _three_digits(worst.allowed)
    score = score_max_abs = score_tolerance = None
    if OOD_SCORE in outputs:
        score = worst.chosen.score
        score_max_abs = _three_digits(worst.score)
        if worst.exact:
            score_tolerance = _three_digits(worst.score_allowed)
    flags_changed = None
    if IS_OOD in outputs:
        flags_changed = worst.flags
    sets_changed = None
    if CONFORMAL_SET in outputs:
        sets_changed = worst.sets
    return ExportCheck(
        runtime=worst.runtime,
        inputs=[_shapes_of(expectation.inputs) for expectation in expected],
        probabilities_max_abs=_three_digits(worst.probabilities),
        member_logits_max_abs=_three_digits(worst.member_logits),
        max_abs_logit=_three_digits(_largest_logit(expected)),
        tolerance=tolerance,
        score=score,
        score_max_abs=score_max_abs,
        score_tolerance=score_tolerance,
        flags_changed=flags_changed,
        sets_changed=sets_changed,
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
    """Return ``a batch of 3``, and of texts how many tokens they have: ``a batch of 3 texts of 16 tokens``."""
    first = next(iter(inputs.values()))
    words = f"a batch of {len(first)}"
    if "input_ids" in inputs:
        words += f" texts of {first.shape[1]} tokens"
    return words


def _failed(path: Path, why: str) -> HydraError:
    """Return the error of a file that is not what its model is."""
    return HydraError(
        f"the export {path} failed its check: {why}",
        hint="this is a defect of hydractl or of a library it exports with: nothing was written",
    )
