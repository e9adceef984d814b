"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import Batched
from hydractl.settings.option import option

fuse_option = partial(option, "Fusing")


@dataclass(kw_only=True)
class FuseSettings(Batched):
    """Options of ``fuse``. ``check()`` turns ``merge`` into a list of what is averaged, empty for ``none``."""

    verb: ClassVar[str] = "fuse"
    many_models: ClassVar[bool] = True
    needs_output_file: ClassVar[bool] = True

    merge: list[str] = fuse_option(
        "What to average over the members; attention, LayerScale and classifiers never are",
        ["mlp", "norm", "embed"],
        choices=("mlp", "norm", "embed", "none"),
        metavar="mlp,norm,embed|none",
        split=True,
    )
    export: list[str] = fuse_option(
        "Write the model in these formats as well, to run without hydractl; one MODEL is exported and not fused "
        "[default: none]",
        [],
        choices=("onnx", "pt2"),
        metavar="onnx,pt2",
        split=True,
    )

    @property
    def only_exports(self) -> bool:
        """Whether one model is exported, and nothing fused."""
        return bool(self.export) and len(self.model) == 1

    def inapplicable(self) -> dict[str, str]:
        """One model that is exported is joined with no other."""
        return {"merge": "export"} if self.only_exports else {}

    def conflicts(self) -> list[str]:
        """``none`` excludes the other values."""
        if self.merge == ["none"]:
            self.merge = []
        if "none" in self.merge:
            return [f"--merge none stands alone, not with the others: {','.join(self.merge)}{self.where('merge')}"]
        return []
