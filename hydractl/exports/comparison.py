"""The check of an exported file: its outputs compared with those of its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from hydractl.errors import HydraError
from hydractl.exports.formats import Runner
from hydractl.exports.graph import OUTPUTS, Expectation, NamedTensors
from hydractl.families.reading import first_line
from hydractl.files.export_answer import ExportCheck

TOLERANCE = 1e-4
"""Largest allowed difference of logits and of probabilities, times max(1, largest logit)."""


def _three_digits(number: float) -> float:
    """Return a number rounded to three significant digits."""
    return float(f"{number:.3g}")


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], *, exact: bool
) -> ExportCheck:
    """Run a file and compare it with its model.

    Args:
        path: of the file, for messages.
        run: the file.
        runtime: what runs it, for messages.
        expected: inputs, and the outputs of the model for them.
        exact: whether the outputs have to be the same but for rounding in float32.

    Returns:
        The largest differences, and the tolerance they were held to.

    Raises:
        HydraError: where they differ by more than the tolerance, or the file does not run.
    """
    largest_logits = []
    for expectation in expected:
        member_logits = expectation.outputs["member_logits"]
        largest_logits.append(float(member_logits.abs().max()))
    largest_logit = max(largest_logits)
    allowed = math.inf
    if exact:
        allowed = TOLERANCE * max(1.0, largest_logit)

    worst = dict.fromkeys(OUTPUTS, 0.0)
    for expectation in expected:
        size = _size_in_words(expectation.inputs)
        try:
            outputs = run(expectation.inputs)
        except Exception as error:  # whatever a runtime raises
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        for name in OUTPUTS:
            output = outputs[name]
            wanted = expectation.outputs[name]
            if output.shape != wanted.shape:
                shapes = f"{list(output.shape)}, not {list(wanted.shape)}"
                raise _failed(path, f"in {runtime}, {name} on {size} are {shapes}")
            difference = _largest_difference(output, wanted)
            agrees = math.isfinite(difference) and difference <= allowed  # NaN is no agreement
            if not agrees:
                by_how_much = f"differ from the model by {difference:.2e} (allowed {allowed:.2e})"
                raise _failed(path, f"in {runtime}, {name} on {size} {by_how_much}")
            worst[name] = max(worst[name], difference)
    return ExportCheck(
        runtime=runtime,
        inputs=[_shapes_of(expectation.inputs) for expectation in expected],
        probabilities_max_abs=_three_digits(worst["probabilities"]),
        member_logits_max_abs=_three_digits(worst["member_logits"]),
        max_abs_logit=_three_digits(largest_logit),
        tolerance=_three_digits(allowed) if exact else None,
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
