"""Sentences about what ``fuse`` found, from its answer alone."""

from __future__ import annotations

from hydractl.files.fuse_answer import AveragingRecord, FuseAnswer
from hydractl.report.texts import count_text


def averaging_words(answer: FuseAnswer) -> str | None:
    """Return words on what ``--merge auto`` decided, why, and at what cost; None if the user decided.

    It averages weights of the members unless these lie too far apart, or their answers would change too much.
    """
    averaging = answer.averaging
    if averaging is None or averaging.asked != "auto":
        return None
    parts = ",".join(averaging.parts)
    members_are_equal = max(averaging.distance) == 0
    if members_are_equal:
        return f"--merge auto averages {parts}, which are equal in all members: nothing changes"

    if averaging.done:
        return f"--merge auto averages {parts}: {_effect_words(averaging, 'moves')}; eval measures it on data"

    # Not averaged, because that would move the answers too much.
    effect = _effect_words(averaging, "would move")
    cost = f"this costs {count_text(answer.cost.fused.params)} parameters instead of {count_text(averaging.parameters)}"
    return f"--merge auto keeps members whole: {effect}; {cost}"


def warning_of_averaging(answer: FuseAnswer) -> str | None:
    """Return a warning if weights were averaged, as the user asked, and that passes a limit; else None."""
    averaging = answer.averaging
    if averaging is None or not averaging.done or not averaging.harmful:
        return None
    parts = ",".join(averaging.parts)
    effect = _effect_words(averaging, "moves")
    return f"--merge {parts} destroys what members learnt: {effect}; --merge none keeps members whole"


def _effect_words(averaging: AveragingRecord, moves: str) -> str:
    """Return words on how far apart the members' weights are, and what averaging does to answers on random inputs.

    Args:
        averaging: the record of the parts that are, or would be, averaged. Every model has the shift of its features;
            only models that classify have those of log probabilities and answers.
        moves: ``moves``, or ``would move`` if averaging was not done.
    """
    limits = averaging.limits
    distance = f"{max(averaging.distance):.2g} of their size from their mean (limit {limits.distance:g})"
    start = f"weights lie up to {distance}, and averaging {moves}"
    if averaging.merge_log_p is None or averaging.merge_agreement is None:  # a model that does not classify
        return f"{start} features on random inputs by up to {max(averaging.merge_max_abs):.2g}"
    shift = f"{max(averaging.merge_log_p):.2g} nats (limit {limits.log_p:g})"
    most_changed = 1 - min(averaging.merge_agreement)
    return f"{start} log p on random inputs by up to {shift} and up to {most_changed:.0%} of the answers"
