"""The answer of fuse (``hydractl.fuse/1``), parts of which are kept in the fused file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hydractl.files.model_records import ModelSize
from hydractl.files.results import Count, Number, Record, Result, optional, sparse


class SelfCheckRecord(Record):
    """Fused members against the same members run alone, before the file was written."""

    inputs: str
    """What they ran on."""
    max_abs_logit: float
    """The largest logit, without its sign."""
    member_max_abs: Sequence[float]
    """By member the largest difference of a logit: rounding."""
    merge_max_abs: Sequence[float]
    """By member the largest change of a logit by averaging."""
    merge_agreement: Sequence[float] | None = optional(
        "By member the share of inputs whose answer averaging keeps; not of bodies."
    )
    merge_log_p: Sequence[float] | None = optional(
        "By member the mean shift of log p by averaging, in nats; not of bodies."
    )
    pool_max_abs: Number = optional("The largest difference of an averaged probability: rounding; not of bodies.")
    tolerance: float
    """The largest difference of a logit that is allowed."""
    mi: Number = optional("Mutual information of the fused members, in nats; not of bodies.")
    disagreement: Number = optional(
        "Share of pairs of fused members that disagree; null for one member, not of bodies."
    )


class AveragingLimits(Record):
    """The most that averaging may do where `--merge auto` averages."""

    distance: float
    """Relative distance of a member from the mean."""
    log_p: float
    """Mean shift of log p, in nats."""


class AveragingRecord(Record):
    """What averaging the members does to them, done or not."""

    asked: str | Sequence[str]
    """The value of `--merge`: `auto`, or parts."""
    parts: Sequence[str]
    """The parts that are, or would be, averaged."""
    done: bool
    """Whether they are."""
    harmful: bool
    """Whether a limit is passed."""
    distance: Sequence[float]
    """By member the distance of its weights from the mean, relative to them."""
    limits: AveragingLimits
    """What is allowed."""
    merge_max_abs: Sequence[float]
    """As of the self-check."""
    merge_agreement: Sequence[float] | None = optional("As of the self-check.")
    merge_log_p: Sequence[float] | None = optional("As of the self-check.")
    parameters: Count
    """Parameters of the averaged model."""


class FusedMember(Record):
    """A model that was fused."""

    name: str
    """Its name."""
    sha256: str | None = optional("SHA-256 of its file; not in a dry run.")
    heads: Sequence[Count]
    """Number of heads kept at each site."""
    kind: str | None = optional("`dense`, `pruned` or `fused`.")


class FusedSizes(Record):
    """What members and the fused model take."""

    single: ModelSize
    """The first member."""
    members: ModelSize
    """All members run separately."""
    fused: ModelSize
    """The fused model."""
    dense_macs: Count | None = optional("Mult-adds of the model with all heads.")
    dense_params: Count | None = optional("Parameters of the model with all heads.")
    mac_ratio: Number = optional("Mult-adds of the fused model over those of the model with all heads.")


class SharedTower(Record):
    """What of one tower runs once for all members, and where they part."""

    tower: str
    """`main`, or `visual` or `text` in a model with two towers."""
    blocks: Count
    """Number of its blocks."""
    stem: bool
    """Whether what comes before the blocks runs once."""
    blocks_once: Count
    """How many leading blocks run once."""
    attention_once: bool
    """Whether the attention behind them does."""
    parts_at: str | None = None
    """Where members part; null where they never do."""
    differs: str | None = None
    """In what they differ there: `heads`, `weights`, or both."""

    @property
    def once(self) -> list[str]:
        """The parts that run once for all members, in words."""
        parts = []
        if self.stem:
            parts.append("the stem")
        if self.blocks_once:
            parts.append(f"{self.blocks_once} of {self.blocks} blocks")
        if self.attention_once:
            parts.append("the attention behind them")
        return parts


class FuseAnswer(Result):
    """What `hydractl fuse --json` prints."""

    schema_: Literal["hydractl.fuse/1"] = "hydractl.fuse/1"
    output: str
    """The fused checkpoint."""
    arch: str
    """Architecture of the members."""
    merge: Sequence[str]
    """What was averaged; empty where members are kept whole."""
    members: Sequence[FusedMember]
    """Name, SHA-256, heads by site and kind of each member."""
    parameters: Mapping[str, Count]
    """Parameters `averaged`, `equal` in all members (not in a dry run) and `per_member`."""
    shared: Sequence[SharedTower] = sparse("By tower what runs once, and where members part; not in a dry run.", [])
    cost: FusedSizes
    """Of the first member (`single`), of all members run separately and of the fused model; parameters and mult-adds of
    the model with all heads; the ratio of mult-adds to that.
    """
    self_check: SelfCheckRecord | None = optional("The check of the fused model; not in a dry run.")
    averaging: AveragingRecord | None = optional("What averaging does; not with `--merge none`, nor in a dry run.")
    sha256: str | None = optional("SHA-256 of the fused checkpoint; not in a dry run.")
    note: str | None = optional("What a dry run does not know.")
