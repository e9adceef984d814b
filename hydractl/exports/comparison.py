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
from hydractl.fusion.selfcheck import to_three_digits
from hydractl.metrics.conformal import nonconformity
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.model.prediction import Chosen

TOLERANCE = 1e-4
"""The tolerance of all comparisons.

Logits and probabilities may differ by this times max(1, largest absolute logit). An OOD score may differ by this times
max(1, absolute score). A flag or a class in a prediction set may differ only if the value that decides it is within the
same distance of its threshold.
"""

_HINT = "this is a defect of hydractl or of a library it exports with: nothing was written"


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], chosen: Chosen
) -> ExportCheck:
    """Return how far the outputs of an exported file differ from those of its model at most, with the tolerances.

    The file runs on several inputs.

    Args:
        path: the file, for messages.
        run: a function that runs the file.
        runtime: the name of the program that runs the file, for messages.
        expected: several inputs, each with the model's outputs for them.
        chosen: the choices of ``calibrate`` for the model.

    Raises:
        HydraError: if the file does not run, has other outputs, or differs by more than the tolerance.
    """
    largest_logit = max(float(expectation.outputs[MEMBER_LOGITS].abs().max()) for expectation in expected)
    tolerance_of_logits = TOLERANCE * max(1.0, largest_logit)

    # By output its largest difference, and its largest tolerance, of the inputs compared so far.
    largest_differences: dict[str, float] = {}
    largest_tolerances: dict[str, float] = {}
    shapes_of_inputs = []
    for expectation in expected:
        # Run the file.
        inputs, wanted = expectation.inputs, expectation.outputs
        size = _size_in_words(inputs)
        try:
            outputs = run(inputs)
        except Exception as error:  # runtimes raise errors of many kinds
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        _check_shapes(path, f"{runtime}, {{}} on {size}", wanted, outputs)

        # Compare each output, as numbers: a flag, or a class in a prediction set, is 0 or 1.
        for name, allowed in _allowed(wanted, chosen, tolerance_of_logits).items():
            differences = (outputs[name].double() - wanted[name].double()).abs()
            difference = float(differences.max())
            # An infinite score of the model has an infinite tolerance, so a difference must also be finite.
            all_within_tolerance = bool((differences <= allowed).all())
            if not all_within_tolerance or not math.isfinite(difference):
                excess = float((differences - allowed).max())
                off = f"differ from the model by {difference:.2e}, {excess:.2e} more than allowed"
                hint = _HINT
                if name == OOD_SCORE and chosen.score in FEATURE_SCORES:  # rounding of features alone may move it
                    hint = "fit it to more training data (calibrate --train), or choose another --ood-score"
                raise _failed(path, f"in {runtime}, {name} on {size} {off}", hint)
            largest_differences[name] = max(largest_differences.get(name, 0.0), difference)
            largest_tolerances[name] = max(largest_tolerances.get(name, 0.0), float(allowed.max()))
        shapes_of_inputs.append({name: list(tensor.shape) for name, tensor in inputs.items()})

    return ExportCheck(
        runtime=runtime,
        inputs=shapes_of_inputs,
        max_abs={name: to_three_digits(value) for name, value in largest_differences.items()},
        tolerance={name: to_three_digits(value) for name, value in largest_tolerances.items()},
    )


def _check_shapes(path: Path, where: str, wanted: NamedTensors, outputs: NamedTensors) -> None:
    """Raise HydraError if outputs of a file have other names or shapes than those of the model.

    Args:
        path: the file, for messages.
        where: what ran on which inputs, with ``{}`` for the output.
        wanted: the outputs of the model, by name.
        outputs: those of the file.
    """
    shapes = {name: list(output.shape) for name, output in outputs.items()}
    for name in {**wanted, **outputs}:
        wanted_shape = list(wanted[name].shape) if name in wanted else None
        if shapes.get(name) != wanted_shape:
            raise _failed(path, f"in {where.format(name)} has the shape {shapes.get(name)}, not {wanted_shape}")


def _allowed(wanted: NamedTensors, chosen: Chosen, of_logits: float) -> dict[str, Tensor]:
    """Return how far each number of each output may lie from that of the model, by output.

    =============================  ========================================================================
    probabilities, member logits   ``of_logits``
    OOD score                      :data:`TOLERANCE` times max(1, absolute score), ``[B]``
    flag (OOD or not)              1 where the score is within its tolerance of the threshold, else 0, ``[B]``
    prediction set                 1 where a nonconformity score is within ``of_logits`` of ``qhat``, else 0
    =============================  ========================================================================

    Flags, and the classes of a set, are compared as 0 and 1: there 1 allows them to change.

    Args:
        wanted: the outputs of the model, by name.
        chosen: the choices of ``calibrate`` for the model.
        of_logits: the tolerance of logits and probabilities.
    """
    # Every file has these two outputs; the others depend on what was calibrated.
    allowed_of_logits = torch.tensor(of_logits, dtype=torch.float64)
    allowed = {PROBABILITIES: allowed_of_logits, MEMBER_LOGITS: allowed_of_logits}
    if OOD_SCORE in wanted:
        scores = wanted[OOD_SCORE]  # [B]
        allowed[OOD_SCORE] = TOLERANCE * scores.abs().clamp(min=1.0)
        if IS_OOD in wanted:
            assert chosen.threshold is not None
            distance_to_threshold = (scores - chosen.threshold.value).abs()
            flag_may_change = distance_to_threshold <= allowed[OOD_SCORE]
            allowed[IS_OOD] = flag_may_change.double()
    if CONFORMAL_SET in wanted:
        assert chosen.conformal is not None
        probabilities = wanted[PROBABILITIES].double().numpy()
        nonconformities = torch.from_numpy(nonconformity(probabilities, chosen.conformal.method))  # [B, classes]
        distance_to_qhat = (nonconformities - chosen.conformal.qhat).abs()
        class_may_change = distance_to_qhat <= allowed_of_logits
        allowed[CONFORMAL_SET] = class_may_change.double()
    return allowed


def _size_in_words(inputs: NamedTensors) -> str:
    """Return the size of inputs in words: ``a batch of 3``, or for texts ``a batch of 3 texts of 16 tokens``."""
    first = next(iter(inputs.values()))
    words = f"a batch of {len(first)}"
    if "input_ids" in inputs:
        words += f" texts of {first.shape[1]} tokens"
    return words


def _failed(path: Path, why: str, hint: str = _HINT) -> HydraError:
    """Return the error for a file that fails its check."""
    return HydraError(f"the export {path} failed its check: {why}", hint=hint)
