"""The check of an exported file: its outputs are compared with the outputs of its model."""

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
"""The tolerance of all comparisons.

Logits and probabilities may differ by this times max(1, largest absolute logit). An OOD score may differ by this times
max(1, absolute score). A flag or a class in a prediction set may differ only if the value that decides it is within the
same distance of its threshold.
"""


@dataclass
class _Differences:
    """The largest differences between a file and its model, over all inputs that were compared so far.

    Attributes:
        path, runtime: the file and the program that runs it, for messages.
        chosen: the choices of ``calibrate`` for the model.
        allowed: the tolerance of logits and probabilities.
        probabilities, member_logits, score: the largest absolute difference of each output so far.
        score_allowed: the largest tolerance of a score so far.
        flags, sets: the number of samples with another flag, and with another prediction set, so far.
    """

    path: Path
    runtime: str
    chosen: Chosen
    allowed: float
    probabilities: float = 0.0
    member_logits: float = 0.0
    score: float = 0.0
    score_allowed: float = 0.0
    flags: int = 0
    sets: int = 0

    def add(self, expectation: Expectation, outputs: NamedTensors) -> None:
        """Compare the outputs of the file with those of the model, and update the largest differences.

        Args:
            expectation: inputs, and the model's outputs for them.
            outputs: the outputs of the file for the same inputs, by name.

        Raises:
            HydraError: if the outputs have other names or shapes, or differ too much.
        """
        model_outputs = expectation.outputs
        size = _size_in_words(expectation.inputs)
        self._check_shapes(model_outputs, outputs, size)

        # Every graph has these two outputs.
        probability_difference = self._checked_difference(PROBABILITIES, model_outputs, outputs, size)
        logit_difference = self._checked_difference(MEMBER_LOGITS, model_outputs, outputs, size)
        self.probabilities = max(self.probabilities, probability_difference)
        self.member_logits = max(self.member_logits, logit_difference)

        # These depend on what was calibrated.
        if OOD_SCORE in outputs:
            self._add_scores(expectation, outputs[OOD_SCORE], size)
        if IS_OOD in outputs:
            self._add_flags(model_outputs, outputs[IS_OOD], size)
        if CONFORMAL_SET in outputs:
            self._add_sets(model_outputs, outputs[CONFORMAL_SET], size)

    def _checked_difference(self, name: str, wanted: NamedTensors, outputs: NamedTensors, size: str) -> float:
        """Return the largest absolute difference of one output.

        Args:
            name: the output.
            wanted: the outputs of the model, by name.
            outputs: the outputs of the file, by name.
            size: the size of the inputs in words, for messages.

        Raises:
            HydraError: if the difference is above the tolerance.
        """
        differences = outputs[name].double() - wanted[name].double()
        difference = float(differences.abs().max())
        agrees = difference <= self.allowed
        self._refuse_unless_allowed(name, size, difference, self.allowed, agrees=agrees)
        return difference

    def _check_shapes(self, wanted: NamedTensors, outputs: NamedTensors, size: str) -> None:
        """Raise an error if the outputs of the file have other names or shapes than those of the model.

        Args:
            wanted: the outputs of the model, by name.
            outputs: the outputs of the file, by name.
            size: the size of the inputs in words, for messages.
        """
        if outputs.keys() != wanted.keys():
            names = ", ".join(outputs)
            raise self._failed_in_runtime(f"it gives {names} on {size}")
        for name, wanted_output in wanted.items():
            shape = list(outputs[name].shape)
            wanted_shape = list(wanted_output.shape)
            if shape != wanted_shape:
                raise self._failed_in_runtime(f"{name} on {size} are {shape}, not {wanted_shape}")

    def _failed_in_runtime(self, why: str) -> HydraError:
        """Return the error for a file that runs, but whose outputs are not those of its model."""
        return _failed(self.path, f"in {self.runtime}, {why}")

    def _add_scores(self, expectation: Expectation, scores: Tensor, size: str) -> None:
        """Compare OOD scores, and update ``self.score`` and ``self.score_allowed``.

        Args:
            expectation: inputs, and the model's outputs for them.
            scores: the scores from the file, ``[B]``.
            size: the size of the inputs in words, for messages.

        Raises:
            HydraError: if a score differs by more than its tolerance.
        """
        wanted_scores = expectation.outputs[OOD_SCORE]
        allowed = _allowed_of_scores(wanted_scores)  # [B]
        differences = (scores - wanted_scores).abs()
        agrees = differences <= allowed
        all_agree = bool(agrees.all())
        largest_difference = float(differences.max())
        largest_allowed = float(allowed.max())

        # If rounding alone moves a score by more than its tolerance, no graph can agree, and the message says so.
        moves_too_far = expectation.by_rounding > allowed
        score_depends_on_rounding = bool(moves_too_far.any())
        if not all_agree and score_depends_on_rounding:
            raise self._depends_on_rounding(size, largest_difference)
        self._refuse_unless_allowed(OOD_SCORE, size, largest_difference, largest_allowed, agrees=all_agree)
        self.score = max(self.score, largest_difference)
        self.score_allowed = max(self.score_allowed, largest_allowed)

    def _add_flags(self, wanted: NamedTensors, flags: Tensor, size: str) -> None:
        """Compare OOD flags, and add the number of changed ones to ``self.flags``.

        Args:
            wanted: the outputs of the model, by name.
            flags: the flags from the file, bool ``[B]``.
            size: the size of the inputs in words, for messages.

        Raises:
            HydraError: if a flag changed although its score is not close to the threshold.
        """
        threshold = self.chosen.threshold
        assert threshold is not None
        changed = flags != wanted[IS_OOD]
        self.flags += int(changed.sum())

        # A flag may change if the score could have crossed the threshold within its tolerance.
        scores = wanted[OOD_SCORE]
        distance_to_threshold = (scores - threshold).abs()
        wrongly_changed = changed & (distance_to_threshold > _allowed_of_scores(scores))
        if bool(wrongly_changed.any()):
            raise self._failed_in_runtime(f"{IS_OOD} on {size} differs from the model")

    def _add_sets(self, wanted: NamedTensors, sets: Tensor, size: str) -> None:
        """Compare prediction sets, and add the number of samples with another set to ``self.sets``.

        Args:
            wanted: the outputs of the model, by name.
            sets: the prediction sets from the file, bool ``[B, classes]``.
            size: the size of the inputs in words, for messages.

        Raises:
            HydraError: if a class entered or left a set although its nonconformity score is not close to the threshold.
        """
        conformal = self.chosen.conformal
        assert conformal is not None
        changed = sets != wanted[CONFORMAL_SET]  # [B, classes]
        samples_changed = changed.any(dim=1)  # [B]
        self.sets += int(samples_changed.sum())

        # A class is in the set if its nonconformity score is at most `qhat`. It may change if it is close to that.
        probabilities = wanted[PROBABILITIES].double().numpy()
        scores = nonconformity(probabilities, conformal.method)  # [B, classes]
        distance_to_threshold = (torch.from_numpy(scores) - conformal.qhat).abs()
        wrongly_changed = changed & (distance_to_threshold > self.allowed)
        if bool(wrongly_changed.any()):
            raise self._failed_in_runtime(f"{CONFORMAL_SET} on {size} differs from the model")

    def _depends_on_rounding(self, size: str, difference: float) -> HydraError:
        """Return the error for a score that no graph can reproduce, because rounding in float32 changes it too much."""
        score = self.chosen.score
        return HydraError(
            f"{score} of this checkpoint cannot be exported: rounding of features in float32 alone moves it by more"
            f" than 1e-4 max(1, |{score}|), and in {self.runtime}, on {size}, by {difference:.2e}",
            hint="fit it to more training data (calibrate --train), or choose another --ood-score",
        )

    def _refuse_unless_allowed(self, name: str, size: str, difference: float, allowed: float, *, agrees: bool) -> None:
        """Raise an error if an output differs too much, or by NaN or infinity.

        Args:
            name: the output.
            size: the size of the inputs in words, for messages.
            difference: the largest difference of the output.
            allowed: its tolerance, for the message.
            agrees: whether all differences are within their tolerances.
        """
        if not math.isfinite(difference) or not agrees:
            by_how_much = f"differ from the model by {difference:.2e} (allowed {allowed:.2e})"
            raise self._failed_in_runtime(f"{name} on {size} {by_how_much}")


