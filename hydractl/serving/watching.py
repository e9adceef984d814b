"""Counters of the service about its requests and its model; a watch counts the inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hydractl.errors import OutputError
from hydractl.files.predict_answer import PredictingModelRecord
from hydractl.files.watching_records import WatchedWindowRecord
from hydractl.jsonio import canonical_json
from hydractl.log import Log
from hydractl.report.prometheus import MetricFamily, MetricSample
from hydractl.report.watch_words import figures_in_words, place_of

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper ends of the buckets in the histogram of request times, in seconds."""


def model_families(model: PredictingModelRecord) -> Iterator[MetricFamily]:
    """Yield the metrics that identify the model, and its threshold."""
    facts = {"name": model.name, "sha256": model.sha256, "ood_score": model.ood_score}
    yield MetricFamily("model_info", "gauge", "The model that answers.", [MetricSample(1, facts)])
    if model.threshold is not None:
        about = "OOD score from which on an input is flagged."
        yield MetricFamily("threshold", "gauge", about, [MetricSample(model.threshold)])


class RequestCounts:
    """Counts requests by the status of their answer, and the seconds that predictions took."""

    def __init__(self) -> None:
        self._by_status: Counter[int] = Counter()
        self._by_bucket = [0] * (len(_SECONDS) + 1)  # the last bucket is for times above the last end
        self._seconds = 0.0

    @property
    def requests(self) -> int:
        """The number of requests that got an answer."""
        return self._by_status.total()

    def add_status(self, status: int) -> None:
        """Count an answer by its status."""
        self._by_status[status] += 1

    def add_seconds(self, seconds: float) -> None:
        """Count the time of one request for a prediction, whether it was answered or refused."""
        bucket = 0
        while bucket < len(_SECONDS) and seconds > _SECONDS[bucket]:
            bucket += 1
        self._by_bucket[bucket] += 1
        self._seconds += seconds

    def families(self) -> Iterator[MetricFamily]:
        """Yield the requests by status, and the histogram of their seconds in the form of Prometheus.

        There a bucket counts all requests up to its end, with the requests of lower buckets.
        """
        by_status = []
        for status, count in sorted(self._by_status.items()):
            by_status.append(MetricSample(count, {"status": str(status)}))
        yield MetricFamily("requests_total", "counter", "Requests by the status of their answer.", by_status)

        samples = []
        up_to_end = 0
        ends = (*_SECONDS, "+Inf")
        for end, count in zip(ends, self._by_bucket, strict=True):
            up_to_end += count
            samples.append(MetricSample(up_to_end, {"le": str(end)}, "_bucket"))
        samples.append(MetricSample(self._seconds, suffix="_sum"))
        samples.append(MetricSample(up_to_end, suffix="_count"))
        about = "Seconds from the head of a request for a prediction to its answer."
        yield MetricFamily("request_seconds", "histogram", about, samples)


class WindowLog:
    """Logs how windows of inputs compare with the reference, and appends them to a file as lines of JSON.

    Args:
        path: the file to append to; None for no file.
        log: receives a line for each window, as a warning if the window has an alarm.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: Path | None, log: Log) -> None:
        self._path = path
        self._log = log
        if path is None:
            return
        try:
            path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error

    def add(self, window: WatchedWindowRecord) -> None:
        """Log how a window compares, and append it to the file; if that cannot be written, only log a warning."""
        words = f"{place_of(window)}: {window.advice}"
        if window.verdict == "alarm":
            self._log.warn(f"{words}; {figures_in_words(window)}")
        else:
            self._log.info(words)
        if self._path is None:
            return
        line = canonical_json(window.to_json())
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            self._log.warn(f"cannot write {self._path}: {error.strerror}")
