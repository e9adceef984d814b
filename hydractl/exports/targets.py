"""``export``: writes files that run a model without hydractl, and checks each file against the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.exports.comparison import compare_with_model
from hydractl.exports.formats import FORMATS, WeightsFile, relocated
from hydractl.exports.graph import Graph, expectations, traced
from hydractl.exports.metadata import metadata_of
from hydractl.exports.shapes import Shapes
from hydractl.families import classes_of
from hydractl.files.atomic import Output
from hydractl.files.checkpoint import BESIDE, TensorSource, beside_infos, sha256_file
from hydractl.files.description import Description
from hydractl.files.export_answer import ExportCheck, ExportedFileRecord
from hydractl.log import Log
from hydractl.metrics.feature_scores.scores import BANKS
from hydractl.metrics.threshold import stored_score
from hydractl.model.detection import DETECTOR_START
from hydractl.model.prediction import Chosen
from hydractl.model.runtime import HydraModel

MOST_IN_ONE_FILE = 2**31 - 2**26
"""The most bytes of weights in one ONNX file: protobuf's limit of 2 GiB, less some room for the graph."""

_BYTES_PER_WEIGHT = 4

MOST_BANK_BYTES = 2**28
"""The most bytes of a bank (the stored training features of ``knn`` or ``nnguide``) in a file, for all members."""


@dataclass(frozen=True)
class Target:
    """One file to export.

    Attributes:
        kind: the format, a key of :data:`hydractl.exports.formats.FORMATS`.
        path: the file.
        data: a second file for the weights, if they do not fit into one file; else None.
    """

    kind: str
    path: Path
    data: Path | None

    @property
    def files(self) -> list[Path]:
        """The file of the weights, if there is one, and the file itself."""
        if self.data is None:
            return [self.path]
        return [self.data, self.path]

    def planned(self) -> ExportedFileRecord:
        """Return the record of the file for the answer of ``export``, before the file is written."""
        data = None if self.data is None else str(self.data)
        return ExportedFileRecord(format=self.kind, path=str(self.path), data=data)


def plan_exports(kinds: Sequence[str], stem: Path, description: Description, tensors: TensorSource) -> list[Target]:
    """Decide which files to write, and check that the model can be exported, without reading any weights.

    Args:
        kinds: the formats, keys of :data:`hydractl.exports.formats.FORMATS`.
        stem: the path of all files without their endings.
        description: the description of the model.
        tensors: the weights of the model; only their sizes are used.

    Raises:
        UsageError: if a library is not installed, a zero-shot model has no class names, or the bank of its OOD score is
            too large.
    """
    for kind in kinds:
        FORMATS[kind].require()

    # A zero-shot model without names of classes has no logits.
    if classes_of(description) is None and not description.labels:
        raise UsageError(
            f"{description.arch} has no classes of its own, and an exported file needs them",
            hint="name them: --labels FILE",
        )

    # A bank of training features would make the file too large.
    score = stored_score(description.extra)
    bank_bytes = _bytes_beside(tensors, DETECTOR_START)
    if score in BANKS and bank_bytes > MOST_BANK_BYTES:
        mebibytes = bank_bytes / 2**20
        most_mebibytes = MOST_BANK_BYTES / 2**20
        raise UsageError(
            f"the bank of {score} has {mebibytes:,.0f} MiB, and an exported file at most {most_mebibytes:.0f}",
            hint=f"fit it to fewer training samples: hydractl calibrate --ood-score {score} --knn-bank N",
        )

    weights = sum(tensors.info(name).numel for name in tensors.names())
    fitted_bytes = _bytes_beside(tensors, BESIDE)
    return [_target(kind, stem, weights, fitted_bytes) for kind in kinds]


def _bytes_beside(tensors: TensorSource, start: str) -> int:
    """Return the total bytes of the tensors, other than weights, whose names begin with ``start``.

    The number is the same for a checkpoint and an exported file.
    """
    return sum(info.nbytes for info in beside_infos(tensors, start))


def _target(kind: str, stem: Path, weights: int, fitted_bytes: int) -> Target:
    """Return the target of one format, with a second file for the weights if they do not fit into one file.

    Args:
        kind: the format, e.g. ``onnx``.
        stem: the path of the file without its ending.
        weights: the number of weights of the model.
        fitted_bytes: the bytes of all other tensors (fitted detectors and posteriors).
    """
    export_format = FORMATS[kind]
    name = f"{stem.name}{export_format.ending}"
    path = stem.with_name(name)

    # One file has a limit of size. Larger weights go into a second file, if the format allows one.
    fits = _BYTES_PER_WEIGHT * weights + fitted_bytes <= MOST_IN_ONE_FILE
    goes_beside = export_format.has_weights_beside and not fits
    data = path.with_name(f"{name}.data") if goes_beside else None
    return Target(kind, path, data)


