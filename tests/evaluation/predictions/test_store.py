"""Prediction files: what is written in any order is read in order, and a file cut off anywhere can be gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from hydractl.errors import InputError
from hydractl.evaluation.predictions.reading import is_predictions, read_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet
from tests.running import described

MODEL = {"name": "vit", "sha256": "ab", "labels": ["a", "b", "c"], "batch_size": 4}
RANDOM = np.random.default_rng(0)
LOGITS = {"id": RANDOM.normal(size=(2, 11, 3)), "far": RANDOM.normal(size=(2, 7, 3))}
LABELS = np.arange(11) % 3


def entries() -> list[EvalSet]:
    inside = EvalSet("id", "id", None, [f"ä/{i}" for i in range(11)], LABELS, "f1", seen=2)
    return [inside, EvalSet("far", "ood", "far", [f"{i}" * i for i in range(1, 8)], None, "f2")]


def writer(path: Path, *, kind: str = "F32", resume: bool = False, **model: Any) -> PredictionsWriter:
    return PredictionsWriter(path, MODEL | model, entries(), members=2, classes=3, kind=kind, resume=resume)


def batches(count: int, size: int = 4) -> Iterator[list[int]]:
    order = np.random.default_rng(1).permutation(count).tolist()
    for start in range(0, count, size):
        yield order[start : start + size]


def write_all(found: PredictionsWriter) -> None:
    for index, name in enumerate(LOGITS):
        for rows in batches(LOGITS[name].shape[1]):
            found.write(index, rows, LOGITS[name][:, rows])
    found.close()


@pytest.mark.parametrize("kind", ["F32", "F64"])
def test_what_is_written_in_any_order_is_read_in_order(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p.st"
    write_all(writer(path, kind=kind))
    found = read_predictions(path)
    assert found.record.to_dict() == MODEL
    for index, (name, expected) in enumerate(LOGITS.items()):
        parts = list(found.batches(found.sets[index]))
        assert [row for rows, *_ in parts for row in rows] == list(range(expected.shape[1]))
        logits = np.concatenate([values for _, values, _ in parts], axis=1)
        assert np.array_equal(logits, expected.astype("f4" if kind == "F32" else "f8"))
        own = found.sets[index]
        assert (own.name, own.ids) == (name, entries()[index].ids)
    assert np.array_equal(found.sets[0].labels, LABELS)
    assert found.sets[1].labels is None
    assert [one.seen for one in found.sets] == [2, 0]
    assert [(one.role, one.group) for one in found.sets] == [("id", None), ("ood", "far")]


@pytest.mark.parametrize("done", range(6))
def test_an_unfinished_file_is_gone_on_with_to_the_same_bytes(tmp_path: Path, done: int) -> None:
    whole, part = tmp_path / "whole.st", tmp_path / "part.st"
    write_all(writer(whole))
    begun = writer(part)
    work = [(index, rows) for index, name in enumerate(LOGITS) for rows in batches(LOGITS[name].shape[1])]
    for index, rows in work[:done]:
        begun.write(index, rows, LOGITS[["id", "far"][index]][:, rows])
    begun.close()
    assert part.stat().st_size == whole.stat().st_size
    again = writer(part, resume=True)
    assert again.resumed
    for index, name in enumerate(LOGITS):
        written = {row for i, rows in work[:done] if i == index for row in rows}
        left = [i for i in range(LOGITS[name].shape[1]) if i not in written]
        assert np.flatnonzero(again.missing(index)).tolist() == left
        kept = list(again.batches(index, without=left[:1]))
        assert [row for batch in kept for row in batch.rows] == sorted(written)
        for batch in kept:
            assert np.array_equal(batch.logits, LOGITS[name][:, batch.rows].astype("f4"))
        assert [row for batch in again.batches(index, without=[*written][:1]) for row in batch.rows] == sorted(
            [*written][1:]
        )
        if left:
            again.write(index, left, LOGITS[name][:, left])
    again.close()
    assert part.read_bytes() == whole.read_bytes()


def test_a_row_written_for_one_member_only_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "p.st"
    found = writer(path)
    write_all(found)
    raw = bytearray(path.read_bytes())
    torn = LOGITS["id"].astype("f4")[1, 5].tobytes()
    place = raw.index(torn)
    raw[place : place + 4] = b"\xff" * 4
    path.write_bytes(raw)
    with writer(path, resume=True) as again:
        assert np.flatnonzero(again.missing(0)).tolist() == [5]


def test_a_file_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "p.st"
    writer(path).close()
    with pytest.raises(InputError) as caught:
        writer(path, resume=True, batch_size=8, name="bert")
    assert caught.value.problems == ["name: 'vit' in the file, 'bert' now", "batch_size: 4 in the file, 8 now"]
    before = path.read_bytes()
    assert path.read_bytes() == before
    assert not writer(path).resumed  # without resume it is begun anew


def test_only_predictions_are_predictions(tmp_path: Path) -> None:
    path = tmp_path / "p.st"
    write_all(writer(path))
    assert is_predictions(path)
    other = tmp_path / "w.st"
    safetensors.numpy.save_file({"a": np.zeros(3)}, other)
    assert not is_predictions(other)
    assert not is_predictions(tmp_path / "none.st")
    assert not is_predictions(tmp_path)
    (tmp_path / "junk.st").write_bytes(b"junk")
    assert not is_predictions(tmp_path / "junk.st")
    with pytest.raises(InputError, match="schema"):
        read_predictions(other)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d.update(sets=[]), "sets is []: "),
        (lambda d: d["sets"][0].update(n=12), "sets.0.logits is missing or of another shape"),
        (lambda d: d["sets"][1].update(labelled=True), "sets.1.labels is missing or of another shape"),
        (lambda d: d["sets"][1].update(group="middle"), "sets[1].group is 'middle': Input should be 'near' or 'far'"),
        (lambda d: d["sets"][1].update(role="id"), "it has no one ID set, or two sets of one name"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path: Path, change: Any, complaint: str) -> None:
    path = tmp_path / "p.st"
    write_all(writer(path))
    with pytest.raises(InputError, match="is broken") as caught:
        read_predictions(described(path, path.with_name("broken.st"), change))
    assert any(complaint in problem for problem in caught.value.problems)
