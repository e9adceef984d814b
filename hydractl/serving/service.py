"""One loaded model that answers many requests at the same time. Nothing here knows of HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from hydractl.errors import NonFiniteError
from hydractl.evaluation.predicting import LineForm, PredictionRow, prediction_rows
from hydractl.files.predict_answer import PredictingModelRecord
from hydractl.files.watching_records import WatchedWindowRecord
from hydractl.log import Log
from hydractl.metrics.watching import Reference, Watch
from hydractl.model.runtime import HydraModel, move
from hydractl.report.prometheus import MetricFamily, MetricSample, prometheus_text, watch_families
from hydractl.serving.batching import Batcher
from hydractl.serving.inputs import PreparedInput, kind_of_inputs, refusal_of
from hydractl.serving.limits import RequestRefused, ServiceLimits
from hydractl.serving.watching import RequestCounts, model_families

_MOST_THREADS = 4
"""The number of threads that decode images; each holds at most one image of the largest size."""


@dataclass(frozen=True)
class _AskedInput:
    """One input of a batch.

    Attributes:
        prepared: the input.
        form: the optional parts of its row that its client asks for.
    """

    prepared: PreparedInput
    form: LineForm


class ModelService:
    """A model that answers requests.

    Attributes:
        record: the description of the model for clients.
        limits: the limits of requests.
        counts: counts requests.
        watch: counts inputs, and compares them with the reference of the checkpoint.

    Args:
        model: the model, with its weights.
        record: the description of the model for clients.
        limits: the limits of requests.
        batch_size: the largest number of inputs that run together.
        wait: seconds that an input waits for others.
        log: receives failures that are not the fault of a client.
        reference: ID samples that inputs are compared with; None for no comparison.
        on_window: called with each comparison, which is made every thousand inputs.
    """

    def __init__(
        self,
        model: HydraModel,
        record: PredictingModelRecord,
        limits: ServiceLimits,
        batch_size: int,
        wait: float,
        log: Log,
        reference: Reference | None = None,
        on_window: Callable[[WatchedWindowRecord], None] | None = None,
    ) -> None:
        # What is served, and to which inputs.
        self.model = model
        self.record = record
        self.limits = limits
        self.kind = kind_of_inputs(model, limits)

        # What is counted and watched.
        self.log = log
        self.counts = RequestCounts()
        self.watch = Watch(reference)
        self._on_window = on_window

        # Threads that decode inputs, and the queue from which batches are made.
        self._decoders = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "hydractl-decode")
        self._batcher: Batcher[_AskedInput, PredictionRow] = Batcher(
            self._predict_batch, batch_size, limits.max_text, wait
        )
        self._in_hand = 0

    # --- start and end ------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Predict random inputs once, so that the first answer is not slower, and a broken model fails at once.

        Raises:
            InputError: the checkpoint lacks the statistics that its OOD score needs.
        """
        inputs = self.model.example_inputs(1)
        try:
            with torch.inference_mode():
                self.model.predict(inputs)
        except NonFiniteError:  # for random inputs this is no error
            self.log.detail("the model's outputs for random inputs are not finite")

    def start(self) -> None:
        """Begin to answer; must be called in the event loop of the requests."""
        self._batcher.start()

    async def stop(self) -> None:
        """End after the last answer."""
        await self._batcher.stop()
        self._decoders.shutdown(cancel_futures=True)

    @property
    def healthy(self) -> bool:
        """Whether inputs are being answered."""
        return self._batcher.running

    # --- requests -----------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Count one more request in hand; :meth:`leave` must follow.

        Raises:
            RequestRefused: as many requests as the limit allows are in hand already.
        """
        if self._in_hand >= self.limits.max_requests:
            raise RequestRefused(503, "too many requests are waiting; ask again in a moment", retry=True)
        self._in_hand += 1

    def leave(self) -> None:
        """Count one request less in hand."""
        self._in_hand -= 1

    async def rows_of(self, body: bytes, content_type: str, form: LineForm) -> list[PredictionRow]:
        """Return the rows of all inputs in a body, in their order.

        Several threads decode the inputs. Then the inputs queue for batches, which they share with inputs of other
        requests.

        Raises:
            RequestRefused: the body, or one of its inputs, cannot be answered.
        """
        loop = asyncio.get_running_loop()
        raw_inputs = await loop.run_in_executor(self._decoders, self.kind.inputs_of, body, content_type)
        if not raw_inputs:
            raise RequestRefused(400, "the request has no input")

        # Decode all inputs in threads.
        preparations = []
        for position, raw in enumerate(raw_inputs):
            preparations.append(loop.run_in_executor(self._decoders, self.kind.prepared, raw, position))

        # Queue each input, then wait for the answers in order.
        answers: list[asyncio.Future[PredictionRow]] = []
        try:
            for prepared in await asyncio.gather(*preparations):
                asked = _AskedInput(prepared, form)
                answers.append(self._batcher.submit(asked, prepared.weight))
            rows = []
            for position, answer in enumerate(answers):
                rows.append(await self._row_or_refusal(answer, position))
        finally:
            # If the request ends early, nothing of it is computed any more.
            for preparation in preparations:
                _let_go(preparation)
            for answer in answers:
                _let_go(answer)
        self._count_inputs(rows)
        return rows

    async def _row_or_refusal(self, answer: asyncio.Future[PredictionRow], position: int) -> PredictionRow:
        """Return the row of one input, with its position as ``id``.

        Raises:
            RequestRefused: the model has no answer for the input.
        """
        try:
            row = await answer
        except Exception as error:
            refusal = refusal_of(error, position)
            if refusal.status == 500:
                self.log.warn(f"the model failed at an input: {type(error).__name__}")
            raise refusal from None
        return {**row, "id": str(position)}

    def _count_inputs(self, rows: Sequence[PredictionRow]) -> None:
        """Count the answers to one request, and pass each completed window to ``on_window``.

        It is called in the event loop, so requests are counted one at a time.
        """
        for row in rows:
            window = self.watch.add(row["ood_score"], row.get("is_ood"), row["predicted"], row["confidence"])
            if window is not None and self._on_window is not None:
                self._on_window(window)

    def _predict_batch(self, batch: Sequence[_AskedInput]) -> list[PredictionRow]:
        """Predict a batch; return the row of each input in the form that its client asks for.

        It is called in the thread of the model.
        """
        contents = [asked.prepared.content for asked in batch]
        inputs = move(self.kind.joined(contents), self.model.device, self.model.dtype)
        with torch.inference_mode():
            prediction = self.model.predict(inputs)
        # Make the rows of the batch once for each form that is asked for, and take from them the row of each input.
        rows_by_form: dict[LineForm, list[PredictionRow]] = {}
        no_names = [""] * len(batch)
        no_labels = [None] * len(batch)
        rows = []
        for index, asked in enumerate(batch):
            form = asked.form
            if form not in rows_by_form:
                rows_by_form[form] = prediction_rows(prediction, no_names, no_labels, form)
            rows.append(rows_by_form[form][index])
        return rows

    # --- about the service --------------------------------------------------------------------------------------------

    def about(self) -> dict[str, object]:
        """Return what a client may want to know about the model, as JSON."""
        return {
            **self.record.to_json(),
            "arch": self.model.description.arch,
            "reads": self.model.description.reads,
            "content_types": list(self.kind.content_types),
            "classes": self.model.classes,
            "labels": self.model.labels,
            "limits": self.limits.to_json(),
        }

    def prometheus(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return prometheus_text(self._metric_families())

    def _metric_families(self) -> Iterator[MetricFamily]:
        """Yield the metrics of the requests, the queue, the model and the inputs."""
        yield from self.counts.families()
        in_hand = [MetricSample(self._in_hand)]
        yield MetricFamily("requests_in_hand", "gauge", "Requests read, decoded or waiting now.", in_hand)
        waiting = [MetricSample(self._batcher.waiting)]
        yield MetricFamily("queue_inputs", "gauge", "Inputs that wait for a batch.", waiting)
        batches = [MetricSample(self._batcher.batches)]
        yield MetricFamily("batches_total", "counter", "Batches that were run.", batches)
        yield from model_families(self.record)
        has_threshold = self.record.threshold is not None
        for family in watch_families(self.watch):
            # Without a threshold nothing can be flagged, and a zero would look as if nothing were OOD.
            if family.name == "flagged_total" and not has_threshold:
                continue
            yield family


def _let_go(future: asyncio.Future[Any]) -> None:
    """Cancel a future that nobody waits for, and mark its error as seen, if it has one."""
    future.cancel()
    if not future.cancelled() and future.done():
        future.exception()
