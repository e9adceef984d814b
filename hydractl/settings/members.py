"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.data_sets import OodSet, parse_ood_set, parse_val_ood
from hydractl.metrics.ood_scores import SCORES
from hydractl.settings.common import EXPORTED, Batched, Rule
from hydractl.settings.option import option
from hydractl.settings.rules import names_once, needs

fuse_option = partial(option, "Fusing")

_ALONE = [name for name, score in SCORES.items() if not score.of_several]


def _merges_one_way(settings: FuseSettings) -> list[str]:
    """Find ``none`` or ``auto`` beside parts that are named."""
    if len(settings.merge) < 2:
        return []
    for word in ("none", "auto"):
        if word in settings.merge:
            words = ",".join(settings.merge)
            return [f"--merge {word} stands alone, not with the others: {words}{settings.where('merge')}"]
    return []


def _ood_for_rounded_weights(settings: FuseSettings) -> list[str]:
    """Find OOD data where no weights are rounded, which alone are measured on them."""
    if not settings.ood or settings.rounds_weights:
        return []
    return [f"--ood{settings.where('ood')} needs --export onnx-int8"]


def _a_cascade_for_its_options(settings: FuseSettings) -> list[str]:
    """Find options of a cascade where none is fitted; their defaults are no problem."""
    problems = []
    for name in ("cascade_ood", "cascade_loss", "cascade_score"):
        if settings._rank(name):
            problems += settings.goes_with(name, "cascade")
    return problems


def _samples_to_limit(settings: FuseSettings) -> list[str]:
    """Find a limit that was given to this verb, and nothing that reads samples."""
    if not settings.of_this_verb("limit") or settings.cascade is not None:
        return []
    return settings.goes_with("limit", "data")


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
    rules: ClassVar[tuple[Rule, ...]] = (
        _merges_one_way,
        names_once("ood"),
        needs("ood", "data"),
        _ood_for_rounded_weights,
        names_once("cascade_ood"),
        _a_cascade_for_its_options,
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

    def names_export(self) -> bool:
        """With ``--export``, what is exported has the ending that ``--output`` may have."""
        return bool(self.export) and (self.output or "").lower().endswith(tuple(EXPORTED))

    @property
    def only_exports(self) -> bool:
        """Whether one model is exported, and nothing fused."""
        return bool(self.export) and len(self.model) == 1

    @property
    def rounds_weights(self) -> bool:
        """Whether a file is written whose answers are not those of the model."""
        return "onnx-int8" in self.export

    def inapplicable(self) -> dict[str, str]:
        """Return what one model alone has no use for: it is joined with none, and measured only where it is changed."""
        unused = ["merge"]
        if self.of_this_verb("data") and not self.rounds_weights:
            unused.append("data")
        if self.only_exports:
            return dict.fromkeys([*unused, "cascade", "cascade_ood"], "export")
        if self.only_cascades:
            return dict.fromkeys(unused, "cascade")
        return {}

    @property
    def only_cascades(self) -> bool:
        """Whether one fused model is given a cascade."""
        return self.cascade is not None and len(self.model) == 1 and not self.export

    def settle(self) -> None:
        """Leave data alone that every verb was given."""
        if not self.of_this_verb("data"):
            self.data = None
        if not self.of_this_verb("ood"):
            self.ood = []

    def ood_sets(self) -> list[OodSet]:
        """The data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]

    def conflicts(self) -> list[str]:
        """List problems, after ``none`` has become the empty list that it stands for."""
        if self.merge == ["none"]:
            self.merge = []
        return super().conflicts()
