"""Helpers of the families for published folders, the hub, cached results and the errors of libraries."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hydractl.errors import HydraError, InputError, SampleError, UsageError, is_panic
from hydractl.families.config_json import LibraryConfig
from hydractl.files.checkpoint import FileTensors, ShardedTensors
from hydractl.files.header import PICKLES
from hydractl.jsonio import canonical_json, parse_json, read_whole, shown

BuiltT = TypeVar("BuiltT")
SampleT = TypeVar("SampleT")
LoadedT = TypeVar("LoadedT", bound=Any)  # hydractl.families.base.LoadedModel, which this file is below

_NAME = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^/@\s]+))?(?:/(?P<file>[^@]+\.st))?")
_PLAIN_NAME = re.compile(r"[\w+-]*(\.[\w+-]+)*", re.ASCII)
"""A name as libraries give their own classes, functions and modules."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0]


@contextlib.contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Silence the warnings of a library's logger inside the block; hydractl handles their causes itself."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def refused_as(what: str, hint: str | None = None, why: Callable[[BaseException], str] = first_line) -> Iterator[None]:
    """Turn any error that a library raises inside the block into an ``InputError``.

    Args:
        what: the start of the new message, e.g. ``cannot read config.json``.
        hint: the hint of the new error.
        why: computes the end of the new message from the library's error; the default is its first line.
    """
    try:
        yield
    except HydraError:
        raise
    except BaseException as error:
        # Other errors that do not derive from Exception, e.g. KeyboardInterrupt, are passed on.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InputError(f"{what}: {why(error)}", hint=hint) from error


def naming_sample(what: str, prepare: Callable[[Sequence[SampleT]], BuiltT], samples: Sequence[SampleT]) -> BuiltT:
    """Return what a library makes of a batch of samples; if it raises an error, name the first sample that it fails at.

    Args:
        what: the start of the message, e.g. ``the tokenizer cannot read this text``; the sample follows.
        prepare: calls the library with a batch, or with one sample of it.
        samples: the batch.

    Raises:
        SampleError: if the library fails at a sample.
        InputError: if it fails at the batch alone.
    """
    try:
        with refused_as(what):
            return prepare(samples)
    except InputError:
        # Try each sample alone, to find the first that the library fails at.
        for position, sample in enumerate(samples):
            try:
                with refused_as(f"{what} {shown(sample)}"):
                    prepare([sample])
            except InputError as error:
                raise SampleError(error.message, position) from error
        raise  # it fails at none of them alone


def cached_by_config(build: Callable[[Any], BuiltT]) -> Callable[[LibraryConfig], BuiltT]:
    """Cache the last 8 results of a function of a configuration.

    Calls with an equal configuration return the same object, so a caller that wants to change it has to copy it first.

    Raises:
        InputError: if a configuration cannot be written as JSON.
    """

    # The key of the cache is the JSON text, because a configuration is a dict and cannot be hashed.
    @functools.lru_cache(maxsize=8)
    def build_of_text(text: str) -> BuiltT:
        return build(json.loads(text))

    @functools.wraps(build)
    def build_of_config(config: LibraryConfig) -> BuiltT:
        try:
            text = canonical_json(config)
        except (TypeError, ValueError) as error:
            raise InputError(f"the configuration of the model is no JSON: {first_line(error)}") from error
        return build_of_text(text)

    return build_of_config


