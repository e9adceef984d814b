"""``export``: files that run a model without hydractl, each checked against the model when it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.exports.checking import Answers, CheckData
from hydractl.exports.comparison import compare_with_model
from hydractl.exports.formats import FORMATS, WeightsFile, relocated
from hydractl.exports.graph import Expectation, Graph, expectations, traced
from hydractl.exports.metadata import metadata_of
from hydractl.exports.opened import ExportedModel
from hydractl.families import classes_of
from hydractl.files.atomic import Output
from hydractl.files.checkpoint import TensorSource, sha256_file
from hydractl.files.description import Description
from hydractl.files.export_answer import ExportCheck, ExportedFileRecord
from hydractl.log import Log
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.threshold import stored_score
from hydractl.model.runtime import HydraModel

MOST_IN_ONE_FILE = 2**31 - 2**26
"""Bytes of weights that fit into an ONNX file, which is one message of protobuf, with room for the graph."""


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
        data = None if self.data is None else str(self.data)
        return ExportedFileRecord(format=self.kind, path=str(self.path), data=data)


def plan_exports(kinds: Sequence[str], stem: Path, description: Description, tensors: TensorSource) -> list[Target]:
    """Decide what to write, and check from headers alone that it can be.

    Args:
        kinds: formats.
        stem: the paths of the files without their endings.
        description: of the model.
        tensors: its weights, which are not read.

    Raises:
        UsageError: for libraries that are not installed, a zero-shot model whose classes have no names, and a
            checkpoint with an OOD score on features.
    """
    for kind in kinds:
        FORMATS[kind].require()
    if classes_of(description) is None and not description.labels:
        raise UsageError(
            f"{description.arch} has no classes of its own, and an exported file needs them",
            hint="name them: --labels FILE",
        )
    score = stored_score(description.extra)
    if score in ON_FEATURES:
        raise UsageError(
            f"the OOD score {score} of this checkpoint is taken of features, which an exported file cannot give",
            hint="export the checkpoint as it was before calibrate, or with a score on logits",
        )
    weights = sum(tensors.info(name).numel for name in tensors.names())
    return [_target(kind, stem, weights) for kind in kinds]


def _target(kind: str, stem: Path, weights: int) -> Target:
    """Return the target of a format.

    Args:
        kind: the format.
        stem: the path of the file without its ending.
        weights: the number of weights of the model.
    """
    export_format = FORMATS[kind]
    path = stem.with_name(f"{stem.name}{export_format.ending}")
    fits = export_format.bytes_per_weight * weights <= MOST_IN_ONE_FILE
    if kind == "onnx-int8" and not fits:
        raise UsageError(f"--format {kind}: {weights:,} weights do not fit into one file", hint="--format onnx")
    data = None
    if export_format.has_weights_beside and not fits:
        data = path.with_name(f"{path.name}.data")
    return Target(kind, path, data)


@contextlib.contextmanager
def claimed(targets: Sequence[Target], *, force: bool) -> Iterator[Claim]:
    """Claim all files before any work; those not committed when it is over are gone.

    Raises:
        OutputError: as :class:`hydractl.files.atomic.Output` does.
    """
    with contextlib.ExitStack() as stack:
        outputs = {}
        for target in targets:
            for file in target.files:
                outputs[file] = stack.enter_context(Output(file, force=force))
        yield Claim(targets, outputs)


@dataclass(frozen=True)
class _Reference:
    """What the files of a model are checked against.

    Attributes:
        model: whose preprocessing and score are taken.
        expected: inputs, and what it makes of them.
        data: what files that are not exact are measured on; None for nothing.
        answers: of the model to these data.
    """

    model: HydraModel
    expected: Sequence[Expectation]
    data: CheckData | None
    answers: Answers


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
    ) -> list[ExportedFileRecord]:
        """Write every file under its temporary name and check it.

        Args:
            build: makes the model, on the CPU and in float32; what it gives is used up.
            origins: SHA-256 of the models it was made of.
            macs: multiply-adds of one sample.
            seed: draws the inputs of the check.
            log: receives a line for every file.
            data: what files that are not exact are measured on; None for nothing.

        Returns:
            For each target, what it is, its inputs, size and SHA-256, and the result of its check.

        Raises:
            HydraError: where a file does not run, or differs from the model.
        """
        model = build()
        if model.cascade is not None:
            log.warn("in an exported file all members run for all samples: a graph has no cascade")
            model.cascade = None
        longest = model.family.longest_text(model.description.preprocess)
        reference = _Reference(
            model=model,
            expected=expectations(model, longest, seed),
            data=data,
            answers=[] if data is None else data.measure(model, model.member_logits, log),
        )
        metadata = metadata_of(model.description, origins, macs)
        graph = traced(model, longest)
        written = []
        with log.progress("export", len(self._targets), "files") as progress:
            for target in self._targets:
                self._fill(target, graph, {**metadata, "format": target.kind})
                check = self._check(target, reference, log)
                self._settle(target)
                size = sum(self._outputs[file].temporary.stat().st_size for file in target.files)
                record = replace(
                    target.planned(),
                    bytes=size,
                    sha256=sha256_file(self._outputs[target.path].temporary),
                    inputs=graph.inputs(),
                    check=check,
                )
                written.append(record)
                progress.advance()
        return written

    def _check(self, target: Target, reference: _Reference, log: Log) -> ExportCheck:
        """Run a written file, and compare it with its model.

        Raises:
            HydraError: where it does not run, or differs from the model.
        """
        exact = FORMATS[target.kind].exact
        run, runtime = FORMATS[target.kind].runner(self._outputs[target.path].temporary)
        check = compare_with_model(target.path, run, runtime, reference.expected, exact=exact)
        if reference.data is not None and not exact:
            model = reference.model
            rounded = ExportedModel(run, model.family, model.description.preprocess)
            answers = reference.data.measure(model, rounded.member_logits, log)
            check = replace(check, on_data=reference.data.compared(model, reference.answers, answers))
        log.detail(f"{target.path}: {runtime} runs it as the model does")
        return check

    def _fill(self, target: Target, graph: Graph, metadata: Mapping[str, str]) -> None:
        """Write the files of one target under their temporary names, by which they also find each other."""
        with contextlib.ExitStack() as stack:
            handle = stack.enter_context(self._outputs[target.path].opened())
            data = None
            if target.data is not None:
                beside = self._outputs[target.data]
                data = WeightsFile(stack.enter_context(beside.opened()), beside.temporary.name)
            FORMATS[target.kind].write(graph, metadata, handle, data)
            handle.flush()
            if data is not None:
                data.handle.flush()

    def _settle(self, target: Target) -> None:
        """Let the graph find its weights under the name that they will have."""
        if target.data is None:
            return
        output = self._outputs[target.path]
        content = relocated(output.temporary, self._outputs[target.data].target.name)
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
