"""The cost of a search: planned before it starts, and told when it has run."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.lazy import SLOPES_EVERY, USUALLY_ASKED
from hydractl.circuit.objective import reads_ood
from hydractl.circuit.scope import SearchOptions
from hydractl.circuit.search import evaluations
from hydractl.circuit.winners import CandidateHead
from hydractl.expressions.conditions import parse_constraint
from hydractl.log import Log
from hydractl.report.texts import bytes_text, duration_text


class PlanDocument(TypedDict):
    """A plan as the answer of a dry run holds it; see :class:`SearchPlan`."""

    evaluations_per_objective: int
    sample_blocks_naive: int
    sample_blocks: int
    seconds: float
    memory_bytes: int
    chunks: int


@dataclass(frozen=True)
class SearchPlan:
    """The cost of a search by Algorithm 1.

    Attributes:
        evaluations_per_objective: how often the whole data are evaluated, at most.
        sample_blocks_naive: sample-block evaluations of the plain algorithm, one objective after another.
        sample_blocks: an estimate of those of this search. An exact one is taken without bounds, without evaluations
            that objectives share, and with the removed heads taken evenly from all sites; an approximate one as usual.
        seconds: about how long that takes.
        memory_bytes: how much is kept between evaluations.
        chunks: into how many parts the data are cut so that the memory suffices.
    """

    evaluations_per_objective: int
    sample_blocks_naive: int
    sample_blocks: int
    seconds: float
    memory_bytes: int
    chunks: int

    def to_json(self) -> PlanDocument:
        """Return the plan for the answer of a dry run."""
        return {
            "evaluations_per_objective": self.evaluations_per_objective,
            "sample_blocks_naive": self.sample_blocks_naive,
            "sample_blocks": self.sample_blocks,
            "seconds": round(self.seconds, 1),
            "memory_bytes": self.memory_bytes,
            "chunks": self.chunks,
        }


def plan_search(
    evaluator: Evaluator,
    heads: Sequence[CandidateHead],
    budget: int,
    options: SearchOptions,
    sizes: Mapping[str, int],
    processes: int,
) -> SearchPlan:
    """Count the evaluations of a search, and measure on one batch how long they take.

    Args:
        evaluator: of the whole model, with all of the data or a part.
        heads: the candidates.
        budget: how many of them are removed.
        options: of the search.
        sizes: the samples of all of the data, by ``id`` and ``ood``.
        processes: how many share the work.
    """
    sites = [site for site, _ in heads]
    asked_at_most = asked_by_lazy(options)
    is_headmap = options.algorithm == "headmap"

    # Evaluations of the whole data: Headmap tries each head once, Algorithm 1 at every step those that are left.
    naive_count = len(heads)
    if not is_headmap:
        naive_count = evaluations(len(heads), budget)
    count = naive_count
    if asked_at_most is not None:
        count = 0
        for step in range(budget):
            heads_left = len(heads) - step
            count += min(asked_at_most, heads_left)

    # Sample-block evaluations, one objective after another.
    if is_headmap:
        rounds = _rounds_of_headmap(sites)
    else:
        rounds = _rounds_of_elimination(evaluator, len(heads), budget, asked_at_most)
    naive_work = 0.0
    work = 0.0
    for objective in options.objective:
        samples = _samples_read(objective, options, sizes)
        naive_work += naive_count * evaluator.naive_work(samples, sites)
        for planned in rounds:
            price_of_model = evaluator.price(None, samples, planned.present)
            prices_of_heads = [evaluator.price(site, samples, planned.present) for site in sites]
            work += planned.passes * price_of_model
            work += planned.tried * sum(prices_of_heads)

    # The evaluator may have only a part of the data: time and memory are taken to grow with the samples.
    seconds = work * _seconds_per_block(evaluator, heads[0]) / processes
    samples_of_all_sets = sum(sizes.values())
    memory_bytes = evaluator.memory_bytes * samples_of_all_sets / evaluator.size
    return SearchPlan(
        evaluations_per_objective=count,
        sample_blocks_naive=round(naive_work),
        sample_blocks=round(work),
        seconds=seconds,
        memory_bytes=round(memory_bytes),
        chunks=len(evaluator.chunks),
    )


def _samples_read(objective: str, options: SearchOptions, sizes: Mapping[str, int]) -> int:
    """Return how many samples an objective and the constraints read: OOD samples only where one of them needs these."""
    constrained = [parse_constraint(text).key for text in options.subject_to]
    if reads_ood([objective, *constrained]):
        return sizes["id"] + sizes.get("ood", 0)
    return sizes["id"]


def asked_by_lazy(options: SearchOptions) -> int | None:
    """Return how many candidates a step of ``--approx lazy:N`` evaluates at most; None for an exact search."""
    if options.approx is None:
        return None
    count = options.approx.removeprefix("lazy:")
    return int(count)


@dataclass(frozen=True)
class _PlannedRound:
    """The expected evaluations of one round of a search.

    Attributes:
        present: the share of the model's heads that is present.
        tried: the share of all candidates that is evaluated.
        passes: how often the model itself runs over the data.
    """

    present: float
    tried: float
    passes: float


def _rounds_of_headmap(sites: Sequence[int]) -> list[_PlannedRound]:
    """Return a round for each site, in which the heads of that site alone are evaluated."""
    rounds = len(set(sites))
    same_for_each = _PlannedRound(present=1.0, tried=1 / rounds, passes=1.0)
    return [same_for_each] * rounds


def _rounds_of_elimination(
    evaluator: Evaluator, heads: int, budget: int, asked_at_most: int | None
) -> list[_PlannedRound]:
    """Return a round for each removal of Algorithm 1, exact or lazy.

    The removed heads are taken evenly from all sites, so that the share of heads present falls from step to step.

    Args:
        evaluator: of the whole model.
        heads: how many candidates there are.
        budget: how many of them are removed.
        asked_at_most: how many candidates a step evaluates at most; None: all that are left.
    """
    heads_of_model = sum(len(kept) for kept in evaluator.sample_tower.full)
    rounds = []
    for step in range(budget):
        present = 1 - step / heads_of_model
        tried = (heads - step) / heads
        passes = 1.0
        if asked_at_most is not None:
            asked = min(asked_at_most, USUALLY_ASKED)
            tried = min(tried, asked / heads)
            # The model itself runs for slopes only (once forward, about twice backward): its states come from a trial.
            passes = 3 / SLOPES_EVERY
        rounds.append(_PlannedRound(present, tried, passes))
    return rounds


def with_memory(
    plan: SearchPlan, batches: int, blocks: int, lanes: int, limit: int, *, tried: bool = False
) -> SearchPlan:
    """Return the plan under a limit of memory: what is kept of it at a time, and in how many parts the data are cut.

    The memory is laid out as :class:`Evaluator` does, with batches of one size.

    Args:
        plan: made with one batch of each set.
        batches: how many batches there are in all.
        blocks: how many blocks the model has.
        lanes: how many models with different heads removed are searched in turn.
        limit: the memory in bytes.
        tried: whether the states of as many models are kept beside them.
    """
    # Bytes are of all batches together: of their stems (the states before the first block), and of the traces of one
    # model (for each block three states as large as a stem, and one more).
    states_of_trace = 3 * blocks + 1
    if tried:
        states_of_trace *= 2
    # The plan was made without a limit: it counts the stems and the traces of all lanes.
    states_in_plan = 1 + lanes * states_of_trace
    stem_bytes = plan.memory_bytes // states_in_plan
    trace_bytes = stem_bytes * states_of_trace

    # Stems are kept where they take no more than a quarter.
    kept_stem_bytes = 0
    if stem_bytes <= limit // 4:
        kept_stem_bytes = stem_bytes
    left_bytes = limit - kept_stem_bytes

    # All batches in one chunk, for as many lanes as fit.
    if trace_bytes <= left_bytes:
        traces_that_fit = left_bytes // max(1, trace_bytes)
        traces = max(1, min(lanes, traces_that_fit))
        memory_bytes = kept_stem_bytes + traces * trace_bytes
        return replace(plan, memory_bytes=memory_bytes, chunks=1)

    # Several chunks, one after another in the memory, for one lane.
    batches_that_fit = left_bytes * batches // max(1, trace_bytes)
    batches_at_a_time = max(1, batches_that_fit)
    chunk_bytes = trace_bytes * batches_at_a_time // batches
    chunks = math.ceil(batches / batches_at_a_time)
    return replace(plan, memory_bytes=kept_stem_bytes + chunk_bytes, chunks=chunks)


def _seconds_per_block(evaluator: Evaluator, head: CandidateHead) -> float:
    """Return the seconds of a sample-block evaluation, counting included, from one candidate on one ID batch."""
    site, position = head
    first_id_batch = 0
    while evaluator.batches[first_id_batch].labels is None:
        first_id_batch += 1

    # The second call is timed: in the first one of a shape, libraries prepare themselves.
    evaluator.go_to_model_without([])
    evaluator.current_values(first_id_batch)
    evaluator.values_without_each(first_id_batch, site, [position])
    evaluator.go_to_model_without([])
    work_before = evaluator.work
    start = time.perf_counter()
    evaluator.values_without_each(first_id_batch, site, [position])
    elapsed = time.perf_counter() - start
    work = evaluator.work - work_before
    return elapsed / max(work, 1e-9)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of memory are free on a device; half of all, where the machine does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    with contextlib.suppress(OSError, ValueError):  # only Linux has this file
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        for line in text.splitlines():
            if line.startswith("MemAvailable:"):
                kilobytes = line.split()[1]
                return int(kilobytes) * 1024
    all_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return all_bytes // 2


# --- messages for the user --------------------------------------------------------------------------------------------


def tell_plan(log: Log, plan: SearchPlan, bounds: bool) -> None:
    """Log what the search will cost."""
    before_bounds = " before bounds" if bounds else ""
    parts = f", the data in {plan.chunks} parts" if plan.chunks > 1 else ""
    log.info(
        f"naively {plan.sample_blocks_naive:,} sample-block evaluations, here about {plan.sample_blocks:,}"
        f"{before_bounds}, about {duration_text(plan.seconds)}; "
        f"{bytes_text(plan.memory_bytes)} of states are kept{parts}"
    )


def tell_work(log: Log, plan: SearchPlan, evaluations: int, work: float, processes: int) -> None:
    """Log what the search did cost."""
    if not evaluations:
        log.info("nothing was left to evaluate: the journal has the whole search")
        return
    by_whom = " by this process" if processes > 1 else ""
    share_of_naive = work / plan.sample_blocks_naive
    log.info(
        f"{evaluations:,} candidates and {round(work):,} sample-block evaluations{by_whom}: "
        f"{share_of_naive:.3f} of the naive {plan.sample_blocks_naive:,}"
    )