def read_config(path: Path) -> dict[str, object] | None:
    """Read the ``config.json`` of a published folder; return None if it does not exist or is not a JSON object.

    Raises:
        InputError: if the file cannot be read, is not JSON, or is a link out of its folder.
    """
    refuse_link_elsewhere(path)
    try:
        document = parse_json(read_whole(path), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return document if isinstance(document, dict) else None


def refuse_link_elsewhere(path: Path) -> None:
    """Refuse a file of a published folder that is a link out of the folder.

    What is no link passes. So do links inside the folder, and links into the cache of the hub: the cache makes these
    itself, to ``models--ORG--NAME/blobs/DIGEST``.

    Raises:
        InputError: naming the link.
    """
    if not path.is_symlink():
        return
    target = Path(os.path.realpath(path))
    is_in_cache = target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")
    is_in_folder = target.is_relative_to(os.path.realpath(path.parent))
    if not is_in_cache and not is_in_folder:
        raise InputError(f"{path} is a link out of its folder", hint="where you trust it, put a copy in its place")


@contextlib.contextmanager
def folder_for_library(files: Iterable[Path], documents: Mapping[str, Mapping[str, object]]) -> Iterator[Path]:
    """Yield a temporary folder for a library to read, in place of a published one that it should not see as a whole.

    It has links to some files of the published folder, and configurations from which unsafe settings were taken out.
    It is removed at the end of the block.

    Args:
        files: the files of the published folder to link; those that do not exist are left out.
        documents: the configurations to write, by file name.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in files:
            if file.exists():
                (folder / file.name).symlink_to(os.path.realpath(file))
        for file_name, document in documents.items():
            # The order of the entries is that of the published file: it decides the order of tokens that are added.
            (folder / file_name).write_text(json.dumps(document), encoding="utf-8")
        yield folder


def names_only(config: Mapping[str, object], without: Iterable[str] = ()) -> dict[str, object]:
    """Return a configuration for a library, without texts that could lead it to a file, to a hub or to code.

    Numbers and switches lead nowhere, whatever their keys. Texts are kept at any depth if they are plain names, such as
    that of an activation: no path, address or name on a hub is one.

    Args:
        config: the configuration; it comes from a file and may hold anything.
        without: keys that are left out at any depth, because the library looks for their plain names elsewhere.
    """
    left_out = frozenset(without)

    def without_unsafe_texts(value: object) -> object:
        """Return a mapping or list without the unsafe texts inside it; any other value unchanged."""
        if isinstance(value, Mapping):
            return names_only(value, left_out)
        if isinstance(value, list):
            return [without_unsafe_texts(inner) for inner in value if not is_unsafe_text(inner)]
        return value

    def is_unsafe_text(value: object) -> bool:
        """Return whether a value is a text that is no plain name."""
        return isinstance(value, str) and _PLAIN_NAME.fullmatch(value) is None

    kept = {}
    for key, value in config.items():
        if key not in left_out and not is_unsafe_text(value):
            kept[key] = without_unsafe_texts(value)
    return kept


def published_weights(weights: Path, hint: str) -> FileTensors | ShardedTensors:
    """Return the weights of a published folder, opened without reading any tensor.

    For safety no file may be a link out of the folder: what is read here is stored again, so a link would put other
    people's weights into a checkpoint. Pickles are never opened, because opening one runs code.

    Args:
        weights: the expected file, e.g. ``model.safetensors``. If it does not exist, the index of several files
            (``model.safetensors.index.json``) is opened instead.
        hint: the hint of the error.

    Raises:
        InputError: if neither file exists (the message names up to three pickles in the folder), or a file is a link
            out of the folder.
    """
    # One file.
    refuse_link_elsewhere(weights)
    if weights.exists():
        return FileTensors(weights)

    # Several files (shards) and their index.
    folder = weights.parent
    index = weights.with_name(f"{weights.name}.index.json")
    refuse_link_elsewhere(index)
    if index.exists():
        for shard in sorted(folder.glob("*.safetensors")):
            refuse_link_elsewhere(shard)
        return ShardedTensors(index)

    # Neither.
    problem = f"{folder} has no {weights.name}"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        first_pickles = ", ".join(pickles[:3])
        problem += f", but {first_pickles}: pickles, which hydractl never opens"
    raise InputError(problem, hint=hint)


def write_config(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON file of a published folder."""
    text = json.dumps(document, indent=2, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def refuse_options(ref: str, options: Mapping[str, object], hint: str) -> None:
    """Raise an error if there are options, for a model that takes none.

    Args:
        ref: the model as the user wrote it.
        options: the options that the user gave.
        hint: the hint of the error.

    Raises:
        UsageError: if there are options; the message names them.
    """
    if options:
        listed = ", ".join(sorted(options))
        raise UsageError(f"{ref} takes no options ({listed})", hint=hint)


@dataclass(frozen=True)
class HubName:
    """The parts of ``ORG/NAME[@REVISION][/FILE]``, which names a repository on the hub or a file in it."""

    repo: str
    revision: str | None
    file: str | None


def parse_hub_name(name: str) -> HubName:
    """Split ``ORG/NAME[@REVISION][/FILE]``.

    Raises:
        UsageError: if the name does not have this form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{shown(name)} names no repository of the hub", hint="write ORG/NAME, ORG/NAME@REVISION")
    return HubName(repo=match["repo"], revision=match["revision"], file=match["file"])


def from_hub(
    name: str,
    open_folder: Callable[[Path], LoadedT | None],
    needed: Sequence[str],
    optional: Sequence[str] = (),
) -> LoadedT:
    """Return a published model whose files are downloaded from the hub.

    Args:
        name: the repository, ``ORG/NAME`` or ``ORG/NAME@REVISION``.
        open_folder: the family's function that opens a folder; it returns None if the folder is not one of its models.
        needed: names of the two files that every model has, first its configuration.
        optional: names or patterns of files to download if they exist.

    Returns:
        The model with its ``origin`` set to ``ORG/NAME@COMMIT``.

    Raises:
        InputError: if the download fails, or the repository holds no model of the family.
    """
    import huggingface_hub

    # Download the files; those that do not exist are skipped.
    hub_name = parse_hub_name(name)
    hint = f"check the name and the network, or give a local folder with {' and '.join(needed)}"
    with _refused_by_hub(hub_name.repo, hint):
        snapshot = huggingface_hub.snapshot_download(
            hub_name.repo, revision=hub_name.revision, allow_patterns=[*needed, *optional]
        )

    # Open the folder of the download.
    folder = Path(snapshot)
    loaded = open_folder(folder)
    if loaded is None:
        configuration = needed[0]
        raise InputError(
            f"{hub_name.repo} holds no {configuration} of such a model",
            hint="a checkpoint of hydractl is named by its file: hf:ORG/NAME/FILE.st",
        )
    # The hub's cache names the folder of a snapshot by its commit.
    return replace(loaded, origin=f"{hub_name.repo}@{folder.name}")


def file_on_hub(hub_name: HubName, file: str) -> Path:
    """Return the path of a downloaded file.

    Raises:
        InputError: if the download fails.
    """
    import huggingface_hub

    with _refused_by_hub(hub_name.repo, "check the name and the network"):
        return Path(huggingface_hub.hf_hub_download(hub_name.repo, file, revision=hub_name.revision))


def _refused_by_hub(repo: str, hint: str) -> contextlib.AbstractContextManager[None]:
    """Turn an error of the hub inside the block into an ``InputError`` that names the class of the error.

    The hub's own messages are long and contain request numbers.
    """
    return refused_as(f"cannot get {repo} from the hub", hint, lambda error: type(error).__name__)
