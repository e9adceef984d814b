"""Everything that hydractl reads: minimal files of each kind, and the commands that read them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

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


READERS: dict[str, Reader] = {
    "checkpoint": Reader(
        "st",
        [["--info", CASE], ["prune", CASE, *_PRUNE], ["fuse", CASE, "vit.st", "-o", "out.st", "--force"]],
        "case.st",
    ),
    "mask": Reader("json", [["--info", CASE], ["prune", "vit.st", "--mask", CASE, "--dry-run"]], "case.mask.json"),
    "scores": Reader(
        "json",
        [["--info", CASE], ["prune", "vit.st", "--scores", CASE, "--remove", "1", "--dry-run"]],
        "case.scores.json",
    ),
    "circuit": Reader(
        "json",
        [["--info", CASE], ["prune", "vit.st", "--circuit", CASE, "--remove", "1", "--dry-run"]],
        "case.circuit.json",
    ),
    "eval": Reader("json", [["--info", CASE], ["eval", "--from", CASE]], "case.eval.json"),
    "bench": Reader("json", [["--info", CASE], ["bench", "--from", CASE]], "case.bench.json"),
    "predictions": Reader("st", [["--info", CASE], ["eval", CASE]], "case.pred.st"),
    "journal": Reader(
        "lines",
        [
            ["extract-circuit", "vit.st", *_SEARCH, "-o", "c.json", "--dry-run"],
            ["extract-circuit", "vit.st", *_SEARCH, "-o", "c.json"],
        ],
        "c.json.journal",
    ),
    "training": Reader(
        "st",
        [["--info", CASE], ["finetune", "vit.st", "--data", "images.npz", "--steps", "3", "--resume", "-o", "t.st"]],
        "t.st.state",
    ),
    "config": Reader("yaml", [["prune", "vit.st", "--config", CASE, "--dry-run"]], "case.yaml"),
    "labels": Reader("bytes", [["eval", "vit.st", "--data", "images.npz", "--labels", CASE, "--dry-run"]], "case.txt"),
    "label-map": Reader(
        "json", [["eval", "vit.st", "--data", "images.npz", "--label-map", CASE, "--dry-run"]], "case.json"
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
    "hf-config": Reader("json", [["prune", "bert", *_PRUNE]], "bert/config.json"),
    "hf-tokenizer": Reader("json", [["prune", "bert", *_PRUNE]], "bert/tokenizer.json"),
    "hf-tokenizer-config": Reader("json", [["prune", "bert", *_PRUNE]], "bert/tokenizer_config.json"),
    "hf-weights": Reader("st", [["prune", "bert", *_PRUNE]], "bert/model.safetensors"),
}


def read(reader: Reader, folder: Path, way: int) -> str | None:
    """Read the broken file of a folder.

    Args:
        reader: its kind.
        folder: the working directory, where everything else lies unbroken.
        way: which of the commands, modulo their number.

    Returns:
        What is wrong with how that went, or None.
    """
    ways = [*reader.commands, *([None] if reader.function else [])]
    command = ways[way % len(ways)]
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
