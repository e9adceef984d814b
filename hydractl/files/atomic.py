"""Writing files so that a failure, a kill or a second process can never leave half a result.

Every artefact is written to a temporary name beside its target, flushed to the disk and renamed. The temporary file
also carries the lock: whoever holds it owns the output, and the operating system frees the lock of a dead process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from hydractl.errors import HydraError, OutputError, StorageError
from hydractl.files.inputs import refuse_input
from hydractl.jsonio import json_bytes

_STORAGE_ERRNOS = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO}


def storage_error(error: OSError, path: Path) -> HydraError:
    """Turn an operating system error while writing ``path`` into the error a person gets."""
    if error.errno in _STORAGE_ERRNOS:
        return StorageError(
            f"cannot write {path}: {error.strerror}", hint="free some space or choose another folder with -o"
        )
    return OutputError(f"cannot write {path}: {error.strerror or error}")


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn errors of the operating system inside into those a person gets; ``path`` is read or written there."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def check_outputs(paths: Iterable[Path], *, force: bool, folder: bool = False) -> None:
    """Claim outputs and let go of them at once: a dry run meets the errors the real run would meet.

    Raises:
        OutputError: one of them cannot be claimed, see :class:`Output`.
    """
    for path in paths:
        with Output(path, force=force, folder=folder):
            pass


def make_folder(folder: Path) -> str:
    """Return the command that makes a folder, for hints."""
    quoted = shlex.quote(str(folder))
    return f"mkdir -p {quoted}"


def file_path(text: str) -> Path:
    """Return the path of an output that is one file.

    Raises:
        OutputError: for what can only name a folder, such as ``out/`` or ``.``; a path would forget the slash.
    """
    path = Path(text)
    if text.endswith("/") or not path.name:
        raise OutputError(f"the output is a file, and {text} names a folder", hint="choose another name with -o")
    return path


def named_apart(path: Path, mark: object, *, folder: bool = False) -> Path:
    """Name one of several outputs: with the mark 1 ``a.st`` is ``a.1.st``; ``vit.taylor-8`` and a folder end in it."""
    suffix = path.suffix
    if folder or not suffix[1:].isalpha():
        suffix = ""
    name = path.name.removesuffix(suffix)
    return path.with_name(f"{name}.{mark}{suffix}")


class Output:
    """One output file (or folder), claimed before any long work starts and replaced in one step at the end.

    Use as a context manager: leaving it without :meth:`commit` removes the temporary file and leaves an old file
    as it was.

    Raises:
        OutputError: at construction, when the target exists and ``force`` is not set, is a folder, its folder is
            missing or read-only, or another process is writing the same output.
    """

    def __init__(self, path: str | Path, *, force: bool = False, folder: bool = False) -> None:
        self.path = Path(path)
        self.is_folder = folder
        # A symbolic link keeps its place: what it points to is replaced.
        self.target = Path(os.path.realpath(self.path))
        self._refuse_bad_target(force=force)
        self.temporary = self._hidden_sibling("tmp")
        self._old = self._hidden_sibling("old")
        # A file is locked itself; a folder cannot be, and has a file beside it.
        self.lock_path = self.temporary
        if folder:
            self.lock_path = self._hidden_sibling("lock")
        self._lock = self._open_and_lock()
        self._committed = False
        try:
            if folder:
                self._prepare_folder()
            self._refuse_bad_target(force=force)  # again: another process may have finished the same output since
        except BaseException:
            self.__exit__()
            raise

    def _hidden_sibling(self, role: str) -> Path:
        """Return the path beside the target for one of the files that an output needs on its way."""
        return self.target.with_name(f".{self.target.name}.hydractl-{role}")

    def _refuse_bad_target(self, *, force: bool) -> None:
        """Refuse what the command reads, a folder that cannot be written to, and a target that is not to be replaced.

        Raises:
            OutputError: saying which, and what to do.
        """
        target = self.target
        parent = target.parent
        refuse_input(self.path, folder=self.is_folder)
        with storing(self.path):  # a name that is too long, a folder that may not be searched
            if not parent.is_dir():
                raise OutputError(f"the folder of the output does not exist: {parent}", hint=make_folder(parent))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise OutputError(f"the folder of the output is not writable: {parent}")
            if not target.exists():
                return
            kind = _kind_words(target)
            wanted_kind = "a file"
            if self.is_folder:
                wanted_kind = "a folder"
            if kind != wanted_kind:
                raise OutputError(f"the output is {kind}: {self.path}", hint="choose another name")
            if not force:
                hint = "add --force to replace it, or choose another name"
                raise OutputError(f"the output exists: {self.path}", hint=hint)

    def _prepare_folder(self) -> None:
        """Make an empty temporary folder, and put back an old target that a killed run had moved aside."""
        with storing(self.path):
            if self._old.exists() and not self.target.exists():
                os.replace(self._old, self.target)  # a run was killed between the two renames of its commit
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.temporary.mkdir()

    def _open_and_lock(self) -> IO[bytes]:
        """Open and lock the temporary file, an empty one."""
        with storing(self.path):
            while True:
                handle = open_locked(self.lock_path, self.path)
                if os.fstat(handle.fileno()).st_size == 0:
                    return handle
                # Left by a killed run: a new file gets the mode that the umask asks for today.
                self.lock_path.unlink()
                handle.close()

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            if self.is_folder:
                shutil.rmtree(self.temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.lock_path.unlink()
        with contextlib.suppress(OSError):  # after a failed write, closing tries in vain to flush the rest
            self._lock.close()

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the temporary file for writing from its beginning."""
        with storing(self.path):
            self._lock.seek(0)
            self._lock.truncate(0)
            yield self._lock

    def adopt(self, path: Path) -> None:
        """Take a finished file of the same folder in the place of the temporary one, for :meth:`commit`."""
        with storing(self.path):
            _sync(path)
            os.replace(path, self.temporary)

    def commit(self) -> Path:
        """Flush to the disk and rename over the target. Returns the path as the caller named it."""
        with storing(self.path):
            if self.is_folder:
                self._commit_folder()
            else:
                self._lock.flush()
                os.fsync(self._lock.fileno())
                os.replace(self.temporary, self.target)
            sync_folder(self.target.parent)
        self._committed = True
        return self.path

    def _commit_folder(self) -> None:
        """Flush every file of the folder to the disk, and rename it to the target; let go of its lock.

        A folder cannot replace another in one step: the old one is moved aside first, and back where that fails.
        """
        for file in sorted(self.temporary.rglob("*")):
            if file.is_file():
                _sync(file)
        sync_folder(self.temporary)
        shutil.rmtree(self._old, ignore_errors=True)
        if self.target.exists():
            os.replace(self.target, self._old)
        try:
            os.replace(self.temporary, self.target)
        except OSError:
            if self._old.exists():
                os.replace(self._old, self.target)
            raise
        shutil.rmtree(self._old, ignore_errors=True)
        self.lock_path.unlink()


