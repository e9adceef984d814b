"""The options of ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.data_sets import OodSet, parse_ood_val
from hydractl.metrics.ood_scores import SCORES
from hydractl.settings.common import Batched, Rule
from hydractl.settings.option import option
from hydractl.settings.rules import names_once

fuse_option = partial(option, "Fusing")

_ALONE = [name for name, score in SCORES.items() if not score.of_several]


def _merges_one_way(settings: FuseSettings) -> list[str]:
    """Return a problem if ``--merge`` has ``none`` or ``auto`` beside other parts."""
    if len(settings.merge) < 2:
        return []
    for word in ("none", "auto"):
        if word in settings.merge:
            words = ",".join(settings.merge)
            return [f"--merge {word} stands alone, not with the others: {words}{settings.where('merge')}"]
    return []


def _a_cascade_for_its_options(settings: FuseSettings) -> list[str]:
    """Return the problems of a cascade without its data, or of options of a cascade if none is asked for."""
    if settings.cascade:
        return settings.needs("val", "--cascade") + settings.needs("ood_val", "--cascade")
    problems = []
    for name in ("ood_val", "cascade_loss", "cascade_score"):
        if settings.given(name) and settings._rank(name):
            problems.append(f"{settings.called(name)}{settings.where(name)} needs --cascade")
    return problems


def _samples_to_limit(settings: FuseSettings) -> list[str]:
    """Return a problem if ``--limit`` was given to this verb, and it reads no samples."""
    if not settings.of_this_verb("limit"):
        return []
    return settings.goes_with("limit", "val")


@dataclass(kw_only=True)
class FuseSettings(Batched):
    """Options of ``fuse``. ``check()`` turns ``merge`` into a list: parts to average, empty for ``none``, or ``auto``.

    ``val`` and ``ood_val`` count if they were given to ``fuse`` itself, or if a cascade is asked for, which needs them.
    Otherwise a value for all verbs is meant for other verbs.
    """

    verb: ClassVar[str] = "fuse"
    lacks: ClassVar[tuple[str, ...]] = ("data", "tower")
    many_models: ClassVar[bool] = True
    needs_output_file: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        _merges_one_way,
        names_once("ood_val"),
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
    val: str | None = fuse_option(
        "Labelled validation data, on which what averaging does to accuracy is measured, and on which --cascade is "
        "chosen",
        metavar="SPEC",
        often=True,
    )
    cascade: bool = fuse_option(
        "Choose on --val and --ood-val when one member is enough: it then answers alone, and the others run only for "
        "the other samples; one fused MODEL is written again with it",
        False,
        often=True,
    )
    ood_val: list[str] = fuse_option(
        "Out-of-distribution validation data of --cascade; repeat it for more; auto makes them of the samples of --val",
        [],
        metavar="NAME=SPEC|auto",
        names=True,
        check=parse_ood_val,
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

    def ood_val_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood-val``, in order."""
        return [parse_ood_val(text) for text in self.ood_val]

    @property
    def only_cascades(self) -> bool:
        """Whether the verb only adds a cascade to one fused model."""
        return self.cascade and len(self.model) == 1

    def inapplicable(self) -> dict[str, str]:
        """Return ``merge`` as without effect if there is only one model."""
        if self.only_cascades:
            return {"merge": "cascade"}
        return {}

    def settle(self) -> None:
        """Drop data that were set for all verbs at once, if there is no cascade that needs them."""
        if self.cascade:
            return
        if not self.of_this_verb("val"):
            self.val = None
        if not self.of_this_verb("ood_val"):
            self.ood_val = []

    def conflicts(self) -> list[str]:
        """Return the problems between options, after turning ``none`` into the empty list that it stands for."""
        if self.merge == ["none"]:
            self.merge = []
        return super().conflicts()
