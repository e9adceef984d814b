"""The declaration of an ensemble method: ``METHOD`` in its file or folder."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import MethodOptions
from hydractl.methods.study_rows import StudyRow


@dataclass(frozen=True)
class Method:
    """An ensemble method.

    Attributes:
        name: the name of its file or folder.
        options: its options of ``finetune --ensemble``; None for a method without training.
        rows: its rows of ``study``.
    """

    name: str
    options: type[MethodOptions] | None = None
    rows: tuple[StudyRow, ...] = ()
