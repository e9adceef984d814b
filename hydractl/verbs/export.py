"""``hydractl export``: one model, fused or not, as files that run without hydractl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.exports.formats import FORMATS
from hydractl.exports.targets import plan_exports, write_exports
from hydractl.files.atomic import check_outputs, file_path
from hydractl.files.export_answer import ExportAnswer, ExportedFileRecord
from hydractl.files.header import PICKLES
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model
from hydractl.model.source import Source, open_source
from hydractl.options.call import EXPORTED, Call
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome


def run(call: Call) -> Outcome:
    """Return the files that one model was exported to, each checked against the model on random inputs.

    There is one in every format of ``--format``; without that option, in the format that the ending of ``-o`` names,
    else ONNX. A dry run returns their names.
    """
    values, log = call.values, call.log

    # The formats.
    formats, output = values["format"], values["output"]
    takes_uint8 = values["input"] == "uint8"
    if not formats:
        endings = [kind for ending, kind in EXPORTED.items() if (output or "").lower().endswith(ending)]
        formats = endings or ["onnx"]

    # The model, which must have a classifier.
    source = open_source(values["model"][0], opening_options(values))
    if takes_uint8 and source.description.reads != "image":
        raise UsageError(
            f"--input uint8{call.where('input')} is for images, and {source.name} reads texts",
            hint="leave it out: a graph of texts takes the numbers of tokens",
        )

    # Plan the files, and check them; only the header of the model is read.
    stem = _path_without_ending(output, formats, source)
    targets = plan_exports(formats, stem, source.description, source.tensors)
    files = list(targets.values())
    check_outputs(files, force=values["force"])
    plan = ExportAnswer(
        model=source.name,
        arch=source.description.arch,
        members=len(source.description.masks),
        exports=[ExportedFileRecord(format=kind, path=str(path)) for kind, path in targets.items()],
    )
    if values["dry_run"]:
        plan = plan.model_copy(update={"dry_run": True, "warnings": log.warnings})
        return Outcome(plan)

    # Write them under temporary names, and move them into place when all are checked.
    announce_reading([source], log)
    macs = cost_of(source.description, source.tensors)["macs"]
    fused_from = [str(member["sha256"]) for member in source.description.members if "sha256" in member]
    exports = write_exports(
        targets,
        lambda: build_model(source),
        fused_from or [source.sha256],
        macs,
        seed=values["seed"],
        force=values["force"],
        log=log,
        uint8=takes_uint8,
    )
    answer = plan.model_copy(update={"sha256": source.sha256, "exports": exports, "warnings": log.warnings})
    return Outcome(answer, files=files)


def _path_without_ending(output: str | None, formats: Sequence[str], source: Source) -> Path:
    """Return the path of the output files without an ending, as each format adds its own.

    ===================================================  =================================
    ``-o`` for ``--format onnx``                         the path
    ===================================================  =================================
    not given                                            the name of the model
    ``a.onnx``, the ending of a format that is written   ``a``
    ``a.pt2`` or ``a.st``, of another kind of file       an error
    ``a`` or ``v1.2``, no known ending                   as it is
    ===================================================  =================================

    Args:
        output: ``-o``; None if it is not given.
        formats: the formats that are written.
        source: the model.

    Raises:
        UsageError: ``-o`` has the ending of a format that is not written, or of weights.
    """
    if output is None:
        return Path(source.name)
    path = file_path(output)
    format_of_ending = EXPORTED.get(path.suffix)  # None if it is the ending of no format
    if format_of_ending in formats:
        return path.with_suffix("")
    is_of_weights = path.suffix in (".st", ".safetensors", *PICKLES)
    if format_of_ending is not None or is_of_weights:
        better_path = path.with_suffix(FORMATS[formats[0]].ending)
        raise UsageError(
            f"--output {output}: export --format {','.join(formats)} writes no such file", hint=f"-o {better_path}"
        )
    return path
