"""``hydractl export``: one model, fused or not, as files that run without hydractl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.exports.formats import FORMATS
from hydractl.exports.targets import claimed, plan_exports
from hydractl.files.atomic import check_outputs, file_path
from hydractl.files.export_answer import ExportAnswer
from hydractl.log import Log
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model
from hydractl.model.source import Source, need_classifier, open_sources
from hydractl.settings.common import EXPORTED
from hydractl.settings.exporting import ExportSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome


def run(settings: ExportSettings, log: Log) -> Outcome:
    """Write one model in every format that was asked for, and check each file against the model."""
    (source,) = open_sources(settings.model, model_options(settings, bodies=True))
    need_classifier(source)
    _check_input(settings, source)

    # Plan the files, and check them; only the header of the model is read.
    stem = _path_without_ending(settings, source)
    targets = plan_exports(settings.format, stem, source.description, source.tensors)
    files = []
    for target in targets:
        files += target.files
    check_outputs(files, force=settings.force)
    plan = ExportAnswer(
        model=source.name,
        arch=source.description.arch,
        members=len(source.description.masks),
        exports=[target.planned() for target in targets],
    )
    if settings.dry_run:
        plan = replace(plan, dry_run=True)
        return Outcome(plan.to_json())

    # Write them under temporary names, and move them into place when all are checked.
    announce_reading([source], log)
    macs = cost_of(source.description, source.tensors)["macs"]

    with claimed(targets, force=settings.force) as claim:
        exports = claim.write(
            lambda: build_model(source),
            _origins(source),
            macs,
            settings.seed,
            log,
            uint8=settings.input == "uint8",
        )
        answer = replace(plan, sha256=source.sha256, exports=exports)
        return Outcome(answer.to_json(), files=claim.commit())


def _check_input(settings: ExportSettings, source: Source) -> None:
    """Refuse ``--input uint8`` (images) for a model that reads texts.

    Raises:
        UsageError: the model reads texts; the message names the option.
    """
    if settings.input == "uint8" and source.description.reads != "image":
        raise UsageError(
            f"--input uint8{settings.where('input')} is for images, and {source.name} reads texts",
            hint="leave it out: a graph of texts takes the numbers of tokens",
        )


def _path_without_ending(settings: ExportSettings, source: Source) -> Path:
    """Return the path of the output files without an ending: from ``-o``, or the name of the model.

    Each format adds its own ending. So ``-o`` may have no ending, or the ending of a format that is written.

    Raises:
        UsageError: ``-o`` has the ending of a format that is not written.
    """
    if settings.output is None:
        return Path(source.name)
    path = file_path(settings.output)
    # The format that the ending of -o stands for; None if it stands for none.
    format_of_ending = EXPORTED.get(path.suffix)
    if format_of_ending in settings.format:
        return path.with_suffix("")
    # An ending of another format, or that of checkpoints, would be a mistake. Any other dot is part of the name:
    # "v1.2".
    has_other_ending = format_of_ending is not None or path.suffix == ".st"
    if has_other_ending:
        formats = ",".join(settings.format)
        better_path = path.with_suffix(FORMATS[settings.format[0]].ending)
        raise UsageError(
            f"--output {settings.output}: export --format {formats} writes no such file", hint=f"-o {better_path}"
        )
    return path


def _origins(source: Source) -> list[str]:
    """Return the SHA-256 of the checkpoints that a model was fused from, or of the model itself if it was not fused."""
    origins = []
    for member in source.description.members:
        if "sha256" in member:
            origins.append(str(member["sha256"]))
    if not origins:
        return [source.sha256]
    return origins
