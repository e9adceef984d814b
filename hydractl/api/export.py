"""The signature of ``export``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.api.options import Arch, Config, DryRun, Force, Labels, MaxLength, OneModel, Output, Prompt, Seed
from hydractl.api.verb import verb
from hydractl.options.call import checking
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Exports

exporting = partial(opt, group="Exporting")

Format = Literal["onnx", "pt2"]


@verb("export", writes="export")
def export(
    model: OneModel,
    path: str | os.PathLike[str] | None = None,
    *,
    format: Format | Sequence[Format] = exporting(
        "The formats to write, each a file [default: by the ending of --output, else onnx]",
        default=(),
        metavar="onnx,pt2",
        split=True,
        often=True,
    ),
    input: Literal["float32", "uint8"] = exporting(
        "What the graph of an image model takes: pixels preprocessed to float32, or images at the model's size in "
        "uint8, which it normalises itself",
        default="float32",
        often=True,
    ),
    output: Output = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    arch: Arch = None,
    force: Force = False,
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
) -> Exports:
    """Write a model for ONNX Runtime or plain PyTorch, to run without hydractl, and check it against the model.

    :mod:`hydractl.verbs.export` computes on the CPU in float32, and reads no data.

    Args:
        path: the ``.onnx`` or ``.pt2`` file, whose ending names the format; the same as ``output``, and wins over it.

    Returns:
        The files with their checks; ``files`` are their paths.

    Raises:
        UsageError, InputError: the model cannot be exported, or the ending names no format.
        OutputError: a file exists, and ``force`` is not set.
    """
    with checking() as call:
        pass  # all rules are of single options

    from hydractl.verbs.export import run

    if path is not None:
        call.values["output"] = os.fspath(path)
    return run(call).returned()
