"""Everything that hydractl reads: minimal files of each kind, and the commands that read them."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.cli.app import main
from hydractl.cli.failures import say_failure
from hydractl.errors import failure_of
from tests.running import control_characters

CORPUS = Path(__file__).parent / "corpus"

CASE = "{case}"
_PRUNE = ["--method", "magnitude", "--keep", "1", "-o", "out.st", "--force"]
_SEARCH = ["--val", "images.npz", "--objective", "acc", "--budget", "2", "--resume", "--force"]


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        form: how it is taken apart, see :data:`tests.fuzz.mutations.FORMS`.
        commands: each reads the file, whose name stands for :data:`CASE`; a folder is named without the file in it.
        name: what the file is called; the others of a corpus folder stand beside it unbroken.
        function: reads the file as these commands do, without what they do with it.
    """

    form: str
    commands: list[list[str]]
    name: str = "case"
    function: Callable[[Path], object] | None = field(default=None)


def _rows(spec: object) -> object:
    """Every sample of a data set, as ``eval`` reads it."""
    from hydractl.data.opening import open_data

    data = open_data(str(spec), labels=["zero", "one"], ignore_labels=True)
    return [data[i] for i in range(min(len(data), 8))], data.fingerprint()


@functools.cache
def _vit() -> Any:
    from hydractl.model.source import open_source

    return open_source(str(CORPUS / "beside" / "vit.st"))


def _model(path: Path) -> None:
    """A checkpoint or a folder, with its numbers."""
    from hydractl.model.source import open_source
    from hydractl.model.stored import check_finite_weights

    source = open_source(str(path))
    check_finite_weights(source.name, source.tensors)


def _state_dict(path: Path) -> None:
    from hydractl.files.state_dict import StateDict

    found = StateDict(path)
    for name in found.names():
        found.read(name)


def _folder(path: Path) -> None:
    _model(path.parent)


def _heads(read: str) -> Callable[[Path], None]:
    """A mask, scores or a circuit of the model beside it, by the function that reads them."""

    def function(path: Path) -> None:
        from hydractl.files import head_documents
        from hydractl.files.fingerprints import seen_in
        from hydractl.jsonio import read_json_file

        document = read_json_file(str(path))
        getattr(head_documents, read)(document, _vit().sites, str(path))
        seen_in(document, str(path))

    return function


def _document(form: str) -> Callable[[Path], None]:
    def function(path: Path) -> None:
        from hydractl.files.bench_answer import BenchAnswer
        from hydractl.files.eval_answer import EvalAnswer

        (EvalAnswer if form == "Eval" else BenchAnswer).read(str(path))

    return function


def _predictions(path: Path) -> None:
    from hydractl.evaluation.predictions.reading import read_predictions

    found = read_predictions(path)
    for index in range(len(found.sets)):
        list(found.batches(found.sets[index]))


def _journal(path: Path) -> None:
    from hydractl.circuit.journal import Journal
    from hydractl.log import Log

    header = json.loads((CORPUS / "journal" / path.name).read_bytes().partition(b"\n")[0])
    Journal.open(path, header["fingerprint"], header["environment"], resume=True, force=False, log=Log()).close()


def _training(path: Path) -> None:
    from hydractl.files.header import read_header
    from hydractl.log import Log
    from hydractl.training.checkpointing import StateFile

    header: Any = read_header(CORPUS / "training" / path.name).description
    StateFile(path, header["fingerprint"], header["environment"]).load(Log())


def _settings(path: Path) -> None:
    from tests.calls import checked

    checked("prune", {"config": str(path), "model": ["vit.st"]}, {}, path.parent)


def _labels(path: Path) -> None:
    from hydractl.data.names import read_labels

    read_labels(str(path))


def _label_map(path: Path) -> None:
    from hydractl.data.opening import open_data
    from hydractl.evaluation.rows import _label_map
    from hydractl.jsonio import Document

    open_data("images.npz", labels=["zero", "one"], label_map=_label_map(Document(str(path))))


def _data_set(form: str, name: str, spec_of: Callable[[Path], object] = str) -> Reader:
    """A file of samples, which no command reads without a model.

    Args:
        form, name: as of :class:`Reader`.
        spec_of: from the path of the file to the SPEC of the data set that it belongs to.
    """
    return Reader(form=form, name=name, commands=[], function=lambda path: _rows(spec_of(path)))


def _bert(form: str, name: str) -> Reader:
    """A file of a published folder."""
    return Reader(form=form, name=f"bert/{name}", commands=[["prune", "bert", *_PRUNE]], function=_folder)


def _folder_of_classes(path: Path) -> Path:
    """The folder of the folders of classes, in one of which an image lies."""
    return path.parents[1]


def _shards(path: Path) -> str:
    return f"captions:{path}"


