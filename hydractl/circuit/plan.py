"""What a search will cost, before it starts, and what it did cost."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.lazy import ASKED, EVERY
from hydractl.circuit.objective import OBJECTIVES
from hydractl.circuit.scope import SearchOptions
from hydractl.circuit.search import evaluations
from hydractl.circuit.tower import Candidate
from hydractl.expressions.conditions import parse_constraint
from hydractl.log import Log
from hydractl.report.texts import bytes_text, duration_text


@dataclass(frozen=True)
class Plan:
    """What a search by Algorithm 1 takes.

    Attributes:
        evaluations_per_objective: of the whole data, at most.
        sample_blocks_naive: sample-block evaluations of the plain algorithm, one objective after another.
        sample_blocks: about those of an exact search without bounds and without what objectives have in common, the
            removed heads taken evenly from all sites; of an approximate one, those that were seen to be usual.
        seconds: about how long that takes.
        memory_bytes: of what is kept between evaluations.
        chunks: into how many parts the data are cut so that the memory suffices.
    """

    evaluations_per_objective: int
    sample_blocks_naive: int
    sample_blocks: int
    seconds: float
    memory_bytes: int
    chunks: int

    def to_json(self) -> dict[str, Any]:
        """Return the plan for the answer of a dry run."""
        return {**vars(self), "seconds": round(self.seconds, 1)}


def plan_of(
    evaluator: Evaluator,
    heads: Sequence[Candidate],
    budget: int,
    options: SearchOptions,
    sizes: Mapping[str, int],
    processes: int,
) -> Plan:
    """Count what is to be done, and measure on one batch how long it takes.

    The evaluator may have a part of the data; ``sizes`` are the samples of all of it, ``id`` and ``ood``.
    """
    headmap = options.algorithm == "headmap"
    count = naive_count = len(heads) if headmap else evaluations(len(heads), budget)
    size = None if options.approx is None else int(options.approx.partition(":")[2])
    if size is not None:
        count = sum(min(size, len(heads) - step) for step in range(budget))
    rounds = len({site for site, _ in heads}) if headmap else budget
    present = sum(len(kept) for kept in evaluator.samples.full)
    constrained = [parse_constraint(text).key for text in options.subject_to]
    naive, most = 0.0, 0.0
    for objective in options.objective:
        reads_ood = any(OBJECTIVES[key].needs_ood for key in (objective, *constrained))
        samples = sizes["id"] + (sizes.get("ood", 0) if reads_ood else 0)
        naive += naive_count * evaluator.naive_work(samples, [site for site, _ in heads])
        for step in range(rounds):
            share = 1.0 if headmap else 1 - step / present
            left = 1 / rounds if headmap else (len(heads) - step) / len(heads)
            passes = 1.0  # of the model itself
            if size is not None:
                # The states of the winner are kept; slopes take a pass forward and about two backward.
                left, passes = min(left, size / len(heads), ASKED / len(heads)), 3 / EVERY
            most += passes * evaluator.price(None, samples, share)
            most += left * sum(evaluator.price(site, samples, share) for site, _ in heads)
    everything = sum(sizes.values())
    return Plan(
        count,
        round(naive),
        round(most),
        most * _seconds_per_block(evaluator, heads[0]) / processes,
        round(evaluator.memory_bytes * everything / evaluator.size),
        len(evaluator.chunks),
    )


def with_memory(plan: Plan, batches: int, blocks: int, lanes: int, limit: int, *, tried: bool = False) -> Plan:
    """Return the plan under a limit of memory in bytes, laid out as :class:`Evaluator` does with batches of one size.

    Args:
        lanes: how many models with different heads removed are searched in turn.
        tried: whether the states of as many models are kept beside them.
    """
    trace = (3 * blocks + 1) * (1 + tried)  # in sizes of a stem
    stems = plan.memory_bytes // (1 + lanes * trace)
    held = stems if stems <= limit // 4 else 0
    left = limit - held
    if stems * trace <= left:
        traces = max(1, min(lanes, left // max(1, stems * trace)))
        return replace(plan, memory_bytes=held + traces * stems * trace, chunks=1)
    at_a_time = max(1, left * batches // max(1, stems * trace))
    share = stems * trace * at_a_time // batches
    return replace(plan, memory_bytes=held + share, chunks=-(-batches // at_a_time))


def _seconds_per_block(evaluator: Evaluator, head: Candidate) -> float:
    """The time of a sample-block evaluation, counting included, from one candidate on one batch."""
    evaluator.begin([])
    batch = next(b for b, sample in enumerate(evaluator.batches) if sample.labels is not None)
    evaluator.current(batch)
    # What has been done once before is timed: the first call of a shape prepares a library.
    site, position = head
    evaluator.without_each(batch, site, [position])
    evaluator.begin([])
    work, start = evaluator.work, time.perf_counter()
    evaluator.without_each(batch, site, [position])
    elapsed = time.perf_counter() - start
    return elapsed / max(evaluator.work - work, 1e-9)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of memory are free on a device, as far as the machine says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


# --- as it is told ----------------------------------------------------------------------------------------------------


def tell_plan(log: Log, plan: Plan, bounds: bool) -> None:
    """Log what the search will cost."""
    parts = f", the data in {plan.chunks} parts" if plan.chunks > 1 else ""
    log.info(
        f"naively {plan.sample_blocks_naive:,} sample-block evaluations, here about {plan.sample_blocks:,}"
        f"{' before bounds' if bounds else ''}, about {duration_text(plan.seconds)}; "
        f"{bytes_text(plan.memory_bytes)} of states are kept{parts}"
    )


def tell_work(log: Log, plan: Plan, evaluations: int, work: float, processes: int) -> None:
    """Log what the search did cost."""
    if not evaluations:
        log.info("nothing was left to evaluate: the journal has the whole search")
        return
    mine = " by this process" if processes > 1 else ""
    log.info(
        f"{evaluations:,} candidates and {round(work):,} sample-block evaluations{mine}: "
        f"{work / plan.sample_blocks_naive:.3f} of the naive {plan.sample_blocks_naive:,}"
    )
