"""A checkpoint or a published folder, and its card, as one commit in a repository of the Hugging Face Hub.

Everything that speaks to the Hub is ``huggingface_hub``'s: tokens, endpoints, retries, large files.
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
"""Names of the files that transformers, timm and open_clip read with a model, and that hydractl writes beside it."""
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING)([._-][A-Za-z0-9._-]{1,40})?")


@dataclass(frozen=True)
class Destination:
    """A repository of the Hub, and how files are uploaded to it.

    Attributes:
        repo: ``ORG/NAME``.
        branch: the branch that is pushed to; None for the main one.
        private: whether a repository that has to be made is private.
        message: the message of the commit.
        force: whether files of the same names with other contents are replaced.
    """

    repo: str
    branch: str | None
    private: bool
    message: str
    force: bool


@dataclass(frozen=True)
class PushedFiles:
    """The files of a checkpoint or a folder that are pushed, and those that are not.

    Attributes:
        files: paths by their names in the repository.
        left_out: other files of the folder, by their names there, each with its bytes.
    """

    files: Mapping[str, Path]
    left_out: Mapping[str, int]


def contents_of(path: Path, include: Sequence[str] = ()) -> PushedFiles:
    """Choose the files of a checkpoint or of a published folder that belong to the model.

    A folder may hold anything beside the model: notes, states of optimizers, other checkpoints. Of it, only files are
    taken whose names say that a library reads them with the model, the weights that the index names, and those that
    were asked for.

    Args:
        path: the checkpoint, or the folder.
        include: names of further files of the folder.

    Raises:
        InputError: a name that is no file of the folder, or a file that is a link out of it.
        UsageError: further files of a checkpoint, which is one file.
    """
    if not path.is_dir():
        if include:
            raise UsageError(f"--include {include[0]}: {path} is one file", hint="push the folder that holds both")
        return PushedFiles({path.name: path}, {})

    names = _files_below(path)
    unknown = [name for name in include if name not in names]
    if unknown:
        raise InputError(f"{path} holds no file {unknown[0]}", hint=f"names are those below {path}, such as {CARD}")

    wanted = _names_of_shards(path).union(include)
    files: dict[str, Path] = {}
    left_out: dict[str, int] = {}
    for name in names:
        file = path / name
        if name in wanted or _belongs_to_model(name):
            files[name] = file
        else:
            left_out[name] = file.lstat().st_size

    _refuse_links_outside(files, path)
    return PushedFiles(files, left_out)


def _refuse_links_outside(files: Mapping[str, Path], folder: Path) -> None:
    """Refuse files that are links out of the folder: what they lead to was not meant to be published.

    Raises:
        InputError: naming them.
    """
    outside = [name for name, file in files.items() if not _lies_in(file, folder)]
    if not outside:
        return
    problems: Sequence[str] = ()
    if len(outside) > 1:  # the message names the first
        problems = outside
    raise InputError(
        f"{folder / outside[0]} is a link to a file outside of the folder, which is not pushed",
        hint="put a copy of the file in its place",
        problems=problems,
    )


def _files_below(folder: Path) -> list[str]:
    """List all files of a folder and of those in it by name; folders that are links are not followed."""
    names = []
    for place, _, files in os.walk(folder):
        for file in files:
            names.append(Path(place, file).relative_to(folder).as_posix())
    return sorted(names)


def _belongs_to_model(name: str) -> bool:
    """Return whether a file of this name is read with a model, or says what may be done with it."""
    is_licence = _LICENCE.fullmatch(name) is not None
    return is_licence or name in _NAMES_OF_MODEL_FILES


def _names_of_shards(folder: Path) -> set[str]:
    """Return the names of the files of weights that the index of a folder lists.

    Empty where the folder has no index, a broken one, or the weights in one file, which libraries then read.
    """
    whole_weights = folder / _WEIGHTS
    index = folder / f"{_WEIGHTS}.index.json"
    if not index.is_file() or whole_weights.is_file():
        return set()
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
    """Return whether a file, which may be a link, is in a folder."""
    root = os.path.realpath(folder)
    target = os.path.realpath(file)
    return os.path.commonpath([target, root]) == root


def upload(files: Mapping[str, Path | bytes], to: Destination) -> tuple[str, list[str]]:
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
        wanted = _files_to_upload(api, files, to)
        if not wanted:
            return str(head), []
        operations = []
        for name, content in wanted.items():
            source: bytes | str
            if isinstance(content, bytes):
                source = content
            else:
                source = str(content)
            operations.append(CommitOperationAdd(name, source))
        commit = api.create_commit(
            to.repo, operations, commit_message=to.message, revision=to.branch, parent_commit=head, num_threads=1
        )
        return commit.oid, sorted(wanted)


def _files_to_upload(api: HfApi, files: Mapping[str, Path | bytes], to: Destination) -> dict[str, Path | bytes]:
    """Return the files that the repository does not have yet, or has with other contents.

    Raises:
        OutputError: files of these names are there with other contents, and ``force`` is not set.
    """
    entries = api.get_paths_info(to.repo, list(files), revision=to.branch)
    entry_of_name = {entry.path: entry for entry in entries}
    wanted = {}
    replaced = []
    for name, content in files.items():
        entry = entry_of_name.get(name)
        if entry is None:
            wanted[name] = content
        elif not _has_contents(entry, content):
            wanted[name] = content
            replaced.append(name)
    if replaced and not to.force:
        names = " and another ".join(sorted(replaced))
        raise OutputError(f"{to.repo} has another {names}", hint="--force replaces it")
    return wanted


def _has_contents(entry: Any, content: Path | bytes) -> bool:
    """Return whether a file of a repository has these contents.

    A large one is known by SHA-256, others by git's own hash.

    Args:
        entry: of the Hub's list of files.
        content: the contents, or the file that has them.
    """
    if entry.lfs is not None:
        return bool(entry.lfs.sha256 == _sha256_of(content))
    data = content
    if isinstance(data, Path):
        data = data.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return bool(entry.blob_id == digest)


def _sha256_of(content: Path | bytes) -> str:
    """Return the digest of contents; a file is not read into memory as a whole."""
    if isinstance(content, Path):
        return sha256_file(content)
    return hashlib.sha256(content).hexdigest()
