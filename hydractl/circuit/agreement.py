"""Judgements about finished circuits: how far one agrees with another, and what its user should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.circuit.documents import LOW_GAIN, AgreementDocument, CircuitDocument
from hydractl.circuit.objective import LOSS_OBJECTIVES
from hydractl.errors import InputError
from hydractl.heads.mask import Head
from hydractl.heads.overlap import jaccard_at, kendall_tau
from hydractl.jsonio import shown
from hydractl.report.texts import number

_MOST_SCORE = 1e6
"""Larger scores in a file are not believed: accuracies and AUROCs end at 1, and mean losses are far below."""

# --- another circuit --------------------------------------------------------------------------------------------------


def check_exact(document: CircuitDocument, path: str, arch: str) -> None:
    """Check that a circuit can be the reference that other circuits are compared with.

    Args:
        document: the circuit, as read from a file.
        path: the file, for the message.
        arch: the architecture of the model that is searched.

    Raises:
        InputError: the circuit is not exact, has another architecture, removes nothing, or has no scores.
    """
    problems = []
    if not document["removed"]:
        problems.append("it removes nothing")

    # A file without these fields is assumed to come from a greedy search of this model.
    is_approximate = document.get("approx") is not None
    is_greedy = document.get("algorithm", "greedy") == "greedy"
    if is_approximate or not is_greedy:
        problems.append("it is not the result of an exact search")
    if document.get("arch", arch) != arch:
        problems.append(f"it is of {shown(document['arch'])}, the model is {arch!r}")

    scores = [step.get("score") for step in document["removed"]]
    if not all(map(_is_score, scores)):
        problems.append("a step has no score")

    if problems:
        raise InputError(f"{path} is nothing to compare with", hint="see --check-against", problems=problems)


def _is_score(value: Any) -> bool:
    """Return whether a value from an untrusted file can be a score: a finite number of plausible size."""
    is_number = type(value) in (int, float)  # excludes True, which is an instance of int
    return is_number and abs(value) < _MOST_SCORE


def agreement(document: CircuitDocument, exact: Sequence[Head], other: CircuitDocument) -> AgreementDocument:
    """Compare the removals of a circuit with those of an exact circuit.

    Args:
        document: a circuit that removes something.
        exact: the removals of the exact circuit, in order.
        other: the document of the exact circuit.

    Returns:
        ``removals``: how many removals of each are compared, as many as the shorter circuit has. ``jaccard``: the
        Jaccard index of the first N removals of both, for N at a quarter, half, three quarters and all of these.
        ``kendall_tau``: Kendall's tau of the two orders, over the heads that both remove. ``score_lost``: the score of
        the exact circuit minus the score of this one after ``removals`` removals; None if the circuits are for
        different objectives or data.
    """
    removed = _removed_heads(document)
    removals = min(len(removed), len(exact))

    budgets = set()  # a set, since the shares of a short circuit may be the same number
    for share in (0.25, 0.5, 0.75, 1.0):
        budget = round(removals * share)
        budgets.add(max(1, budget))
    jaccard = jaccard_at(removed, exact, sorted(budgets))

    # Scores can be compared only if both circuits measure the same.
    score_lost = None
    if _measure_the_same(document, other):
        last = removals - 1
        score = document["removed"][last]["score"]
        exact_score = other["removed"][last]["score"]
        score_lost = exact_score - score
    return {
        "removals": removals,
        "jaccard": {str(budget): value for budget, value in jaccard.items()},
        "kendall_tau": kendall_tau(removed, list(exact)),
        "score_lost": score_lost,
    }


def _removed_heads(document: CircuitDocument) -> list[Head]:
    """Return the heads that a circuit removes, in order."""
    return [(step["site"], step["head"]) for step in document["removed"]]


def _measure_the_same(document: CircuitDocument, other: CircuitDocument) -> bool:
    """Return whether the scores of two circuits are for the same objective, model and data."""
    for key in ("objective", "ood_score", "sites", "base"):
        if document.get(key) != other.get(key):
            return False
    return _validation_settings(document) == _validation_settings(other)


def _validation_settings(document: CircuitDocument) -> list[object]:
    """Return the validation sets and the tasks that the provenance of a circuit names.

    The list is empty if an untrusted file has no such provenance.
    """
    source = document.get("source")
    if not isinstance(source, Mapping):
        return []
    settings = source.get("settings")
    if not isinstance(settings, Mapping):
        return []
    return [settings.get("val"), settings.get("ood_val"), settings.get("tasks")]


# --- messages for the user --------------------------------------------------------------------------------------------


def agreement_text(document: CircuitDocument) -> str:
    """Return the line that says how far a circuit agrees with an exact one: the numbers of :func:`agreement`."""
    compared = document["agreement"]
    jaccards = []
    for budget, jaccard in compared["jaccard"].items():
        jaccards.append(f"{number(jaccard, 3)} of the first {budget}")
    jaccards_text = ", ".join(jaccards)
    tau = number(compared["kendall_tau"], 3)
    score_lost = "another objective, model or data"
    if compared["score_lost"] is not None:
        score_lost = f"{compared['score_lost']:.4f}"
    return f"Jaccard {jaccards_text}; Kendall's tau {tau}; score lost {score_lost}"


def tied_text(document: CircuitDocument) -> str | None:
    """Return a warning if the score is at its maximum in the first steps, where only ties decide.

    Return None if the score is below its maximum from the first step on.
    """
    objective = document["objective"]
    steps = document["removed"]
    perfect = 1.0
    if objective in LOSS_OBJECTIVES:
        perfect = 0.0  # the scores of losses are minus a mean loss

    # Count the steps before the first one whose score is below the maximum.
    tied = 0
    for step in steps:
        if step["score"] < perfect:
            break
        tied += 1
    if not tied:
        return None
    return (
        f"{objective}: the score is at its maximum, {perfect:g}, in the first {tied} of {len(steps)} steps, so ties "
        "and not the data decide which heads they remove: give more --val, or held-out samples that the model was not "
        "trained on, or --objective nll"
    )


def gain_text(document: CircuitDocument) -> str:
    """Return the line that says how much the validation AUROC rose and, if that is little, what follows."""
    gain = document["gain"]
    text = f"{document['objective']}: validation AUROC {number(gain['before'], 3)} -> {number(gain['after'], 3)}"
    if gain["corrected"] < 0:
        text += ", more pairs wrongly ordered than before"
    else:
        text += f", {gain['corrected']:.0%} of the wrongly ordered pairs put right"
    if not gain["low"]:
        return text
    return (
        f"{text}; where less than {LOW_GAIN:.0%} of them are put right, circuits were seen not to detect other OOD "
        "data better than the whole model: compare them on a set of its own before you use them"
    )


def repeated_text(documents: Mapping[str, CircuitDocument]) -> str | None:
    """Return a warning about circuits that remove the same heads, in any order; None if there are none.

    Args:
        documents: the circuits by objective.
    """
    objectives_by_heads: dict[frozenset[Head], list[str]] = {}
    for objective, document in documents.items():
        removed = frozenset(_removed_heads(document))
        objectives = objectives_by_heads.setdefault(removed, [])
        objectives.append(objective)

    # Name the groups of objectives that share their heads.
    repeated = []
    for objectives in objectives_by_heads.values():
        if len(objectives) > 1:
            repeated.append(" and ".join(objectives))
    if not repeated:
        return None
    groups = "; ".join(repeated)
    return f"the same heads are removed: {groups}: fused, a member that repeats another costs and gives nothing"


def ended_text(document: CircuitDocument) -> str:
    """Return the line that says which option ended a search before its budget."""
    objective = document["objective"]
    count = len(document["removed"])
    if document["ended"] == "max_drop":
        ended = f"--max-drop {document['max_drop']:g}"
    else:
        ended = f"--subject-to {', '.join(document['subject_to'])}"
    if not count:
        return f"{objective}: no head can go within {ended}: the circuit is the whole model"
    return f"{objective}: {count} heads are removed: a further one would not keep {ended}"


def rounding_text(documents: Mapping[str, CircuitDocument]) -> str | None:
    """Return a warning that lists the steps that rounding decided, by objective; None if there are none."""
    undecided = []
    for objective, document in documents.items():
        steps = [str(step["step"]) for step in document.get("rounding", ())]
        if steps:
            undecided.append(f"{objective} {', '.join(steps)}")
    if not undecided:
        return None
    return f"steps decided by less than rounding, which may go otherwise on another machine: {'; '.join(undecided)}"
