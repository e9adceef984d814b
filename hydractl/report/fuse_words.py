"""Sentences about what ``fuse`` found, from its answer alone."""

from __future__ import annotations

from hydractl.files.fuse_answer import (
    AnswersRecord,
    AveragingRecord,
    FuseAnswer,
    OnDataRecord,
    SharedTower,
)
from hydractl.report.texts import count_text, number

LOST = 0.02
"""The largest loss of accuracy or AUROC by averaging without a warning."""

_WHOLE = "--merge none keeps members whole"

# --- averaging --------------------------------------------------------------------------------------------------------


def averaging_words(answer: FuseAnswer) -> str | None:
    """Return words on what ``--merge auto`` decided, why, and at what cost; None if the user decided."""
    averaging = answer.averaging
    if averaging is None or averaging.asked != "auto":
        return None
    parts = ",".join(averaging.parts)
    are_equal = not max(averaging.distance)
    if are_equal:
        return f"--merge auto averages {parts}, which are equal in all members: nothing changes"

    if averaging.done:
        advice = ""
        if answer.on_data is None:
            advice = "; --val SPEC measures it on data"
        effect = _effect_words(averaging, "moves")
        return f"--merge auto averages {parts}: {effect}{advice}"

    # Not averaged, because that would move the answers too much.
    effect = _effect_words(averaging, "would move")
    kept_whole = count_text(answer.cost.fused.params)
    averaged = count_text(averaging.parameters)
    cost = f"this costs {kept_whole} parameters instead of {averaged}"
    return f"--merge auto keeps members whole: {effect}; {cost}"


def warnings_of(answer: FuseAnswer) -> list[str]:
    """Return warnings: averaging that was asked for and harms, lower accuracy of the fused model."""
    warnings = []

    # What averaging does on random inputs, and on data.
    averaging = answer.averaging
    if averaging is not None and averaging.done and averaging.harmful:
        parts = ",".join(averaging.parts)
        effect = _effect_words(averaging, "moves")
        warnings.append(f"--merge {parts} destroys what members learnt: {effect}; {_WHOLE}")
    data = answer.on_data
    if data is not None:
        before = data.before.ensemble
        after = data.after.ensemble
        if before - after > LOST:
            fall = f"from {number(before)} to {number(after)} on {data.n} samples"
            warnings.append(f"averaging takes the accuracy of the ensemble {fall}; {_WHOLE}")
    return warnings


def _effect_words(averaging: AveragingRecord, moves: str) -> str:
    """Return words on how far apart the members' weights are, and what averaging does to answers on random inputs.

    Args:
        averaging: the record of the parts that are, or would be, averaged. Every model has the shift of its features;
            only models that classify have those of log probabilities and answers.
        moves: ``moves``, or ``would move`` if averaging was not done.
    """
    limits = averaging.limits
    largest_distance = max(averaging.distance)
    distance = f"{largest_distance:.2g} of their size from their mean (limit {limits.distance:g})"
    start = f"weights lie up to {distance}, and averaging {moves}"

    # A model that does not classify.
    if averaging.merge_log_p is None or averaging.merge_agreement is None:
        largest_shift = max(averaging.merge_max_abs)
        return f"{start} features on random inputs by up to {largest_shift:.2g}"

    # A model that classifies.
    largest_shift = max(averaging.merge_log_p)
    shift = f"{largest_shift:.2g} nats (limit {limits.log_p:g})"
    lowest_agreement = min(averaging.merge_agreement)
    most_changed = 1 - lowest_agreement
    return f"{start} log p on random inputs by up to {shift} and up to {most_changed:.0%} of the answers"


def data_words(data: OnDataRecord) -> str:
    """Return words on the accuracy before and after averaging."""
    before = _accuracies(data.before)
    after = _accuracies(data.after)
    text = f"accuracy on {data.n} samples: {before}"
    if after != before:
        text += f"; after averaging {after}"
    return text


def _accuracies(answers: AnswersRecord) -> str:
    """Return words on the accuracy of each member and of the ensemble."""
    members = ", ".join(map(number, answers.members))
    ensemble = number(answers.ensemble)
    return f"members {members}, ensemble {ensemble}"


# --- sharing ----------------------------------------------------------------------------------------------------------


def sharing_words(answer: FuseAnswer) -> str:
    """Return words on what is stored and run once, and on the cost relative to one model and to separate members."""
    stored = _stored_once_words(answer)
    parts_run_once = [_once_words(tower) for tower in answer.shared]
    run = "; ".join(parts_run_once)
    sizes = answer.cost
    mult_adds = _ratios_words(sizes.fused.macs, sizes.dense_macs, sizes.members.macs)
    parameters = _ratios_words(sizes.fused.params, sizes.dense_params, sizes.members.params)
    return f"{stored}; run once: {run}; mult-adds {mult_adds}; parameters {parameters}"


def _stored_once_words(answer: FuseAnswer) -> str:
    """Return words on the share of the parameters stored once: averaged ones, and those equal in all members."""
    all_parameters = answer.cost.fused.params
    assert all_parameters is not None  # known of a checkpoint
    averaged = answer.parameters["averaged"]
    equal = answer.parameters.get("equal", 0)
    share = (averaged + equal) / all_parameters
    return f"stored once: {share:.0%} of the parameters"


def _once_words(tower: SharedTower) -> str:
    """Return words on the parts of a tower (an encoder of the model) that run once for all members."""
    once = ", ".join(tower.once) or "nothing"
    if tower.tower == "main":
        return once
    return f"of the {tower.tower} tower {once}"


def _ratios_words(fused: int | None, single: int | None, members: int | None) -> str:
    """Return words on a cost of the fused model relative to the single model, and to the separate members."""
    assert fused is not None and single is not None and members is not None  # all are counted of a checkpoint
    over_single = fused / single
    over_members = fused / members
    return f"{over_single:.2f} times the single model's, {over_members:.2f} times the separate members'"