def _kind_words(path: Path) -> str:
    """Return what is at a path, as messages call it."""
    if path.is_dir():
        return "a folder"
    if path.is_file():
        return "a file"
    return "no regular file"


def open_locked(path: Path, named: Path, buffering: int = -1) -> IO[bytes]:
    """Open a file for reading and appending, make it where it is not there, and lock it for as long as it is open.

    Raises:
        OutputError: another process has it; ``named`` is what a person calls it.
        OSError: it cannot be opened.
    """
    while True:
        file = open(path, "a+b", buffering=buffering, opener=open_own)  # noqa: SIM115 - open as long as it is locked
        try:
            lock(file, named)
            # Between open and lock its owner may have renamed or removed this file: then the lock is on nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def lock(file: IO[bytes], named: Path) -> None:
    """Lock an open file. The lock of a dead process is free by itself.

    What is written is locked itself, by its descriptor: filelock's locks of paths would leave a file of their own
    beside every output.

    Raises:
        OutputError: another process has it.
    """
    descriptor = file.fileno()
    if not lock_descriptor(descriptor, blocking=False):
        raise OutputError(f"another process is writing {named}", hint="wait for it")


def open_own(path: str, flags: int) -> int:
    """Open a file, but through no symbolic link that somebody put there, and not waiting for the end of a pipe."""
    never_elsewhere = os.O_NOFOLLOW | os.O_NONBLOCK
    all_flags = flags | never_elsewhere
    return os.open(path, all_flags, 0o666)


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems do not allow it, and then there is nothing to do."""
    with contextlib.suppress(OSError):
        _sync(folder)


def _sync(path: Path) -> None:
    """Wait until what is written to a file, or the entries of a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(output: Output, document: Any) -> Path:
    """Write one JSON document and commit it."""
    written = json_bytes(document)
    return write_with(output, lambda handle: handle.write(written))


def write_with(output: Output, write: Callable[[IO[bytes]], Any]) -> Path:
    """Let ``write`` fill the temporary file, then commit it."""
    with output.opened() as handle:
        write(handle)
    return output.commit()
