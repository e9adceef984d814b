"""Writing: no failure, kill or second process leaves half a result, and none loses the old one."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from filelock import lock_descriptor

from hydractl.errors import OutputError, StorageError
from hydractl.files.atomic import Output, storage_error, write_bytes, write_json
from tests.running import refused


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def write(path: Path, content: bytes = b"new", *, force: bool = False) -> Path:
    with Output(path, force=force) as output:
        return write_bytes(output, content)


def write_folder(path: Path, content: str, *, force: bool = False) -> None:
    with Output(path, force=force, folder=True) as output:
        (output.temporary / "sub").mkdir()
        (output.temporary / "sub" / "file").write_text(content)
        output.commit()


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a program that uses hydractl in a process of its own."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys\nfrom pathlib import Path\nfrom hydractl.files.atomic import *\n" + script,
        ]
        + [str(a) for a in arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


HOLD = """
with Output(sys.argv[1], force=True, folder=len(sys.argv) > 2) as output:
    if output.is_folder:
        (output.temporary / "part").write_text("half")
    else:
        with output.opened() as handle:
            handle.write(b"half of the result")
            handle.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    output.commit()
"""


@contextmanager
def holder(path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of writing ``path``."""
    process = start(HOLD, path, *more)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL


# --- the good case ----------------------------------------------------------------------------------------------------


def test_a_new_file_is_written_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with Output(path) as output:
        assert listing(tmp_path) == [".a.json.hydractl-tmp"], "the target appears only when it is complete"
        assert write_json(output, {"b": 1, "a": "ü"}) == path
    assert listing(tmp_path) == ["a.json"]
    assert path.read_bytes() == '{\n  "b": 1,\n  "a": "ü"\n}\n'.encode()


def test_an_exception_keeps_the_old_file_and_comes_through(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), Output(path, force=True) as output, output.opened() as handle:
        handle.write(b"new" * 10_000)
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["a.st"]


def test_writing_again_starts_from_the_beginning(tmp_path: Path) -> None:
    with Output(tmp_path / "a") as output:
        with output.opened() as handle:
            handle.write(b"a longer first attempt")
        with output.opened() as handle:
            handle.write(b"second")
        output.commit()
    assert (tmp_path / "a").read_bytes() == b"second"


@pytest.mark.fault(35)
def test_strange_names(tmp_path: Path) -> None:
    for name in ("ein Ort – ünïcode.st", "-o", "a\nb", "x" * 230):
        assert write(tmp_path / name).read_bytes() == b"new"


# --- refused before any work ------------------------------------------------------------------------------------------


@pytest.mark.fault(12)
def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(b"old")
    caught = refused(OutputError, Output, path)
    assert caught.message == f"the output exists: {path}"
    assert caught.hint == "add --force to replace it, or choose another name"
    assert caught.exit_code == 5
    assert (path.read_bytes(), listing(tmp_path)) == (b"old", ["a.st"])
    write(path, force=True)
    assert path.read_bytes() == b"new"


@pytest.mark.fault(10)
def test_a_missing_folder(tmp_path: Path) -> None:
    caught = refused(OutputError, Output, tmp_path / "no" / "a.st")
    assert caught.message == f"the folder of the output does not exist: {tmp_path / 'no'}"
    assert caught.hint == f"mkdir -p {tmp_path / 'no'}"
    caught = refused(OutputError, Output, tmp_path / "a space" / "a.st")
    assert caught.hint == f"mkdir -p '{tmp_path / 'a space'}'"


@pytest.mark.fault(10)
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_where_a_file_should_be(force: bool, tmp_path: Path) -> None:
    (tmp_path / "a.st").mkdir()
    caught = refused(OutputError, Output, tmp_path / "a.st", force=force)
    assert caught.message == f"the output is a folder: {tmp_path / 'a.st'}"
    with pytest.raises(OutputError, match=r"^the output is a folder: "):
        Output("", force=force)


@pytest.mark.parametrize("force", [False, True])
def test_a_file_where_a_folder_should_be(force: bool, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(OutputError, match=r"^the output is a file: "):
        Output(tmp_path / "out", force=force, folder=True)


def test_a_device_or_pipe_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(OutputError, match=r"^the output is no regular file: "):
            Output(tmp_path / name, force=True)
    with pytest.raises(OutputError, match=r"^the output is no regular file: |not writable: /dev$"):  # by any user
        Output(tmp_path / "device", force=True)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    for length in (250, 300):  # the first has no room for the temporary name, the second is too long itself
        with pytest.raises(OutputError, match=r"File name too long$"):
            Output(tmp_path / ("x" * length))


@pytest.mark.fault(10)
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(OutputError, match=r"^the folder of the output is not writable: "):
            Output(tmp_path / "a.st")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.fault(13)
def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".a.st.hydractl-tmp").symlink_to(victim)
    with pytest.raises(OutputError, match=r"^cannot write "):
        Output(tmp_path / "a.st")
    assert victim.read_bytes() == b"precious"


# --- other processes --------------------------------------------------------------------------------------------------


