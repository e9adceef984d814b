"""Broken text files: one error that names the file, the line and what is wrong, and nothing repaired in silence."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from hydractl.data import open_data
from hydractl.errors import HydraError, InputError, UsageError
from tests.running import refused


def refusal(path: Path, content: str | bytes, query: str = "", **options: object) -> HydraError:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    error = refused(HydraError, open_data, f"{path}{query}", **options)  # type: ignore[arg-type]
    assert "\n" not in error.message and str(path) in error.message
    return error


@pytest.mark.fault(28)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_what_is_not_utf8_is_named_by_line_and_byte(tmp_path: Path, name: str) -> None:
    first, row = {
        "a.jsonl": (b'{"text": "x"}', b'{"text": "caf\xe9"}'),
        "a.csv": (b"text,n", b'0123456789,"caf\xe9"'),
        "a.tsv": (b"text\tn", b"0123456789\t_caf\xe9"),
    }[name]
    error = refusal(tmp_path / name, first + b"\n" + row + b"\n")
    place = row.index(b"\xe9") + 1
    assert error.message.endswith(f"line 2 is not UTF-8 text: byte {place} of the line is 0xe9")
    assert isinstance(error, InputError) and error.hint == "save the file as UTF-8"


def test_utf16(tmp_path: Path) -> None:
    assert "line 1 is not UTF-8 text: byte 1" in refusal(tmp_path / "a.csv", "text\nx\n".encode("utf-16")).message


JSON_LINES = {
    '{"text": "a"': "line 2 is not JSON: Expecting ',' delimiter at column 13",
    '{"text": "a", "text": "b"}': "line 2 has the key 'text' twice in one object",
    '["a"]': "line 2 is no JSON object but ['a']",
    '{"text": 1}': "line 2 has 1 for 'text', which is no text",
    '{"text": null}': "line 2 has no 'text'",
    '{"sentence": "a"}': "line 2 has no 'text'",
    '{"text": "\\ud800"}': "line 2 contains half a character (an unpaired surrogate)",
    '{"text": "a", "x": NaN}': "line 2 contains NaN, which is not a number in JSON",
    '{"text": "a", "text_b": "b"}': "line 2 is a pair with 'text_b', and other rows are single texts",
    "[" * 100_000: "line 2 is nested too deeply to be a hydractl file",
}


@pytest.mark.parametrize("line", JSON_LINES, ids=lambda line: line[:20])
def test_a_broken_json_line(tmp_path: Path, line: str) -> None:
    error = refusal(tmp_path / "a.jsonl", '{"text": "x"}\n' + line + '\r\n{"text": "y"}\n')
    assert isinstance(error, InputError) and error.message.endswith("rows that cannot be used: 1")
    assert error.problems == [JSON_LINES[line]]


def test_all_broken_rows_are_listed_up_to_a_limit(tmp_path: Path) -> None:
    good, bad = '{"text": "x"}\n', "{\n"
    error = refusal(tmp_path / "a.jsonl", good + bad + good + bad)
    assert error.message.endswith("rows that cannot be used: 2")
    assert [p[:7] for p in error.problems] == ["line 2 ", "line 4 "]
    error = refusal(tmp_path / "a.jsonl", bad * 1000)
    assert error.message.endswith("rows that cannot be used: 20 or more") and len(error.problems) == 20


def test_pairs_and_single_texts_do_not_mix(tmp_path: Path) -> None:
    rows = [{"text_a": "a", "text_b": "b"}, {"text_a": "c"}, {"text_a": "c", "text_b": None}]
    error = refusal(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert error.problems == [f"line {n} has no 'text_b', and other rows are pairs" for n in (2, 3)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_wrong_number_of_fields(tmp_path: Path, name: str) -> None:
    content = "text,label\na,1\n\nb\nc,1,x\nd,0\n"
    error = refusal(tmp_path / name, content if name == "a.csv" else content.replace(",", "\t"))
    expected = ["line 4 has 1 field, not 2 (text, label)", "line 5 has 3 fields, not 2 (text, label)"]
    assert error.problems == expected


def test_lines_are_counted_in_the_file_and_not_in_records(tmp_path: Path) -> None:
    error = refusal(tmp_path / "a.csv", 'text,label\n"a\nb\nc",1\nd\n')
    assert error.problems == ["line 5 has 1 field, not 2 (text, label)"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [('"never closed,1\nx,1\n', "it opens a quote that is never closed"), ('"a"b,1\n', "',' expected after '\"'")],
)
def test_wrong_quotes_in_a_csv(tmp_path: Path, row: str, reason: str) -> None:
    error = refusal(tmp_path / "a.csv", f"text,label\na,1\n{row}")
    assert error.problems == [f"line 3 cannot be read as comma-separated values: {reason}"]


def test_a_missing_column_shows_what_there_is(tmp_path: Path) -> None:
    error = refusal(tmp_path / "a.csv", "Text,lbl\nx,1\n")
    assert error.message.endswith("no column of the text: it has 'Text', 'lbl'")
    assert error.hint.startswith("near: 'Text'; name the column with ?text=NAME")
    assert "without a header" in error.hint
    error = refusal(tmp_path / "a.jsonl", '{"body": "x"}\n')
    assert error.message.endswith("no key of the text: it has 'body'") and "header" not in str(error.hint)
    error = refusal(tmp_path / "a.tsv", "text\tgold\nx\t1\n", "?label=golde&text=txt")
    assert error.message.endswith("no column for ?text=txt and ?label=golde: it has 'text', 'gold'")
    assert error.hint == "near: 'text', 'gold'"


def test_columns_that_cannot_be_decided(tmp_path: Path) -> None:
    error = refusal(tmp_path / "a.csv", "text,sentence\nx,y\n")
    assert "'text' and 'sentence' may both be the text" in error.message and "?text=NAME" in str(error.hint)
    assert "the column 'text' is there twice" in refusal(tmp_path / "a.csv", "text,text\nx,y\n").message
    assert "two things" in refusal(tmp_path / "a.csv", "text,label\nx,y\n", "?text_b=text").message


def test_settings_that_do_not_apply(tmp_path: Path) -> None:
    error = refusal(tmp_path / "a.jsonl", '{"text": "x"}\n', "?columns=label,text")
    assert isinstance(error, UsageError) and error.hint == "known here: text, text_b, label"
    error = refusal(tmp_path / "a.csv", "text\nx\n", "?root=x")
    assert isinstance(error, UsageError) and error.hint == "known here: text, text_b, label"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.csv", ""), ("a.csv", "text,label\n"), ("a.tsv", "text\tlabel\n")],
)
def test_nothing_in_it(tmp_path: Path, name: str, content: str) -> None:
    assert isinstance(refusal(tmp_path / name, content), InputError)


def test_damaged_gzip_files(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"text": "x"}\n' * 1000)
    assert "cannot read the file" in refusal(tmp_path / "a.jsonl.gz", b'{"text": "x"}\n').message
    assert "cannot read the file" in refusal(tmp_path / "a.jsonl.gz", whole[:-10]).message
    assert "cannot read the file" in refusal(tmp_path / "a.jsonl.gz", whole[:20] + b"\0\0\0\0" + whole[24:]).message


LABELS = {
    '{"text": "a", "label": 1}|{"text": "b"}|{"text": "c"}': "no label for sample a.jsonl#1, and for 1 more",
    '{"text": "a"}|{"text": "b", "label": 1}': "no label for sample a.jsonl#0",
    '{"text": "a", "label": 1}|{"text": "b", "label": "x"}': "label 'x' of sample a.jsonl#1 is a name, others are numbers",  # noqa: E501
    '{"text": "a", "label": 1.0}': "label 1.0 of sample a.jsonl#0 is neither an integer nor a name",
    '{"text": "a", "label": true}': "label True of sample a.jsonl#0 is neither an integer nor a name",
    '{"text": "a", "label": ["x"]}': "label ['x'] of sample a.jsonl#0 is neither an integer nor a name",
    '{"text": "a", "label": 9223372036854775808}': "label 9223372036854775808 of sample a.jsonl#0 is beyond 2^63",
}


@pytest.mark.parametrize("content", LABELS)
def test_labels_that_cannot_be_used(tmp_path: Path, content: str) -> None:
    error = refusal(tmp_path / "a.jsonl", content.replace("|", "\n"))
    assert error.problems == [LABELS[content]]


@pytest.mark.fault(27)
def test_labels_out_of_range_and_missing(tmp_path: Path) -> None:
    labelled = '{"text": "a", "label": 0}\n{"text": "b", "label": -1}\n'
    assert "label -1 of sample a.jsonl#1 is negative" in refusal(tmp_path / "a.jsonl", labelled).message
    error = refusal(tmp_path / "a.csv", "text,Label\na,1\n", need_labels=True)
    assert "no label for sample a.csv#0" in error.message
    assert error.hint is not None and "text, Label" in error.hint and "?label=NAME" in error.hint
    asked = refusal(tmp_path / "a.jsonl", '{"text": "a", "lbl": 1}\n', "?label=gold")
    assert asked.message.endswith("no key for ?label=gold: it has 'text', 'lbl'")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = refusal(tmp_path / "a.parquet", b"PAR1")
    assert isinstance(error, UsageError) and "needs pyarrow" in error.message
    assert error.hint == "pip install 'hydractl[parquet]'"


NEARLY = {
    "a.csv": (b"text;label\nx;0\n", "its columns are separated by ';': write it with commas"),
    "b.csv": (b"text\tlabel\nx\t0\n", "its columns are separated by '\\t': name it FILE.tsv"),
    "c.csv": (b"text|label\nx|0\n", "its columns are separated by '|': write it with commas"),
    "a.tsv": (b"text,label\nx,0\n", "its columns are separated by ',': name it FILE.csv"),
    "a.jsonl": (gzip.compress(b'{"text": "x"}\n'), "it is packed by gzip: end its name in .gz"),
    "a.json": (b'[{"text": "x"}]', "write an object a line"),
}


@pytest.mark.fault(109)
@pytest.mark.parametrize("name", NEARLY)
def test_a_file_that_is_nearly_right_says_what_to_do(tmp_path: Path, name: str) -> None:
    content, hint = NEARLY[name]
    error = refusal(tmp_path / name, content)
    assert isinstance(error, InputError) and hint in str(error.hint)
