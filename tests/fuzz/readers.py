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
from hydractl.cli.failures import failure_of, say_failure

CORPUS = Path(__file__).parent / "corpus"

CASE = "{case}"
_PRUNE = ["--method", "magnitude", "--keep", "1", "-o", "out.st", "--force"]
_SEARCH = ["--data", "images.npz", "--objective", "acc", "--budget", "2", "--resume", "--force"]


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


def _rows(path: Path) -> object:
    """Every sample of a data set, as ``eval`` reads it."""
    from hydractl.data.opening import open_data

    data = open_data(str(path), labels=["zero", "one"], ignore_labels=True)
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


def _exported(path: Path) -> None:
    """An exported file, checked; the libraries that run it see none of these."""
    from hydractl.exports.opened import exported_at

    exported_at(path).to_json()


def _folder(path: Path) -> None:
    _model(path.parent)


def _heads(read: str) -> Callable[[Path], None]:
    """A mask, scores or a circuit of the model beside it, by the function that reads them."""

    def function(path: Path) -> None:
        from hydractl.files.fingerprints import seen_in
        from hydractl.heads import mask
        from hydractl.jsonio import read_json_file

        document = read_json_file(str(path))
        getattr(mask, read)(document, _vit().sites, str(path))
        seen_in(document, str(path))

    return function


def _document(form: str) -> Callable[[Path], None]:
    def function(path: Path) -> None:
        from hydractl.files import documents
        from hydractl.report.eval_document import Eval

        documents.read_document(str(path), Eval if form == "Eval" else documents.Bench)

    return function


def _predictions(path: Path) -> None:
    from hydractl.evaluation.predictions.reading import read_predictions

    found = read_predictions(path)
    for index in range(len(found.sets)):
        list(found.batches(index))


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
    from hydractl.settings.pruning import PruneSettings
    from hydractl.settings.sources import merge

    merge(PruneSettings, {"config": str(path), "model": ["vit.st"]}, {}, path.parent)


def _labels(path: Path) -> None:
    from hydractl.data.names import read_labels

    read_labels(str(path))


def _label_map(path: Path) -> None:
    from hydractl.data.opening import open_data
    from hydractl.evaluation.sets import _label_map

    open_data("images.npz", labels=["zero", "one"], label_map=_label_map(str(path)))


READERS: dict[str, Reader] = {
    "checkpoint": Reader(
        "st",
        [["--info", CASE], ["prune", CASE, *_PRUNE], ["fuse", CASE, "vit.st", "-o", "out.st", "--force"]],
        "case.st",
        _model,
    ),
    "state-dict": Reader("zip", [["prune", CASE, "--arch", "torchvision:vit_b_16", *_PRUNE]], "case.pth", _state_dict),
    "pt2": Reader("zip", [["--info", CASE]], "case.pt2", _exported),
    "onnx": Reader("bytes", [["--info", CASE]], "case.onnx", _exported),
    "mask": Reader(
        "json",
        [["--info", CASE], ["prune", "vit.st", "--mask", CASE, "--dry-run"]],
        "case.mask.json",
        _heads("mask_from_json"),
    ),
    "scores": Reader(
        "json",
        [["--info", CASE], ["prune", "vit.st", "--scores", CASE, "--remove", "1", "--dry-run"]],
        "case.scores.json",
        _heads("scores_from_json"),
    ),
    "circuit": Reader(
        "json",
        [["--info", CASE], ["prune", "vit.st", "--circuit", CASE, "--remove", "1", "--dry-run"]],
        "case.circuit.json",
        _heads("ranking_from_json"),
    ),
    "eval": Reader("json", [["--info", CASE], ["eval", "--from", CASE]], "case.eval.json", _document("Eval")),
    "bench": Reader("json", [["--info", CASE], ["bench", "--from", CASE]], "case.bench.json", _document("Bench")),
    "predictions": Reader("st", [["--info", CASE], ["eval", CASE]], "case.pred.st", _predictions),
    "journal": Reader(
        "lines",
        [
            ["extract-circuit", "vit.st", *_SEARCH, "-o", "c.json", "--dry-run"],
            ["extract-circuit", "vit.st", *_SEARCH, "-o", "c.json"],
        ],
        "c.json.journal",
        _journal,
    ),
    "training": Reader(
        "st",
        [["--info", CASE], ["finetune", "vit.st", "--data", "images.npz", "--steps", "3", "--resume", "-o", "t.st"]],
        "t.st.state",
        _training,
    ),
    "config": Reader("yaml", [["prune", "vit.st", "--config", CASE, "--dry-run"]], "case.yaml", _settings),
    "labels": Reader(
        "bytes", [["eval", "vit.st", "--data", "images.npz", "--labels", CASE, "--dry-run"]], "case.txt", _labels
    ),
    "label-map": Reader(
        "json", [["eval", "vit.st", "--data", "images.npz", "--label-map", CASE, "--dry-run"]], "case.json", _label_map
    ),
    "npz": Reader("npz", [], "case.npz", _rows),
    "csv": Reader("csv", [], "case.csv", _rows),
    "tsv": Reader("tsv", [], "case.tsv", _rows),
    "jsonl": Reader("lines", [], "case.jsonl", _rows),
    "gz": Reader("gz", [], "case.jsonl.gz", _rows),
    "parquet": Reader("bytes", [], "case.parquet", _rows),
    "image-parquet": Reader("bytes", [], "case.parquet", _rows),
    "png": Reader("png", [], "zero/case.png", lambda path: _rows(path.parents[1])),
    "jpg": Reader("bytes", [], "zero/case.jpg", lambda path: _rows(path.parents[1])),
    "gif": Reader("bytes", [], "zero/case.gif", lambda path: _rows(path.parents[1])),
    "webp": Reader("bytes", [], "zero/case.webp", lambda path: _rows(path.parents[1])),
    "tiff": Reader("bytes", [], "zero/case.tiff", lambda path: _rows(path.parents[1])),
    "shards": Reader("tar", [], "case.tar", lambda path: _rows(Path(f"wds:{path}"))),
    "list": Reader("lines", [], "case.txt", _rows),
    "hf-config": Reader("json", [["prune", "bert", *_PRUNE]], "bert/config.json", _folder),
    "hf-tokenizer": Reader("json", [["prune", "bert", *_PRUNE]], "bert/tokenizer.json", _folder),
    "hf-tokenizer-config": Reader("json", [["prune", "bert", *_PRUNE]], "bert/tokenizer_config.json", _folder),
    "hf-weights": Reader("st", [["prune", "bert", *_PRUNE]], "bert/model.safetensors", _folder),
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
    command = [*reader.commands, None][way]
    out, err = io.StringIO(), io.StringIO()
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
    raw = [c for c in said + out.getvalue() if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    if raw:
        return f"control characters {raw[:3]!r} in its messages: {said[-500:]!r}"
    longest = max(map(len, said.splitlines()), default=0)
    return f"a message of {longest} characters: {said[:300]}" if longest > 3000 else None


def _call(function: Callable[[Path], object], path: Path) -> int:
    """The exit code that a command would have, which says what it would say."""
    try:
        function(path)
    except Exception as error:
        failure = failure_of(error)
        say_failure(failure, error)
        return failure.exit_code
    return 0