def _allowed_of_scores(scores: Tensor) -> Tensor:
    """Return the tolerance of each score, ``[B]``: 1e-4 times its absolute value, or times 1 if that is larger."""
    sizes = scores.abs().clamp(min=1.0)
    return TOLERANCE * sizes


def _three_digits(number: float) -> float:
    """Return a number rounded to three significant digits."""
    return float(f"{number:.3g}")


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], chosen: Chosen
) -> ExportCheck:
    """Run an exported file on several inputs, and compare its outputs with those of its model.

    Args:
        path: the file, for messages.
        run: a function that runs the file.
        runtime: the name of the program that runs the file, for messages.
        expected: several inputs, each with the model's outputs for them.
        chosen: the choices of ``calibrate`` for the model.

    Returns:
        The largest differences and the tolerances.

    Raises:
        HydraError: if the file does not run, has other outputs, or differs by more than the tolerance.
    """
    largest_logit = _largest_logit(expected)
    allowed = TOLERANCE * max(1.0, largest_logit)
    worst = _Differences(path, runtime, chosen, allowed)
    for expectation in expected:
        try:
            outputs = run(expectation.inputs)
        except Exception as error:  # runtimes raise errors of many kinds
            size = _size_in_words(expectation.inputs)
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        worst.add(expectation, outputs)
    return _check_record(worst, expected)