READERS: dict[str, Reader] = {
    "checkpoint": Reader(
        form="st",
        name="case.st",
        commands=[["--info", CASE], ["prune", CASE, *_PRUNE], ["fuse", CASE, "vit.st", "-o", "out.st", "--force"]],
        function=_model,
    ),
    "state-dict": Reader(
        form="zip",
        name="case.pth",
        commands=[["prune", CASE, "--arch", "timm:vit_base_patch16_224", *_PRUNE]],
        function=_state_dict,
    ),
    "mask": Reader(
        form="json",
        name="case.mask.json",
        commands=[["--info", CASE], ["prune", "vit.st", "--mask", CASE, "--dry-run"]],
        function=_heads("mask_from_json"),
    ),
    "scores": Reader(
        form="json",
        name="case.scores.json",
        commands=[["--info", CASE], ["prune", "vit.st", "--scores", CASE, "--remove", "1", "--dry-run"]],
        function=_heads("scores_from_json"),
    ),
    "circuit": Reader(
        form="json",
        name="case.circuit.json",
        commands=[["--info", CASE], ["prune", "vit.st", "--circuit", CASE, "--remove", "1", "--dry-run"]],
        function=_heads("ranking_from_json"),
    ),
    "eval": Reader(
        form="json",
        name="case.eval.json",
        commands=[["--info", CASE], ["report", CASE]],
        function=_document("Eval"),
    ),
    "bench": Reader(
        form="json",
        name="case.bench.json",
        commands=[["--info", CASE], ["report", CASE]],
        function=_document("Bench"),
    ),
    "predictions": Reader(
        form="st",
        name="case.pred.st",
        commands=[["--info", CASE], ["eval", CASE]],
        function=_predictions,
    ),
    "journal": Reader(
        form="lines",
        name="c.json.journal",
        commands=[
            ["extract-circuit", "vit.st", *_SEARCH, "-o", "c.json", "--dry-run"],
            ["extract-circuit", "vit.st", *_SEARCH, "-o", "c.json"],
        ],
        function=_journal,
    ),
    "training": Reader(
        form="st",
        name="t.st.state",
        commands=[
            ["--info", CASE],
            ["finetune", "vit.st", "--train", "images.npz", "--steps", "3", "--resume", "-o", "t.st"],
        ],
        function=_training,
    ),
    "config": Reader(
        form="yaml",
        name="case.yaml",
        commands=[["prune", "vit.st", "--config", CASE, "--dry-run"]],
        function=_settings,
    ),
    "labels": Reader(
        form="bytes",
        name="case.txt",
        commands=[["eval", "vit.st", "--test", "images.npz", "--labels", CASE, "--dry-run"]],
        function=_labels,
    ),
    "label-map": Reader(
        form="json",
        name="case.json",
        commands=[["eval", "vit.st", "--test", "images.npz", "--label-map", CASE, "--dry-run"]],
        function=_label_map,
    ),
    "npz": _data_set("npz", "case.npz"),
    "csv": _data_set("csv", "case.csv"),
    "tsv": _data_set("tsv", "case.tsv"),
    "jsonl": _data_set("lines", "case.jsonl"),
    "gz": _data_set("gz", "case.jsonl.gz"),
    "parquet": _data_set("bytes", "case.parquet"),
    "image-parquet": _data_set("bytes", "case.parquet"),
    "png": _data_set("png", "zero/case.png", spec_of=_folder_of_classes),
    "jpg": _data_set("bytes", "zero/case.jpg", spec_of=_folder_of_classes),
    "gif": _data_set("bytes", "zero/case.gif", spec_of=_folder_of_classes),
    "webp": _data_set("bytes", "zero/case.webp", spec_of=_folder_of_classes),
    "tiff": _data_set("bytes", "zero/case.tiff", spec_of=_folder_of_classes),
    "shards": _data_set("tar", "case.tar", spec_of=_shards),
    "list": _data_set("lines", "case.txt"),
    "hf-config": _bert("json", "config.json"),
    "hf-tokenizer": _bert("json", "tokenizer.json"),
    "hf-tokenizer-config": _bert("json", "tokenizer_config.json"),
    "hf-weights": _bert("st", "model.safetensors"),
}


def ways(reader: Reader) -> int:
    """In how many ways a file of this kind is read: by each command, and last by the function."""
    return len(reader.commands) + bool(reader.function)


def read(reader: Reader, folder: Path, way: int) -> str | None:
    """Read the broken file of a folder.

    Args:
        reader: its kind.
        folder: the working directory, where everything else lies unbroken.
        way: see :func:`ways`.

    Returns:
        What is wrong with how that went, or None.
    """
    command = reader.commands[way] if way < len(reader.commands) else None
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if command is None:
            code = _call(reader.function, folder / reader.name)  # type: ignore[arg-type]
        else:
            code = main([word.replace(CASE, reader.name) for word in command])
    said = err.getvalue()
    if code not in (0, 2, 3, 5, 6) or "internal:" in said or "Traceback" in said:
        return f"exit {code}: {said[-2000:]}"
    if "memory" in said and "out of" in said:
        return f"memory: {said[-500:]}"
    raw = control_characters(said + out.getvalue(), allowed="\n\t")
    if raw:
        return f"control characters {raw[:3]!r} in its messages: {said[-500:]!r}"
    longest = max(map(len, said.splitlines()), default=0)
    if longest > 3000:
        return f"a message of {longest} characters: {said[:300]}"
    return None


def _call(function: Callable[[Path], object], path: Path) -> int:
    """The exit code that a command would have, which says what it would say."""
    try:
        function(path)
    except Exception as error:
        failure = failure_of(error)
        say_failure(failure, error)
        return failure.exit_code
    return 0
