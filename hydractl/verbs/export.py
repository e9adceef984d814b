"""``hydractl export``: one model, fused or not, as files that run without hydractl."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hydractl.data import open_data
from hydractl.errors import UsageError
from hydractl.exports.checking import CheckData
from hydractl.exports.formats import FORMATS, kind_of
from hydractl.exports.targets import Claim, Target, claimed, plan_exports
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.export_answer import ExportAnswer, ExportedFileRecord
from hydractl.log import Log
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.source import Source, need_classifier, open_sources
from hydractl.report.export_words import rounding_words
from hydractl.settings.common import FOLDER_FORMATS
from hydractl.settings.exporting import ExportSettings
from hydractl.verbs.export_folders import FOLDER_ENDINGS, plan_folders
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome


def run(settings: ExportSettings, log: Log) -> Outcome:
    """Write one model in every format that was asked for, and check each file against the model."""
    (source,) = open_sources(settings.model, model_options(settings, bodies=True))
    need_classifier(source)
    _check_input(settings, source)

    # Plan the files and folders, and check them; only the headers of the model are read.
    stem = _path_without_ending(settings, source)
    file_formats = [kind for kind in settings.format if kind not in FOLDER_ENDINGS]
    targets: list[Target] = []
    if file_formats:
        targets = plan_exports(file_formats, stem, source.description, source.tensors)
    folders = plan_folders(settings.format, stem, source)
    files = []
    for target in targets:
        files += target.files
    check_outputs(files, force=settings.force)
    check_outputs([folder.path for folder in folders], force=settings.force, folder=True)
    planned_files = [target.planned() for target in targets]
    planned_folders = [folder.planned() for folder in folders]
    plan = ExportAnswer(
        model=source.name,
        arch=source.description.arch,
        members=len(source.description.masks),
        exports=planned_files + planned_folders,
    )
    if settings.dry_run:
        plan = replace(plan, dry_run=True)
        return Outcome(plan.to_json())

    # Write them under temporary names, and move them into place when all are checked.
    source, data = _open_check_data(settings, source)
    announce_reading([source], log)
    macs = cost_of(source.description, source.tensors)["macs"]

    def write(claim: Claim) -> list[ExportedFileRecord]:
        """Write the files of a claim, each checked against the model."""
        return claim.write(
            lambda: build_model(source),
            _origins(source),
            macs,
            settings.seed,
            log,
            data,
            uint8=settings.input == "uint8",
        )

    with ExitStack() as stack:
        claim = stack.enter_context(claimed(targets, force=settings.force))
        outputs = []
        for folder in folders:
            output = Output(folder.path, force=settings.force, folder=True)
            outputs.append(stack.enter_context(output))
        exports: list[ExportedFileRecord] = []
        if targets:
            exports = write(claim)
        for folder, output in zip(folders, outputs, strict=True):
            exports.append(folder.write(output.temporary, write, settings.batch_size))
        warnings = _report_rounding(exports, log)
        answer = replace(plan, sha256=source.sha256, exports=exports, warnings=warnings or None)
        paths = claim.commit()
        for output in outputs:
            paths.append(output.commit())
        return Outcome(answer.to_json(), files=paths)


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
    format_of_ending = kind_of(path) or FOLDER_FORMATS.get(path.suffix)
    if format_of_ending in settings.format:
        name = path.name.removesuffix(_ending(format_of_ending))
        return path.with_name(name)
    # An ending of another format, or that of checkpoints, would be a mistake. Any other dot is part of the name:
    # "v1.2".
    has_other_ending = format_of_ending is not None or path.suffix == ".st"
    if has_other_ending:
        formats = ",".join(settings.format)
        better_path = path.with_suffix(_ending(settings.format[0]))
        raise UsageError(
            f"--output {settings.output}: export --format {formats} writes no such file", hint=f"-o {better_path}"
        )
    return path


def _ending(kind: str) -> str:
    """Return the ending of the file or folder of a format, e.g. ``.onnx``."""
    if kind in FOLDER_ENDINGS:
        return FOLDER_ENDINGS[kind]
    return FORMATS[kind].ending


def _open_check_data(settings: ExportSettings, source: Source) -> tuple[Source, CheckData | None]:
    """Open the data that rounded weights are measured on.

    Returns:
        The model, and the data; without ``--test`` the data are None. A model without a classifier (zero-shot) gets
        its class names from the data.
    """
    if settings.test is None:
        return source, None
    named = named_by_data(source, settings.test, settings.limit, "--test")
    id_set = open_data(
        settings.test,
        option="--test",
        limit=settings.limit,
        seed=settings.seed,
        labels=named.description.labels or [],
        need_labels=True,
        reads={named.name: named.description.reads},
    )
    check_labels_are_classes(id_set, named)
    ood_set_by_name = {}
    for ood_set in settings.ood_sets():
        ood_set_by_name[ood_set.name] = open_data(
            ood_set.spec,
            option=f"--ood {ood_set.name}",
            ignore_labels=True,
            limit=settings.limit,
            seed=settings.seed,
            reads={"the model": id_set.kind},
        )
    return named, CheckData(id_set, ood_set_by_name, settings.batch_size, settings.workers)


def _origins(source: Source) -> list[str]:
    """Return the SHA-256 of the checkpoints that a model was fused from, or of the model itself if it was not fused."""
    origins = []
    for member in source.description.members:
        if "sha256" in member:
            origins.append(str(member["sha256"]))
    if not origins:
        return [source.sha256]
    return origins


def _report_rounding(exports: Sequence[ExportedFileRecord], log: Log) -> list[str]:
    """Log what rounding the weights costs; return the warnings, which are logged as well."""
    warnings = []
    for export in exports:
        sentence, is_harmful = rounding_words(export)
        if sentence is None:
            continue
        if is_harmful:
            log.warn(sentence)
            warnings.append(sentence)
        else:
            log.info(sentence)
    return warnings
