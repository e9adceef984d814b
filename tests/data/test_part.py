"""``?part=K/N``: the parts of a set are the set, of every kind, corrupted or limited."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError


@pytest.mark.parametrize("spec", ["{0}/a.npz", "{0}/a.jsonl", "builtin:symbols", "{0}/a.npz?corruption=fog&severity=2"])
def test_the_parts_of_a_set_are_the_set(spec: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (11, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(11) % 3)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{"a" * n}", "label": {n % 2}}}\n' for n in range(1, 8)))
    spec = spec.format(tmp_path)
    whole = open_data(spec)
    sign = "&" if "?" in spec else "?"
    for k in (1, 2, 3):
        part = open_data(f"{spec}{sign}part={k}/3")
        rows = range(k - 1, len(whole), 3)
        assert part.ids == [whole.ids[row] for row in rows] and part.kind == whole.kind
        assert part.sample_fingerprints() == [whole.sample_fingerprints()[row] for row in rows]
        assert all(np.array_equal(np.asarray(part[i]), np.asarray(whole[row])) for i, row in enumerate(rows))
        if whole.labels is not None and part.labels is not None:
            assert part.labels.tolist() == whole.labels[list(rows)].tolist()
        lengths = whole.lengths()
        assert part.lengths() == (None if lengths is None else [lengths[row] for row in rows])
        assert open_data(f"{spec}{sign}part={k}/3", limit=2).ids == part.ids[:2]


def test_the_limit_of_a_part_of_a_set_sorted_by_class_takes_every_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 8, 8), dtype=np.uint8), y=np.arange(30) // 10)
    labels = open_data(f"{tmp_path}/a.npz?part=2/2", limit=6).labels
    assert labels is not None and np.bincount(labels).tolist() == [2, 2, 2]


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(UsageError, match="is not K/N"):
        open_data(f"builtin:symbols?part={part}")


def test_a_part_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match="part 2/2 is empty, the set has 1"):
        open_data(f"{tmp_path}/a.jsonl?part=2/2")
