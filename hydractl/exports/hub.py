"""Uploads a checkpoint or a published folder, with its model card, to the Hugging Face Hub in one commit.

``huggingface_hub`` handles everything about the connection: tokens, endpoints, retries, large files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError, OutputError, UsageError
from hydractl.families.reading import refused_as
from hydractl.files.checkpoint import sha256_file
from hydractl.jsonio import parse_json

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
_WEIGHTS = "model.safetensors"
_NAMES_OF_MODEL_FILES = frozenset(
    {
        *(CARD, ".gitattributes", "CITATION.cff", "hydractl.mask.json"),
        *("config.json", "generation_config.json", _WEIGHTS, f"{_WEIGHTS}.index.json"),
        *("open_clip_config.json", "open_clip_model.safetensors"),
        *("preprocessor_config.json", "processor_config.json", "image_processor_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
        *("bpe.codes", "chat_template.jinja", "chat_template.json"),
    }
)
"""The names of all files that transformers, timm and open_clip read with a model, or that hydractl writes beside it."""
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING)([._-][A-Za-z0-9._-]{1,40})?")


@dataclass(frozen=True)
class Destination:
    """A repository on the Hub, and how files are uploaded to it.

    Attributes:
        repo: ``ORG/NAME``.
        branch: the branch to push to; None means the main branch.
        private: whether a new repository is private; an existing one is not changed.
        message: the message of the commit.
        force: whether files with the same names but other contents are replaced.
    """

    repo: str
    branch: str | None
    private: bool
    message: str
    force: bool


@dataclass(frozen=True)
class PushedFiles:
    """The files of a checkpoint or folder that are pushed, and those that are left out.

    Attributes:
        files: the path of each file by its name in the repository.
        left_out: the size in bytes of each other file in the folder, by its name there.
    """

    files: Mapping[str, Path]
    left_out: Mapping[str, int]


def contents_of(path: Path, include: Sequence[str] = ()) -> PushedFiles:
    """Choose the files of a checkpoint or a published folder to push.

    A folder may contain anything beside the model: notes, states of optimizers, other checkpoints. Only these files are
    chosen: files with names that a library reads with a model, licences, the weights that the index lists, and the
    files in ``include``.

    Args:
        path: the checkpoint or the folder.
        include: names of more files in the folder to push.

    Raises:
        InputError: if a name in ``include`` is not a file in the folder, or a chosen file is a link out of the folder.
        UsageError: if ``path`` is a checkpoint and ``include`` is not empty.
    """
    # A checkpoint is one file.
    if not path.is_dir():
        if include:
            raise UsageError(f"--include {include[0]}: {path} is one file", hint="push the folder that holds both")
        return PushedFiles({path.name: path}, {})

    names = _files_below(path)
    missing_names = [name for name in include if name not in names]
    if missing_names:
        raise InputError(
            f"{path} holds no file {missing_names[0]}", hint=f"names are those below {path}, such as {CARD}"
        )

    names_in_any_case = _names_of_shards(path).union(include)
    files: dict[str, Path] = {}
    left_out: dict[str, int] = {}
    for name in names:
        file = path / name
        if name in names_in_any_case or _belongs_to_model(name):
            files[name] = file
        else:
            left_out[name] = file.lstat().st_size

    _refuse_links_outside(files, path)
    return PushedFiles(files, left_out)


def _refuse_links_outside(files: Mapping[str, Path], folder: Path) -> None:
    """Raise an error if a file is a link out of the folder, because its target was not meant to be published.

    Raises:
        InputError: with the names of all such files.
    """
    names_outside = [name for name, file in files.items() if not _lies_in(file, folder)]
    if not names_outside:
        return
    problems: Sequence[str] = ()
    if len(names_outside) > 1:  # a single name is already in the message
        problems = names_outside
    raise InputError(
        f"{folder / names_outside[0]} is a link to a file outside of the folder, which is not pushed",
        hint="put a copy of the file in its place",
        problems=problems,
    )


def _files_below(folder: Path) -> list[str]:
    """Return the sorted names of all files at any depth below a folder; folders that are links are not followed."""
    names = []
    for subfolder, _, files in os.walk(folder):
        for file in files:
            names.append(Path(subfolder, file).relative_to(folder).as_posix())
    return sorted(names)


def _belongs_to_model(name: str) -> bool:
    """Return whether a file with this name is read with a model, or is a licence."""
    is_licence = _LICENCE.fullmatch(name) is not None
    return is_licence or name in _NAMES_OF_MODEL_FILES


def _names_of_shards(folder: Path) -> set[str]:
    """Return the names of the files with weights that the index in a folder lists.

    The set is empty if there is no index, if it is broken, or if there is also one file with all weights, because
    libraries then ignore the index.
    """
    single_file = folder / _WEIGHTS
    index = folder / f"{_WEIGHTS}.index.json"
    if not index.is_file() or single_file.is_file():
        return set()

    # The index maps each tensor to its file.
    document = parse_json(index.read_bytes(), str(index))
    if not isinstance(document, dict):
        return set()
    file_of_tensor = document.get("weight_map")
    if not isinstance(file_of_tensor, dict):
        return set()
    names = set()
    for file in file_of_tensor.values():
        name = str(file)
        if name.endswith(".safetensors"):
            names.add(name)
    return names


def _lies_in(file: Path, folder: Path) -> bool:
    """Return whether a file is really in a folder, after following all links."""
    real_folder = os.path.realpath(folder)
    real_file = os.path.realpath(file)
    return os.path.commonpath([real_file, real_folder]) == real_folder


def upload(files: Mapping[str, Path | bytes], to: Destination) -> tuple[str, list[str]]:
    """Upload all files that the repository does not have yet, in one commit: all of them or none.

    Args:
        files: paths or contents by their names in the repository.
        to: the repository; it is created if it does not exist.

    Returns:
        The id of the commit that has all files, and the names of the files that were uploaded. If nothing had to be
        uploaded, the commit is the present one.

    Raises:
        OutputError: if a file with the same name but other contents exists, and ``force`` is not set.
        InputError: if the Hub reports an error.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="hydractl")
    with refused_as(f"cannot push to {to.repo}", hint="hf auth login logs in, hf auth whoami says as whom"):
        api.create_repo(to.repo, private=to.private or None, exist_ok=True)
        if to.branch is not None:
            api.create_branch(to.repo, branch=to.branch, exist_ok=True)
        head = api.model_info(to.repo, revision=to.branch).sha
        files_to_upload = _files_to_upload(api, files, to)
        if not files_to_upload:
            return str(head), []

        operations = []
        for name, content in files_to_upload.items():
            path_or_bytes: bytes | str
            if isinstance(content, bytes):
                path_or_bytes = content
            else:
                path_or_bytes = str(content)
            operations.append(CommitOperationAdd(name, path_or_bytes))
        # With `parent_commit` the Hub rejects the commit if somebody else has pushed since.
        commit = api.create_commit(
            to.repo, operations, commit_message=to.message, revision=to.branch, parent_commit=head, num_threads=1
        )
        return commit.oid, sorted(files_to_upload)


