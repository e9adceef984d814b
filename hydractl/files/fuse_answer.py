"""The answer of fuse (``hydractl.fuse/1``), parts of which are kept in the fused file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydractl.files.model_records import ModelSize
from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, described, needed, sparse


@dataclass(frozen=True, kw_only=True)
class SelfCheckRecord(Record, form="SelfCheck"):
    """Fused members against the same members run alone, before the file was written."""

    inputs: str = needed("What they ran on.")
    max_abs_logit: float = needed("The largest logit, without its sign.")
    member_max_abs: Sequence[float] = needed("By member the largest difference of a logit: rounding.")
    merge_max_abs: Sequence[float] = needed("By member the largest change of a logit by averaging.")
    merge_agreement: Sequence[float] | None = described(
        "By member the share of inputs whose answer averaging keeps; not of bodies."
    )
    merge_log_p: Sequence[float] | None = described(
        "By member the mean shift of log p by averaging, in nats; not of bodies."
    )
    pool_max_abs: Number = described("The largest difference of an averaged probability: rounding; not of bodies.")
    tolerance: float = needed("The largest difference of a logit that is allowed.")
    mi: Number = described("Mutual information of the fused members, in nats; not of bodies.")
    disagreement: Number = described(
        "Share of pairs of fused members that disagree; null for one member, not of bodies."
    )


@dataclass(frozen=True, kw_only=True)
class AveragingLimits(Record, form="Limits"):
    """The most that averaging may do where `--merge auto` averages."""

    distance: float = needed("Relative distance of a member from the mean.")
    log_p: float = needed("Mean shift of log p, in nats.")


@dataclass(frozen=True, kw_only=True)
class AveragingRecord(Record, form="Averaging"):
    """What averaging the members does to them, done or not."""

    asked: str | Sequence[str] = needed("The value of `--merge`: `auto`, or parts.")
    parts: Sequence[str] = needed("The parts that are, or would be, averaged.")
    done: bool = needed("Whether they are.")
    harmful: bool = needed("Whether a limit is passed.")
    distance: Sequence[float] = needed("By member the distance of its weights from the mean, relative to them.")
    limits: AveragingLimits = needed("What is allowed.")
    merge_max_abs: Sequence[float] = needed("As of the self-check.")
    merge_agreement: Sequence[float] | None = described("As of the self-check.")
    merge_log_p: Sequence[float] | None = described("As of the self-check.")
    parameters: Count = needed("Parameters of the averaged model.")


@dataclass(frozen=True, kw_only=True)
class AnswersRecord(Record, form="Answers"):
    """Members and their ensemble on labelled data."""

    members: Sequence[float] = needed("Accuracy of each member.")
    ensemble: float = needed("Accuracy of the mean of their softmaxes.")
    mi: float = needed("Mutual information of the members, in nats.")
    disagreement: float = needed("Share of pairs of members that disagree.")


@dataclass(frozen=True, kw_only=True)
class OnDataRecord(Record, form="OnData"):
    """What averaging does on the data of `--val`."""

    data: str = needed("Fingerprint of the data set.")
    n: Count = needed("Number of its samples.")
    before: AnswersRecord = needed("Each member as it was, and the ensemble of them.")
    after: AnswersRecord = needed("The fused model.")


@dataclass(frozen=True, kw_only=True)
class FuseAnswer(Record, form="Fuse"):
    """What `hydractl fuse --json` prints."""

    schema: Literal["hydractl.fuse/1"] = needed(SCHEMA_TEXT, "hydractl.fuse/1")
    output: str = needed("The fused checkpoint.")
    arch: str = needed("Architecture of the members.")
    merge: Sequence[str] = needed("What was averaged; empty where members are kept whole.")
    members: Sequence[FusedMember] = needed("Name, SHA-256, heads by site and kind of each member.")
    parameters: Mapping[str, Count] = needed("Parameters `averaged`, `equal` in all members and `per_member`.")
    shared: Sequence[SharedTower] = sparse("By tower what runs once, and where members part.", list)
    cost: FusedSizes = needed(
        "Of the first member (`single`), of all members run separately and of the fused model; parameters "
        "and mult-adds of the model with all heads; the ratio of mult-adds to that."
    )
    self_check: SelfCheckRecord | None = described("The check of the fused model.")
    averaging: AveragingRecord | None = described("What averaging does; not there with `--merge none`.")
    on_data: OnDataRecord | None = described("What averaging does on the data of `--val`.")
    warnings: Sequence[str] | None = described("What makes the result less than it seems.")
    sha256: str | None = described("SHA-256 of the fused checkpoint.")


@dataclass(frozen=True, kw_only=True)
class FusedMember(Record):
    """A model that was fused."""

    name: str = needed("Its name.")
    sha256: str | None = described("SHA-256 of its file; not in a plan.")
    heads: Sequence[Count] = needed("Number of heads kept at each site.")
    kind: str | None = described("`dense`, `pruned` or `fused`.")


@dataclass(frozen=True, kw_only=True)
class FusedSizes(Record):
    """What members and the fused model take."""

    single: ModelSize = needed("The first member.")
    members: ModelSize = needed("All members run separately.")
    fused: ModelSize = needed("The fused model.")
    dense_macs: Count | None = described("Multiply-adds of the model with all heads.")
    dense_params: Count | None = described("Parameters of the model with all heads.")
    mac_ratio: Number = described("Multiply-adds of the fused model over those of the model with all heads.")


@dataclass(frozen=True, kw_only=True)
class SharedTower(Record):
    """What of one tower runs once for all members, and where they part."""

    tower: str = needed("`main`, or `visual` or `text` in a model with two towers.")
    blocks: Count = needed("Number of its blocks.")
    stem: bool = needed("Whether what comes before the blocks runs once.")
    blocks_once: Count = needed("How many leading blocks run once.")
    attention_once: bool = needed("Whether the attention behind them does.")
    parts_at: str | None = described("Where members part; null where they never do.", null=True)
    differs: str | None = described("In what they differ there.", null=True)
    hint: str | None = described("What would make them part later.", null=True)

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
