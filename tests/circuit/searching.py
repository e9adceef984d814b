"""What the tests of searches share: a journal in memory, two processes in one, a model ready to be searched."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.search import GreedySearch
from hydractl.distributed import Processes
from hydractl.model.runtime import HydraModel
from tests.circuit import naive
from tests.circuit.test_search import HEADS, model_of, samples


class Kept:
    """A journal in memory: what was there at the beginning, and what has been written since."""

    def __init__(self, records: list[dict[str, Any]] | None = None) -> None:
        self.records = records or []
        self.written: list[dict[str, Any]] = []

    def append(self, record: Mapping[str, Any]) -> None:
        self.written.append(json.loads(json.dumps(record)))

    def sync(self) -> None:
        pass


class Twin(Processes):
    """One of two processes that are threads."""

    def __init__(self, rank: int, desk: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._desk, self._barrier = rank, 2, desk, barrier

    def gather(self, value: Any) -> list[Any]:
        self._desk[self.rank] = json.dumps(value)
        self._barrier.wait(60)
        found = [json.loads(text) for text in self._desk]
        self._barrier.wait(60)
        return found


def evaluator_of(reference: Any, variant: str, data: naive.Data, **options: Any) -> tuple[HydraModel, Evaluator]:
    model = model_of(reference, variant)
    return model, Evaluator(model, samples(data), **options)


Make = Callable[..., GreedySearch]


def searched(make: Make, reference: Any, variant: str, data: naive.Data, *run: Any, **others: Any) -> Any:
    """Run a search and give (what it found, the search)."""
    _, evaluator = evaluator_of(reference, variant, data)
    search = make(evaluator, HEADS, **others)
    found = search.run(*run)
    evaluator.close()
    return found, search


def evaluated(records: list[dict[str, Any]]) -> Counter[tuple[str, int, int, int]]:
    """How often each candidate was measured in each step."""
    return Counter((r["of"], r["step"], *r["head"]) for r in records if "of" in r)


def resumes(make: Make, reference: Any, variant: str, data: naive.Data, *run: Any, cuts: int = 3) -> None:
    """Cut off after so many records and gone on with, a search finds the same and measures nothing twice."""
    whole = Kept()
    expected, _ = searched(make, reference, variant, data, *run, journal=whole)
    total = len(whole.written)
    for cut in sorted({total * part // cuts for part in range(1, cuts)} | {total - 1, total}):
        memory = Kept(whole.written[:cut])
        found, search = searched(make, reference, variant, data, *run, journal=memory)
        assert found == expected
        assert evaluated(memory.records + memory.written) == evaluated(whole.written)
        assert search.evaluations == evaluated(memory.written).total()
    assert set(evaluated(whole.written).values()) == {1}


def shared_by_two(
    make: Make, reference: Any, variant: str, data: naive.Data, *run: Any, by_batch: bool = False
) -> None:
    """Two processes find what one does, and each evaluates about half: of the candidates, or of every one's batches."""
    expected, alone = searched(make, reference, variant, data, *run)
    desk, barrier, answers = [None, None], threading.Barrier(2), [None, None]

    def one(rank: int) -> None:
        try:
            answers[rank] = searched(make, reference, variant, data, *run, processes=Twin(rank, desk, barrier))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [found for found, _ in answers] == [expected, expected]  # type: ignore[misc]
    if by_batch:
        works = [search.evaluator.work for _, search in answers]  # type: ignore[misc]
        assert max(works) <= 0.9 * alone.evaluator.work  # slopes are taken by both
        return
    parts = [search.evaluations for _, search in answers]  # type: ignore[misc]
    assert sum(parts) == alone.evaluations
    assert max(parts) <= 0.75 * alone.evaluations
