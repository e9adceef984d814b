"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import FLAG, VERB_KEY, Batched
from hydractl.settings.expressions import OodSet, parse_ood_set
from hydractl.settings.option import option

fuse_option = partial(option, "Fusing")


@dataclass(kw_only=True)
class FuseSettings(Batched):
    """Options of ``fuse``. ``check()`` turns ``merge`` into a list: what is averaged, nothing for ``none``, ``auto``.

    ``data`` and ``ood`` count where they are given to ``fuse``, not where they are given to every verb: they are then
    meant for the others.
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
        "Write the model in these formats as well, to run without hydractl; one MODEL is exported and not fused. The "
        "weights of onnx-int8 are rounded to 8 bits; with --data, what that does to the answers is measured "
        "[default: none]",
        [],
        choices=("onnx", "onnx-int8", "pt2"),
        metavar="onnx,onnx-int8,pt2",
        split=True,
        often=True,
    )
    ood: list[str] = fuse_option(
        "Out-of-distribution data, as NAME[:near|far]=SPEC, that onnx-int8 is measured on beside --data; repeat it for "
        "more",
        [],
        metavar="NAME=SPEC",
        names=True,
        check=parse_ood_set,
    )

    @property
    def only_exports(self) -> bool:
        """Whether one model is exported, and nothing fused."""
        return bool(self.export) and len(self.model) == 1

    @property
    def rounds_weights(self) -> bool:
        """Whether a file is written whose answers are not those of the model."""
        return "onnx-int8" in self.export

    def inapplicable(self) -> dict[str, str]:
        """One model that is exported is joined with no other, and measured only where weights are rounded."""
        measures = self._told("data") and not self.rounds_weights
        return dict.fromkeys(["merge", *(["data"] if measures else [])], "export") if self.only_exports else {}

    def _told(self, name: str) -> bool:
        return self._rank(name) in (VERB_KEY, FLAG)

    def settle(self) -> None:
        """Leave data alone that every verb was given."""
        self.data = self.data if self._told("data") else None
        self.ood = self.ood if self._told("ood") else []

    def ood_sets(self) -> list[OodSet]:
        """The data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]

    def conflicts(self) -> list[str]:
        """``none`` and ``auto`` exclude the other values."""
        if self.merge == ["none"]:
            self.merge = []
        alone = [value for value in ("none", "auto") if value in self.merge and len(self.merge) > 1]
        return [
            f"--merge {value} stands alone, not with the others: {','.join(self.merge)}{self.where('merge')}"
            for value in alone[:1]
        ] + [
            *(self.goes_with("limit", "data") if self._told("limit") else []),
            *self.twice_named("ood"),
            *self.goes_with("ood", "data"),
            *([f"--ood{self.where('ood')} needs --export onnx-int8"] if self.ood and not self.rounds_weights else []),
        ]
