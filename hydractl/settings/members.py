"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.options.option import option
from hydractl.settings.common import Batched, Rule

fuse_option = partial(option, "Fusing")


def _merges_one_way(settings: FuseSettings) -> list[str]:
    """Return a problem if ``--merge`` has ``none`` or ``auto`` beside other parts."""
    if len(settings.merge) < 2:
        return []
    for word in ("none", "auto"):
        if word in settings.merge:
            words = ",".join(settings.merge)
            return [f"--merge {word} stands alone, not with the others: {words}{settings.where('merge')}"]
    return []


def _samples_to_limit(settings: FuseSettings) -> list[str]:
    """Return a problem if ``--limit`` was given to this verb, and it reads no samples."""
    if not settings.of_this_verb("limit"):
        return []
    return settings.goes_with("limit", "val")


@dataclass(kw_only=True)
class FuseSettings(Batched):
    """Options of ``fuse``. ``check()`` turns ``merge`` into a list: parts to average, empty for ``none``, or ``auto``.

    ``val`` counts if it was given to ``fuse`` itself. A value for all verbs is meant for other verbs.
    """

    verb: ClassVar[str] = "fuse"
    lacks: ClassVar[tuple[str, ...]] = ("data", "tower")
    many_models: ClassVar[bool] = True
    needs_output_file: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        _merges_one_way,
        _samples_to_limit,
    )

    merge: list[str] = fuse_option(
        "What to average over the members; attention, LayerScale and classifiers never are. auto averages all three "
        "where the members come from one base and it moves their answers little, and nothing where it does not",
        ["auto"],
        choices=("mlp", "norm", "embed", "none", "auto"),
        metavar="auto|mlp,norm,embed|none",
        split=True,
        often=True,
    )
    val: str | None = fuse_option(
        "Labelled validation data, on which what averaging does to accuracy is measured",
        metavar="SPEC",
        often=True,
    )

    def settle(self) -> None:
        """Drop validation data that were set for all verbs at once."""
        if not self.of_this_verb("val"):
            self.val = None

    def conflicts(self) -> list[str]:
        """Return the problems between options, after turning ``none`` into the empty list that it stands for."""
        if self.merge == ["none"]:
            self.merge = []
        return super().conflicts()
