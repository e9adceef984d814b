"""``export``: files that run a model without hydractl, each checked against the model when it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.exports.checking import Answers, CheckData
from hydractl.exports.comparison import compare_with_model
from hydractl.exports.formats import FORMATS, Runner, WeightsFile, relocated
from hydractl.exports.graph import Expectation, Graph, expectations, traced
from hydractl.exports.metadata import metadata_of
from hydractl.exports.opened import ExportedModel
from hydractl.exports.shapes import Shapes
from hydractl.families import classes_of
from hydractl.families.base import ImageFormat
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
"""Bytes of weights that fit into an ONNX file, which is one message of protobuf, with room for the graph."""


MOST_BANK_BYTES = 2**28
"""The largest bank of ``knn`` or ``nnguide``, of all members together, that is put into a file."""


@dataclass(frozen=True)
class Target:
    """One file to export.

    Attributes:
        kind: its format, a key of :data:`hydractl.exports.formats.FORMATS`.
        path: the file.
        data: the file beside it that holds the weights, where they are too many for one file.
    """

    kind: str
    path: Path
    data: Path | None

    @property
    def files(self) -> list[Path]:
        """All files of it."""
        if self.data is None:
            return [self.path]
        return [self.data, self.path]

    def planned(self) -> ExportedFileRecord:
        """Return what an answer says of the file before it is written."""
        data = None
        if self.data is not None:
            data = str(self.data)
        return ExportedFileRecord(format=self.kind, path=str(self.path), data=data)


def plan_exports(kinds: Sequence[str], stem: Path, description: Description, tensors: TensorSource) -> list[Target]:
    """Decide what to write, and check from headers alone that it can be.

    Args:
        kinds: formats.
        stem: the paths of the files without their endings.
        description: of the model.
        tensors: its weights, which are not read.

    Raises:
        UsageError: for libraries that are not installed, a zero-shot model whose classes have no names, a cascade, and
            what its OOD score was fitted to where it is too large for a file.
    """
    for kind in kinds:
        FORMATS[kind].require()
    if classes_of(description) is None and not description.labels:
        raise UsageError(
            f"{description.arch} has no classes of its own, and an exported file needs them",
            hint="name them: --labels FILE",
        )
    if description.extra.get("cascade") is not None:
        raise UsageError(
            "a checkpoint with a cascade cannot be exported: a graph runs all members for every sample, and threshold"
            " and calibration were fitted to the cascade",
            hint="F.st?cascade=0 runs all members: hydractl calibrate 'F.st?cascade=0' -o whole.st, and export that",
        )
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
    """Return the bytes of the tensors beside the weights whose names begin with ``start``.

    They are the same in a checkpoint and in an exported file, for no format rounds them.
    """
    return sum(info.nbytes for info in beside_infos(tensors, start))


def _target(kind: str, stem: Path, weights: int, fitted_bytes: int) -> Target:
    """Return the target of a format, with a file for the weights where they are too many for one file.

    Args:
        kind: the format.
        stem: the path of the file without its ending.
        weights: the number of weights of the model.
        fitted_bytes: the size of what lies beside them, detectors and posteriors, which no format rounds.

    Raises:
        UsageError: weights rounded to int8 that do not fit into one file.
    """
    export_format = FORMATS[kind]
    name = f"{stem.name}{export_format.ending}"
    path = stem.with_name(name)
    weight_bytes = export_format.bytes_per_weight * weights
    fits = weight_bytes + fitted_bytes <= MOST_IN_ONE_FILE
    if kind == "onnx-int8" and not fits:
        raise UsageError(f"--format {kind}: {weights:,} weights do not fit into one file", hint="--format onnx")
    data = None
    if export_format.has_weights_beside and not fits:
        data = path.with_name(f"{name}.data")
    return Target(kind, path, data)


@contextlib.contextmanager
def claimed(targets: Sequence[Target], *, force: bool) -> Iterator[Claim]:
    """Claim all files before any work; those not committed when it is over are gone.

    Raises:
        OutputError: a file is there already and ``force`` is not set, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        outputs = {}
        for target in targets:
            for file in target.files:
                output = Output(file, force=force)
                outputs[file] = stack.enter_context(output)
        yield Claim(targets, outputs)


@dataclass(frozen=True)
class _Reference:
    """What the files of a model are checked against.

    Attributes:
        model: whose preprocessing and score are taken.
        image_format: how graphs make inputs of images in uint8; None for graphs that take inputs preprocessed.
        expected: inputs, and what it makes of them.
        data: what files that are not exact are measured on; None for nothing.
        answers: of the model to these data.
    """

    model: HydraModel
    image_format: ImageFormat | None
    expected: Sequence[Expectation]
    data: CheckData | None
    answers: Answers

    def model_of_file(self, run: Runner) -> ExportedModel:
        """Return a file as a model, which takes inputs as the model that it was made of does."""
        model = self.model
        return ExportedModel(run, model.family, model.description.preprocess, model.labels, self.image_format)


