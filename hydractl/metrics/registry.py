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
        InputError: another package names what cannot be loaded, is no metric, or has a key that is taken.
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
        what = f"the metric {point.name} = {point.value} of another package"
        try:
            declared = point.load()
        except Exception as error:  # code of others
            raise InputError(f"{what} cannot be loaded: {error}", hint="mend or uninstall the package") from error
        if not isinstance(declared, Metric) or declared.kind not in _HOMES:
            raise InputError(f"{what} is no metric", hint="declare it by @metric of hydractl.metrics.declaration")
        if declared.key in taken or not declared.key.isidentifier():
            raise InputError(f"{what}: the key {declared.key!r} is taken", hint="give its function another name")
        taken.add(declared.key)
        installed.append(declared)
    return tuple(installed)
