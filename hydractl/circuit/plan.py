"""The cost of a search: planned before it starts, and reported when it has run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hydractl.circuit.evaluator import Evaluator, MemoryPlan
from hydractl.circuit.lazy import SLOPES_EVERY, USUALLY_ASKED
from hydractl.circuit.objective import reads_ood
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import evaluations
from hydractl.circuit.winners import CandidateHead
from hydractl.log import Log
from hydractl.report.texts import bytes_text, duration_text

_TIMED_CALLS = 3
"""How many calls are timed to say how long a search takes."""


@dataclass(frozen=True)
class SearchPlan:
    """The cost of a search by Algorithm 1.

    Attributes:
        evaluations_per_objective: how often the whole data are evaluated, at most.
        sample_blocks_naive: how often a block runs on a sample in the plain algorithm, one objective after another.
        sample_blocks: an estimate of the same number for this search. For an exact search it assumes no bounds, no
            evaluations shared by objectives, and removed heads spread evenly over all sites. For an approximate search
            it is the usual number.
        seconds: about how long this takes.
        processor_seconds: the processor time of that, of all processes and threads.
        memory_bytes: how many bytes are kept between evaluations.
        chunks: into how many parts the data are cut so that the memory suffices.
    """

    evaluations_per_objective: int
    sample_blocks_naive: int
    sample_blocks: int
    seconds: float
    processor_seconds: float
    memory_bytes: int
    chunks: int


def plan_search(
    evaluator: Evaluator,
    heads: Sequence[CandidateHead],
    budget: int,
    options: SearchOptions,
    sizes: Mapping[str, int],
    memory: MemoryPlan,
    processes: int,
) -> SearchPlan:
    """Count the evaluations of a search, and measure on one batch how long they take.

    Args:
        evaluator: an evaluator of the whole model, with all of the data or only some batches.
        heads: the candidates.
        budget: how many of them are removed.
        options: the options of the search.
        sizes: the number of samples in all data, by ``id`` and ``ood``.
        memory: how the memory is used for all data.
        processes: how many processes share the work.
    """
    sites = [site for site, _ in heads]
    asked_at_most = asked_by_lazy(options)
    is_headmap = options.algorithm == "headmap"

    # Count evaluations of the whole data: Headmap tries each head once, Algorithm 1 tries all heads left at every step.
    # The lazy search evaluates only some of these.
    naive_count = len(heads) if is_headmap else evaluations(len(heads), budget)
    count = len(heads) if is_headmap else evaluations(len(heads), budget, asked_at_most)

    # Count the work in sample-blocks (one block on one sample), one objective after another.
    if is_headmap:
        # One round for each site, in which only the heads of this site are evaluated.
        number_of_sites = len(set(sites))
        rounds = [_PlannedRound(present=1.0, tried=1 / number_of_sites, passes=1.0)] * number_of_sites
    else:
        rounds = _rounds_of_elimination(evaluator, len(heads), budget, asked_at_most)
    naive_work = 0.0
    work = 0.0
    for objective in options.objective:
        ood_samples = sizes.get("ood", 0) if reads_ood([objective]) else 0
        samples = sizes["id"] + ood_samples
        naive_work += naive_count * evaluator.naive_work(samples, sites)
        for planned in rounds:
            # The model itself runs some times, and a share of the candidates is tried.
            price_of_model = evaluator.price(None, samples, planned.present)
            prices_of_heads = [evaluator.price(site, samples, planned.present) for site in sites]
            work += planned.passes * price_of_model
            work += planned.tried * sum(prices_of_heads)

    # The evaluator may have only some of the data: assume that time grows with the samples.
    of_clock, of_processor = _seconds_per_block(evaluator, heads[0])
    return SearchPlan(
        evaluations_per_objective=count,
        sample_blocks_naive=round(naive_work),
        sample_blocks=round(work),
        seconds=work * of_clock / processes,
        processor_seconds=work * of_processor,
        memory_bytes=memory.bytes,
        chunks=len(memory.chunks),
    )


def asked_by_lazy(options: SearchOptions) -> int | None:
    """Return how many candidates a step of ``--approx lazy:N`` evaluates at most, N; None for an exact search."""
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


def _rounds_of_elimination(
    evaluator: Evaluator, heads: int, budget: int, asked_at_most: int | None
) -> list[_PlannedRound]:
    """Return the expected work of each step of a greedy search (Algorithm 1), which removes one head per step.

    An exact search evaluates all heads that are left at each step; a lazy one only those with the best forecasts. The
    removed heads are assumed to be spread evenly over all sites, so the model becomes cheaper step by step: after 36 of
    144 heads are removed, a share of 0.75 runs.

    Args:
        evaluator: an evaluator of the whole model.
        heads: how many candidates there are.
        budget: how many of them are removed.
        asked_at_most: how many candidates a step of the lazy search evaluates at most; None for an exact search, which
            evaluates all that are left.
    """
    heads_of_model = sum(len(kept) for kept in evaluator.sample_tower.full)
    rounds = []
    for step in range(budget):
        # `step` heads have been removed so far, so this share of the heads still runs.
        share_present = 1 - step / heads_of_model

        # An exact step runs the model once, and tries every candidate that is left.
        share_tried = (heads - step) / heads
        runs_of_model = 1.0

        # A lazy step usually tries only two candidates, those with the best forecasts. The forecasts need slopes, for
        # which the model runs forward once (1) and backward (about 2) at every SLOPES_EVERY-th step. At the other steps
        # the model itself does not run: its states come from the trial of the head removed before.
        if asked_at_most is not None:
            asked = min(asked_at_most, USUALLY_ASKED)
            share_tried = min(share_tried, asked / heads)
            runs_of_model = 3 / SLOPES_EVERY
        rounds.append(_PlannedRound(present=share_present, tried=share_tried, passes=runs_of_model))
    return rounds


def _seconds_per_block(evaluator: Evaluator, head: CandidateHead) -> tuple[float, float]:
    """Return how long one block takes for one sample: seconds of the clock, and seconds of processor time.

    Timed is the evaluation of one candidate on the first ID batch, including the counting of its results.
    """
    site, position = head
    first_id_batch = 0  # ID batches come first

    # At the first call with a shape, libraries do one-time work.
    evaluator.go_to_model_without([])
    evaluator.current_values(first_id_batch)
    evaluator.values_without_each(first_id_batch, site, [position])

    # Of later calls the shortest counts: others may have waited for other work of the machine. Seconds are divided by
    # the work of the call, which is counted in blocks times samples.
    of_clock = []
    of_processor = []
    for _ in range(_TIMED_CALLS):
        evaluator.go_to_model_without([])
        work_before = evaluator.work
        start = time.perf_counter()
        busy_before = time.process_time()
        evaluator.values_without_each(first_id_batch, site, [position])
        busy = time.process_time() - busy_before
        elapsed = time.perf_counter() - start
        work = max(evaluator.work - work_before, 1e-9)
        of_clock.append(elapsed / work)
        of_processor.append(busy / work)
    return min(of_clock), min(of_processor)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of memory are free on a device; half of all memory if the machine does not say.

    A GPU says it itself, Linux in /proc/meminfo (``MemAvailable:  16384 kB``).
    """
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


def tell_plan(log: Log, plan: SearchPlan, scope: Scope, options: SearchOptions, bounds: bool) -> None:
    """Log what the search will do, and what that costs."""
    up_to = "up to " if options.max_drop is not None else ""
    objectives = ", ".join(options.objective)
    log.info(
        f"removing {up_to}{scope.budget} of {len(scope.heads)} heads: {plan.evaluations_per_objective:,} evaluations "
        f"of the whole data per objective, {objectives}; steps that objectives share are measured once"
    )
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
