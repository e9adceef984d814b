"""``fuse --export``: files that run a model without hydractl, each checked against the model when it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.atomic import Output, check_outputs, file_path
from hydractl.checkpoint import TensorSource, sha256_file
from hydractl.description import Description
from hydractl.errors import UsageError
from hydractl.families import classes_of
from hydractl.fusion.export_check import compare, expectations
from hydractl.fusion.export_files import EXPORT_SCHEMA, FORMATS, Format, Weights, metadata_of, relocated
from hydractl.fusion.graph import Graph, traced
from hydractl.log import Log
from hydractl.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.fusion.runtime import HydraModel
    from hydractl.models import Source
    from hydractl.settings import FuseSettings

MOST_IN_ONE_FILE = 2**31 - 2**26
"""Bytes of weights that fit into an ONNX file, which is one message of protobuf, with room for the graph."""


@dataclass(frozen=True)
class Target:
    """One file to export.

    Attributes:
        kind: its format, a key of :data:`hydractl.fusion.export_files.FORMATS`.
        path: the file.
        data: the file beside it that holds the weights, where they are too many for one file.
    """

    kind: str
    path: Path
    data: Path | None

    @property
    def format(self) -> Format:
        """Its format."""
        return FORMATS[self.kind]

    @property
    def files(self) -> list[Path]:
        """All files of it."""
        return [self.path] if self.data is None else [self.data, self.path]

    def to_json(self) -> dict[str, Any]:
        """What is known of it before it is written."""
        return {"format": self.kind, "path": str(self.path), **({} if self.data is None else {"data": str(self.data)})}


def plan_exports(kinds: Sequence[str], stem: Path, description: Description, tensors: TensorSource) -> list[Target]:
    """Decide what to write, and check from headers alone that it can be.

    Args:
        kinds: formats.
        stem: the paths of the files without their endings.
        description: of the model.
        tensors: its weights, which are not read.

    Raises:
        UsageError: for libraries that are not installed, and for a zero-shot model whose classes have no names.
    """
    if not kinds:
        return []
    for kind in kinds:
        FORMATS[kind].require()
    if classes_of(description) is None and not description.labels:
        raise UsageError(
            f"--export: {description.arch} has no classes of its own, and a file needs them",
            hint="name them: --labels FILE",
        )
    large = 4 * sum(tensors.info(name).numel for name in tensors.names()) > MOST_IN_ONE_FILE
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in kinds}
    return [
        Target(kind, path, path.with_name(f"{path.name}.data") if kind == "onnx" and large else None)
        for kind, path in paths.items()
    ]


def stem_beside(path: Path, kinds: Sequence[str]) -> Path:
    """The path of a fused checkpoint without its ending; where nothing is exported beside it, any will do.

    Raises:
        UsageError: for the ending of an exported file.
    """
    kind = path.suffix.removeprefix(".")
    if kinds and kind in FORMATS:
        raise UsageError(
            f"--output {path}: the fused checkpoint is no {kind} file",
            hint=f"-o {path.with_suffix('.st')} writes {path} beside it",
        )
    return path.with_name(path.name.removesuffix(".st"))


def stem_alone(settings: FuseSettings, source: Source) -> Path:
    """What ``-o``, else the name of the model, calls the exported files of a model that is only exported.

    Raises:
        UsageError: for an ending of ``-o`` that none of the files has.
    """
    if settings.output is None:
        return Path(source.name)
    path = file_path(settings.output)
    suffix = path.suffix.removeprefix(".")
    if suffix in settings.export:
        return path.with_suffix("")
    if suffix == "st" or suffix in FORMATS:
        kinds = ",".join(settings.export)
        raise UsageError(
            f"--output {settings.output}: one MODEL with --export {kinds} writes no such file",
            hint=f"-o {path.with_suffix('.' + settings.export[0])}",
        )
    return path


def run_alone(settings: FuseSettings, source: Source, log: Log) -> Outcome:
    """Export one model, which may itself be fused, and write nothing else."""
    from hydractl.models import build_model

    targets = plan_exports(settings.export, stem_alone(settings, source), source.description, source.tensors)
    document: dict[str, Any] = {
        "schema": EXPORT_SCHEMA,
        "model": source.name,
        "sha256": source.sha256,
        "arch": source.description.arch,
        "members": len(source.description.masks),
        "exports": [target.to_json() for target in targets],
    }
    if settings.dry_run:
        check_outputs([file for target in targets for file in target.files], force=settings.force)
        return Outcome({**document, "dry_run": True})
    origins = [str(member["sha256"]) for member in source.description.members if "sha256" in member]
    with claimed(targets, force=settings.force) as claim:
        written = claim.write(lambda: build_model(source), origins or [source.sha256], settings.seed, log)
        return Outcome({**document, "exports": written}, files=claim.commit())


@contextlib.contextmanager
def claimed(targets: Sequence[Target], *, force: bool) -> Iterator[Claim]:
    """Claim all files before any work; those not committed when it is over are gone.

    Raises:
        OutputError: as :class:`hydractl.atomic.Output` does.
    """
    with contextlib.ExitStack() as stack:
        yield Claim(
            targets,
            {file: stack.enter_context(Output(file, force=force)) for target in targets for file in target.files},
        )


class Claim:
    """Exported files on their way.

    Args:
        targets: what to write.
        outputs: every file of them, claimed.
    """

    def __init__(self, targets: Sequence[Target], outputs: dict[Path, Output]) -> None:
        self._targets, self._outputs = targets, outputs

    def write(self, build: Callable[[], HydraModel], origins: list[str], seed: int, log: Log) -> list[dict[str, Any]]:
        """Write every file under its temporary name and check it.

        Args:
            build: makes the model, on the CPU and in float32; what it gives is used up.
            origins: SHA-256 of the models it was made of.
            seed: draws the inputs of the check.
            log: told of every file.

        Returns:
            For each target, what it is, its inputs, size and SHA-256, and the result of its check.

        Raises:
            HydraError: where a file does not run, or differs from the model.
        """
        if not self._targets:
            return []
        model = build()
        longest = _longest(model.description)
        expected = expectations(model, longest, seed)
        metadata = metadata_of(model.description, origins)
        graph = traced(model, longest)
        found = []
        with log.progress("export", len(self._targets), "files") as progress:
            for target in self._targets:
                self._fill(target, graph, metadata)
                run, runtime = target.format.runner(self._outputs[target.path].temporary)
                check = compare(target.path, run, runtime, expected)
                self._settle(target)
                log.detail(f"{target.path}: {runtime} agrees with the model")
                found.append({**target.to_json(), **self._facts(target), "inputs": graph.inputs(), "check": check})
                progress.advance()
        return found

    def _fill(self, target: Target, graph: Graph, metadata: Mapping[str, str]) -> None:
        """Write the files of one target under their temporary names, by which they also find each other."""
        with contextlib.ExitStack() as stack:
            handle, data = stack.enter_context(self._outputs[target.path].opened()), None
            if target.data is not None:
                beside = self._outputs[target.data]
                data = Weights(stack.enter_context(beside.opened()), beside.temporary.name)
            target.format.write(graph, metadata, handle, data)
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

    def _facts(self, target: Target) -> dict[str, Any]:
        temporary = [self._outputs[file].temporary for file in target.files]
        return {
            "bytes": sum(file.stat().st_size for file in temporary),
            "sha256": sha256_file(self._outputs[target.path].temporary),
        }

    def commit(self) -> list[Path]:
        """Put every file in its place; returns them."""
        return [self._outputs[file].commit() for target in self._targets for file in target.files]


def _longest(description: Description) -> int | None:
    """Tokens of a text that the model itself can take; None for images."""
    if description.reads != "text":
        return None
    return int(description.preprocess["tokenizer"]["model_max_length"])
