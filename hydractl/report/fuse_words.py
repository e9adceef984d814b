"""What ``fuse`` found, in sentences, from its answer alone."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.files.fuse_answer import (
    AnswersRecord,
    AveragingRecord,
    FittedCascadeRecord,
    FuseAnswer,
    OnDataRecord,
    SharedTower,
)
from hydractl.report.texts import count_text, number

LOST = 0.02
"""Accuracy, or AUROC, that averaging, and rounding of exported files, may cost before it is a warning."""

_WHOLE = "--merge none keeps members whole"

# --- averaging --------------------------------------------------------------------------------------------------------


def averaging_words(answer: FuseAnswer) -> str | None:
    """Say what ``--merge auto`` decided, why and at what cost; None for a fusion that was told what to do."""
    averaging = answer.averaging
    if averaging is None or averaging.asked != "auto":
        return None
    parts = ",".join(averaging.parts)
    if not max(averaging.distance):
        return f"--merge auto averages {parts}, which are equal in all members: nothing changes"
    if averaging.done:
        advice = ""
        if answer.on_data is None:
            advice = "; --val SPEC measures it on data"
        return f"--merge auto averages {parts}: {_effect(averaging, 'moves')}{advice}"
    kept_whole = count_text(answer.cost.fused.params)
    averaged = count_text(averaging.parameters)
    return (
        f"--merge auto keeps members whole: {_effect(averaging, 'would move')}; this costs {kept_whole} parameters "
        f"instead of {averaged}"
    )


def warnings_of(answer: FuseAnswer) -> list[str]:
    """Warn of averaging that was asked for and harms, and of the accuracy of what came out."""
    warnings = []
    averaging = answer.averaging
    if averaging is not None and averaging.done and averaging.harmful:
        parts = ",".join(averaging.parts)
        warnings.append(f"--merge {parts} destroys what members learnt: {_effect(averaging, 'moves')}; {_WHOLE}")
    data = answer.on_data
    if data is not None:
        before = data.before.ensemble
        after = data.after.ensemble
        if before - after > LOST:
            fall = f"from {number(before)} to {number(after)} on {data.n} samples"
            warnings.append(f"averaging takes the accuracy of the ensemble {fall}; {_WHOLE}")
    if answer.cascade is not None:
        warnings += cascade_warnings(answer.cascade)
    return warnings


def _effect(averaging: AveragingRecord, moves: str) -> str:
    """Say how far apart the weights of members lie, and what averaging does, or would do, to answers."""
    distance = f"{max(averaging.distance):.2g} of their size from their mean (limit {averaging.limits.distance:g})"
    if averaging.merge_log_p is None or averaging.merge_agreement is None:
        shift = f"{max(averaging.merge_max_abs):.2g}"
        return f"weights lie up to {distance}, and averaging {moves} features on random inputs by up to {shift}"
    shift = f"{max(averaging.merge_log_p):.2g} nats (limit {averaging.limits.log_p:g})"
    changed = 1 - min(averaging.merge_agreement)
    return (
        f"weights lie up to {distance}, and "
        f"averaging {moves} log p on random inputs by up to {shift} and up to {changed:.0%} "
        "of the answers"
    )


def data_words(data: OnDataRecord) -> str:
    """Return the accuracy before and after averaging, in words."""
    before = _accuracies(data.before)
    after = _accuracies(data.after)
    text = f"accuracy on {data.n} samples: {before}"
    if after != before:
        text += f"; after averaging {after}"
    return text


def _accuracies(answers: AnswersRecord) -> str:
    members = _numbers(answers.members)
    ensemble = number(answers.ensemble)
    return f"members {members}, ensemble {ensemble}"


def _numbers(values: Sequence[float]) -> str:
    texts = [number(value) for value in values]
    return ", ".join(texts)


# --- cascades ---------------------------------------------------------------------------------------------------------


def cascade_words(cascade: FittedCascadeRecord) -> str:
    """Say who answers alone, for how many samples, and what that saves and loses on the validation data."""
    first = cascade.first_macs
    of_all = (first + cascade.rest_macs) / first
    losses = []
    for name, loss in cascade.losses.items():
        losses.append(f"{name} {number(loss.value)} (at most {number(loss.upper)})")
    return (
        f"cascade: member {cascade.member} answers alone where its {cascade.score} is below "
        f"{cascade.value:.4g}; {cascade.share:.1%} of {cascade.fitted_on.n} samples go on: "
        f"{cascade.macs / first:.2f} times its mult-adds, or {of_all:.2f} if all did; lost: {', '.join(losses)}"
    )


def cascade_warnings(cascade: FittedCascadeRecord) -> list[str]:
    """Warn of a cascade that makes no ensemble."""
    warnings = []
    if not cascade.share:
        warnings.append("in the cascade no validation sample goes on: the first member alone is as good on them")
    return warnings


# --- sharing ----------------------------------------------------------------------------------------------------------


def sharing_words(answer: FuseAnswer) -> str:
    """Say what is stored and run once, and the cost against one model and against the members run separately."""
    sizes = answer.cost
    assert sizes.fused.params is not None and sizes.fused.macs is not None  # of a checkpoint both are known
    stored_once = answer.parameters["averaged"] + answer.parameters.get("equal", 0)
    share_stored_once = stored_once / sizes.fused.params
    runs = "; ".join(_once_words(tower) for tower in answer.shared)
    mult_adds = _ratios(sizes.fused.macs, sizes.dense_macs, sizes.members.macs)
    parameters = _ratios(sizes.fused.params, sizes.dense_params, sizes.members.params)
    return (
        f"stored once: {share_stored_once:.0%} of the parameters; run once: {runs}; "
        f"mult-adds {mult_adds}; parameters {parameters}"
    )


def _once_words(tower: SharedTower) -> str:
    once = ", ".join(tower.once) or "nothing"
    if tower.tower == "main":
        return once
    return f"of the {tower.tower} tower {once}"


def _ratios(fused: int, single: int | None, members: int | None) -> str:
    """Return a cost of the fused model over that of the single model, and over that of the separate members."""
    assert single is not None and members is not None  # both are counted with it
    over_single = fused / single
    over_members = fused / members
    return f"{over_single:.2f} times the single model's, {over_members:.2f} times the separate members'"
