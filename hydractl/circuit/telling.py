"""What a search says while it runs and when it is done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydractl.circuit.plan import Plan, duration
from hydractl.circuit.search import Observer, Step
from hydractl.circuit.tower import Candidate
from hydractl.heads.mask import Head
from hydractl.log import Log, Progress
from hydractl.report.texts import bytes_text, number


def tell_plan(log: Log, plan: Plan, bounds: bool) -> None:
    """What the search will cost."""
    parts = f", the data in {plan.chunks} parts" if plan.chunks > 1 else ""
    log.info(
        f"naively {plan.naive_blocks:,} sample-block evaluations, here about {plan.blocks:,}"
        f"{' before bounds' if bounds else ''}, about {duration(plan.seconds)}; "
        f"{bytes_text(plan.memory_bytes)} of states are kept{parts}"
    )


def told_agreement(document: Mapping[str, Any]) -> str:
    """How far a circuit agrees with an exact one, in a line."""
    found = document["agreement"]
    jaccard = ", ".join(f"{number(value, 3)} of the first {n}" for n, value in found["jaccard"].items())
    lost = "another objective, model or data" if found["score_lost"] is None else f"{found['score_lost']:.4f}"
    return f"Jaccard {jaccard}; Kendall's tau {number(found['kendall_tau'], 3)}; score lost {lost}"


def tell_work(log: Log, plan: Plan, evaluations: int, work: float, processes: int) -> None:
    """What it did cost."""
    if not evaluations:
        log.info("nothing was left to evaluate: the journal has the whole search")
        return
    mine = " by this process" if processes > 1 else ""
    log.info(
        f"{evaluations:,} candidates and {round(work):,} sample-block evaluations{mine}: "
        f"{work / plan.naive_blocks:.3f} of the naive {plan.naive_blocks:,}"
    )


def tell_rounding(log: Log, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Which steps may be others on another machine."""
    steps = {o: [step["step"] for step in document.get("rounding", ())] for o, document in documents.items()}
    told = "; ".join(f"{o} {', '.join(map(str, numbers))}" for o, numbers in steps.items() if numbers)
    if told:
        log.warn(f"steps decided by less than rounding, which may go otherwise on another machine: {told}")


@contextlib.contextmanager
def observed(
    log: Log, plan: Plan, objectives: Sequence[str], budget: int, names: Mapping[Candidate, Head], processes: int
) -> Iterator[Observer]:
    """Progress with a row for every removal."""
    several = len(objectives) > 1
    columns = ["step", *(["objective"] if several else []), "removed at", "head", "score", "accuracy", "AUROC"]
    with log.progress("circuit", plan.evaluations, "evaluations", columns) as progress:
        yield _observer(progress, several, budget, names, processes)


def _observer(
    progress: Progress, several: bool, budget: int, names: Mapping[Candidate, Head], processes: int
) -> Observer:
    done = 0

    def evaluated() -> None:
        nonlocal done
        done += 1
        progress.advance(1)

    def begins(step: int, groups: int, left: int) -> None:
        progress.set_total(done + groups * left // processes)

    def removed(objective: str, step: int, found: Step) -> None:
        site, head = names[found.candidate]
        m = found.measured
        auroc = "" if m.two_u is None else number(m.score("ood"))
        shown = [objective] if several else []
        scores = [number(m.score(objective)), number(m.score("acc")), auroc]
        progress.row([f"{step}/{budget}", *shown, site, str(head), *scores])

    return Observer(evaluated, removed, begins)
