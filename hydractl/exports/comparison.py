"""The check of an exported file: what it gives, beside what its model gives."""

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
    return float(f"{number:.3g}")


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], *, exact: bool
) -> ExportCheck:
    """Run a file and compare it with its model.

    Args:
        path: of the file, for messages.
        run: the file.
        runtime: what runs it, for messages.
        expected: inputs, and what the model gives.
        exact: whether the file has to give the same but for rounding in float32.

    Raises:
        HydraError: where they differ by more than the tolerance, or the file does not run.
    """
    largest_logit = max(float(expectation.outputs["member_logits"].abs().max()) for expectation in expected)
    allowed = TOLERANCE * max(1.0, largest_logit) if exact else math.inf
    worst = dict.fromkeys(OUTPUTS, 0.0)
    for expectation in expected:
        size = _size_in_words(expectation.inputs)
        try:
            outputs = run(expectation.inputs)
        except Exception as error:  # whatever a runtime raises
            raise _failed(path, f"{runtime} cannot run it on {size}: {first_line(error)}") from error
        for name in OUTPUTS:
            wanted = expectation.outputs[name]
            if outputs[name].shape != wanted.shape:
                shapes = f"{list(outputs[name].shape)}, not {list(wanted.shape)}"
                raise _failed(path, f"in {runtime}, {name} on {size} are {shapes}")
            difference = _largest_difference(outputs[name], wanted)
            if not difference <= allowed or not math.isfinite(difference):  # so that NaN is no agreement
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
    return float((output.double() - wanted.double()).abs().max())


def _shapes_of(inputs: NamedTensors) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in inputs.items()}


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
