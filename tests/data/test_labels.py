"""From labels as found to indices in the checkpoint's order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hydractl.data.labels import RawLabels, limited, resolve_labels
from hydractl.errors import InputError, UsageError
from tests.running import refused


def resolve(raw: RawLabels, **options: Any) -> tuple[list[int] | None, list[str] | None]:
    options.setdefault("labels", None)
    samples = 10 if raw.values is None else len(raw.values)
    ids = [f"s#{i}" for i in range(samples)]
    indices, names = resolve_labels(raw, ids, "--data s", **options)
    if indices is None:
        return None, names
    assert indices.dtype == np.int64
    return indices.tolist(), names


def integers(*values: int, names: list[str] | None = None) -> RawLabels:
    return RawLabels(list(values), names)


def test_labels_are_integers_of_64_bits() -> None:
    assert resolve(RawLabels([2**63 - 1]), labels=[]) == ([2**63 - 1], None)
    for beyond in (2**63, -(2**63)):
        error = refused(InputError, resolve, RawLabels([1, beyond]), labels=[])
        assert error.problems == [f"label {beyond} of sample s#1 is beyond 2^63"]


def test_names_go_by_name() -> None:
    assert resolve(RawLabels(["cat", "ant"], ["ant", "cat"]), labels=["cat", "dog", "ant"]) == (
        [0, 2],
        ["cat", "dog", "ant"],
    )


def test_own_names_define_the_order_without_a_checkpoint() -> None:
    assert resolve(RawLabels(["cat", "ant"], ["cat", "ant"])) == ([0, 1], ["cat", "ant"])
    assert resolve(integers(1, 0)) == ([1, 0], None)
    assert resolve(integers(1, 0, names=["b", "a"])) == ([1, 0], ["b", "a"])


def test_integers_with_classes_are_names() -> None:
    assert resolve(integers(0, 1, 1, names=["b", "a"]), labels=["a", "b"]) == ([1, 0, 0], ["a", "b"])
    assert resolve(integers(0, 1, names=["a", "b"]), labels=["a", "b"]) == ([0, 1], ["a", "b"])
    assert resolve(integers(0, 1, names=["b", "a"]), labels=["a", "x", "b"]) == ([2, 0], ["a", "x", "b"])


def test_bare_integers_are_indices() -> None:
    assert resolve(integers(2, 0), labels=["a", "b", "c"]) == ([2, 0], ["a", "b", "c"])
    assert resolve(integers(7), labels=[]) == ([7], None)


def test_label_map() -> None:
    raw = RawLabels(["kitten", "hound"], ["hound", "kitten"])
    options = {"labels": ["cat", "dog"], "label_map": {"kitten": "cat", "hound": "dog", "unused": "cat"}}
    assert resolve(raw, **options)[0] == [0, 1]
    merged = {"labels": ["pet"], "label_map": {"kitten": "pet", "hound": "pet"}}
    assert resolve(raw, **merged)[0] == [0, 0]


def test_label_map_to_unknown_names() -> None:
    with pytest.raises(InputError, match="2 targets of --label-map are not among") as error:
        resolve(RawLabels(["a"], ["a"]), labels=["cat"], label_map={"a": "Cat", "b": "zebra"})
    assert error.value.problems == ["'Cat' (near: 'cat')", "'zebra'"]


def test_label_map_without_a_checkpoint() -> None:
    with pytest.raises(UsageError, match="--label-map needs a checkpoint with class names"):
        resolve(RawLabels(["a"], ["a"]), label_map={"a": "b"})


def test_a_limit_of_a_sorted_set_is_drawn_evenly_over_its_classes() -> None:
    labels = ["a"] * 50 + ["b"] * 50 + ["c"] * 2
    taken = {seed: limited(labels, 102, 30, seed) for seed in (0, 0, 1)}
    for rows in taken.values():
        assert rows == sorted(rows) and len(set(rows)) == 30
        assert Counter(labels[row] for row in rows) == {"a": 14, "b": 14, "c": 2}
    assert taken[0] != taken[1] and set(taken[0]) < set(limited(labels, 102, 31, 0))
    assert len({labels[limited(labels, 102, 1, seed)[0]] for seed in range(20)}) > 1


@pytest.mark.parametrize("labels", [None, ["a", "b", "a", "c"], ["a"] * 4, ["a", "b", "c", "d"]])
def test_a_limit_of_another_set_takes_the_first(labels: list[str] | None) -> None:
    assert limited(labels, 4, 2, 0) == [0, 1]
    assert limited(labels, 4, 9, 0) == limited(labels, 4, None, 0) == [0, 1, 2, 3]


def test_unknown_names_are_all_listed() -> None:
    error = refused(InputError, resolve, RawLabels(["x"], ["Cat", "x", "y"]), labels=["cat", "dog"], label_map={})
    assert error.message == "--data s: 3 class names are not among the model's 2"
    assert error.problems == ["'Cat' (near: 'cat')", "'x'", "'y'"]
    assert error.hint and "--label-map" in error.hint and "cat, dog" in error.hint
    error = refused(InputError, resolve, RawLabels(["x"], ["x"]), labels=["cat", "dog"])
    assert error.hint == (
        "rename them in the data, or name the model's classes as the data do with --labels FILE; it has: cat, dog"
    )


@pytest.mark.parametrize("raw", [RawLabels(["a"], ["a"]), integers(0, names=["a"])])
def test_a_checkpoint_without_names_never_goes_by_position(raw: RawLabels) -> None:
    with pytest.raises(InputError, match="the model has no class names"):
        resolve(raw, labels=[])


def test_checkpoint_with_one_name_twice() -> None:
    labels = ["crane", "owl", "crane"]
    assert resolve(integers(2, 0, names=labels), labels=labels)[0] == [2, 0]  # the same list: no name is looked up
    assert resolve(RawLabels(["owl"], ["owl"]), labels=labels)[0] == [1]
    with pytest.raises(InputError, match="several classes of one name") as error:
        resolve(RawLabels(["crane"], ["crane"]), labels=labels)
    assert error.value.problems == ["'crane'"]


@pytest.mark.fault(27)
@pytest.mark.parametrize(
    ("raw", "labels", "text"),
    [
        (integers(0, 3, 4), ["a", "b", "c"], "label 3 of sample s#1 is outside 0..2, and so are 1 more"),
        (integers(0, 2, names=["a", "b"]), None, "label 2 of sample s#1 is outside 0..1"),
        (integers(0, 2, -1), ["a", "b", "c"], "label -1 of sample s#2 is outside 0..2"),
        (integers(0, -1), None, "label -1 of sample s#1 is negative"),
        (integers(0, -1), [], "label -1 of sample s#1 is negative"),
    ],
)
def test_out_of_range_names_the_first_sample(raw: RawLabels, labels: list[str] | None, text: str) -> None:
    error = refused(InputError, resolve, raw, labels=labels)
    assert error.message == f"--data s: {text}"


@pytest.mark.fault(27)
def test_missing_labels() -> None:
    assert resolve(RawLabels(), labels=["a"]) == (None, ["a"])
    with pytest.raises(InputError, match="no label for sample s#0"):
        resolve(RawLabels(), need=True)


@pytest.mark.parametrize(
    "raw", [RawLabels(["x"], ["x"]), integers(5), integers(-1), RawLabels(problems=["y is float32"]), RawLabels()]
)
def test_ignored_labels(raw: RawLabels) -> None:
    assert resolve(raw, labels=["a"], ignore=True) == (None, ["a"])


def test_ignored_labels_that_map_are_kept() -> None:
    assert resolve(RawLabels(["a"], ["a"]), labels=["b", "a"], ignore=True) == ([1], ["b", "a"])
