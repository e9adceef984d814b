"""Counts as Prometheus reads them: plain text, written without a library.

The labels are names of classes of the checkpoint and fixed words: nothing that comes with an input.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hydractl.files.watching_records import WatchedWindowRecord
from hydractl.metrics.watching import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What the answer of a service that is asked for its metrics says of itself."""

_FIGURES = ("share", "auroc", "classes")


class MetricSample(NamedTuple):
    """A number.

    Attributes:
        value: the number.
        labels: tell it from others of the same name.
        suffix: what its name has beside that of its family, such as ``_sum`` of a histogram.
    """

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class MetricFamily(NamedTuple):
    """All numbers of one name.

    Attributes:
        name: without ``hydractl_``.
        kind: ``counter``, ``gauge`` or ``histogram``.
        about: what they say, in a sentence.
        samples: the numbers; without any, the name is left out.
    """

    name: str
    kind: str
    about: str
    samples: Sequence[MetricSample]


def prometheus_text(families: Iterable[MetricFamily]) -> str:
    """Return metrics, a line each, with a line break at the end."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        name = f"hydractl_{family.name}"
        lines.append(f"# HELP {name} {family.about}")
        lines.append(f"# TYPE {name} {family.kind}")
        for sample in family.samples:
            lines.append(f"{name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


def watch_families(watch: Watch) -> Iterator[MetricFamily]:
    """Yield the counters of a watch, and the gauges of its last complete window where there is one."""
    predicted = [MetricSample(count, {"class": name}) for name, count in sorted(watch.classes.items())]
    yield MetricFamily("inputs_total", "counter", "Inputs that were predicted.", [MetricSample(watch.inputs)])
    yield MetricFamily("flagged_total", "counter", "Inputs that were flagged as OOD.", [MetricSample(watch.flagged)])
    yield MetricFamily("predicted_total", "counter", "Inputs by predicted class.", predicted)
    yield MetricFamily(
        "windows_total", "counter", "Windows compared with the reference.", [MetricSample(watch.windows)]
    )
    yield MetricFamily("alarms_total", "counter", "Windows that raised an alarm.", [MetricSample(watch.alarms)])
    reference = watch.reference
    if reference is not None:
        samples = [MetricSample(reference.n)]
        yield MetricFamily("reference_samples", "gauge", "ID samples that inputs are compared with.", samples)
    if watch.latest is not None:
        yield from _families_of_window(watch.latest)


def _families_of_window(window: WatchedWindowRecord) -> Iterator[MetricFamily]:
    """Yield the gauges of a window, each figure with the ends of its 95 % interval."""
    yield MetricFamily("window_inputs", "gauge", "Inputs of the last complete window.", [MetricSample(window.n)])
    alarms = [MetricSample(name in window.alarms, {"figure": name}) for name in _FIGURES]
    yield MetricFamily("alarm", "gauge", "1 where a figure of the last window raises an alarm.", alarms)
    share = window.share
    if share is not None:
        about = "Share flagged in the last window less that of the reference."
        yield MetricFamily("flagged_share_difference", "gauge", about, _with_ends(share.difference, share.ci))
    auroc = window.auroc
    if auroc is not None:
        about = "AUROC of OOD scores of the last window against the reference."
        yield MetricFamily("score_shift_auroc", "gauge", about, _with_ends(auroc.auroc, auroc.ci))
    classes = window.classes
    if classes is not None:
        about = "Total variation of predicted classes of the last window from the reference."
        yield MetricFamily("class_total_variation", "gauge", about, _with_ends(classes.total_variation, classes.ci))


def _with_ends(value: float, ends: Sequence[float | None]) -> list[MetricSample]:
    """Return a figure and the ends of its interval."""
    samples = [MetricSample(value, {"bound": "estimate"})]
    for bound, end in zip(("low", "high"), ends, strict=True):
        if end is not None:
            samples.append(MetricSample(end, {"bound": bound}))
    return samples


def _labels(labels: Mapping[str, str]) -> str:
    """Return labels in braces, their values escaped; nothing where there are none."""
    if not labels:
        return ""
    pairs = []
    for name, value in labels.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    """Return a number as short as it can be read back."""
    if value == int(value):
        return str(int(value))
    return repr(float(value))
