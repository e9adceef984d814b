"""Images in .npz files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from tests.running import refused

GREY = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def problems(spec: str, **options: Any) -> list[str]:
    return refused(InputError, open_data, spec, **options).problems


def test_grey(tmp_path: Path) -> None:
    data = open_data(save(tmp_path / "a b.npz", x=GREY, y=np.array([1, 0, 1, 0], np.uint8)))
    assert len(data) == 4 and data.kind == "image"
    assert data.ids == ["a b.npz#0", "a b.npz#1", "a b.npz#2", "a b.npz#3"]
    assert data[1].mode == "L" and data[1].size == (2, 3)
    assert np.array_equal(np.asarray(data[-1]), GREY[3])
    assert data.labels.dtype == np.int64 and data.labels.tolist() == [1, 0, 1, 0]
    assert data.label_names is None
    with pytest.raises(IndexError):
        data[4]


def test_colour_and_one_channel(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    data = open_data(save(tmp_path / "c.npz", x=colour))
    assert data[1].mode == "RGB" and np.array_equal(np.asarray(data[1]), colour[1]) and data.labels is None
    one = open_data(save(tmp_path / "o.npz", x=GREY[..., None]))
    assert one[0].mode == "L" and np.array_equal(np.asarray(one[0]), GREY[0])


def test_fortran_order_and_other_names(tmp_path: Path) -> None:
    path = save(tmp_path / "f.npz", images=np.asfortranarray(GREY), targets=np.arange(4), x=GREY[:1])
    data = open_data(f"{path}?x=images&y=targets")
    assert np.array_equal(np.asarray(data[2]), GREY[2]) and data.labels is not None
    assert data.labels.tolist() == [0, 1, 2, 3]


def test_string_labels(tmp_path: Path) -> None:
    path = save(tmp_path / "s.npz", x=GREY, y=np.array(["cat", "ant", "cat", "bee"]))
    own = open_data(path, limit=2)
    assert own.label_names == ["ant", "bee", "cat"] and own.labels.tolist() == [2, 0]
    mapped = open_data(path, labels=["cat", "bee", "ant"])
    assert mapped.labels.tolist() == [0, 2, 0, 1]
    classes = open_data(save(tmp_path / "k.npz", x=GREY, y=np.array([0, 1, 0, 0]), classes=np.array(["b", "a"])))
    assert classes.label_names == ["b", "a"] and classes.labels.tolist() == [0, 1, 0, 0]


def test_limit_comes_first(tmp_path: Path) -> None:
    path = save(tmp_path / "l.npz", x=GREY, y=np.array([0, 1, 9, -1]))
    assert len(open_data(path, limit=2, labels=["a", "b"])) == 2
    assert len(open_data(path, limit=99, ignore_labels=True, labels=["a"])) == 4
    with pytest.raises(InputError, match="label 9 of sample l.npz#2"):
        open_data(path, limit=3, labels=["a", "b"])


@pytest.mark.fault(39)
def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "exploded"), "w"))

    path = save(tmp_path / "p.npz", x=np.array([Bomb()], dtype=object), y=np.array([Bomb()], dtype=object))
    found = problems(path)
    assert [p.split(" holds")[0] for p in found] == ["x", "y"] and "never unpickled" in found[0]
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("labels", [np.array([[2], [0], [1]]), np.array([["c"], ["a"], ["b"]])])
def test_labels_in_a_column_are_taken(labels: np.ndarray, tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4), np.uint8)
    column = open_data(str(save(tmp_path / "a.npz", x=images, y=labels)))
    plain = open_data(str(save(tmp_path / "b.npz", x=images, y=labels.ravel())))
    assert column.labels.tolist() == plain.labels.tolist() == [2, 0, 1]


def test_every_problem_is_listed(tmp_path: Path) -> None:
    path = save(tmp_path / "e.npz", x=np.zeros((3, 4, 4, 2), np.float32), y=np.zeros((2, 2)), classes=np.arange(3))
    assert problems(path) == [
        "x is float32, uint8 (0..255) is needed",
        "x has shape (3, 4, 4, 2); 1 or 3 channels are needed",
        "y is float64; integers or unicode strings are needed",
        "y has shape (2, 2), one label for each image is needed",
        "classes is int64 (3,); a list of unicode strings is needed",
    ]


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros((2, 4, 4, 4), np.uint8), "fourth channel"),
        (np.zeros((2, 3, 4, 5), np.uint8), "channels come last"),
        (np.zeros((0, 4, 4), np.uint8), "no images"),
        (np.zeros((2, 0, 4), np.uint8), "without pixels"),
        (np.zeros((2, 4), np.uint8), "(N, H, W)"),
        (np.zeros((2, 4, 4), np.uint16), "uint16"),
    ],
)
def test_shapes_and_types(tmp_path: Path, x: Any, text: str) -> None:
    assert any(text in problem for problem in problems(save(tmp_path / "x.npz", x=x)))


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (np.arange(3), "y has 3 labels for 4 images"),
        (np.array([b"a"] * 4), "y is |S1"),
        (np.array([True] * 4), "y is bool"),
        (np.full(4, 2**63, np.uint64), "beyond 2^63"),
    ],
)
def test_label_arrays(tmp_path: Path, y: Any, text: str) -> None:
    path = save(tmp_path / "y.npz", x=GREY, y=y)
    assert any(text in problem for problem in problems(path))
    assert open_data(path, ignore_labels=True).labels is None


def test_missing_arrays_name_those_present(tmp_path: Path) -> None:
    path = save(tmp_path / "m.npz", images=GREY)
    assert problems(path) == ["no array 'x' (the file has: images; choose with ?x=NAME)"]
    assert problems(f"{path}?x=images&y=t") == ["no array 't' (the file has: images; choose with ?y=NAME)"]
    with pytest.raises(UsageError, match="unknown setting 'z'"):
        open_data(f"{path}?z=1")


@pytest.mark.fault(50)
def test_a_header_that_claims_too_much(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 32, 32)})
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", stream.getvalue() + b"123")
    assert "the file has 3" in problems(str(path))[0]


@pytest.mark.parametrize(
    "header",
    ["", "(((", "'", "{'descr': '|u1'}", "[" * 5000, "{'descr': '|u1', 'fortran_order': 0, 'shape': (-2, -2)}"],
)
def test_damaged_headers(tmp_path: Path, header: str) -> None:
    path = tmp_path / "h.npz"
    with zipfile.ZipFile(path, "w") as archive:
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(4)
        archive.writestr("x.npy", content)
    error = refused(InputError, open_data, str(path))
    assert "\n" not in error.message and len(error.message) < 500


def test_fingerprint(tmp_path: Path) -> None:
    y = np.array([0, 1, 0, 1])
    first = open_data(save(tmp_path / "1.npz", x=GREY, y=y))
    again = open_data(save(tmp_path / "2.npz", x=GREY, y=y.astype(np.uint8)))
    assert first.fingerprint() == again.fingerprint() and len(first.fingerprint()) == 64
    assert len(set(first.sample_fingerprints())) == 4
    changes = {"order": {"x": GREY[::-1], "y": y}, "labels": {"x": GREY, "y": 1 - y}, "none": {"x": GREY}}
    changes["shape"] = {"x": GREY.reshape(4, 2, 3), "y": y}
    others = {key: open_data(save(tmp_path / f"{key}.npz", **arrays)) for key, arrays in changes.items()}
    assert len({first.fingerprint(), *(other.fingerprint() for other in others.values())}) == 5
    assert others["none"].sample_fingerprints() == first.sample_fingerprints()
    assert others["order"].sample_fingerprints() == first.sample_fingerprints()[::-1]
    assert open_data(str(tmp_path / "1.npz"), limit=2).sample_fingerprints() == first.sample_fingerprints()[:2]
