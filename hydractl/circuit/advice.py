"""What the user of a finished circuit should know."""

from __future__ import annotations

from collections.abc import Mapping

from hydractl.circuit.documents import LOW_GAIN
from hydractl.files.circuit_answer import CircuitAnswer, SearchedGain
from hydractl.heads.mask import Head
from hydractl.report.texts import number


def tied_text(circuit: CircuitAnswer) -> str | None:
    """Return a warning if the score is at its maximum in the first steps of a search, where only ties decide.

    None if the score is below its maximum from the first step on, or no head was removed. A circuit is the order in
    which a search removed heads, with the score after each removal.
    """
    objective = circuit.objective
    steps = circuit.removed
    perfect = 0.0 if objective == "nll" else 1.0  # the score of nll is minus a mean loss

    # Count the steps before the first one whose score is below the maximum.
    tied = 0
    for step in steps:
        if step.score < perfect:
            break
        tied += 1
    if not tied:
        return None
    return (
        f"{objective}: the score is at its maximum, {perfect:g}, in the first {tied} of {len(steps)} steps, so ties "
        "and not the data decide which heads they remove: give more --val, or held-out samples that the model was not "
        "trained on, or --objective nll"
    )


def gain_text(objective: str, gain: SearchedGain) -> str:
    """Return the line that says how much the validation AUROC rose and, if that is little, what follows.

    Args:
        objective: the objective of the search.
        gain: the AUROC before and after; the share of wrongly ordered pairs that the search put right, which is
            negative if the AUROC fell; and whether that share is low.
    """
    text = f"{objective}: validation AUROC {number(gain.before, 3)} -> {number(gain.after, 3)}"
    if gain.corrected < 0:
        text += ", more pairs wrongly ordered than before"
    else:
        text += f", {gain.corrected:.0%} of the wrongly ordered pairs put right"
    if not gain.low:
        return text
    return (
        f"{text}; where less than {LOW_GAIN:.0%} of them are put right, circuits were seen not to detect other OOD "
        "data better than the whole model: compare them on a set of its own before you use them"
    )


def repeated_text(circuits: Mapping[str, CircuitAnswer]) -> str | None:
    """Return a warning that names objectives whose circuits remove the same heads, in any order; None if none do.

    A circuit is the result of a search for one objective: the heads that it removed.

    Args:
        circuits: the circuits by objective.
    """
    # Group the objectives by the set of heads that their circuits remove.
    objectives_by_heads: dict[frozenset[Head], list[str]] = {}
    for objective, circuit in circuits.items():
        removed = frozenset((step.site, step.head) for step in circuit.removed)
        objectives = objectives_by_heads.setdefault(removed, [])
        objectives.append(objective)

    # Name the groups of objectives that share their heads.
    repeated = [" and ".join(objectives) for objectives in objectives_by_heads.values() if len(objectives) > 1]
    if not repeated:
        return None
    groups = "; ".join(repeated)
    return f"the same heads are removed: {groups}: fused, a member that repeats another costs and gives nothing"


def ended_text(circuit: CircuitAnswer) -> str:
    """Return the line that says that ``--max-drop`` ended a search before its budget."""
    count = len(circuit.removed)
    ended = f"--max-drop {circuit.max_drop:g}"
    if not count:
        return f"{circuit.objective}: no head can go within {ended}: the circuit is the whole model"
    return f"{circuit.objective}: {count} heads are removed: a further one would not keep {ended}"
