"""All metrics there are: our own, in the order in which they are declared, then those of other packages.

Other packages name theirs by entry points of the group ``hydractl.metrics``, one for each
:class:`~hydractl.metrics.declaration.Metric`. They are loaded when a metric is first asked for.
"""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from types import ModuleType

from hydractl.errors import InputError
from hydractl.metrics import diversity, labelled, ood
from hydractl.metrics.declaration import Kind, Metric

GROUP = "hydractl.metrics"
_HOMES: dict[Kind, ModuleType] = {"id": labelled, "ood": ood, "diversity": diversity}


@functools.cache
def metrics(kind: Kind) -> tuple[Metric, ...]:
    """The metrics of a kind, in the order in which documents hold them.

    Raises:
        InputError: another package names something that is no metric, or a name that is taken.
    """
    own = [value for value in vars(_HOMES[kind]).values() if isinstance(value, Metric)]
    return (*own, *(one for one in _installed() if one.kind == kind))


def table_metrics(kind: Kind) -> tuple[Metric, ...]:
    """The metrics of a kind that have a column in tables, from left to right."""
    return tuple(sorted((one for one in metrics(kind) if one.label), key=lambda one: one.place))


@functools.cache
def _installed() -> tuple[Metric, ...]:
    taken = {value.key for home in _HOMES.values() for value in vars(home).values() if isinstance(value, Metric)}
    taken |= {"n", "group", "pairs"}  # what stands beside metrics
    installed = []
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        declared = point.load()
        if not isinstance(declared, Metric) or declared.kind not in _HOMES:
            raise InputError(f"the entry point {point.name} = {point.value} is no metric", hint="declare it by @metric")
        if declared.key in taken or not declared.key.isidentifier():
            raise InputError(f"the entry point {point.name} = {point.value}: the key {declared.key!r} is taken or bad")
        taken.add(declared.key)
        installed.append(declared)
    return tuple(installed)