def _largest_logit(expected: Sequence[Expectation]) -> float:
    """Return the largest absolute logit of any member of the model, over all inputs."""
    return max(float(expectation.outputs[MEMBER_LOGITS].abs().max()) for expectation in expected)


def _check_record(worst: _Differences, expected: Sequence[Expectation]) -> ExportCheck:
    """Return the record of a check for the answer of ``export``.

    Entries about an output that the graph does not have are None.

    Args:
        worst: the largest differences.
        expected: the inputs that were compared, with the model's outputs.
    """
    outputs = expected[0].outputs

    # Each of the outputs that a graph need not have.
    score = None
    score_max_abs = None
    score_tolerance = None
    if OOD_SCORE in outputs:
        score = worst.chosen.score
        score_max_abs = _three_digits(worst.score)
        score_tolerance = _three_digits(worst.score_allowed)
    flags_changed = worst.flags if IS_OOD in outputs else None
    sets_changed = worst.sets if CONFORMAL_SET in outputs else None

    return ExportCheck(
        runtime=worst.runtime,
        inputs=[_shapes_of(expectation.inputs) for expectation in expected],
        probabilities_max_abs=_three_digits(worst.probabilities),
        member_logits_max_abs=_three_digits(worst.member_logits),
        max_abs_logit=_three_digits(_largest_logit(expected)),
        tolerance=_three_digits(worst.allowed),
        score=score,
        score_max_abs=score_max_abs,
        score_tolerance=score_tolerance,
        flags_changed=flags_changed,
        sets_changed=sets_changed,
    )


def _shapes_of(inputs: NamedTensors) -> dict[str, list[int]]:
    """Return the shape of each input, by name."""
    return {name: list(tensor.shape) for name, tensor in inputs.items()}


def _size_in_words(inputs: NamedTensors) -> str:
    """Return the size of inputs in words: ``a batch of 3``, or for texts ``a batch of 3 texts of 16 tokens``."""
    first = next(iter(inputs.values()))
    words = f"a batch of {len(first)}"
    if "input_ids" in inputs:
        words += f" texts of {first.shape[1]} tokens"
    return words


def _failed(path: Path, why: str) -> HydraError:
    """Return the error for a file that fails its check."""
    return HydraError(
        f"the export {path} failed its check: {why}",
        hint="this is a defect of hydractl or of a library it exports with: nothing was written",
    )
