"""Inputs of several requests in one forward pass: those that wait are run together after a few milliseconds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

InputT = TypeVar("InputT")
AnswerT = TypeVar("AnswerT")


@dataclass
class _Waiting(Generic[InputT, AnswerT]):
    """One input in the queue.

    Attributes:
        content: the input.
        weight: how much of the weight limit of a batch it uses, e.g. bytes of text.
        since: when it came, by the clock of the event loop.
        answer: the future that gets its answer; it is done already if the client has gone away.
    """

    content: InputT
    weight: int
    since: float
    answer: asyncio.Future[AnswerT] = field(repr=False)


class Batcher(Generic[InputT, AnswerT]):
    """Runs inputs in batches, one batch at a time, in one thread.

    If a batch fails, its inputs are run again one by one, so that only the input at fault gets the error. Inputs whose
    client has gone away are left out.

    Args:
        run: returns an answer for each input of a batch; it is always called in the same thread.
        size: the largest number of inputs in a batch.
        weight: the largest total weight of the inputs in a batch; an input that weighs more runs alone.
        wait: seconds that the first input of a batch waits for others.
    """

    def __init__(
        self, run: Callable[[Sequence[InputT]], Sequence[AnswerT]], size: int, weight: int, wait: float
    ) -> None:
        self._run = run
        self._size = size
        self._weight = weight
        self._wait = wait
        self._queue: deque[_Waiting[InputT, AnswerT]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "hydractl-model")
        self._loop_task: asyncio.Task[None] | None = None
        self.batches = 0

    @property
    def waiting(self) -> int:
        """The number of inputs that wait for a batch and whose client is still there."""
        return sum(not waiting.answer.done() for waiting in self._queue)

    @property
    def running(self) -> bool:
        """Whether inputs are being answered."""
        return self._loop_task is not None and not self._loop_task.done()

    def start(self) -> None:
        """Begin to answer; must be called in the event loop."""
        self._loop_task = asyncio.get_running_loop().create_task(self._answer_batches())

    async def stop(self) -> None:
        """End after the batch that is running now; inputs that still wait get no answer."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task])
        self._thread.shutdown(cancel_futures=True)

    def submit(self, content: InputT, weight: int = 0) -> asyncio.Future[AnswerT]:
        """Put one input into the queue; the returned future gets its answer, or the error of running it alone."""
        self._forget_first()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AnswerT] = loop.create_future()
        self._queue.append(_Waiting(content, weight, loop.time(), answer))
        self._arrived.set()
        return answer

    async def _answer_batches(self) -> None:
        """Run one batch after another, forever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._until_due()
            batch = self._next_batch()
            if not batch:
                continue
            contents = [waiting.content for waiting in batch]
            results = await loop.run_in_executor(self._thread, self._run_batch, contents)
            self.batches += 1
            for waiting, result in zip(batch, results, strict=True):
                if waiting.answer.done():  # the client has gone away
                    continue
                if isinstance(result, _Failed):
                    waiting.answer.set_exception(result.error)
                else:
                    waiting.answer.set_result(result)

    async def _until_due(self) -> None:
        """Return when there are inputs for a full batch, or when the first input has waited long enough for others."""
        loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            self._forget_first()
            if not self._queue:
                await self._arrived.wait()
                continue

            # A batch is due. Otherwise wait for the next input, but only until one is due.
            if len(self._queue) >= self._size:
                return
            first = self._queue[0]
            due = first.since + self._wait
            seconds_left = due - loop.time()
            if seconds_left <= 0:
                return
            try:
                async with asyncio.timeout(seconds_left):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _forget_first(self) -> None:
        """Remove inputs from the front of the queue whose clients have gone away.

        This keeps the queue from growing while the model hangs.
        """
        while self._queue and self._queue[0].answer.done():
            self._queue.popleft()

    def _next_batch(self) -> list[_Waiting[InputT, AnswerT]]:
        """Take the next inputs out of the queue, in order: as many as the limits of size and weight allow.

        Inputs whose client has gone away are taken out too, but left out of the batch; so it may be empty.
        """
        batch: list[_Waiting[InputT, AnswerT]] = []
        weight = 0
        while self._queue and len(batch) < self._size:
            waiting = self._queue[0]
            weight_with_it = weight + waiting.weight
            if batch and weight_with_it > self._weight:  # a single input runs however heavy it is
                break
            self._queue.popleft()
            if waiting.answer.done():
                continue
            batch.append(waiting)
            weight = weight_with_it
        return batch

    def _run_batch(self, contents: Sequence[InputT]) -> list[AnswerT | _Failed]:
        """Return the answer to each input of a batch, in the thread; if the batch fails, run each input alone."""
        try:
            return list(self._run(contents))
        except Exception as error:
            if len(contents) == 1:
                return [_Failed(error)]
        results: list[AnswerT | _Failed] = []
        for content in contents:
            results += self._run_batch([content])
        return results


@dataclass(frozen=True)
class _Failed:
    """The result of an input without an answer.

    Attributes:
        error: the error of running the input alone.
    """

    error: Exception
