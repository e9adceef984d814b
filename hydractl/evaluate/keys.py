"""The numbers that a row will hold, known before anything is measured, for ``--require``."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.evaluate.eval_set import CORRUPTION, EvalSet
from hydractl.evaluate.rows import BY_SEVERITY
from hydractl.evaluate.sets import chosen_on, tested
from hydractl.metrics.summary import row_keys
from hydractl.settings import EvalSettings


def known_keys(settings: EvalSettings, sets: Sequence[EvalSet]) -> list[str]:
    """The dotted keys of all numbers that these settings give, in some row at least."""
    names = [one.name for one in tested(sets)[1:]]
    metrics = row_keys(names)
    found = [*metrics, "cost.params", "cost.macs", "cost.single_macs", "threshold.value", "threshold.id_flagged"]
    found += [f"threshold.ood_flagged.{name}" for name in names] + ["calibration.temperature"]
    for one in chosen_on(sets, CORRUPTION):
        kind, _, severity = one.name.rpartition("/")
        found += [f"corruptions.{kind}.{severity}.{key}" for key in ("n", *BY_SEVERITY)]
        found += [key for key in (f"corruption_avg.{severity}.{key}" for key in BY_SEVERITY) if key not in found]
    if settings.conformal is not None:
        found += [f"conformal.{key}" for key in ("qhat", "coverage", "mean_size", "empty")]
    if settings.allow_seen:
        found += [f"seen.{one.name}" for one in tested(sets)]
    if settings.bootstrap:
        measured = [key for key in metrics if not key.endswith(".n")]
        found += [f"ci.{key}.{end}" for key in measured for end in (0, 1)]
        found += [f"difference.{key}.value" for key in measured]
        found += [f"difference.{key}.ci.{end}" for key in measured for end in (0, 1)]
    return found
