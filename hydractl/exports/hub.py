"""A checkpoint or a published folder, and its card, as one commit in a repository of the Hugging Face Hub.

Everything that speaks to the Hub is ``huggingface_hub``'s: tokens, endpoints, retries, large files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydractl.errors import OutputError
from hydractl.families.reading import refused_as
from hydractl.files.checkpoint import sha256_file

CARD = "README.md"


@dataclass(frozen=True)
class Destination:
    """Where to, and how.

    Attributes:
        repo: ``ORG/NAME``.
        branch: of the repository; None for its main one.
        private: whether a repository that has to be made is private.
        message: of the commit.
        force: whether files of the same names with other contents are replaced.
    """

    repo: str
    branch: str | None
    private: bool
    message: str
    force: bool


def files_of(path: Path) -> dict[str, Path]:
    """The files of a checkpoint or of a published folder by their names in the repository."""
    if path.is_dir():
        names = (one.relative_to(path) for one in sorted(path.rglob("*")) if one.is_file())
        return {name.as_posix(): path / name for name in names if not any(part.startswith(".") for part in name.parts)}
    return {path.name: path}


def push(files: Mapping[str, Path | bytes], to: Destination) -> tuple[str, list[str]]:
    """Upload what the repository does not have yet; all of it or nothing.

    Args:
        files: paths or contents by their names in the repository.
        to: the repository, which is made where there is none.

    Returns:
        The commit that has all files, and the names of those that were uploaded for it.

    Raises:
        OutputError: files of these names are there with other contents, and ``force`` is not set.
        InputError: what the Hub answered.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="hydractl")
    with refused_as(f"cannot push to {to.repo}", hint="hf auth login logs in, hf auth whoami says as whom"):
        api.create_repo(to.repo, private=to.private or None, exist_ok=True)
        if to.branch is not None:
            api.create_branch(to.repo, branch=to.branch, exist_ok=True)
        head = api.model_info(to.repo, revision=to.branch).sha
        there = {one.path: one for one in api.get_paths_info(to.repo, list(files), revision=to.branch)}
        wanted = {name: content for name, content in files.items() if not _same(there.get(name), content)}
        taken = sorted(set(wanted) & set(there))
        if taken and not to.force:
            raise OutputError(f"{to.repo} has another {' and another '.join(taken)}", hint="--force replaces it")
        if not wanted:
            return str(head), []
        added = [
            CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
            for name, content in wanted.items()
        ]
        commit = api.create_commit(
            to.repo, added, commit_message=to.message, revision=to.branch, parent_commit=head, num_threads=1
        )
        return commit.oid, sorted(wanted)


def _same(there: Any, content: Path | bytes) -> bool:
    """Whether a file of a repository has these contents: by SHA-256 where it is a large one, else by git's own hash."""
    if there is None:
        return False
    if there.lfs is not None:
        found = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256_file(content)
        return bool(there.lfs.sha256 == found)
    data = content if isinstance(content, bytes) else content.read_bytes()
    return bool(there.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
