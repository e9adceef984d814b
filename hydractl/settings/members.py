"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import FLAG, VERB_KEY, Batched
from hydractl.settings.option import option

fuse_option = partial(option, "Fusing")


@dataclass(kw_only=True)
class FuseSettings(Batched):
    """Options of ``fuse``. ``check()`` turns ``merge`` into a list: what is averaged, nothing for ``none``, ``auto``.

    ``data`` counts where it is given to ``fuse``, not where it is given to every verb: it is then meant for the others.
    """

    verb: ClassVar[str] = "fuse"
    lacks: ClassVar[tuple[str, ...]] = ("tower",)
    many_models: ClassVar[bool] = True
    needs_output_file: ClassVar[bool] = True

    merge: list[str] = fuse_option(
        "What to average over the members; attention, LayerScale and classifiers never are. auto averages all three "
        "where the members come from one base and it moves their answers little, and nothing where it does not",
        ["auto"],
        choices=("mlp", "norm", "embed", "none", "auto"),
        metavar="auto|mlp,norm,embed|none",
        split=True,
        often=True,
    )
    export: list[str] = fuse_option(
        "Write the model in these formats as well, to run without hydractl; one MODEL is exported and not fused "
        "[default: none]",
        [],
        choices=("onnx", "pt2"),
        metavar="onnx,pt2",
        split=True,
        often=True,
    )

    @property
    def only_exports(self) -> bool:
        """Whether one model is exported, and nothing fused."""
        return bool(self.export) and len(self.model) == 1

    def inapplicable(self) -> dict[str, str]:
        """One model that is exported is joined with no other."""
        return dict.fromkeys(["merge", *(["data"] if self._measures else [])], "export") if self.only_exports else {}

    @property
    def _measures(self) -> bool:
        return self._rank("data") in (VERB_KEY, FLAG)

    def settle(self) -> None:
        """Leave data alone that every verb was given."""
        if not self._measures:
            self.data = None

    def conflicts(self) -> list[str]:
        """``none`` and ``auto`` exclude the other values."""
        if self.merge == ["none"]:
            self.merge = []
        alone = [value for value in ("none", "auto") if value in self.merge and len(self.merge) > 1]
        return [
            f"--merge {value} stands alone, not with the others: {','.join(self.merge)}{self.where('merge')}"
            for value in alone[:1]
        ] + (self.goes_with("limit", "data") if self._rank("limit") in (VERB_KEY, FLAG) else [])
