"""Where a family meets its library, published folders and the hub: files, kept results, and errors as one line."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.checkpoint import FileTensors, ShardedTensors
from hydractl.files.header import PICKLES
from hydractl.jsonio import canonical_json, parse_json

T = TypeVar("T")


def first_line(error: BaseException) -> str:
    """Message of a library's error, cut to one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def refused_as(what: str, hint: str | None = None) -> Iterator[None]:
    """Any error of a library inside, as an ``InputError``: ``what``, and the first line of its message."""
    try:
        yield
    except HydraError:
        raise
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {first_line(error)}", hint=hint) from error


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


def download(repo: str, needed: Sequence[str], optional: Sequence[str] = ()) -> Path:
    """The folder with these files of a hub repository, on this machine; nothing else is fetched.

    Args:
        repo: its name on the hub.
        needed: the two files without which there is no model.
        optional: files that are fetched where they are there; a needed one that is not is then found missing later.

    Raises:
        InputError: where the hub does not give them.
    """
    import huggingface_hub

    try:
        if optional:
            return Path(huggingface_hub.snapshot_download(repo, allow_patterns=[*needed, *optional]))
        paths = [Path(huggingface_hub.hf_hub_download(repo, file)) for file in needed]
        return paths[0].parent
    except Exception as error:
        raise InputError(
            f"cannot get {repo} from the hub: {type(error).__name__}",
            hint=f"check the {'name and the ' if optional else ''}network, "
            f"or give a local folder with {' and '.join(needed)}",
        ) from error