def _files_to_upload(api: HfApi, files: Mapping[str, Path | bytes], to: Destination) -> dict[str, Path | bytes]:
    """Return the files that the repository does not have, or has with other contents.

    Args:
        api: the connection to the Hub.
        files: paths or contents by their names in the repository.
        to: the repository.

    Raises:
        OutputError: if a file with the same name but other contents exists, and ``force`` is not set.
    """
    # What the repository has under these names.
    entries = api.get_paths_info(to.repo, list(files), revision=to.branch)
    entry_by_name = {entry.path: entry for entry in entries}

    # Upload what is missing or has other contents; the latter would be replaced, which needs --force.
    files_to_upload = {}
    names_with_other_contents = []
    for name, content in files.items():
        entry = entry_by_name.get(name)
        if entry is None:
            files_to_upload[name] = content
        elif not _has_contents(entry, content):
            files_to_upload[name] = content
            names_with_other_contents.append(name)
    if names_with_other_contents and not to.force:
        names = " and another ".join(sorted(names_with_other_contents))
        raise OutputError(f"{to.repo} has another {names}", hint="--force replaces it")
    return files_to_upload


def _has_contents(entry: Any, content: Path | bytes) -> bool:
    """Return whether a file in a repository has these contents, by comparing hashes.

    Args:
        entry: the entry in the Hub's list of files. It has the SHA-256 of a large file, and git's hash of others.
        content: the contents, or the path of a local file.
    """
    if entry.lfs is not None:
        return bool(entry.lfs.sha256 == _sha256_of(content))
    data = content
    if isinstance(data, Path):
        data = data.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return bool(entry.blob_id == digest)


def _sha256_of(content: Path | bytes) -> str:
    """Return the SHA-256 of contents or of a local file, which is read piece by piece."""
    if isinstance(content, Path):
        return sha256_file(content)
    return hashlib.sha256(content).hexdigest()
