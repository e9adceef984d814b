"""An exported file proves itself: run as its reader will run it, and compared with the model it was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydractl.errors import HydraError
from hydractl.export.graph import EXAMPLE_BATCH, OUTPUTS, Named, answers, named
from hydractl.families.base import first_line
from hydractl.model.runtime import HydraModel

TOLERANCE = 1e-4
"""Largest allowed difference of logits and of probabilities, times max(1, largest logit)."""

BATCHES = (1, EXAMPLE_BATCH + 1)
"""Sizes that the graph was not traced with."""

Runner = Callable[[Named], Mapping[str, Tensor]]
Expected = Sequence[tuple[Named, Mapping[str, Tensor]]]


@torch.no_grad()
def expectations(model: HydraModel, longest: int | None, seed: int) -> Expected:
    """Random inputs of several sizes, and what the model itself makes of them.

    Args:
        model: before it is traced.
        longest: tokens of a text at most; None for images.
        seed: draws the inputs.
    """
    found = []
    for turn, batch in enumerate(BATCHES):
        inputs = named(model.example_inputs(batch, seed=seed + turn))
        if longest is not None:
            inputs = _texts(inputs, longest, turn)
        found.append((inputs, answers(model, inputs)))
    return found


def _texts(inputs: Named, longest: int, turn: int) -> dict[str, Tensor]:
    """Texts of a length that the example does not have, one of them padded to half of it."""
    example = inputs["input_ids"].shape[1]
    longer = min(longest, 2 * example - 1)
    length = max(2, example // 2) if turn == 0 else longer if longer != example else example - 1
    cut = {name: torch.cat([tensor, tensor], dim=1)[:, :length].contiguous() for name, tensor in inputs.items()}
    if "attention_mask" in cut:
        cut["attention_mask"][0, length - length // 2 :] = 0
    return cut


def compare(path: Path, run: Runner, runtime: str, expected: Expected) -> dict[str, Any]:
    """Run a file and compare it with its model.

    Args:
        path: what to call it.
        run: the file, loaded.
        runtime: what it was loaded by.
        expected: as of :func:`expectations`.

    Returns:
        The sizes tried, the largest differences of each output, the largest logit and the tolerance.

    Raises:
        HydraError: where they differ by more than the tolerance, or the file does not run.
    """
    worst = dict.fromkeys(OUTPUTS, 0.0)
    largest = max(float(outputs["member_logits"].abs().max()) for _, outputs in expected)
    allowed = TOLERANCE * max(1.0, largest)
    for inputs, outputs in expected:
        try:
            given = run(inputs)
        except Exception as error:  # whatever a runtime raises
            raise _failed(path, f"{runtime} cannot run it on {_sizes(inputs)}: {first_line(error)}") from error
        for name in OUTPUTS:
            if given[name].shape != outputs[name].shape:
                shapes = f"{list(given[name].shape)}, not {list(outputs[name].shape)}"
                raise _failed(path, f"in {runtime}, {name} on {_sizes(inputs)} are {shapes}")
            apart = float((given[name].double() - outputs[name].double()).abs().max())
            if not apart <= allowed:  # so that NaN is no agreement
                what = f"{name} on {_sizes(inputs)} differ from the model by {apart:.2e} (allowed {allowed:.2e})"
                raise _failed(path, f"in {runtime}, {what}")
            worst[name] = max(worst[name], apart)
    return {
        "runtime": runtime,
        "inputs": [{name: list(tensor.shape) for name, tensor in inputs.items()} for inputs, _ in expected],
        **{f"{name}_max_abs": float(f"{apart:.3g}") for name, apart in worst.items()},
        "max_abs_logit": float(f"{largest:.3g}"),
        "tolerance": float(f"{allowed:.3g}"),
    }


def _sizes(inputs: Named) -> str:
    """``a batch of 3``, of texts with their tokens."""
    first = next(iter(inputs.values()))
    return f"a batch of {len(first)}" + (f" texts of {first.shape[1]} tokens" if "input_ids" in inputs else "")


def _failed(path: Path, why: str) -> HydraError:
    return HydraError(
        f"the export {path} failed its check: {why}",
        hint="this is a defect of hydractl or of a library it exports with: nothing was written",
    )
