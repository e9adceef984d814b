"""What an exported file says of itself before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from hydractl.exports.opened import ExportedFile

METADATA = {"macs": "1000", "members": "3", "preprocess": json.dumps({"kind": "text", "max_length": 16})}


def test_its_size_is_that_of_the_file_and_of_the_weights_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(b"x" * 10)
    assert ExportedFile("a", path, METADATA).file_bytes == 10
    (tmp_path / "a.onnx.data").write_bytes(b"y" * 500)
    assert ExportedFile("a", path, METADATA).file_bytes == 510


def test_mult_adds_were_counted_for_texts_of_one_length(tmp_path: Path) -> None:
    file = ExportedFile("a", tmp_path / "a.onnx", METADATA)
    assert file.macs == 1000 and file.at_length(16).macs == 1000
    shorter = file.at_length(8)
    assert shorter.preprocess["max_length"] == 8 and shorter.macs is None
