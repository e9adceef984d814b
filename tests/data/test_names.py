"""Class names in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.data.names import read_names
from hydractl.errors import InputError


def test_one_a_line_or_a_json_list(tmp_path: Path) -> None:
    text, document = tmp_path / "names.txt", tmp_path / "names.json"
    text.write_bytes("\ufeffcat\r\n\n  hot dog \nÉpée\n".encode())
    document.write_text('["cat", " hot dog", "Épée"]', encoding="utf-8")
    assert read_names(str(text), "--labels") == read_names(str(document), "--labels") == ["cat", "hot dog", "Épée"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b" \n\n", "no class names"),
        ("a.txt", b"cat\n\xff\n", "not UTF-8"),
        ("a.txt", b"cat\ndog\ncat\n", "more than once"),
        ("a.json", b"[]", "no class names"),
        ("a.json", b'["a", ""]', "an empty class name"),
        ("a.json", b'["a", 1]', "not a JSON list of names"),
        ("a.json", b'{"a": 1}', "not a JSON list of names"),
        ("a.json", b'["a"', "not JSON"),
    ],
)
def test_files_without_class_names(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_names(str(path), "--labels")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--labels .*nowhere.txt: cannot read the file: No such file"):
        read_names(str(tmp_path / "nowhere.txt"), "--labels")
