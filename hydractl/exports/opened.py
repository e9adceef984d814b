"""Opens an exported file: its metadata, and a model that runs it and can be called like the original model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    """A model that runs an exported file on the CPU; it has no parameters itself.

    Attributes:
        family: the family of the original model.
        labels: class names, or None.
        preprocess: a function from a list of raw samples to inputs.

    Args:
        run: a function that runs the file.
        family: the family of the original model.
        preprocess: the preprocessing of the original model.
        labels: class names, or None.
        image_format: how the graph normalises images in uint8; None if the graph takes preprocessed inputs.
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
        """Return all outputs of the graph by name, for inputs from :attr:`preprocess`."""
        # A graph for images in uint8 normalises them itself, so undo the normalisation of the inputs.
        if self._image_format is not None:
            images = images_of_inputs(inputs, self._image_format)
            return self._run({IMAGES: images})
        return self._run(named_inputs(inputs))

    def predict(self, inputs: Any) -> Prediction:
        """Return the prediction for a batch of inputs from :attr:`preprocess`.

        Raises:
            NonFiniteError: if a logit is NaN or infinite.
        """
        outputs = self.outputs(inputs)
        probabilities = outputs[PROBABILITIES].double()
        confidence, predicted = probabilities.max(dim=1)

        # The graph returns only the logits of the members. Compute mutual information and the probabilities of each
        # member from them, some samples at a time to save memory.
        logits = outputs[MEMBER_LOGITS].numpy()  # [M, B, classes]
        _, samples, _ = logits.shape
        mi = np.empty(samples)
        member_probabilities = np.empty(logits.shape)
        for sample_slice, block in blocks(logits):
            mi[sample_slice] = block.mi
            member_probabilities[:, sample_slice] = block.member_probs

        # Score, flag and prediction set are outputs of the graph; they are None if it does not have them.
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

    def start_predicting(self, inputs: Any) -> Callable[[], Prediction]:
        """Return a function that does what :meth:`predict` does."""
        return partial(self.predict, inputs)

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``."""
        return self.outputs(inputs)[MEMBER_LOGITS]

    def forward(self, inputs: Any) -> Tensor:
        """Return the probabilities of the ensemble, ``[B, classes]``; other models return their logarithm here."""
        return self.outputs(inputs)[PROBABILITIES]

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Draw random inputs of the right shape."""
        return self.family.example_inputs(self._preprocess, batch, seed)


@dataclass(frozen=True)
class ExportedFile:
    """An exported file as a MODEL argument, not yet loaded.

    Attributes:
        name: the name that the user gave, or the name of the file.
        path: the file.
        metadata: the checked metadata of the file.
        max_length: the greatest number of tokens in a text; None means the number of the original model.
        sources: always empty; other MODEL arguments have checkpoints here.
    """

    name: str
    path: Path
    metadata: Mapping[str, str]
    max_length: int | None = None
    sources: Sequence[Source] = ()

    @property
    def kind(self) -> str:
        """The format of the file, a key of :data:`hydractl.exports.formats.FORMATS`."""
        return self.metadata["format"]

    @property
    def family(self) -> ModelFamily:
        """The family of the original model."""
        return get_family(self.metadata["family"])

    @property
    def preprocess(self) -> Preprocessing:
        """The preprocessing of the original model, with ``max_length`` replaced if it is set here."""
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
        """The names and shapes of the outputs of the graph."""
        document = json.loads(self.metadata["shapes"])
        return GraphShapes.from_json(document).outputs

    @property
    def classes(self) -> int:
        """Number of classes."""
        _, classes = self.outputs[PROBABILITIES].shape
        assert isinstance(classes, int)  # a graph has a fixed number of classes
        return classes

    @property
    def labels(self) -> list[str] | None:
        """Class names, or None."""
        labels: list[str] | None = json.loads(self.metadata["labels"])
        return labels

    @property
    def reads(self) -> str:
        """The kind of samples that the model reads: ``image`` or ``text``."""
        if self.metadata["input"] == TOKENS:
            return "text"
        return "image"

    @property
    def chosen(self) -> Chosen:
        """The choices of ``calibrate`` for the original model."""
        return chosen_of(self.metadata)

    @property
    def macs(self) -> int | None:
        """Multiply-adds for one sample; None if ``max_length`` is set, because they were counted for another length."""
        if self.max_length is not None:
            return None
        return int(self.metadata["macs"])

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file itself, without a second file of weights."""
        return sha256_file(self.path)

    @property
    def file_bytes(self) -> int:
        """The size of the file in bytes, including a second file of weights."""
        weights_file = self.path.with_name(f"{self.path.name}.data")
        files = (self.path, weights_file)
        size = 0
        for file in files:
            if file.exists():
                size += file.stat().st_size
        return size

    def at_length(self, tokens: int) -> ExportedFile:
        """Return the same file with texts cut to at most ``tokens`` tokens."""
        if self.preprocess.get("max_length") == tokens:
            return self
        return replace(self, max_length=tokens)

    def build(self) -> ExportedModel:
        """Load the file.

        Returns:
            A model that runs the file. It raises an InputError if the graph cannot be run.

        Raises:
            InputError: if the file cannot be loaded.
        """
        run, runtime = FORMATS[self.kind].runner(self.path)

        def run_or_refuse(inputs: NamedTensors) -> NamedTensors:
            try:
                return run(inputs)
            except MemoryError:
                raise
            except Exception as error:  # runtimes raise errors of many kinds for a broken graph
                if "memory" in str(error):  # the caller reports a lack of memory with its own hint
                    raise
                raise InputError(f"{runtime} cannot run {self.path}: {first_line(error)}") from error

        image_format = None
        with refused_as(f"cannot tell what {self.path} takes"):
            if self.metadata["input"] == UINT8:
                image_format = self.family.image_format(self.preprocess)
            return ExportedModel(run_or_refuse, self.family, self.preprocess, self.labels, image_format)

    def example_inputs(self) -> Any:
        """Return random inputs for one sample.

        Raises:
            InputError: if the metadata do not describe the inputs.
        """
        with refused_as(f"cannot tell what {self.path} takes"):
            return self.family.example_inputs(self.preprocess, 1, 0)

    def to_json(self) -> dict[str, Any]:
        """Return the metadata of the file as a JSON document for users."""
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
    """Return the exported file that a MODEL argument names; None if the argument is not an exported file.

    Args:
        text: the argument, ``PATH`` or ``NAME=PATH``.

    Raises:
        InputError: if there is no such file, or hydractl did not write it.
        UsageError: if a library that runs the file is not installed.
    """
    name, files = split_model(text)
    if len(files) > 1 or kind_of(files[0]) is None:
        return None
    return exported_at(Path(files[0]), name)


def exported_at(path: Path, name: str | None = None) -> ExportedFile:
    """Return an exported file by its path.

    Args:
        path: the file.
        name: the name of the model; None means the name of the file.

    Raises:
        InputError: if there is no such file, or hydractl did not write it.
        UsageError: if a library that runs the file is not installed.
    """
    kind = kind_of(path)
    if kind is None or not path.is_file():
        raise InputError(f"no such file: {path}")
    FORMATS[kind].require()
    return ExportedFile(name or path.name, path, read_metadata(path))
