"""What ``make artefacts`` records of a file, and what it says of two records."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.record_artefacts import compare, differences, file_record, with_names


def differing(old: Any, new: Any, rtol: float = 0.0) -> list[str]:
    return list(differences(old, new, rtol))


def test_a_tolerance_is_for_numbers_that_are_not_both_whole() -> None:
    old = {"ece": 0.25, "nll": 2.0, "kept": [0, 100]}
    new = {"ece": 0.25000001, "nll": 2, "kept": [0, 101]}
    assert differing(old, new, rtol=1e-6) == ["kept.1: 100 -> 101"]
    assert differing(old, new, rtol=0.5) == ["kept.1: 100 -> 101"]
    assert differing(old, new) == ["ece: 0.25 -> 0.25000001", "kept.1: 100 -> 101"]


def test_a_tensor_is_equal_to_the_bit_or_not(tmp_path: Path) -> None:
    weights = np.ones(3, dtype=np.float32)
    records = []
    for value in (weights, np.nextafter(weights, np.float32(2))):
        save_file({"w": value}, tmp_path / "a.st", {"hydractl": '{"kind": "pruned"}'})
        records.append(file_record(tmp_path / "a.st"))
    before, after = records
    (line,) = differing(before, after, rtol=0.5)
    assert line.startswith('tensors.w: "F32 [3] ')


def test_a_digest_of_a_recorded_file_is_its_name_and_its_folder_a_dot(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    answer = {"members": [sha256, "another"], "lines": [f"of {sha256[:12]}", f"cd {tmp_path}"]}
    named = with_names(answer, [path], tmp_path)
    assert named == {"members": ["<a.st>", "another"], "lines": ["of <a.st>", "cd ."]}


def test_artefacts_that_differ_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    old = {"a.json": {"json": {"n": list(range(30))}}, "b.json": {"json": 1}, "c.json": {"json": 1}}
    new = {"a.json": {"json": {"n": list(range(1, 31))}}, "c.json": {"json": 1}, "d.json": {"json": 1}}
    assert compare(old, new, most=1) == 3
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "a.json.json.n.0: 0 -> 1",
        "a.json: and 29 more",
        "b.json: missing",
        "d.json: new",
    ]
    assert said.err == "3 of 3 differ\n"
