"""What the search and the trainings of a row achieved, as the files say that they wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydractl.errors import InputError
from hydractl.files.header import read_header
from hydractl.files.study_answer import SearchGainRecord, SearchStateRecord
from hydractl.jsonio import read_json_file
from hydractl.studies.plan import Row


def search_gain(row: Row) -> SearchGainRecord | None:
    """Return the figures that the search measured before and after the removals of a row; None without a circuit.

    Raises:
        InputError: somebody has changed the file of the circuit since, and it does not hold them any more.
    """
    if row.circuit is None:
        return None
    path, removed_heads = row.circuit
    document = read_json_file(str(path))
    try:
        before = _search_state(document["base"])
        after = _search_state(document["removed"][removed_heads - 1])  # the step that removed the last of these heads
        return SearchGainRecord(removed=removed_heads, before=before, after=after)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        hint = "give the command again, with another folder"
        raise InputError(f"{path} does not hold what its search measured", hint=hint) from None


def _search_state(step: Mapping[str, Any]) -> SearchStateRecord:
    """Return the figures of a search at one of its steps, from the counts that the circuit file holds.

    The AUROC is the Mann-Whitney U divided by the number of pairs of an ID and an OOD sample.
    """
    n_id = step["n_id"]
    twice_u = step["two_u"]  # twice the Mann-Whitney U; None if the objective has no AUROC
    auroc = None
    if twice_u is not None:
        auroc = twice_u / (2 * n_id * step["n_ood"])
    accuracy = step["correct"] / n_id
    return SearchStateRecord(score=step["score"], accuracy=accuracy, auroc=auroc)


def kept_learning_rates(row: Row) -> list[float] | None:
    """Return the learning rate that each training of a row kept, in their order; None for a row without any."""
    rates = []
    for model in row.trained:
        header = read_header(model)
        assert header.description is not None  # a model that hydractl wrote
        learning_rate = header.description["provenance"]["settings"].get("lr")
        if learning_rate is not None:  # a posterior has none
            rates.append(float(learning_rate))
    return rates or None
