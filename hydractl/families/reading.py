"""Where a family meets its library, published folders and the hub: files, kept results, and errors as one line."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.checkpoint import FileTensors, ShardedTensors
from hydractl.files.header import PICKLES
from hydractl.jsonio import canonical_json, parse_json, shown

T = TypeVar("T")
LoadedT = TypeVar("LoadedT", bound=Any)  # hydractl.families.base.LoadedModel, which this file is below

_NAME = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^/@\s]+))?(?:/(?P<file>[^@]+\.st))?")


def first_line(error: BaseException) -> str:
    """Message of a library's error, cut to one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def refused_as(what: str, hint: str | None = None, why: Callable[[BaseException], str] = first_line) -> Iterator[None]:
    """Any error of a library inside, as an ``InputError``: ``what``, and ``why``, the first line of its message."""
    try:
        yield
    except HydraError:
        raise
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {why(error)}", hint=hint) from error


def kept(build: Callable[[Any], T]) -> Callable[[Mapping[str, Any]], T]:
    """A function of a configuration that keeps its last results: callers that change what it returns copy it first.

    Raises:
        InputError: for a configuration that is no JSON.
    """

    @functools.lru_cache(maxsize=8)
    def of_text(text: str) -> T:
        return build(json.loads(text))

    @functools.wraps(build)
    def of_config(config: Mapping[str, Any]) -> T:
        try:
            text = canonical_json(config)
        except (TypeError, ValueError) as error:
            raise InputError(f"the configuration of the model is no JSON: {first_line(error)}") from error
        return of_text(text)

    return of_config


def read_config(path: Path) -> dict[str, Any] | None:
    """The ``config.json`` of a published folder; None where there is none, or it is no object.

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
    """The weights of a published folder, unread: of one file, or of several with an index.

    Raises:
        InputError: with the hint, where there is no such file; naming pickles that lie in its place.
    """
    folder, index = weights.parent, weights.with_name(f"{weights.name}.index.json")
    if weights.exists():
        return FileTensors(weights)
    if index.exists():
        return ShardedTensors(index)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    instead = f", but {', '.join(pickles[:3])}: pickles, which hydractl never opens" if pickles else ""
    raise InputError(f"{folder} has no {weights.name}{instead}", hint=hint)


def write_config(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file of a published folder."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def refuse_options(ref: str, options: Mapping[str, Any], hint: str) -> None:
    """Refuse options of a model that takes none.

    Raises:
        UsageError: naming them.
    """
    if options:
        raise UsageError(f"{ref} takes no options ({', '.join(sorted(options))})", hint=hint)


def named(name: str) -> tuple[str, str | None, str | None]:
    """``ORG/NAME[@REVISION][/FILE]`` as the repository, the revision and the file.

    Raises:
        UsageError: for what is no name of a repository.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{shown(name)} names no repository of the hub", hint="write ORG/NAME, ORG/NAME@REVISION")
    return match["repo"], match["revision"], match["file"]


def from_hub(
    name: str, open_folder: Callable[[Path], LoadedT | None], needed: Sequence[str], optional: Sequence[str] = ()
) -> LoadedT | None:
    """The published model of a repository of the hub, its origin noted; nothing else of it is fetched.

    Args:
        name: as of :func:`named`, without a file.
        open_folder: of the family; None for a folder that is none of its models.
        needed: the two files without which there is no model.
        optional: files that are fetched where they are there; a needed one that is not is then found missing later.

    Raises:
        InputError: where the hub does not give them.
    """
    import huggingface_hub

    repo, revision, _ = named(name)
    hint = f"check the {'name and the ' if optional else ''}network, or give a local folder with {' and '.join(needed)}"
    with _answered(repo, hint):
        if optional:
            wanted = [*needed, *optional]
            folder = Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=wanted))
        else:
            paths = [Path(huggingface_hub.hf_hub_download(repo, file, revision=revision)) for file in needed]
            folder = paths[0].parent
    loaded = open_folder(folder)
    return None if loaded is None else replace(loaded, origin=f"{repo}@{folder.name}")


def checkpoint_on_hub(name: str) -> Path | None:
    """A checkpoint of hydractl in a repository of the hub, on this machine: the one named, or the only one.

    Returns:
        Its path; None for a repository of a published model.

    Raises:
        InputError: where there is neither, and where one of several has to be named.
    """
    import huggingface_hub

    repo, revision, file = named(name)
    with _answered(repo, "check the name and the network"):
        if file is None:
            if isinstance(huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=revision), str):
                return None  # as it was before: the hub need not be asked what else it holds
            names = _files_on_hub(repo, revision)
            if "config.json" in names:
                return None
            checkpoints = sorted(one for one in names if one.endswith(".st"))
            if not checkpoints:
                raise InputError(f"{repo} holds neither a published model (config.json) nor a checkpoint (.st)")
            if len(checkpoints) > 1:
                found = f"{len(checkpoints)} checkpoints: {', '.join(checkpoints[:5])}"
                raise InputError(f"{repo} holds {found}", hint=f"name one: hf:{name}/{checkpoints[0]}")
            (file,) = checkpoints
        return Path(huggingface_hub.hf_hub_download(repo, file, revision=revision))


def _files_on_hub(repo: str, revision: str | None) -> list[str]:
    """Names of the files in a repository; of those on this machine, where the hub cannot be asked."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return huggingface_hub.HfApi().list_repo_files(repo, revision=revision)
    except HfHubHTTPError:
        raise
    except Exception:  # no connection, or none wanted (HF_HUB_OFFLINE)
        folder = Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


def _answered(repo: str, hint: str) -> contextlib.AbstractContextManager[None]:
    """An error inside by its kind alone: the hub's own messages are long, and name requests."""
    return refused_as(f"cannot get {repo} from the hub", hint, lambda error: type(error).__name__)
