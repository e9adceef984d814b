"""An exported file found again: what it says of itself, and called like the model that it was made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, PROBABILITIES
from hydractl.exports.formats import FORMATS, Runner, kind_of
from hydractl.exports.graph import IMAGES, NamedTensors, images_of_inputs, named_inputs
from hydractl.exports.metadata import TOKENS, UINT8, chosen_of, read_metadata
from hydractl.exports.shapes import GraphShapes, TensorShape
from hydractl.families import get_family
from hydractl.families.base import ImageFormat, ModelFamily
from hydractl.families.config_json import Preprocessing
from hydractl.families.reading import first_line, refused_as
from hydractl.files.checkpoint import sha256_file
from hydractl.metrics.probabilities import blocks
from hydractl.model.prediction import Chosen, Prediction
from hydractl.model.source import Source, split_model


class ExportedModel(nn.Module):
    """A file that runs, on the CPU and in float32; it holds no parameters.

    Attributes:
        family: of the model it was made of.
        labels: class names, or None.
        preprocess: makes inputs of a list of raw samples.

    Args:
        run: the file.
        family: of the model it was made of.
        preprocess: how samples become inputs.
        labels: class names, or None.
        image_format: how the graph makes inputs of images in uint8; None for a graph that takes inputs preprocessed.
    """

    def __init__(
        self,
        run: Runner,
        family: ModelFamily,
        preprocess: Preprocessing,
        labels: list[str] | None = None,
        image_format: ImageFormat | None = None,
    ) -> None:
        super().__init__()
        self._run = run
        self._preprocess = preprocess
        self._image_format = image_format
        self.family = family
        self.labels = labels
        self.preprocess = family.collate(preprocess)

    def outputs(self, inputs: Any) -> NamedTensors:
        """Return all outputs by name, of inputs as :attr:`preprocess` makes them."""
        if self._image_format is not None:
            images = images_of_inputs(inputs, self._image_format)
            return self._run({IMAGES: images})
        return self._run(named_inputs(inputs))

    def predict(self, inputs: Any) -> Prediction:
        """Return the whole answer to a batch, as the file gives it.

        Raises:
            NonFiniteError: for logits that are NaN or infinite.
        """
        outputs = self.outputs(inputs)
        probabilities = outputs[PROBABILITIES].double()
        confidence, predicted = probabilities.max(dim=1)

        # The graph does not give what follows from the members alone: it is computed here, some samples at a time.
        logits = outputs[MEMBER_LOGITS].numpy()
        _, samples, _ = logits.shape
        mi = np.empty(samples)
        member_probabilities = np.empty(logits.shape)
        for rows, block in blocks(logits):
            mi[rows] = block.mi
            member_probabilities[:, rows] = block.member_probs
        return Prediction(
            labels=self.labels,
            probabilities=probabilities,
            predicted=predicted,
            confidence=confidence,
            entropy=torch.special.entr(probabilities).sum(dim=1),
            mi=torch.from_numpy(mi),
            ood_score=outputs.get(OOD_SCORE),
            is_ood=outputs.get(IS_OOD),
            sets=outputs.get(CONFORMAL_SET),
            member_probabilities=torch.from_numpy(member_probabilities),
        )

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``."""
        return self.outputs(inputs)[MEMBER_LOGITS]

    def forward(self, inputs: Any) -> Tensor:
        """Return the mean prediction: probabilities ``[B, classes]``, and no logarithm of them as of other models."""
        return self.outputs(inputs)[PROBABILITIES]

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Draw random inputs of the right shape."""
        return self.family.example_inputs(self._preprocess, batch, seed)


@dataclass(frozen=True)
class ExportedFile:
    """A file of ``export`` as a MODEL argument, not yet loaded.

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
    def preprocess(self) -> Preprocessing:
        """How samples become inputs."""
        preprocess: dict[str, object] = json.loads(self.metadata["preprocess"])
        if self.max_length is not None:
            preprocess["max_length"] = self.max_length
        return preprocess

    @property
    def members(self) -> int:
        """Number of members."""
        return int(self.metadata["members"])

    @property
    def outputs(self) -> Mapping[str, TensorShape]:
        """Names and shapes of what its graph gives."""
        document = json.loads(self.metadata["shapes"])
        return GraphShapes.from_json(document).outputs

    @property
    def classes(self) -> int:
        """Number of classes."""
        _, classes = self.outputs[PROBABILITIES].shape
        assert isinstance(classes, int)  # a graph fixes it
        return classes

    @property
    def labels(self) -> list[str] | None:
        """Class names, or None."""
        labels: list[str] | None = json.loads(self.metadata["labels"])
        return labels

    @property
    def reads(self) -> str:
        """The kind of sample that it reads: ``image`` or ``text``."""
        if self.metadata["input"] == TOKENS:
            return "text"
        return "image"

    @property
    def chosen(self) -> Chosen:
        """The choices of ``calibrate`` for its model."""
        return chosen_of(self.metadata)

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one sample; None for texts of another length than they were counted for."""
        if self.max_length is not None:
            return None
        return int(self.metadata["macs"])

    @cached_property
    def sha256(self) -> str:
        """The digest of the file; of weights in a file beside it, it says nothing."""
        return sha256_file(self.path)

    @property
    def file_bytes(self) -> int:
        """Its size, with the weights beside it."""
        beside = self.path.with_name(f"{self.path.name}.data")
        files = (self.path, beside)
        size = 0
        for file in files:
            if file.exists():
                size += file.stat().st_size
        return size

    def at_length(self, tokens: int) -> ExportedFile:
        """Return the file on texts of at most so many tokens."""
        if self.preprocess.get("max_length") == tokens:
            return self
        return replace(self, max_length=tokens)

    def build(self) -> ExportedModel:
        """Load the file.

        Raises:
            InputError: it cannot be loaded; the model that is returned raises it where the graph cannot be run.
        """
        run, runtime = FORMATS[self.kind].runner(self.path)

        def run_or_refuse(inputs: NamedTensors) -> NamedTensors:
            try:
                return run(inputs)
            except MemoryError:
                raise
            except Exception as error:  # whatever a runtime makes of a graph that is none
                if "memory" in str(error):  # said with its own way out
                    raise
                raise InputError(f"{runtime} cannot run {self.path}: {first_line(error)}") from error

        image_format = None
        with refused_as(f"cannot tell what {self.path} takes"):
            if self.metadata["input"] == UINT8:
                image_format = self.family.image_format(self.preprocess)
            return ExportedModel(run_or_refuse, self.family, self.preprocess, self.labels, image_format)

    def example_inputs(self) -> Any:
        """Return random inputs of one sample.

        Raises:
            InputError: its metadata do not say what one is.
        """
        with refused_as(f"cannot tell what {self.path} takes"):
            return self.family.example_inputs(self.preprocess, 1, 0)

    def to_json(self) -> dict[str, Any]:
        """Return what the file says of itself."""
        return {
            "format": self.kind,
            "family": self.metadata["family"],
            "arch": self.metadata.get("arch"),
            "members": self.members,
            "macs": self.macs,
            "labels": self.labels,
            "input": self.metadata["input"],
            "outputs": list(self.outputs),
            "ood_score": self.metadata["ood_score"],
            "threshold": json.loads(self.metadata["threshold"]),
            "calibration": json.loads(self.metadata["calibration"]),
            "conformal": json.loads(self.metadata["conformal"]),
            "preprocess": self.preprocess,
            "made_of": json.loads(self.metadata.get("inputs", "[]")),
        }


def exported_file(text: str) -> ExportedFile | None:
    """Return a MODEL argument that is an exported file; None for any other.

    Raises:
        InputError: there is no such file, or it is of another program.
        UsageError: the libraries that run it are not installed.
    """
    name, files = split_model(text)
    if len(files) > 1 or kind_of(files[0]) is None:
        return None
    return exported_at(Path(files[0]), name)


def exported_at(path: Path, name: str | None = None) -> ExportedFile:
    """Return an exported file by its path, called by the name or else like the file.

    Raises:
        InputError: there is no such file, or it is of another program.
        UsageError: the libraries that run it are not installed.
    """
    kind = kind_of(path)
    if kind is None or not path.is_file():
        raise InputError(f"no such file: {path}")
    FORMATS[kind].require()
    return ExportedFile(name or path.name, path, read_metadata(path))
