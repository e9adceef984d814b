"""What the file or folder of a way of getting members declares as ``METHOD``."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import MethodOptions
from hydractl.methods.study_rows import StudyRow


@dataclass(frozen=True)
class Method:
    """A way of getting members.

    Attributes:
        name: of its file or folder.
        about: what it is, in a few words.
        options: what ``finetune --ensemble`` can ask of it; None where it takes no training.
        rows: of ``study``.
    """

    name: str
    about: str
    options: type[MethodOptions] | None = None
    rows: tuple[StudyRow, ...] = ()
