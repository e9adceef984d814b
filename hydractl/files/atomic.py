"""Writing files so that a failure, a kill or a second process can never leave half a result.

Every artefact is written to a temporary name beside its target, flushed to the disk and renamed. The temporary file
also carries the lock: the process that holds the lock owns the output, and the operating system frees the lock of a
process that has died.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from hydractl.errors import HydraError, OutputError, StorageError
from hydractl.files.inputs import refuse_input
from hydractl.jsonio import json_bytes

_STORAGE_ERRNOS = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO}


def storage_error(error: OSError, path: Path) -> HydraError:
    """Return the error that the user gets for an operating system error while writing ``path``."""
    if error.errno in _STORAGE_ERRNOS:
        return StorageError(
            f"cannot write {path}: {error.strerror}", hint="free some space or choose another folder with -o"
        )
    return OutputError(f"cannot write {path}: {error.strerror or error}")


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn operating system errors inside this context into errors for the user; ``path`` is read or written there."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def check_outputs(paths: Iterable[Path], *, force: bool, folder: bool = False) -> None:
    """Claim outputs and release them at once, so that a dry run meets the errors that the real run would meet.

    Raises:
        OutputError: an output cannot be claimed, see :class:`Output`.
    """
    for path in paths:
        with Output(path, force=force, folder=folder):
            pass


def make_folder(folder: Path) -> str:
    """Return the shell command that creates a folder, for hints."""
    quoted = shlex.quote(str(folder))
    return f"mkdir -p {quoted}"


def file_path(text: str) -> Path:
    """Return the path of an output that is one file.

    Raises:
        OutputError: the text can only name a folder, e.g. ``out/`` or ``.``; Path would drop the slash.
    """
    path = Path(text)
    if text.endswith("/") or not path.name:
        raise OutputError(f"the output is a file, and {text} names a folder", hint="choose another name with -o")
    return path


def json_path(output: str | None) -> Path | None:
    """Return the path of a document that is written only where it is named; None without one, or for ``-``."""
    if output is None or output == "-":
        return None
    return file_path(output)


def named_apart(path: Path, mark: object, *, folder: bool = False) -> Path:
    """Return a name with a mark: ``a.st`` becomes ``a.1.st``; ``vit.taylor-8`` and folders get ``.1`` at the end."""
    suffix = path.suffix

    # A suffix that is not made of letters, as in `vit.taylor-8`, is part of the name.
    if folder or not suffix[1:].isalpha():
        suffix = ""
    name = path.name.removesuffix(suffix)
    return path.with_name(f"{name}.{mark}{suffix}")


def seed_mark(seed: int) -> str:
    """Return the part of a default output name that tells the seed, e.g. ``.seed1``; empty for the default seed."""
    return f".seed{seed}" if seed else ""


class Output:
    """One output file (or folder), claimed before any long work starts and replaced in one step at the end.

    Use as a context manager: leaving it without :meth:`commit` removes the temporary file and leaves an old file as it
    was.

    Raises:
        OutputError: at construction: the target exists and ``force`` is not set, the target is of the wrong kind, its
            folder is missing or read-only, or another process is writing the same output.
    """

    def __init__(self, path: str | Path, *, force: bool = False, folder: bool = False, resumed: bool = False) -> None:
        """Check that the target may be written, and create and lock the temporary file or folder.

        What becomes of an old target:

        =====  =======  ==========================================================================
        force  resumed  old target
        =====  =======  ==========================================================================
        no     no       an error now
        no     yes      an error at the end, if it differs from the new one; otherwise it is replaced
        yes    any      replaced
        =====  =======  ==========================================================================

        Args:
            path: the target.
            force: whether an old target is replaced.
            folder: whether the output is a folder.
            resumed: whether an old target may be there that :meth:`commit` finds to be the same, byte for byte.
        """
        self.path = Path(path)
        self.is_folder = folder
        self._has_to_be_same = resumed and not force
        may_exist = force or resumed

        # Write through a symbolic link: the link stays, and the file that it points to is replaced.
        self.target = Path(os.path.realpath(self.path))
        self._refuse_bad_target(force=may_exist)
        self.temporary = self._hidden_sibling("tmp")
        self._old = self._hidden_sibling("old")

        # A file is locked itself. A folder cannot be locked, so a file beside it is.
        self.lock_path = self.temporary
        if folder:
            self.lock_path = self._hidden_sibling("lock")
        self._lock = self._open_and_lock()
        self._committed = False
        try:
            if folder:
                self._prepare_folder()
            # Again, since another process may have finished this output meanwhile.
            self._refuse_bad_target(force=may_exist)
        except BaseException:
            self.__exit__()
            raise

    def _hidden_sibling(self, role: str) -> Path:
        """Return a hidden path beside the target, e.g. ``.NAME.hydractl-tmp`` for the role ``tmp``."""
        return self.target.with_name(f".{self.target.name}.hydractl-{role}")

    def _refuse_bad_target(self, *, force: bool) -> None:
        """Raise an error if the output is an input of the command, cannot be written, or must not be replaced.

        Args:
            force: whether a target that exists may be there.

        Raises:
            OutputError: says which, and what to do.
        """
        target = self.target
        parent = target.parent
        refuse_input(self.path, folder=self.is_folder)
        with storing(self.path):  # errors such as a name that is too long, or a folder that may not be searched
            # The folder of the target.
            if not parent.is_dir():
                raise OutputError(f"the folder of the output does not exist: {parent}", hint=make_folder(parent))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise OutputError(f"the folder of the output is not writable: {parent}")
            # An existing target.
            if not target.exists():
                return
            kind = _kind_words(target)
            wanted_kind = "a folder" if self.is_folder else "a file"
            if kind != wanted_kind:
                raise OutputError(f"the output is {kind}: {self.path}", hint="choose another name")
            if not force:
                hint = "add --force to replace it, or choose another name"
                raise OutputError(f"the output exists: {self.path}", hint=hint)

    def _prepare_folder(self) -> None:
        """Create an empty temporary folder; put back an old target that a killed run had moved aside."""
        with storing(self.path):
            if self._old.exists() and not self.target.exists():
                os.replace(self._old, self.target)  # a run was killed between the two renames of _commit_folder
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.temporary.mkdir()

    def _open_and_lock(self) -> IO[bytes]:
        """Create an empty temporary file, and lock it."""
        with storing(self.path):
            while True:
                handle = open_locked(self.lock_path, self.path)
                if os.fstat(handle.fileno()).st_size == 0:
                    return handle
                # A killed run has left this file. Remove it, so that a new file gets today's access mode.
                self.lock_path.unlink()
                handle.close()

    @property
    def unfinished(self) -> Path:
        """The file that a run which can be resumed keeps beside the target: ``NAME.part``."""
        return self.target.with_name(f"{self.target.name}.part")

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            if self.is_folder:
                shutil.rmtree(self.temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.lock_path.unlink()
        with contextlib.suppress(OSError):  # after a failed write, closing fails again
            self._lock.close()

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the temporary file for writing from its beginning."""
        with storing(self.path):
            self._lock.seek(0)
            self._lock.truncate(0)
            yield self._lock

    def adopt(self, path: Path) -> None:
        """Put a finished file from the same folder in the place of the temporary file, for :meth:`commit`."""
        with storing(self.path):
            _sync(path)
            os.replace(path, self.temporary)

    def commit(self) -> Path:
        """Flush the output to the disk and rename it over the target; return the path as the caller named it.

        Raises:
            OutputError: of a resumed run, the target is there and holds something else.
        """
        # Resumed without force: an old target must have the same bytes.
        if self._has_to_be_same and self.target.exists():
            self._lock.flush()
            if not filecmp.cmp(self.temporary, self.target, shallow=False):
                raise OutputError(f"{self.path} holds another answer", hint="give another -o, or add --force")

        # The bytes are flushed before the rename, so that the target never has only a part of them, and the rename
        # itself is flushed with the folder.
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
        """Flush every file of the folder to the disk, rename the folder to the target, and release the lock.

        A folder cannot replace another one in one step: the old one is moved aside first, and back if the rename fails.
        """
        # Flush files and folder, so that the rename never reveals a folder with half-written files.
        for file in sorted(self.temporary.rglob("*")):
            if file.is_file():
                _sync(file)
        sync_folder(self.temporary)

        # Move the old folder aside, and the new one to its place.
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