@contextlib.contextmanager
def claimed(targets: Sequence[Target], *, force: bool) -> Iterator[Claim]:
    """Open all output files under temporary names, before any work, and yield a :class:`Claim` that writes them.

    When the block ends, files that were not committed are removed.

    Raises:
        OutputError: if a file already exists and ``force`` is not set, or a file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        outputs = {}
        for target in targets:
            for file in target.files:
                output = Output(file, force=force)
                outputs[file] = stack.enter_context(output)
        yield Claim(targets, outputs)


class Claim:
    """Writes, checks and commits the exported files of a model.

    Args:
        targets: the files to write.
        outputs: for each path of the targets, its open output with a temporary name.
    """

    def __init__(self, targets: Sequence[Target], outputs: dict[Path, Output]) -> None:
        self._targets = targets
        self._outputs = outputs

    def write(
        self,
        build: Callable[[], HydraModel],
        origins: list[str],
        macs: int,
        seed: int,
        log: Log,
        *,
        uint8: bool = False,
    ) -> list[ExportedFileRecord]:
        """Write every file under its temporary name, and check it against the model.

        Args:
            build: builds the model on the CPU in float32; the model cannot be used afterwards.
            origins: SHA-256 of the models from which this one was made.
            macs: multiply-adds for one sample.
            seed: the seed of the random inputs for the check.
            log: receives one line for every file.
            uint8: whether graphs take images in uint8 and normalise them.

        Returns:
            For each target its record, with inputs, outputs, size, SHA-256 and the result of the check.

        Raises:
            HydraError: if a file does not run, or differs from the model.
        """
        model = build()
        image_format = model.family.image_format(model.description.preprocess) if uint8 else None
        longest = model.family.longest_text(model.description.preprocess)

        # Compute the model's own answers first, because tracing changes the model so that it cannot run any more.
        expected = expectations(model, longest, seed, image_format)
        chosen = Chosen.of(model.description.extra)

        graph = traced(model, longest, image_format)
        metadata = metadata_of(model.description, origins, macs, graph.shapes())
        written = []
        with log.progress("export", len(self._targets), "files") as progress:
            for target in self._targets:
                self._write_temporary(target, graph, {**metadata, "format": target.kind})
                run, runtime = FORMATS[target.kind].runner(self._outputs[target.path].temporary)
                check = compare_with_model(target.path, run, runtime, expected, chosen)
                log.detail(f"{target.path}: {runtime} runs it as the model does")
                self._name_weights_finally(target)
                written.append(self._written_record(target, graph, check))
                progress.advance()
        return written

    def _written_record(self, target: Target, graph: Graph, check: ExportCheck) -> ExportedFileRecord:
        """Return the record of a file for the answer of ``export``; the file still has its temporary name."""
        temporary_files = [self._outputs[file].temporary for file in target.files]
        return target.planned().model_copy(
            update={
                "bytes": sum(file.stat().st_size for file in temporary_files),
                "sha256": sha256_file(self._outputs[target.path].temporary),
                "inputs": _shapes_in_words(graph.shapes().inputs),
                "outputs": _shapes_in_words(graph.shapes().outputs),
                "check": check,
            }
        )

    def _write_temporary(self, target: Target, graph: Graph, metadata: Mapping[str, str]) -> None:
        """Write the files of one target under their temporary names.

        If the weights have a file of their own, the graph refers to its temporary name, so that the check can run it.
        """
        with contextlib.ExitStack() as stack:
            # Both files stay open until the graph is written, as it writes to both.
            output = self._outputs[target.path]
            handle = stack.enter_context(output.opened())
            weights_file = None
            if target.data is not None:
                weights_output = self._outputs[target.data]
                weights_handle = stack.enter_context(weights_output.opened())
                weights_file = WeightsFile(weights_handle, weights_output.temporary.name)
            FORMATS[target.kind].write(graph, metadata, handle, weights_file)
            handle.flush()
            if weights_file is not None:
                weights_file.handle.flush()

    def _name_weights_finally(self, target: Target) -> None:
        """Replace the temporary name of the weights' file in the graph by its final name, if there is such a file."""
        if target.data is None:
            return
        output = self._outputs[target.path]
        weights_name = self._outputs[target.data].target.name
        content = relocated(output.temporary, weights_name)
        with output.opened() as handle:
            handle.write(content)
            handle.flush()

    def commit(self) -> list[Path]:
        """Rename every file to its final name; return the paths."""
        paths = []
        for target in self._targets:
            for file in target.files:
                paths.append(self._outputs[file].commit())
        return paths


def _shapes_in_words(shapes: Shapes) -> dict[str, str]:
    """Return each input or output in words, e.g. ``float32 [batch, 3, 224, 224]``."""
    return {name: str(tensor) for name, tensor in shapes.items()}