@pytest.mark.fault(11)
def test_a_second_process_is_refused_and_the_first_finishes(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    with holder(path) as first:
        caught = refused(OutputError, Output, path)
        assert caught.message == f"another process is writing {path}"
        with pytest.raises(OutputError, match="another process is writing"):
            Output(tmp_path / "." / "a.st", force=True)
        assert first.communicate("go on\n", timeout=30)[1] == ""
    assert path.read_bytes() == b"half of the result"
    assert listing(tmp_path) == ["a.st"]


@pytest.mark.fault(6, 11)
def test_a_kill_before_the_rename_keeps_the_old_file_and_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(b"old")
    with holder(path) as process:
        kill(process)
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == [".a.st.hydractl-tmp", "a.st"]
    with pytest.raises(OutputError, match=r"^the output exists"):
        Output(path)
    with Output(path, force=True) as output:
        assert output.temporary.read_bytes() == b"", "nothing of the dead run gets into the new one"
        write_bytes(output, b"new")
    assert path.read_bytes() == b"new"
    assert listing(tmp_path) == ["a.st"]


@pytest.mark.fault(6)
def test_the_orphan_of_a_kill_goes_with_the_next_failure_too(tmp_path: Path) -> None:
    (tmp_path / ".a.st.hydractl-tmp").write_bytes(b"orphan")
    with Output(tmp_path / "a.st"):
        pass
    assert listing(tmp_path) == []


def test_an_output_that_appears_while_the_lock_is_taken_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.st"
    open_and_lock = Output._open_and_lock

    def slow(self: Output) -> IO[bytes]:
        path.write_bytes(b"of another process")
        return open_and_lock(self)

    monkeypatch.setattr(Output, "_open_and_lock", slow)
    with pytest.raises(OutputError, match=r"^the output exists"):
        Output(path)
    assert path.read_bytes() == b"of another process"
    assert listing(tmp_path) == ["a.st"]


def test_a_lock_on_a_file_that_was_just_renamed_away_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, calls = tmp_path / "a.st", lock_descriptor, []

    def late(descriptor: int, *, blocking: bool) -> bool:
        if not calls:  # the owner commits after this process has opened its temporary file
            os.replace(tmp_path / ".a.st.hydractl-tmp", path)
        calls.append(descriptor)
        return real(descriptor, blocking=blocking)

    monkeypatch.setattr("hydractl.files.atomic.lock_descriptor", late)
    with Output(path, force=True) as output:
        assert listing(tmp_path) == [".a.st.hydractl-tmp", "a.st"]
        with output.opened() as handle:
            handle.write(b"new")
        assert path.read_bytes() == b""
        output.commit()
    assert path.read_bytes() == b"new"
    assert len(calls) == 2


RACE = """
import multiprocessing
from hydractl.errors import OutputError

def run(barrier, number, rounds, won):
    for index in range(rounds):
        barrier.wait()
        try:
            with Output(Path(sys.argv[1]) / f"out{index}") as output:
                write_bytes(output, str(number).encode() * 100_000)
            with won.get_lock():
                won[index] += 1
        except OutputError:
            pass

context = multiprocessing.get_context("fork")
barrier, won = context.Barrier(4), context.Array("i", 25)
processes = [context.Process(target=run, args=(barrier, number, 25, won)) for number in range(4)]
for process in processes:
    process.start()
for process in processes:
    process.join()
print(list(won))
"""


@pytest.mark.fault(11)
def test_of_several_processes_exactly_one_wins(tmp_path: Path) -> None:
    out, err = start(RACE, tmp_path).communicate(timeout=60)
    assert (out.strip(), err) == (str([1] * 25), "")
    assert listing(tmp_path) == sorted(f"out{i}" for i in range(25))
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert len(content) == 100_000
        assert len(set(content)) == 1


# --- modes and links --------------------------------------------------------------------------------------------------


@pytest.mark.fault(13)
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_follows_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    orphan, old = tmp_path / ".b.hydractl-tmp", tmp_path / "c"
    for path in (orphan, old):
        path.write_bytes(b"x")
        path.chmod(0o640)
    before = os.umask(umask)
    try:
        for name in "abc":
            write(tmp_path / name, force=True)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "abc"] == [mode] * 3


@pytest.mark.fault(13)
def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "real.st").write_bytes(b"old")
    (tmp_path / "a.st").symlink_to(Path("store") / "real.st")
    with pytest.raises(OutputError, match=r"^the output exists"):
        Output(tmp_path / "a.st")
    assert write(tmp_path / "a.st", force=True) == tmp_path / "a.st"
    assert os.readlink(tmp_path / "a.st") == "store/real.st"
    assert (tmp_path / "store" / "real.st").read_bytes() == b"new"
    assert listing(tmp_path / "store") == ["real.st"]


def test_a_dangling_link_gets_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.st").symlink_to("real.st")
    write(tmp_path / "a.st")
    assert (tmp_path / "a.st").is_symlink()
    assert (tmp_path / "real.st").read_bytes() == b"new"


# --- no space ---------------------------------------------------------------------------------------------------------

