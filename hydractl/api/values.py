"""What a Python program may pass where the command line takes a text: samples, data sets, documents.

These types are for type checkers and editors. The function of a verb gets what the text or the object is read as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NewType, TypeAlias

Texts: TypeAlias = str | Sequence[str]
"""One text or several."""

if TYPE_CHECKING:
    import os
    from typing import Any

    import numpy.typing as npt
    from PIL.Image import Image
    from torch import Tensor
    from torch.utils.data import Dataset

    from hydractl.data.held import Table
    from hydractl.files.results import Result

    Path: TypeAlias = str | "os.PathLike[str]"

    Samples: TypeAlias = (
        npt.NDArray[Any]
        | Tensor
        | Sequence[Image]
        | Sequence[npt.NDArray[Any]]
        | Sequence[Tensor]
        | Sequence[str]
        | Sequence[tuple[str, str]]
    )
    """Images (``[N, H, W]``, ``[N, H, W, C]``, a tensor ``[N, C, H, W]``, or a list of them), texts, or pairs of
    texts."""

    Classes: TypeAlias = npt.NDArray[Any] | Tensor | Sequence[int] | Sequence[str]
    """One class for each sample, by number or by name."""

    Data: TypeAlias = Path | Samples | tuple[Samples, Classes | None] | Dataset[Any] | Table
    """A SPEC as on the command line; samples, or ``(samples, classes)``; a torch ``Dataset`` of ``(sample, class)``; a
    ``datasets.Dataset`` with columns ``image`` or ``text`` (``text_b``), and ``label``."""

    NamedData: TypeAlias = Mapping[str, Data] | Texts
    """Data sets by name (``NAME``, ``NAME:near`` or ``NAME:far``), or texts ``NAME=SPEC``."""

    ManyData: TypeAlias = Data | Mapping[str, Data]
    """One data set, or several under names that tell them apart in messages."""

    JsonDocument: TypeAlias = Path | Result | Mapping[str, object]
    """The document that a function returned, or the file of one."""

    Names: TypeAlias = Path | Sequence[str]
    """Names, or a file of them."""
else:
    Path = str
    from hydractl.expressions.data_sets import DataSpec, OodSet
    from hydractl.jsonio import Document

    Data = NewType("Data", DataSpec)
    NamedData = Sequence[NewType("Data", OodSet)]
    ManyData = Sequence[Data]
    JsonDocument = NewType("JsonDocument", Document)
    Names = NewType("Names", Document)
