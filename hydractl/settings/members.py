"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.metrics.ood_scores import SCORES
from hydractl.settings.common import FLAG, VERB_KEY, Batched
from hydractl.settings.expressions import OodSet, parse_val_ood
from hydractl.settings.option import option

fuse_option = partial(option, "Fusing")

_ALONE = [name for name, score in SCORES.items() if not score.of_several]


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

    cascade: str | None = fuse_option(
        "Labelled in-distribution validation data that say when one member is enough: it then answers alone, and the "
        "others run only for the other samples; one fused MODEL is written again with it [default: all members run]",
        metavar="SPEC",
        often=True,
    )
    cascade_ood: list[str] = fuse_option(
        "Out-of-distribution validation data of --cascade; repeat it for more; auto makes them of its samples",
        [],
        metavar="NAME=SPEC|auto",
        names=True,
        check=parse_val_ood,
    )
    cascade_loss: float = fuse_option(
        "The most that --cascade may lose of the accuracy, the NLL and the OOD AUROC of all members, each at its upper "
        "95 % limit",
        0.003,
        at_least=0.0,
    )
    cascade_score: str = fuse_option(
        "OOD score that decides which samples go on, by the first member alone, and that the file then serves: "
        + ", ".join(_ALONE),
        "msp",
        choices=_ALONE,
        metavar="NAME",
    )

    def cascade_sets(self) -> list[OodSet]:
        """The data sets of ``--cascade-ood``, in order."""
        return [parse_val_ood(text) for text in self.cascade_ood]

    @property
    def only_exports(self) -> bool:
        """Whether one model is exported, and nothing fused."""
        return bool(self.export) and len(self.model) == 1

    def inapplicable(self) -> dict[str, str]:
        """One model that is exported, or given a cascade, is joined with no other."""
        joined = ["merge", *(["data"] if self._measures else [])]
        if self.only_exports:
            return dict.fromkeys([*joined, "cascade", "cascade_ood"], "export")
        return dict.fromkeys(joined, "cascade") if self.only_cascades else {}

    @property
    def only_cascades(self) -> bool:
        """Whether one fused model is given a cascade."""
        return self.cascade is not None and len(self.model) == 1 and not self.export

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
        ] + self._of_data()

    def _of_data(self) -> list[str]:
        """Problems of what needs data."""
        found = self.twice_named("cascade_ood")
        for name in ("cascade_ood", "cascade_loss", "cascade_score"):
            found += self.goes_with(name, "cascade") if self._rank(name) else []
        idle = self._rank("limit") in (VERB_KEY, FLAG) and self.cascade is None
        return found + (self.goes_with("limit", "data") if idle else [])
