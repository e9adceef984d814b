"""Counts in the text format of Prometheus, written without a library.

The labels are class names of the checkpoint and fixed words; nothing that comes with an input is a label.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hydractl.files.watching_records import WatchedWindowRecord
from hydractl.metrics.watching import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of a service's answer to a request for its metrics."""

_FIGURES = ("share", "auroc", "classes")


class MetricSample(NamedTuple):
    """One number.

    Attributes:
        value: the number.
        labels: tell it from other numbers of the same name.
        suffix: what follows the name of the family, such as ``_sum`` for a histogram.
    """

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class MetricFamily(NamedTuple):
    """All numbers of one name.

    Attributes:
        name: the name without ``hydractl_``.
        kind: ``counter``, ``gauge`` or ``histogram``.
        about: a sentence on what the numbers say.
        samples: the numbers; without any, the family is left out of the text.
    """

    name: str
    kind: str
    about: str
    samples: Sequence[MetricSample]


def prometheus_text(families: Iterable[MetricFamily]) -> str:
    """Return metrics as text, a line each, with a line break at the end; families without samples are left out."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        name = f"hydractl_{family.name}"
        lines.append(f"# HELP {name} {family.about}")
        lines.append(f"# TYPE {name} {family.kind}")
        for sample in family.samples:
            labels = _labels_text(sample.labels)
            value = _number_text(sample.value)
            lines.append(f"{name}{sample.suffix}{labels} {value}")
    return "\n".join(lines) + "\n"


def watch_families(watch: Watch) -> Iterator[MetricFamily]:
    """Yield the counters of a watch, and the gauges of its last complete window if there is one."""
    yield _single("inputs_total", "counter", "Inputs that were predicted.", watch.inputs)
    yield _single("flagged_total", "counter", "Inputs that were flagged as OOD.", watch.flagged)

    predicted = []
    for name, count in sorted(watch.classes.items()):
        predicted.append(MetricSample(count, {"class": name}))
    yield MetricFamily("predicted_total", "counter", "Inputs by predicted class.", predicted)

    yield _single("windows_total", "counter", "Windows compared with the reference.", watch.windows)
    yield _single("alarms_total", "counter", "Windows that raised an alarm.", watch.alarms)
    reference = watch.reference
    if reference is not None:
        yield _single("reference_samples", "gauge", "ID samples that inputs are compared with.", reference.n)
    if watch.latest is not None:
        yield from _families_of_window(watch.latest)


def _single(name: str, kind: str, about: str, value: float) -> MetricFamily:
    """Return a family of one number without labels."""
    return MetricFamily(name, kind, about, [MetricSample(value)])


def _families_of_window(window: WatchedWindowRecord) -> Iterator[MetricFamily]:
    """Yield the gauges of a window; each figure that was computed has the ends of its 95 % interval."""
    yield _single("window_inputs", "gauge", "Inputs of the last complete window.", window.n)
    alarms = [MetricSample(name in window.alarms, {"figure": name}) for name in _FIGURES]
    yield MetricFamily("alarm", "gauge", "1 where a figure of the last window raises an alarm.", alarms)

    share = window.share
    if share is not None:
        about = "Share flagged in the last window less that of the reference."
        samples = _with_ends(share.difference, share.ci)
        yield MetricFamily("flagged_share_difference", "gauge", about, samples)

    auroc = window.auroc
    if auroc is not None:
        about = "AUROC of OOD scores of the last window against the reference."
        samples = _with_ends(auroc.auroc, auroc.ci)
        yield MetricFamily("score_shift_auroc", "gauge", about, samples)

    classes = window.classes
    if classes is not None:
        about = "Total variation of predicted classes of the last window from the reference."
        samples = _with_ends(classes.total_variation, classes.ci)
        yield MetricFamily("class_total_variation", "gauge", about, samples)


def _with_ends(value: float, ends: Sequence[float | None]) -> list[MetricSample]:
    """Return a figure and the known ends of its interval as samples that differ in the label ``bound``."""
    samples = [MetricSample(value, {"bound": "estimate"})]
    for bound, end in zip(("low", "high"), ends, strict=True):
        if end is not None:
            samples.append(MetricSample(end, {"bound": bound}))
    return samples


def _labels_text(labels: Mapping[str, str]) -> str:
    """Return labels in braces with their values escaped; empty if there are none."""
    if not labels:
        return ""
    pairs = []
    for name, value in labels.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"


def _number_text(value: float) -> str:
    """Return the shortest text of a number that reads as the same number."""
    if value == int(value):
        return str(int(value))
    return repr(float(value))
