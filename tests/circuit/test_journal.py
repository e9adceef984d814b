"""The journal: no kill loses more than the line being written, and nobody resumes another search by mistake."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from hydractl.circuit.journal import Journal, NoJournal
from hydractl.errors import InputError, OutputError, StorageError
from hydractl.files import atomic
from hydractl.log import Log
from tests.running import refused

FINGERPRINT = {"model": "ab" * 32, "batch_size": 16, "dtype": "float32", "objective": ["acc", "ood"]}
ENVIRONMENT = {"threads": 2, "torch": "2.13.0"}


def line(**values: Any) -> str:
    """A line of a journal: its object, whose last key is the CRC of all that stands before it."""
    beginning = json.dumps(values)[:-1]
    return f'{beginning}, "crc": {zlib.crc32(beginning.encode())}}}\n'


HEADER = line(schema="hydractl.journal/3", fingerprint=FINGERPRINT, environment=ENVIRONMENT)


class Heard(Log):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def info(self, message: str) -> None:
        self.lines.append(message)

    def warn(self, message: str) -> None:
        self.lines.append(f"warning: {message}")


def begin(path: Path, log: Log | None = None, **changed: Any) -> Journal:
    settings: dict[str, Any] = {"resume": False, "force": False, **changed}
    fingerprint, environment = settings.pop("fingerprint", FINGERPRINT), settings.pop("environment", ENVIRONMENT)
    return Journal.open(path, fingerprint, environment, log=log or Heard(), **settings)


def resume(path: Path, log: Log | None = None, **changed: Any) -> Journal:
    return begin(path, log, resume=True, **changed)


def written(path: Path, *records: dict[str, Any], **changed: Any) -> Path:
    """A journal with records, closed."""
    with begin(path, **changed) as journal:
        for record in records:
            journal.append(record)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "circuit [1].json.journal"


# --- begin, resume, start over ----------------------------------------------------------------------------------------


def test_what_is_appended_is_found_again(path: Path) -> None:
    records = [{"step": 1, "text": "ü\n\u2028"}, {"step": 2, "counts": [3, None, 1.5]}]
    with begin(path) as journal:
        assert (journal.records, journal.order) == ([], None)
        journal.append(records[0])
        journal.set_order([2, 0, 1])
        journal.append(records[1])
        assert journal.order == [2, 0, 1]
    log = Heard()
    with resume(path, log) as journal:
        assert (journal.records, journal.order, log.lines) == (records, [2, 0, 1], [])
        journal.append({"step": 3})
    with resume(path) as journal:
        assert journal.records == [*records, {"step": 3}]
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[0] + "\n" == HEADER
    assert lines[2] + "\n" == line(order=[2, 0, 1])


def test_every_line_is_in_the_file_as_soon_as_it_is_appended(path: Path) -> None:
    with begin(path) as journal:
        assert path.read_text() == HEADER
        journal.append({"a": 1})
        assert path.read_text() == HEADER + line(a=1)
        for bad in ({"x": float("nan")}, {"x": {1, 2}}):
            with pytest.raises((ValueError, TypeError)):
                journal.append(bad)
        assert path.read_text() == HEADER + line(a=1)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_recorded_search_is_not_overwritten_unasked(path: Path) -> None:
    written(path, {"a": 1})
    caught = refused(OutputError, begin, path)
    assert caught.message == f"a search is recorded in {path}"
    assert caught.hint == "add --resume to go on with it, or --force to start over"
    with begin(path, force=True) as journal:
        assert journal.records == []
        journal.append({"b": 2})
    assert path.read_text() == HEADER + line(b=2)
    with resume(path, force=True) as journal:
        assert journal.records == [{"b": 2}], "--force is about the output then"


@pytest.mark.parametrize("option", ["neither", "resume", "force"])
def test_a_journal_without_a_record_does_not_stay(option: str, path: Path) -> None:
    log = Heard()
    with begin(path, log, resume=option == "resume", force=option == "force"):
        assert path.exists()
    assert not path.exists()
    assert log.lines == ([f"no search is recorded in {path}: starting afresh"] if option == "resume" else [])
    written(path, {"a": 1})
    with resume(path):
        pass
    assert path.exists(), "the records were there before"
    with begin(path, force=True):
        assert path.read_text() == HEADER
    assert not path.exists()


def test_nothing_is_kept_without_a_file() -> None:
    with NoJournal() as journal:
        journal.append({"a": 1})
        journal.set_order([1])
        journal.sync()
        assert (journal.records, journal.order) == ([], [1])


# --- another search, another environment ------------------------------------------------------------------------------


@pytest.mark.fault(3)
def test_another_search_is_refused_with_every_difference(path: Path) -> None:
    ends_otherwise = {"templates": "x" * 100 + "a", "old\x1b": "x" * 100}
    written(path, {"a": 1}, fingerprint={**FINGERPRINT, "batch_size": 8, **ends_otherwise})
    before = path.read_bytes()
    now = {"dtype": "bfloat16", "max_length": 1, "batch_size": 8.0, "templates": "x" * 100 + "b"}
    caught = refused(InputError, resume, path, fingerprint={**FINGERPRINT, **now})
    assert caught.message == f"{path} records another search"
    assert caught.problems == [
        "batch_size: 8 in the journal, 8.0 now",
        "dtype: 'float32' in the journal, 'bfloat16' now",
        "max_length: nothing in the journal, 1 now",
        f"templates: '{'x' * 56}... in the journal, another value now",
        f"'old\\x1b': '{'x' * 56}... in the journal, nothing now",
    ]
    assert path.read_bytes() == before


def test_tuples_and_names_that_are_no_text_are_the_same_search(path: Path) -> None:
    odd = {"sites": (1, 2), "data": "\udcff.npz"}
    written(path, {"a": 1}, fingerprint=odd)
    with resume(path, fingerprint=odd) as journal:
        assert journal.records == [{"a": 1}]


@pytest.mark.fault(3)
def test_another_environment_is_a_warning(path: Path) -> None:
    written(path, {"a": 1})
    log = Heard()
    with resume(path, log, environment={"threads": 4, "torch": "2.13.0"}) as journal:
        assert journal.records == [{"a": 1}]
    assert log.lines == ["warning: the search was begun in another environment: threads: 2 in the journal, 4 now"]


# --- broken files -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(2)
@pytest.mark.parametrize("end", [b'{"b": 2}', b'{"b', b"{", b'{"b\n', b"\x00\x00", b"\n", b'{"b": "\xc3'])
def test_a_half_written_last_line_is_dropped(end: bytes, path: Path) -> None:
    path.write_bytes((HEADER + line(a=1)).encode() + end)
    log = Heard()
    with resume(path, log) as journal:
        assert journal.records == [{"a": 1}]
        journal.append({"c": 3})
    assert log.lines == [f"the last line of {path} is half-written: dropped"]
    assert path.read_text() == HEADER + line(a=1) + line(c=3)


@pytest.mark.parametrize("size", [0, 1, len(HEADER) // 2, len(HEADER) - 1])
def test_killed_at_birth(size: int, path: Path) -> None:
    path.write_text(HEADER[:size])
    log = Heard()
    with resume(path, log, fingerprint={"other": 1}) as journal:
        assert journal.records == []
        journal.append({"a": 1})
    note = [f"the header of {path} is half-written: dropped"] if size else []
    assert log.lines == [*note, f"no search is recorded in {path}: starting afresh"]
    with resume(path, fingerprint={"other": 1}) as journal:
        assert journal.records == [{"a": 1}]


@pytest.mark.fault(2)
@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ('{"a\n' + line(b=2), [2]),
        (line(a=1) + '\n{"a": 1}\n[1]\n' + line(c=3), [3, 4, 5]),
        ('{"a\n{"b', [2]),
        (line(a=1).replace("1", "2", 1) + line(b=2), [2]),
        ('{"a": "\xff"}\n' + line(b=2), [2]),
        ("[" * 100_000 + "\n" + line(b=2), [2]),
        (line(a=1) + line(deep="[]").replace('"[]"', "[" * 100_000), [3]),
    ],
)
def test_a_broken_line_elsewhere(content: str, problems: list[int], path: Path) -> None:
    path.write_bytes(HEADER.encode() + content.encode("latin-1") + b"{")
    before = path.read_bytes()
    caught = refused(InputError, resume, path)
    expected = [f"line {number} is not as it was written" for number in problems]
    assert (caught.message, caught.problems) == (f"{path} is broken", expected)
    assert path.read_bytes() == before


@pytest.mark.parametrize("beginning", ['{"a": NaN', '{"a": ' + "[" * 100_000, '{"a": 1, "a": 1', "[1"])
def test_a_line_whose_checksum_is_right_is_still_parsed_strictly(beginning: str, path: Path) -> None:
    forged = f'{beginning}, "crc": {zlib.crc32(beginning.encode())}}}\n'
    path.write_text(HEADER + forged + line(b=2))
    assert refused(InputError, resume, path).problems == ["line 2 is not as it was written"]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + HEADER.encode(), HEADER.encode("utf-16"), b"\x00" * 400, b"my notes, no newline", b"{}\n",
        HEADER.replace("journal/3", "journal/1").encode(), HEADER.replace(" ", "").encode(),
    ],
)  # fmt: skip
def test_a_file_of_another_program(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no hydractl.journal/3 file"):
        resume(path)
    assert path.read_bytes() == content


def test_a_search_of_another_version_is_refused_with_that_reason(path: Path) -> None:
    path.write_text(HEADER.replace("journal/3", "journal/0"))
    with pytest.raises(InputError, match="records a search that another version of hydractl began"):
        resume(path)


# --- files and folders ------------------------------------------------------------------------------------------------


@pytest.mark.fault(10)
@pytest.mark.parametrize("option", ["resume", "force"])
def test_what_is_no_file_is_refused(option: str, path: Path, tmp_path: Path) -> None:
    how = {"resume": option == "resume", "force": option == "force"}
    caught = refused(OutputError, begin, tmp_path / "no" / "a.journal", **how)
    assert caught.message == f"the folder of the journal does not exist: {tmp_path / 'no'}"
    path.mkdir()
    with pytest.raises(OutputError, match="Is a directory"):
        begin(path, **how)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(OutputError):
        begin(path, **how)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="symbolic link"):
        begin(path, **how)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.fault(11)
def test_one_process_at_a_time(path: Path) -> None:
    with begin(path) as journal:
        for option in ("resume", "force"):
            caught = refused(OutputError, begin, path, **{option: True})
            assert caught.message == f"another process is writing {path}"
        journal.append({"a": 1})
    assert path.read_text() == HEADER + line(a=1)


def test_a_file_that_its_owner_removes_is_not_the_one_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = atomic.lock

    def lock_late(file: Any, path: Path) -> None:
        monkeypatch.setattr(atomic, "lock", lock)
        path.unlink()
        lock(file, path)

    monkeypatch.setattr(atomic, "lock", lock_late)
    written(path, {"a": 1})
    assert path.read_text() == HEADER + line(a=1)


FULL = """
import resource, sys
from pathlib import Path
from hydractl.circuit.journal import Journal
from hydractl.errors import StorageError
from hydractl.log import Log
path = Path(sys.argv[1])
with Journal.open(path, {}, {}, resume=False, force=False, log=Log()) as journal:
    journal.append({"a": 1})
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
    try:
        journal.append({"b": "x" * 100})
    except StorageError as error:
        print(error.message)
    assert path.stat().st_size == size
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    journal.append({"c": 3})
"""


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.fault(9)
def test_a_full_disk_leaves_whole_lines(path: Path) -> None:
    out, err = run(FULL, path).communicate(timeout=60)
    assert (out, err) == (f"cannot write {path}: File too large\n", "")
    with resume(path, fingerprint={}, environment={}) as journal:
        assert journal.records == [{"a": 1}, {"c": 3}]


@pytest.mark.fault(9)
def test_no_space_for_the_header_leaves_nothing(path: Path) -> None:
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        with pytest.raises(StorageError):
            begin(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not path.exists()
