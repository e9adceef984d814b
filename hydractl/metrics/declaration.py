"""Declarations of metrics: each metric is one function with its name, its defining sentence, its heading and direction.

The rows of ``eval.json``, bootstrap intervals and paired differences, the keys of ``--require``, the conventions and
the columns of tables follow from the declarations. This package's metrics come first, in the order in which they are
declared. Other packages declare metrics by entry points of the group ``hydractl.metrics``, each naming one
:class:`Metric`. All are loaded when a metric is first asked for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hydractl.errors import InputError
from hydractl.files.plugins import entry_points_of, load_entry_point

MetricKind = Literal["id", "ood", "errors", "diversity"]

GROUP = "hydractl.metrics"
_HOMES = ("hydractl.metrics.sample_metrics", "hydractl.metrics.ood", "hydractl.metrics.errors")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        function: computes the number, or one number for each of ``parts``. Its argument depends on the kind: labelled
            samples (``id``), a :class:`~hydractl.metrics.ood.Curve` (``ood``), the
            :class:`~hydractl.metrics.errors.Answers` that a score orders (``errors``), or samples with their members'
            votes (``diversity``). Samples are a :class:`~hydractl.metrics.samples.Samples` or, in a round of the
            bootstrap, a :class:`~hydractl.metrics.samples.Resample`, with at least one sample.
        kind: decides the metric's keys in a row: ``id.KEY``; ``ood.SET.KEY`` and averages over sets; ``errors.KEY``;
            ``diversity.SET.KEY``.
        key: its name in ``eval.json``.
        convention: the sentence that defines it, kept in every document that holds it.
        label: the heading of its column; empty if tables leave it out.
        words: its name in a sentence.
        direction: which is better, ``higher`` or ``lower``; empty if neither is.
        digits: the number of digits after the point, in tables.
        parts: the keys of its numbers below ``key``, if it has several numbers.
        by_severity: whether it is also computed for each corruption at each severity (only ``id``).
        biased: whether noise makes it larger, as it does a distance, so that it is higher on resamples than on the
            data; the bootstrap then moves its interval down by the difference (only ``id`` and ``errors``).
    """

    function: Callable[[Any], Any]
    kind: MetricKind
    key: str
    convention: str
    label: str = ""
    words: str = ""
    direction: Literal["higher", "lower", ""] = ""
    digits: int = 4
    parts: tuple[str, ...] = ()
    by_severity: bool = False
    biased: bool = False

    def __call__(self, data: Any) -> Any:
        return self.function(data)

    @property
    def missing(self) -> Any:
        """The metric's value if there are no samples: None, or None for each of ``parts``."""
        if self.parts:
            return dict.fromkeys(self.parts)
        return None

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys of the metric's numbers, e.g. "nll", or "accuracy_at.0.80" for a metric of several parts."""
        if not self.parts:
            return (self.key,)
        dotted_keys = [f"{self.key}.{part}" for part in self.parts]
        return tuple(dotted_keys)


def metric(kind: MetricKind, convention: str = "", **described: Any) -> Callable[[Callable[[Any], Any]], Metric]:
    """Return a decorator that turns a function into the :class:`Metric` of the same name.

    Args:
        kind: ``id``, ``ood``, ``errors`` or ``diversity``, which decides the metric's keys in a row.
        convention: the sentence that defines it; if empty, the first paragraph of the function's docstring.
        described: further attributes of :class:`Metric`.
    """

    def declare(function: Callable[[Any], Any]) -> Metric:
        """Return the :class:`Metric` that computes with this function and has its name."""
        sentence = convention
        if not sentence:
            docstring = function.__doc__ or ""
            first_paragraph, _, _ = docstring.partition("\n\n")
            sentence = " ".join(first_paragraph.replace("``", "").split())
        return Metric(function, kind, function.__name__, sentence, **described)

    return declare


@functools.cache
def metrics(kind: MetricKind) -> tuple[Metric, ...]:
    """Return the metrics of a kind, in the order in which documents hold them.

    Raises:
        InputError: an entry point of another package cannot be imported, is no metric, or has a key that is taken.
    """
    every = list(_declared_here())
    every += _declared_by_plugins()
    return tuple(declared for declared in every if declared.kind == kind)


def table_metrics(kind: MetricKind) -> tuple[Metric, ...]:
    """Return the metrics of a kind that have a column in tables, from left to right."""
    return tuple(declared for declared in metrics(kind) if declared.label)


def _declared_here() -> Iterator[Metric]:
    """Yield the metrics of this package, in the order in which they are declared."""
    for home in _HOMES:
        module = importlib.import_module(home)
        for value in vars(module).values():
            if isinstance(value, Metric):
                yield value


@functools.cache
def _declared_by_plugins() -> tuple[Metric, ...]:
    """Return the metrics of other packages, sorted by the names of their entry points.

    Raises:
        InputError: an entry point cannot be imported, is no metric, or has a key that is taken.
    """
    used_keys = {"n", "group"}  # names of other entries of a row
    used_keys.update(own_metric.key for own_metric in _declared_here())
    plugin_metrics = []
    for point in entry_points_of(GROUP):
        # A plugin must be a metric of a known kind, under a key that no other metric has.
        plugin = load_entry_point(point, Metric)
        what = f"the metric {point.name} = {point.value} of another package"
        if plugin.kind not in get_args(MetricKind):
            raise InputError(f"{what}: there is no kind {plugin.kind!r}", hint=", ".join(get_args(MetricKind)))
        if plugin.key in used_keys or not plugin.key.isidentifier():
            raise InputError(f"{what}: the key {plugin.key!r} is taken", hint="give its function another name")
        used_keys.add(plugin.key)
        plugin_metrics.append(plugin)
    return tuple(plugin_metrics)