def claimed(path: Path | None, *, force: bool) -> contextlib.AbstractContextManager[Output | None]:
    """Return an output for a ``with`` block; without a path one that gives None, since no file is written."""
    return contextlib.nullcontext() if path is None else Output(path, force=force)


def _kind_words(path: Path) -> str:
    """Return words for what is at a path: a file, a folder or something else."""
    if path.is_dir():
        return "a folder"
    if path.is_file():
        return "a file"
    return "no regular file"


def open_locked(path: Path, named: Path, buffering: int = -1) -> IO[bytes]:
    """Open a file for reading and appending, create it if necessary, and lock it for as long as it is open.

    Args:
        path: the file.
        named: the name that the user knows it by, for the message.
        buffering: see ``open``.

    Raises:
        OutputError: another process has locked the file.
        OSError: the file cannot be opened.
    """
    while True:
        file = open(path, "a+b", buffering=buffering, opener=open_own)  # noqa: SIM115 - open as long as it is locked
        try:
            lock(file, named)
            # Its owner may have renamed or removed the file between open and lock; then the lock is useless: try again.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def lock(file: IO[bytes], named: Path) -> None:
    """Lock an open file without waiting. The lock of a dead process is released by the system.

    The file is locked by its descriptor, since filelock's locks by path would leave an extra file beside every output.

    Raises:
        OutputError: another process has locked the file.
    """
    descriptor = file.fileno()
    if not lock_descriptor(descriptor, blocking=False):
        hint = "wait for it, or give every output a name of its own"
        raise OutputError(f"another process is writing {named}", hint=hint)


def open_own(path: str, flags: int) -> int:
    """Open a file without following a symbolic link and without waiting for the other end of a pipe."""
    never_elsewhere = os.O_NOFOLLOW | os.O_NONBLOCK
    all_flags = flags | never_elsewhere
    return os.open(path, all_flags, 0o666)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable; does nothing if the file system does not support it."""
    with contextlib.suppress(OSError):
        _sync(folder)


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(output: Output, document: Any) -> Path:
    """Write one JSON document and commit it; return the path of the output."""
    written = json_bytes(document)
    return write_bytes(output, written)


def write_bytes(output: Output, content: bytes) -> Path:
    """Write and commit an output; return its path."""
    with output.opened() as handle:
        handle.write(content)
    return output.commit()
