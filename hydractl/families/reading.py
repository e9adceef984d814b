"""Where a family meets its library, published folders and the hub: files, kept results, and errors as one line."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.families.config_json import LibraryConfig
from hydractl.files.checkpoint import FileTensors, ShardedTensors
from hydractl.files.header import PICKLES
from hydractl.jsonio import canonical_json, parse_json, shown

BuiltT = TypeVar("BuiltT")
LoadedT = TypeVar("LoadedT", bound=Any)  # hydractl.families.base.LoadedModel, which this file is below

_NAME = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^/@\s]+))?(?:/(?P<file>[^@]+\.st))?")


def first_line(error: BaseException) -> str:
    """Return the message of a library's error, cut to one line."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0]


def kind_of_error(error: BaseException) -> str:
    """Return the kind of an error alone: the hub's own messages are long, and name requests."""
    return type(error).__name__


@contextlib.contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Keep a library from giving warnings, where what they say is handled here."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def refused_as(what: str, hint: str | None = None, why: Callable[[BaseException], str] = first_line) -> Iterator[None]:
    """Turn any error of a library inside into an ``InputError``.

    Args:
        what: the start of its message.
        hint: its hint.
        why: makes the end of its message of the library's error; else the first line of that.
    """
    try:
        yield
    except HydraError:
        raise
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {why(error)}", hint=hint) from error


def cached_by_config(build: Callable[[Any], BuiltT]) -> Callable[[LibraryConfig], BuiltT]:
    """Make a function of a configuration keep its last results: callers that change what it returns copy it first.

    Raises:
        InputError: for a configuration that is no JSON.
    """

    # By its text: a configuration itself is no key of a cache.
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
    """Read the ``config.json`` of a published folder; None where there is none, or it is no object.

    Raises:
        InputError: for a file that cannot be read or is no JSON.
    """
    try:
        document = parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return document if isinstance(document, dict) else None


def published_weights(weights: Path, hint: str) -> FileTensors | ShardedTensors:
    """Open the weights of a published folder, unread: of one file, or of several with an index.

    Raises:
        InputError: with the hint, where there is no such file; naming pickles that lie in its place.
    """
    if weights.exists():
        return FileTensors(weights)
    index = weights.with_name(f"{weights.name}.index.json")
    if index.exists():
        return ShardedTensors(index)
    folder = weights.parent
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
    """Refuse options of a model that takes none.

    Raises:
        UsageError: naming them.
    """
    if options:
        listed = ", ".join(sorted(options))
        raise UsageError(f"{ref} takes no options ({listed})", hint=hint)


@dataclass(frozen=True)
class HubName:
    """``ORG/NAME[@REVISION][/FILE]``, what a user writes for something in a repository of the hub."""

    repo: str
    revision: str | None
    file: str | None

    def __str__(self) -> str:
        text = self.repo
        if self.revision:
            text += f"@{self.revision}"
        if self.file:
            text += f"/{self.file}"
        return text


def parse_hub_name(name: str) -> HubName:
    """Split ``ORG/NAME[@REVISION][/FILE]``.

    Raises:
        UsageError: for what is no name of a repository.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{shown(name)} names no repository of the hub", hint="write ORG/NAME, ORG/NAME@REVISION")
    return HubName(repo=match["repo"], revision=match["revision"], file=match["file"])


def from_hub(
    name: str, open_folder: Callable[[Path], LoadedT | None], needed: Sequence[str], optional: Sequence[str] = ()
) -> LoadedT | None:
    """Open the published model of a repository of the hub, its origin noted; nothing else of it is fetched.

    Args:
        name: as of :func:`parse_hub_name`, without a file.
        open_folder: of the family; None for a folder that is none of its models.
        needed: the two files without which there is no model.
        optional: files that are fetched where they are there; a needed one that is not is then found missing later.

    Raises:
        InputError: where the hub does not give them.
    """
    import huggingface_hub

    hub_name = parse_hub_name(name)
    what_to_check = "name and the network" if optional else "network"
    files = " and ".join(needed)
    hint = f"check the {what_to_check}, or give a local folder with {files}"
    with _refused_by_hub(hub_name.repo, hint):
        if optional:
            snapshot = huggingface_hub.snapshot_download(
                hub_name.repo, revision=hub_name.revision, allow_patterns=[*needed, *optional]
            )
            folder = Path(snapshot)
        else:
            paths = []
            for file in needed:
                downloaded = huggingface_hub.hf_hub_download(hub_name.repo, file, revision=hub_name.revision)
                paths.append(Path(downloaded))
            folder = paths[0].parent
    loaded = open_folder(folder)
    if loaded is None:
        return None
    return replace(loaded, origin=f"{hub_name.repo}@{folder.name}")


def checkpoint_on_hub(name: str) -> Path | None:
    """Fetch a checkpoint of hydractl from a repository of the hub: the one named, or the only one.

    Returns:
        Its path on this machine; None for a repository of a published model.

    Raises:
        InputError: where there is neither, and where one of several has to be named.
    """
    import huggingface_hub

    hub_name = parse_hub_name(name)
    with _refused_by_hub(hub_name.repo, "check the name and the network"):
        file = hub_name.file
        if file is None:
            if _holds_known_model(hub_name):
                return None
            file = _only_checkpoint(name, hub_name)
        if file is None:
            return None
        return Path(huggingface_hub.hf_hub_download(hub_name.repo, file, revision=hub_name.revision))


def _holds_known_model(hub_name: HubName) -> bool:
    """Return whether a published model is on this machine: the hub need not be asked what else it holds."""
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(hub_name.repo, "config.json", revision=hub_name.revision)
    return isinstance(config, str)


def _only_checkpoint(name: str, hub_name: HubName) -> str | None:
    """Return the name of the only checkpoint in a repository; None where it holds a published model.

    Args:
        name: as the user wrote it.
        hub_name: the same, split.

    Raises:
        InputError: where it holds neither, or several checkpoints.
    """
    files = _files_on_hub(hub_name)
    if "config.json" in files:
        return None
    checkpoints = sorted(file for file in files if file.endswith(".st"))
    if not checkpoints:
        raise InputError(f"{hub_name.repo} holds neither a published model (config.json) nor a checkpoint (.st)")
    first = checkpoints[0]
    if len(checkpoints) > 1:
        listed = ", ".join(checkpoints[:5])
        raise InputError(
            f"{hub_name.repo} holds {len(checkpoints)} checkpoints: {listed}", hint=f"name one: hf:{name}/{first}"
        )
    return first


def _files_on_hub(hub_name: HubName) -> list[str]:
    """List the files in a repository; those on this machine, where the hub cannot be asked."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return huggingface_hub.HfApi().list_repo_files(hub_name.repo, revision=hub_name.revision)
    except HfHubHTTPError:
        raise
    except Exception:  # no connection, or none wanted (HF_HUB_OFFLINE)
        snapshot = huggingface_hub.snapshot_download(hub_name.repo, revision=hub_name.revision, local_files_only=True)
        folder = Path(snapshot)
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


def _refused_by_hub(repo: str, hint: str) -> contextlib.AbstractContextManager[None]:
    """Turn an error of the hub inside into an ``InputError`` that says its kind."""
    return refused_as(f"cannot get {repo} from the hub", hint, kind_of_error)
