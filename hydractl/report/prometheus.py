"""The counts and the last window of a watch as Prometheus reads them: plain text, written without a library.

The labels are names of classes of the checkpoint and fixed words: nothing that comes with an input.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hydractl.files.watching_records import WatchedWindowRecord
from hydractl.metrics.watching import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What the answer of a service that is asked for its metrics says of itself."""

_FIGURES = ("share", "auroc", "classes")


class _Sample(NamedTuple):
    """A number, and the labels that tell it from others of the same name."""

    value: float
    labels: Mapping[str, str] = {}


class _Family(NamedTuple):
    """All numbers of one name.

    Attributes:
        name: without ``hydractl_``.
        kind: ``counter`` or ``gauge``.
        text: what they say, in a sentence.
        samples: the numbers; without any, the name is left out.
    """

    name: str
    kind: str
    text: str
    samples: Sequence[_Sample]


def prometheus_text(watch: Watch) -> str:
    """Return the metrics of a watch, a line each, with a line break at the end."""
    lines = []
    for family in _families(watch):
        if not family.samples:
            continue
        lines.append(f"# HELP hydractl_{family.name} {family.text}")
        lines.append(f"# TYPE hydractl_{family.name} {family.kind}")
        for sample in family.samples:
            lines.append(f"hydractl_{family.name}{_labels(sample.labels)} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


def _families(watch: Watch) -> Iterator[_Family]:
    """Yield the counters, and the gauges of the last complete window where there is one."""
    predicted = [_Sample(count, {"label": name}) for name, count in sorted(watch.classes.items())]
    yield _Family("inputs_total", "counter", "Inputs that were predicted.", [_Sample(watch.inputs)])
    yield _Family("flagged_total", "counter", "Inputs that were flagged as OOD.", [_Sample(watch.flagged)])
    yield _Family("predicted_total", "counter", "Inputs by predicted class.", predicted)
    yield _Family("windows_total", "counter", "Windows compared with the reference.", [_Sample(watch.windows)])
    yield _Family("alarms_total", "counter", "Windows that raised an alarm.", [_Sample(watch.alarms)])
    reference = watch.reference
    if reference is not None:
        yield _Family("reference_samples", "gauge", "ID samples that inputs are compared with.", [_Sample(reference.n)])
    if watch.latest is not None:
        yield from _families_of_window(watch.latest)


def _families_of_window(window: WatchedWindowRecord) -> Iterator[_Family]:
    """Yield the gauges of a window, each figure with the ends of its 95 % interval."""
    yield _Family("window_inputs", "gauge", "Inputs of the last complete window.", [_Sample(window.n)])
    alarms = [_Sample(name in window.alarms, {"figure": name}) for name in _FIGURES]
    yield _Family("alarm", "gauge", "1 where a figure of the last window raises an alarm.", alarms)
    share = window.share
    if share is not None:
        text = "Share flagged in the last window less that of the reference."
        yield _Family("flagged_share_difference", "gauge", text, _with_ends(share.difference, share.ci))
    auroc = window.auroc
    if auroc is not None:
        text = "AUROC of OOD scores of the last window against the reference."
        yield _Family("score_shift_auroc", "gauge", text, _with_ends(auroc.auroc, auroc.ci))
    classes = window.classes
    if classes is not None:
        text = "Total variation of predicted classes of the last window from the reference."
        yield _Family("class_total_variation", "gauge", text, _with_ends(classes.total_variation, classes.ci))


def _with_ends(value: float, ends: Sequence[float | None]) -> list[_Sample]:
    """Return a figure and the ends of its interval."""
    samples = [_Sample(value, {"bound": "estimate"})]
    for bound, end in zip(("low", "high"), ends, strict=True):
        if end is not None:
            samples.append(_Sample(end, {"bound": bound}))
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
