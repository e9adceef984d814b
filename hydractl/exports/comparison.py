"""The check of an exported file: its outputs are compared with the outputs of its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class _Comparison:
    """Compares the outputs of one file with those of its model.

    Args:
        path, runtime: the file and the program that runs it, for messages.
        expected: several inputs, each with the model's outputs for them.
        chosen: the choices of ``calibrate`` for the model.

    Attributes:
        largest_logit: the largest absolute logit of any member of the model, over all inputs.
        differences: by output, its largest absolute difference so far.
        allowed: by output, its largest tolerance so far.
        changed: by output, the number of samples with another flag or prediction set so far.
    """

    def __init__(self, path: Path, runtime: str, expected: Sequence[Expectation], chosen: Chosen) -> None:
        self._path = path
        self._runtime = runtime
        self._chosen = chosen
        largest_logits = [float(expectation.outputs[MEMBER_LOGITS].abs().max()) for expectation in expected]
        self.largest_logit = max(largest_logits)
        self.differences: dict[str, float] = {}
        self.allowed: dict[str, float] = {}
        self.changed: dict[str, int] = {}

    def add(self, expectation: Expectation, outputs: NamedTensors) -> None:
        """Compare the outputs of the file with those of the model, and update the largest differences.

        Args:
            expectation: inputs, and the model's outputs for them.
            outputs: the outputs of the file for the same inputs, by name.

        Raises:
            HydraError: if the outputs have other names or shapes, or differ too much.
        """
        wanted = expectation.outputs
        if outputs.keys() != wanted.keys():
            names = ", ".join(outputs)
            raise self._failed(f"it gives {names} on {_size_in_words(expectation)}")
        for name, wanted_output in wanted.items():
            shape = list(outputs[name].shape)
            wanted_shape = list(wanted_output.shape)
            if shape != wanted_shape:
                raise self._failed(f"{name} on {_size_in_words(expectation)} are {shape}, not {wanted_shape}")

        # Every graph has these two outputs.
        allowed = torch.tensor(TOLERANCE * max(1.0, self.largest_logit), dtype=torch.float64)
        self._add_numbers(PROBABILITIES, expectation, outputs, allowed)
        self._add_numbers(MEMBER_LOGITS, expectation, outputs, allowed)

        # These depend on what was calibrated. A flag may change if the score could have crossed the threshold within
        # its tolerance.
        if OOD_SCORE in outputs:
            scores = wanted[OOD_SCORE]
            allowed_of_scores = TOLERANCE * scores.abs().clamp(min=1.0)  # [B]
            self._add_numbers(OOD_SCORE, expectation, outputs, allowed_of_scores)
            if IS_OOD in outputs:
                assert self._chosen.threshold is not None
                distance_to_threshold = (scores - self._chosen.threshold.value).abs()
                self._add_choices(IS_OOD, expectation, outputs, distance_to_threshold > allowed_of_scores)

        # A class is in the set if its nonconformity score is at most `qhat`. It may change if it is close to that.
        if CONFORMAL_SET in outputs:
            conformal = self._chosen.conformal
            assert conformal is not None
            probabilities = wanted[PROBABILITIES].double().numpy()
            nonconformities = torch.from_numpy(nonconformity(probabilities, conformal.method))  # [B, classes]
            distance_to_qhat = (nonconformities - conformal.qhat).abs()
            self._add_choices(CONFORMAL_SET, expectation, outputs, distance_to_qhat > allowed)

    def _add_numbers(self, name: str, expectation: Expectation, outputs: NamedTensors, allowed: Tensor) -> None:
        """Compare an output of numbers with the model's, and update its largest difference and tolerance.

        Args:
            name: the output, e.g. ``probabilities``.
            expectation: inputs, and the model's outputs for them.
            outputs: the outputs of the file for the same inputs, by name.
            allowed: the tolerance of all its numbers, a single number, or of each.

        Raises:
            HydraError: if a number differs by more than its tolerance, or by NaN or infinity.
        """
        size = _size_in_words(expectation)
        differences = (outputs[name].double() - expectation.outputs[name].double()).abs()
        difference = float(differences.max())
        largest_allowed = float(allowed.max())
        all_agree = bool((differences <= allowed).all())

        # If rounding alone moves a score by more than its tolerance, no graph can agree, and the message says so.
        if name == OOD_SCORE and not all_agree and bool((expectation.by_rounding > allowed).any()):
            score = self._chosen.score
            raise HydraError(
                f"{score} of this checkpoint cannot be exported: rounding of features in float32 alone moves it by more"
                f" than 1e-4 max(1, |{score}|), and in {self._runtime}, on {size}, by {difference:.2e}",
                hint="fit it to more training data (calibrate --train), or choose another --ood-score",
            )
        # An infinite score of the model has an infinite tolerance, so a difference must also be finite.
        if not all_agree or not math.isfinite(difference):
            by_how_much = f"differ from the model by {difference:.2e} (allowed {largest_allowed:.2e})"
            raise self._failed(f"{name} on {size} {by_how_much}")
        self.differences[name] = max(self.differences.get(name, 0.0), difference)
        self.allowed[name] = max(self.allowed.get(name, 0.0), largest_allowed)

    def _add_choices(self, name: str, expectation: Expectation, outputs: NamedTensors, is_far: Tensor) -> None:
        """Compare an output of flags or prediction sets with the model's, and count the samples for which it changed.

        It may change only where the number that decides is so near its threshold that rounding can move it across.

        Args:
            name: the output, bool ``[B]`` (flags) or ``[B, classes]`` (prediction sets).
            expectation: inputs, and the model's outputs for them.
            outputs: the outputs of the file for the same inputs, by name.
            is_far: where the number is not so near, bool of the same shape.

        Raises:
            HydraError: if the output changed where it must not.
        """
        changed = outputs[name] != expectation.outputs[name]
        samples_changed = changed.flatten(1).any(dim=1) if changed.dim() > 1 else changed
        self.changed[name] = self.changed.get(name, 0) + int(samples_changed.sum())
        if bool((changed & is_far).any()):
            raise self._failed(f"{name} on {_size_in_words(expectation)} differs from the model")

    def _failed(self, why: str) -> HydraError:
        """Return the error for a file that runs, but whose outputs are not those of its model."""
        return _failed(self._path, f"in {self._runtime}, {why}")


def _three_digits(number: float) -> float:
    """Return a number rounded to three significant digits."""
    return float(f"{number:.3g}")


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], chosen: Chosen
) -> ExportCheck:
    """Return how far the outputs of an exported file differ from those of its model at most, with the tolerances.

    The file runs on several inputs. Entries about an output that the graph does not have are None.

    Args:
        path: the file, for messages.
        run: a function that runs the file.
        runtime: the name of the program that runs the file, for messages.
        expected: several inputs, each with the model's outputs for them.
        chosen: the choices of ``calibrate`` for the model.

    Raises:
        HydraError: if the file does not run, has other outputs, or differs by more than the tolerance.
    """
    comparison = _Comparison(path, runtime, expected, chosen)
    for expectation in expected:
        try:
            outputs = run(expectation.inputs)
        except Exception as error:  # runtimes raise errors of many kinds
            size = _size_in_words(expectation)
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        comparison.add(expectation, outputs)

    differences = {name: _three_digits(difference) for name, difference in comparison.differences.items()}
    allowed = {name: _three_digits(tolerance) for name, tolerance in comparison.allowed.items()}
    shapes_of_inputs = []
    for expectation in expected:
        shapes_of_inputs.append({name: list(tensor.shape) for name, tensor in expectation.inputs.items()})
    return ExportCheck(
        runtime=runtime,
        inputs=shapes_of_inputs,
        probabilities_max_abs=differences[PROBABILITIES],
        member_logits_max_abs=differences[MEMBER_LOGITS],
        max_abs_logit=_three_digits(comparison.largest_logit),
        tolerance=allowed[MEMBER_LOGITS],
        score=chosen.score if OOD_SCORE in differences else None,
        score_max_abs=differences.get(OOD_SCORE),
        score_tolerance=allowed.get(OOD_SCORE),
        flags_changed=comparison.changed.get(IS_OOD),
        sets_changed=comparison.changed.get(CONFORMAL_SET),
    )


def _size_in_words(expectation: Expectation) -> str:
    """Return the size of inputs in words: ``a batch of 3``, or for texts ``a batch of 3 texts of 16 tokens``."""
    inputs = expectation.inputs
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
