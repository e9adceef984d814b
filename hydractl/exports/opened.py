"""An exported file found again: what it says of itself, and called like the model that it was made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.exports.formats import FORMATS, Runner, kind_of, named, read_metadata
from hydractl.families import get_family
from hydractl.families.base import ModelFamily
from hydractl.files.checkpoint import sha256_file
from hydractl.model.source import Source, split_model


class ExportedModel(nn.Module):
    """A file that runs, on the CPU and in float32; it holds no parameters.

    Args:
        run: the file.
        family: of the model it was made of.
        preprocess: how samples become inputs.
    """

    def __init__(self, run: Runner, family: ModelFamily, preprocess: Mapping[str, Any]) -> None:
        super().__init__()
        self._run, self.family, self._preprocess = run, family, preprocess

    def member_logits(self, inputs: Any) -> Tensor:
        """Logits of every member, ``[M, B, classes]``."""
        return self._run(named(inputs))["member_logits"]

    def forward(self, inputs: Any) -> Tensor:
        """Averaged prediction: probabilities ``[B, classes]``, and no logarithm of them as of other models."""
        return self._run(named(inputs))["probabilities"]

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Random inputs of the right shape."""
        return self.family.example_inputs(self._preprocess, batch, seed)


@dataclass(frozen=True)
class ExportedFile:
    """A file of ``fuse --export`` as a MODEL argument, not yet loaded.

    Attributes:
        name: the name given, else that of the file.
        path: of the file.
        metadata: what it says of itself.
        max_length: tokens of a text at most; None: as many as the model took.
        sources: none, where other MODEL arguments have checkpoints.
    """

    name: str
    path: Path
    metadata: Mapping[str, str]
    max_length: int | None = None
    sources: Sequence[Source] = ()

    @property
    def kind(self) -> str:
        """Its format, a key of :data:`hydractl.exports.formats.FORMATS`."""
        return self.metadata["format"]

    @property
    def family(self) -> ModelFamily:
        """The family of the model it was made of."""
        return get_family(self.metadata["family"])

    @property
    def preprocess(self) -> dict[str, Any]:
        """How samples become inputs."""
        own: dict[str, Any] = json.loads(self.metadata["preprocess"])
        return own if self.max_length is None else {**own, "max_length": self.max_length}

    @property
    def members(self) -> int:
        """Number of members."""
        return int(self.metadata["members"])

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one sample; None for texts of another length than they were counted for."""
        return int(self.metadata["macs"]) if self.max_length is None else None

    @cached_property
    def sha256(self) -> str:
        """The digest of the file; of weights in a file beside it, it says nothing."""
        return sha256_file(self.path)

    @property
    def file_bytes(self) -> int:
        """Its size, with the weights beside it."""
        beside = self.path.with_name(f"{self.path.name}.data")
        return sum(path.stat().st_size for path in (self.path, beside) if path.exists())

    def at_length(self, tokens: int) -> ExportedFile:
        """The file on texts of at most so many tokens."""
        return self if self.preprocess.get("max_length") == tokens else replace(self, max_length=tokens)

    def build(self) -> ExportedModel:
        """Load the file."""
        return ExportedModel(FORMATS[self.kind].runner(self.path)[0], self.family, self.preprocess)


def exported_file(text: str) -> ExportedFile | None:
    """A MODEL argument that is an exported file; None for any other.

    Raises:
        InputError: there is no such file, or it is of another program.
        UsageError: the libraries that run it are not installed.
    """
    name, refs = split_model(text)
    kind, path = kind_of(refs[0]), Path(refs[0])
    if len(refs) > 1 or kind is None:
        return None
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    FORMATS[kind].require()
    return ExportedFile(name or path.name, path, read_metadata(path))