class Claim:
    """Exported files on their way."""

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
        data: CheckData | None = None,
        *,
        uint8: bool = False,
    ) -> list[ExportedFileRecord]:
        """Write every file under its temporary name and check it.

        Args:
            build: makes the model, on the CPU and in float32; what it gives is used up.
            origins: SHA-256 of the models it was made of.
            macs: multiply-adds of one sample.
            seed: draws the inputs of the check.
            log: receives a line for every file.
            data: what files that are not exact are measured on; None for nothing.
            uint8: whether graphs take images in uint8, and normalise them.

        Returns:
            For each target, what it is, its inputs, size and SHA-256, and the result of its check.

        Raises:
            HydraError: where a file does not run, or differs from the model.
        """
        model = build()
        image_format = None
        if uint8:
            image_format = model.family.image_format(model.description.preprocess)
        longest = model.family.longest_text(model.description.preprocess)
        # What the model itself answers, before it is traced: tracing uses it up.
        expected = expectations(model, longest, seed, image_format)
        answers = []
        if data is not None:
            answers = data.measure(model, log)
        reference = _Reference(model, image_format, expected, data, answers)
        graph = traced(model, longest, image_format)
        metadata = metadata_of(model.description, origins, macs, graph.shapes())
        written = []
        with log.progress("export", len(self._targets), "files") as progress:
            for target in self._targets:
                self._write_temporary(target, graph, {**metadata, "format": target.kind})
                check = self._check_against_model(target, reference, log)
                self._name_weights_finally(target)
                written.append(self._written_record(target, graph, check))
                progress.advance()
        return written

    def _written_record(self, target: Target, graph: Graph, check: ExportCheck) -> ExportedFileRecord:
        """Return what an answer says of a file that is written under its temporary name."""
        temporary_files = [self._outputs[file].temporary for file in target.files]
        return replace(
            target.planned(),
            bytes=sum(file.stat().st_size for file in temporary_files),
            sha256=sha256_file(self._outputs[target.path].temporary),
            inputs=_shapes_in_words(graph.shapes().inputs),
            outputs=_shapes_in_words(graph.shapes().outputs),
            check=check,
        )

    def _check_against_model(self, target: Target, reference: _Reference, log: Log) -> ExportCheck:
        """Run a written file, and compare it with its model; one that is not exact is also measured on the data.

        Raises:
            HydraError: where it does not run, or differs from the model.
        """
        export_format = FORMATS[target.kind]
        exact = export_format.exact
        temporary = self._outputs[target.path].temporary
        run, runtime = export_format.runner(temporary)
        chosen = Chosen.of(reference.model.description.extra)
        check = compare_with_model(target.path, run, runtime, reference.expected, chosen, exact=exact)
        data = reference.data
        on_data = None
        if data is not None and not exact:
            rounded = reference.model_of_file(run)
            answers = data.measure(rounded, log)
            on_data = data.compared(chosen, reference.answers, answers)
        log.detail(f"{target.path}: {runtime} runs it as the model does")
        return replace(check, on_data=on_data)

    def _write_temporary(self, target: Target, graph: Graph, metadata: Mapping[str, str]) -> None:
        """Write the files of one target under their temporary names, by which they also find each other."""
        with contextlib.ExitStack() as stack:
            output = self._outputs[target.path]
            handle = stack.enter_context(output.opened())
            data = None
            if target.data is not None:
                beside = self._outputs[target.data]
                data_handle = stack.enter_context(beside.opened())
                data = WeightsFile(data_handle, beside.temporary.name)
            FORMATS[target.kind].write(graph, metadata, handle, data)
            handle.flush()
            if data is not None:
                data.handle.flush()

    def _name_weights_finally(self, target: Target) -> None:
        """Write the graph again, so that it looks for its weights under the name that they will have."""
        if target.data is None:
            return
        output = self._outputs[target.path]
        weights_name = self._outputs[target.data].target.name
        content = relocated(output.temporary, weights_name)
        with output.opened() as handle:
            handle.write(content)
            handle.flush()

    def commit(self) -> list[Path]:
        """Put every file in its place; return them."""
        paths = []
        for target in self._targets:
            for file in target.files:
                paths.append(self._outputs[file].commit())
        return paths


def _shapes_in_words(shapes: Shapes) -> dict[str, str]:
    """Return inputs or outputs in words: ``float32 [batch, 3, 224, 224]``."""
    return {name: str(tensor) for name, tensor in shapes.items()}
