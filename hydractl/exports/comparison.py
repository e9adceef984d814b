"""The check of an exported file: what it gives, beside what its model gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hydractl.errors import HydraError
from hydractl.exports.formats import Runner
from hydractl.exports.graph import OUTPUTS, Expectation, NamedTensors
from hydractl.families.reading import first_line

TOLERANCE = 1e-4
"""Largest allowed difference of logits and of probabilities, times max(1, largest logit)."""


@dataclass(frozen=True)
class OutputComparison:
    """What the check of a file has found.

    Attributes:
        runtime: what ran it.
        inputs: the shapes of the inputs that it ran on.
        max_abs: the largest difference of each output.
        max_abs_logit: the largest logit of the model.
        tolerance: the largest difference that is allowed; None where a format rounds weights.
    """

    runtime: str
    inputs: Sequence[Mapping[str, Sequence[int]]]
    max_abs: Mapping[str, float]
    max_abs_logit: float
    tolerance: float | None

    def to_json(self) -> dict[str, object]:
        """Return the check as a document."""
        document: dict[str, object] = {"runtime": self.runtime, "inputs": list(self.inputs)}
        for name, difference in self.max_abs.items():
            document[f"{name}_max_abs"] = _three_digits(difference)
        document["max_abs_logit"] = _three_digits(self.max_abs_logit)
        document["tolerance"] = None if self.tolerance is None else _three_digits(self.tolerance)
        return document


def _three_digits(number: float) -> float:
    return float(f"{number:.3g}")


def compare_with_model(
    path: Path, run: Runner, runtime: str, expected: Sequence[Expectation], *, exact: bool
) -> OutputComparison:
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
    return OutputComparison(
        runtime=runtime,
        inputs=[_shapes_of(expectation.inputs) for expectation in expected],
        max_abs=worst,
        max_abs_logit=largest_logit,
        tolerance=allowed if exact else None,
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
