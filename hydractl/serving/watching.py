"""What the service knows of its traffic, and tells as Prometheus text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from hydractl.evaluation.predicting import PredictionRow
from hydractl.files.predict_answer import PredictingModelRecord

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper ends of the buckets of the time of a request."""


class TrafficWatch(Protocol):
    """What is fed every input that was answered, in the order of the answers, in one thread.

    A comparison of the traffic with a reference is such an object: the service takes any number of them.
    """

    def add(self, rows: Sequence[PredictionRow]) -> None:
        """Take the rows of one request, as its client gets them."""

    def prometheus(self) -> list[str]:
        """Return lines of Prometheus' text format: for every metric its HELP and TYPE, and its samples.

        Values of labels may come from the checkpoint, never from a request.
        """


class AnsweredInputs:
    """Counts the inputs that were answered: how many there were, how many were flagged, and what was predicted.

    Attributes:
        inputs: how many.
        flagged: of those, how many reach the threshold; None without a threshold.
    """

    def __init__(self, model: PredictingModelRecord) -> None:
        self._model = model
        self.inputs = 0
        self.flagged: int | None = None if model.threshold is None else 0
        self._classes: Counter[str | int] = Counter()

    def add(self, rows: Sequence[PredictionRow]) -> None:
        self.inputs += len(rows)
        for row in rows:
            self._classes[row["predicted"]] += 1
            if self.flagged is not None:
                self.flagged += row.get("is_ood", False)

    def prometheus(self) -> list[str]:
        model = self._model
        facts = {"name": model.name, "sha256": model.sha256, "ood_score": model.ood_score}
        lines = metric("model_info", "gauge", "The model that answers.", [(facts, 1)])
        lines += metric("inputs_total", "counter", "Inputs that were answered.", [({}, self.inputs)])
        if self.flagged is not None and model.threshold is not None:
            lines += metric("flagged_total", "counter", "Inputs flagged as OOD.", [({}, self.flagged)])
            lines += metric(
                "threshold", "gauge", "OOD score from which on an input is flagged.", [({}, model.threshold)]
            )
        by_class = [({"class": str(label)}, count) for label, count in sorted(self._classes.items(), key=str)]
        lines += metric("predicted_total", "counter", "Inputs by predicted class.", by_class)
        return lines


class RequestCounts:
    """Counts requests by the status of their answer, and the seconds that predictions took.

    Attributes:
        requests: of all.
    """

    def __init__(self) -> None:
        self._by_status: Counter[int] = Counter()
        self._by_bucket = [0] * (len(_SECONDS) + 1)
        self._seconds = 0.0

    @property
    def requests(self) -> int:
        """How many requests had an answer."""
        return self._by_status.total()

    def add_status(self, status: int) -> None:
        """Count an answer."""
        self._by_status[status] += 1

    def add_seconds(self, seconds: float) -> None:
        """Count the time of one request for a prediction, answered or refused."""
        bucket = 0
        while bucket < len(_SECONDS) and seconds > _SECONDS[bucket]:
            bucket += 1
        self._by_bucket[bucket] += 1
        self._seconds += seconds

    def prometheus(self) -> list[str]:
        """Return lines of Prometheus' text format."""
        by_status = [({"status": str(status)}, count) for status, count in sorted(self._by_status.items())]
        lines = metric("requests_total", "counter", "Requests by the status of their answer.", by_status)
        name = "hydractl_request_seconds"
        lines.append(f"# HELP {name} Seconds from the head of a request for a prediction to its answer.")
        lines.append(f"# TYPE {name} histogram")
        total = 0
        for end, count in zip((*_SECONDS, "+Inf"), self._by_bucket, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{end}"}} {total}')
        lines.append(f"{name}_sum {self._seconds:.6f}")
        lines.append(f"{name}_count {total}")
        return lines


def metric(name: str, kind: str, about: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> list[str]:
    """Return the lines of one metric in Prometheus' text format.

    Args:
        name: without the name of the program.
        kind: ``counter`` or ``gauge``.
        about: one sentence.
        samples: the labels and the value of each.
    """
    full_name = f"hydractl_{name}"
    lines = [f"# HELP {full_name} {about}", f"# TYPE {full_name} {kind}"]
    for labels, value in samples:
        lines.append(f"{full_name}{_labels(labels)} {value!r}")
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    """Return labels in braces, nothing without any."""
    if not labels:
        return ""
    pairs = ",".join(_pairs(labels))
    return f"{{{pairs}}}"


def _pairs(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield ``name="value"`` of each label, the value escaped as the format asks for."""
    for name, value in labels.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'{name}="{escaped}"'
