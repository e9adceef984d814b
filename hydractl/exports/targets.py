"""``export``: writes files that run a model without hydractl, and checks each file against the model."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.exports.comparison import compare_with_model
from hydractl.exports.formats import FORMATS
from hydractl.exports.graph import expectations, traced
from hydractl.exports.metadata import metadata_of
from hydractl.families import classes_of
from hydractl.files.atomic import Output
from hydractl.files.checkpoint import TensorSource, beside_infos, sha256_file
from hydractl.files.description import Description
from hydractl.files.export_answer import ExportedFileRecord
from hydractl.log import Log
from hydractl.model.prediction import Chosen
from hydractl.model.runtime import HydraModel

MOST_IN_ONNX = 2**31 - 2**26
"""The most bytes of weights in one ONNX file: protobuf's limit of 2 GiB, less some room for the graph."""

_BYTES_PER_WEIGHT = 4


def plan_exports(kinds: Sequence[str], stem: Path, description: Description, tensors: TensorSource) -> dict[str, Path]:
    """Return the files to write, one by each format, after checking that the model can be exported.

    No weights are read: their sizes are enough.

    Args:
        kinds: the formats, keys of :data:`hydractl.exports.formats.FORMATS`.
        stem: the path of all files without their endings.
        description: the description of the model.
        tensors: the weights of the model; only their sizes are used.

    Raises:
        UsageError: if a library is not installed, a zero-shot model has no class names, or an ONNX file would be too
            large.
    """
    for kind in kinds:
        missing_libraries = [name for name in FORMATS[kind].libraries if importlib.util.find_spec(name) is None]
        if missing_libraries:
            raise UsageError(
                f"ONNX files need {', '.join(missing_libraries)}, not installed here",
                hint="pip install 'hydractl[deploy]'",
            )

    # A zero-shot model without names of classes has no logits.
    if classes_of(description) is None and not description.labels:
        raise UsageError(
            f"{description.arch} has no classes of its own, and an exported file needs them",
            hint="name them: --labels FILE",
        )

    # The size of a file. Whatever its dtype, a weight becomes float32. Tensors beside the weights, such as what an OOD
    # score was fitted to, stay as they are.
    weights = sum(tensors.info(name).numel for name in tensors.names())
    other_bytes = sum(info.nbytes for info in beside_infos(tensors))
    file_bytes = _BYTES_PER_WEIGHT * weights + other_bytes
    if "onnx" in kinds and file_bytes > MOST_IN_ONNX:
        raise UsageError(
            f"an ONNX file holds at most 2 GiB of weights, and {description.arch} has {file_bytes / 2**30:.1f}",
            hint="give --format pt2",
        )

    return {kind: stem.with_name(f"{stem.name}{FORMATS[kind].ending}") for kind in kinds}


def write_exports(
    targets: Mapping[str, Path],
    build: Callable[[], HydraModel],
    origins: list[str],
    macs: int,
    *,
    seed: int,
    force: bool,
    log: Log,
    uint8: bool = False,
) -> list[ExportedFileRecord]:
    """Return the records of the files that were written: each was checked against the model before any got its name.

    All files are written under temporary names and renamed when all agree with the model. An output that is in the way
    is refused before any work.

    Args:
        targets: the files by their formats.
        build: builds the model on the CPU in float32; the model cannot be used afterwards.
        origins: SHA-256 of the models from which this one was made.
        macs: multiply-adds for one sample.
        seed: the seed of the random inputs for the check.
        force: whether files may be replaced.
        log: receives one line for every file.
        uint8: whether graphs take images in uint8 and normalise them.

    Returns:
        For each target its record, with size, SHA-256 and the result of the check.

    Raises:
        OutputError: if a file already exists and ``force`` is not set, or a file cannot be written.
        HydraError: if a file does not run, or differs from the model.
    """
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(Output(path, force=force)) for path in targets.values()]
        model = build()
        image_format = model.family.image_format(model.description.preprocess) if uint8 else None
        longest = model.family.longest_text(model.description.preprocess)

        # Compute the model's own answers first, because tracing changes the model so that it cannot run any more.
        expected = expectations(model, longest, seed, image_format)
        chosen = Chosen.of(model.description.extra)

        # Write the graph in each format, and run each file for a check.
        graph = traced(model, longest, image_format)
        metadata = metadata_of(model.description, origins, macs, graph.shapes())
        written = []
        with log.progress("export", len(targets), "files") as progress:
            for (kind, path), output in zip(targets.items(), outputs, strict=True):
                with output.opened() as handle:
                    FORMATS[kind].write(graph, {**metadata, "format": kind}, handle)
                    handle.flush()
                run, runtime = FORMATS[kind].runner(output.temporary)
                check = compare_with_model(path, run, runtime, expected, chosen)
                log.detail(f"{path}: {runtime} runs it as the model does")
                record = ExportedFileRecord(
                    format=kind,
                    path=str(path),
                    bytes=output.temporary.stat().st_size,
                    sha256=sha256_file(output.temporary),
                    check=check,
                )
                written.append(record)
                progress.advance()
        # All agree: give each file its name.
        for output in outputs:
            output.commit()
    return written