LIMITED = """
import resource
from hydractl.errors import HydraError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with Output(sys.argv[1], force=True) as output:
        write_bytes(output, b"x" * int(sys.argv[2]))
except HydraError as error:
    print(type(error).__name__, error.exit_code, error.message, error.hint, sep="|")
"""


@pytest.mark.fault(9)
@pytest.mark.parametrize("size", [1001, 5_000_000])  # fails when the buffer is flushed; fails in the write itself
def test_a_full_disk_keeps_the_old_file_and_leaves_no_other(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(b"old")
    out, err = start(LIMITED, path, size).communicate(timeout=60)
    hint = "free some space or choose another folder with -o"
    assert (out.strip(), err) == (f"StorageError|7|cannot write {path}: File too large|{hint}", "")
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["a.st"]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What reaches the disk, and when it gets its name: ``(what, inode, size)``, in order."""
    seen: list[tuple[str, int, int]] = []
    sync, replace = os.fsync, os.replace

    def note(what: str, status: os.stat_result) -> None:
        seen.append((what, status.st_ino, status.st_size))

    def fsync(handle: int) -> None:
        note("sync", os.fstat(handle))
        sync(handle)

    def rename(source: Path, target: Path) -> None:
        note("rename", os.stat(source))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    return seen


@pytest.mark.fault(8)
def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_thereafter(
    disk: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.st", b"n" * 1001)
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert [(what, inode) for what, inode, _ in disk] == [("sync", file), ("rename", file), ("sync", folder)]
    assert disk[0][2] == 1001, "all of it was flushed"


@pytest.mark.fault(8)
def test_so_is_every_file_of_a_folder(disk: list[tuple[str, int, int]], tmp_path: Path) -> None:
    write_folder(tmp_path / "out", "content")
    file, folder = (tmp_path / "out" / "sub" / "file").stat().st_ino, (tmp_path / "out").stat().st_ino
    events = [(what, inode) for what, inode, _ in disk]
    assert events.index(("sync", file)) < events.index(("sync", folder)) < events.index(("rename", folder))
    assert events[-1] == ("sync", tmp_path.stat().st_ino)


@pytest.mark.fault(9)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO])
def test_errors_of_the_disk_have_their_own_exit_code(number: int) -> None:
    error = storage_error(OSError(number, os.strerror(number)), Path("a.st"))
    assert isinstance(error, StorageError)
    assert error.message == f"cannot write a.st: {os.strerror(number)}"
    other = storage_error(PermissionError(errno.EACCES, "Permission denied"), Path("a.st"))
    assert (type(other), other.message) == (OutputError, "cannot write a.st: Permission denied")


# --- folders ----------------------------------------------------------------------------------------------------------


def old_folder(path: Path) -> None:
    path.mkdir()
    (path / "old").write_text("old")


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", "one")
    assert (tmp_path / "out" / "sub" / "file").read_text() == "one"
    (tmp_path / "out" / "more").write_text("gone afterwards")
    with pytest.raises(OutputError, match=r"^the output exists"):
        write_folder(tmp_path / "out", "two")
    write_folder(tmp_path / "out", "two", force=True)
    assert listing(tmp_path / "out") == ["sub"]
    assert (tmp_path / "out" / "sub" / "file").read_text() == "two"
    assert listing(tmp_path) == ["out"]


def test_a_folder_that_is_not_committed_leaves_the_old_one(tmp_path: Path) -> None:
    old_folder(tmp_path / "out")
    with pytest.raises(ZeroDivisionError), Output(tmp_path / "out", force=True, folder=True) as output:
        (output.temporary / "x").write_text("x")
        raise ZeroDivisionError
    assert listing(tmp_path) == ["out"]
    assert listing(tmp_path / "out") == ["old"]


@pytest.mark.fault(6)
def test_a_killed_folder_leaves_the_old_one_and_is_cleared_away(tmp_path: Path) -> None:
    old_folder(tmp_path / "out")
    with holder(tmp_path / "out", "folder") as process:
        with pytest.raises(OutputError, match="another process is writing"):
            Output(tmp_path / "out", force=True, folder=True)
        kill(process)
    assert listing(tmp_path / "out") == ["old"]
    write_folder(tmp_path / "out", "new", force=True)
    assert listing(tmp_path / "out") == ["sub"]
    assert listing(tmp_path) == ["out"]


@pytest.mark.fault(6, 53)
def test_a_kill_between_the_two_renames_of_a_folder_loses_nothing(tmp_path: Path) -> None:
    old_folder(tmp_path / ".out.hydractl-old")
    (tmp_path / ".out.hydractl-tmp").mkdir()
    with pytest.raises(OutputError, match=r"^the output exists"):
        Output(tmp_path / "out", folder=True)
    assert listing(tmp_path) == ["out"]
    assert listing(tmp_path / "out") == ["old"]


def test_a_failing_rename_brings_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_folder(tmp_path / "out")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if source.name == ".out.hydractl-tmp":
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr("hydractl.files.atomic.os.replace", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        write_folder(tmp_path / "out", "new", force=True)
    assert listing(tmp_path / "out") == ["old"]
    assert listing(tmp_path) == ["out"]
