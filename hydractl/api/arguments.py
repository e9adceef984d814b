"""The keyword arguments of every function, with their types: for completion in editors, and for type checkers.

The declarations in ``hydractl.settings`` say what each argument means, its unit, range and default;
``help(hydractl.prune)`` shows that. A test compares both, so that neither has an option that the other lacks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Union

import numpy.typing as npt
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import Dataset

from hydractl.data.held import Table
from hydractl.files.results import Result

Path: TypeAlias = Union[str, "os.PathLike[str]"]

Samples: TypeAlias = (
    npt.NDArray[Any]
    | Tensor
    | Sequence[Image]
    | Sequence[npt.NDArray[Any]]
    | Sequence[Tensor]
    | Sequence[str]
    | Sequence[tuple[str, str]]
)
"""Images (``[N, H, W]``, ``[N, H, W, C]``, a tensor ``[N, C, H, W]``, or a list of them), texts, or pairs of texts."""

Classes: TypeAlias = npt.NDArray[Any] | Tensor | Sequence[int] | Sequence[str]
"""One class for each sample, by number or by name."""

Data: TypeAlias = Path | Samples | tuple[Samples, Classes | None] | Dataset[Any] | Table
"""A SPEC as on the command line; samples, or ``(samples, classes)``; a torch ``Dataset`` of ``(sample, class)``; a
``datasets.Dataset`` with columns ``image`` or ``text`` (``text_b``), and ``label``."""

NamedData: TypeAlias = Mapping[str, Data] | str | Sequence[str]
"""Data sets by name (``NAME``, ``NAME:near`` or ``NAME:far``), or texts ``NAME=SPEC``."""

ManyData: TypeAlias = Data | Mapping[str, Data]
"""One data set, or several under names that tell them apart in messages."""

JsonDocument: TypeAlias = Path | Result | Mapping[str, object]
"""The document that a function returned, or the file of one."""

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]
Tower: TypeAlias = Literal["visual", "text", "both"]
ExportFormat: TypeAlias = Literal["onnx", "pt2"]
Part: TypeAlias = Literal[
    "patch",
    "position",
    "class_token",
    "words",
    "stem",
    "attention",
    "mlp",
    "norm",
    "layer_scale",
    "head",
    "scale",
]


class EveryVerb(TypedDict, total=False):
    """Arguments of every verb."""

    config: Path | None
    force: bool


class OpensModels(EveryVerb, total=False):
    """Arguments of every verb that opens models and data: all but ``export`` and ``report``."""

    output: Path | None
    limit: int | None
    max_length: int | None
    labels: str | Sequence[str] | None
    prompt: str | Sequence[str]
    arch: str | None
    seed: int


class InBatches(OpensModels, total=False):
    """Arguments of every verb with one batch size and one number format: all but ``bench`` and ``export``."""

    device: str
    workers: int | None
    dtype: Dtype
    batch_size: int


class ProbabilityArguments(InBatches, total=False):
    """Arguments of verbs that need the probabilities and OOD scores of a model: ``eval`` and ``calibrate``."""

    whole_last_block: bool
    on_bad: Literal["error", "skip"]
    val: Data | None
    ood_val: NamedData
    temperature: str | float | Sequence[str]
    threshold: str | None
    conformal: float | None
    conformal_score: Literal["lac", "aps"]
    ood_score: str | Sequence[str]
    train: Data | None
    knn_k: int
    negative_words: Path | None
    features: Path | None
    label_map: JsonDocument | None
    reuse: Path | Sequence[Path]


class EvalArguments(ProbabilityArguments, total=False):
    """Arguments of :func:`hydractl.evaluate`."""

    test: Data | None
    ood: NamedData
    bootstrap: int
    predictions: Path | None
    resume: bool
    allow_seen: bool
    require: str | Sequence[str]
    corruptions: str | Sequence[str]
    photographs: Path | None
    severities: int | Sequence[int]
    ood_suite: str | None
    ood_root: Path | None
    mc_dropout: float | None
    passes: int | None


class CalibrateArguments(ProbabilityArguments, total=False):
    """Arguments of :func:`hydractl.calibrate`."""

    knn_bank: int | None
    note: str | None
