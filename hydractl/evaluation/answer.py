"""The row of one model as ``eval.json`` holds it, the keys it may have, and the sentences that explain them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydractl.evaluation import mc_dropout, probes
from hydractl.evaluation.fitting import RowFit
from hydractl.evaluation.gathering import Gathered
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, EvalSet, of_role, tested
from hydractl.metrics import bootstrap, calibrators, cascade, conformal, curves, rows, threshold
from hydractl.metrics.declaration import metrics
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.rows import id_block, row_blocks, row_keys
from hydractl.metrics.samples import Samples

_KEYED_BY_DATA = ("ood", "diversity", "roc", "scores", "ood_flagged", "corruptions", "seen")
"""Objects whose keys are names that people give, and no names of metrics."""


def row_of(
    model: LogitsProvider,
    sets: Sequence[EvalSet],
    gathered: Mapping[str, Gathered],
    fitted: RowFit,
    extras: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that is measured of one model.

    Args:
        model: the row.
        sets: the data sets.
        gathered: the samples of those that are measured, by name.
        fitted: what it was measured with.
        extras: ``ood_score``, and what only some commands ask for (``conformal``, ``seen``, ``ci``, ...); None is left
            out.
    """
    tests = tested(sets)
    inside = gathered[tests[0].name].samples
    outside = {dataset.name: gathered[dataset.name].samples for dataset in tests[1:]}
    row: dict[str, Any] = {
        "name": model.name,
        "sha256": model.sha256,
        "ood_score": extras["ood_score"],
        **row_blocks(inside, outside, {dataset.name: dataset.group for dataset in tests[1:]}),
        "members": [id_block(member) for member in gathered[tests[0].name].members],
        "curves": curves.curves(inside, outside),
        "heads": model.heads,
        "cost": model.cost,
    }
    if model.training:
        row["training"] = list(model.training)
    calibration = fitted.calibration_json()
    if calibration is not None:
        row["calibration"] = calibration
    if fitted.threshold is not None and inside.score is not None:
        scores = {name: samples.score for name, samples in outside.items() if samples.score is not None}
        row["threshold"] = threshold.threshold_block(fitted.threshold, inside.score, scores)
    row.update(corruptions([(dataset, gathered[dataset.name].samples) for dataset in of_role(sets, CORRUPTION)]))
    row.update({key: value for key, value in extras.items() if value is not None})
    return row


def corruptions(measured: Sequence[tuple[EvalSet, Samples]]) -> dict[str, Any]:
    """The metrics declared ``by_severity`` of each corruption and severity, and their means over corruptions.

    Only n where the images have no labels; empty without corruptions.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for one, samples in measured:
        name, _, severity = one.name.rpartition("/")
        block = id_block(samples)
        table.setdefault(name, {})[severity] = {key: block[key] for key in ("n", *_by_severity()) if key in block}
    if not table:
        return {}
    severities = list(next(iter(table.values())))
    means = {
        severity: {
            key: math.fsum(rows[severity][key] for rows in table.values()) / len(table)
            for key in _by_severity()
            if all(key in rows[severity] for rows in table.values())
        }
        for severity in severities
    }
    return {"corruptions": table, "corruption_avg": means}


def _by_severity() -> list[str]:
    return [metric.key for metric in metrics("id") if metric.by_severity]


def known_keys(options: EvalOptions, sets: Sequence[EvalSet], models: Sequence[LogitsProvider]) -> list[str]:
    """The dotted keys of all numbers that these options give, in some row at least, for ``--require``."""
    names = [dataset.name for dataset in tested(sets)[1:]]
    of_metrics = row_keys(names, options.fit.scores.beside)
    keys = [*of_metrics, "cost.params", "cost.macs", "cost.single_macs", "threshold.value", "threshold.id_flagged"]
    keys += [f"threshold.ood_flagged.{name}" for name in names] + ["calibration.temperature"]
    for dataset in of_role(sets, CORRUPTION):
        kind, _, severity = dataset.name.rpartition("/")
        keys += [f"corruptions.{kind}.{severity}.{key}" for key in ("n", *_by_severity())]
        keys += [key for key in (f"corruption_avg.{severity}.{key}" for key in _by_severity()) if key not in keys]
    if any(model.cascade is not None for model in models):
        keys += [f"cascade.share.{name}" for name in ["id", *names]]
    if options.fit.conformal is not None:
        keys += [f"conformal.{key}" for key in ("qhat", "coverage", "mean_size", "empty")]
    if options.data.allow_seen:
        keys += [f"seen.{dataset.name}" for dataset in tested(sets)]
    if options.bootstrap:
        measured = [key for key in of_metrics if not key.endswith(".n")]
        keys += [f"ci.{key}.{end}" for key in measured for end in (0, 1)]
        keys += [f"difference.{key}.value" for key in measured]
        keys += [f"difference.{key}.ci.{end}" for key in measured for end in (0, 1)]
    if sets[0].labels is None:
        needing = ("id.", "ci.id.", "difference.id.", "conformal.", "corruption")
        keys = [key for key in keys if not key.startswith(needing) or key.endswith(".n")]
    return keys


def sentences() -> dict[str, str]:
    """One sentence on everything that a row may hold, by its key, in the order in which documents list them."""
    own = {kind: {metric.key: metric.convention for metric in metrics(kind)} for kind in ("id", "ood", "diversity")}
    return {
        "n": "Number of samples; of the OOD samples in a block of OOD metrics.",
        "probability": "p = mean over members of the softmax of each member's logits, in float64"
        " (never of the logits).",
        **own["id"],
        "risk_coverage": curves.RISK_COVERAGE,
        **own["ood"],
        **rows.CONVENTIONS,
        **own["diversity"],
        "pairs": rows.PAIRS,
        **curves.CONVENTIONS,
        **calibrators.CONVENTIONS,
        **bootstrap.CONVENTIONS,
        **conformal.CONVENTIONS,
        **threshold.CONVENTIONS,
        **cascade.CONVENTIONS,
        **mc_dropout.CONVENTIONS,
        **probes.CONVENTIONS,
    }


def conventions(rows: Sequence[Mapping[str, Any]], models: Sequence[LogitsProvider]) -> dict[str, Any]:
    """One sentence on everything in the rows and on each OOD score; which row has which score; how texts are cut and
    zero-shot models are prompted.
    """
    there = {"probability", *(key for row in rows for key in _keys(row))}
    explained: dict[str, Any] = {key: text for key, text in sentences().items() if key in there}
    scores = {row["name"]: row["ood_score"] for row in rows}
    used = [*scores.values(), *(score for row in rows for score in row.get("scores") or {})]
    known: dict[str, Any] = {**SCORES, **FEATURE_SCORES}
    explained["ood_scores"] = {score: known[score].convention for score in dict.fromkeys(used)}
    explained["ood_score"] = scores if len({*scores.values()}) > 1 else rows[0]["ood_score"]
    for model in models:
        for key, value in model.conventions.items():
            explained.setdefault(key, {})[model.name] = value
    return explained


def _keys(block: Mapping[str, Any]) -> Iterator[str]:
    """The keys of everything that has a value, at any depth."""
    for key, value in block.items():
        if not _has_value(value):
            continue
        yield key
        parts = value if isinstance(value, list) else [value]
        for part in (part for part in parts if isinstance(part, Mapping)):
            inner = part.values() if key in _KEYED_BY_DATA else [part]
            for one in (one for one in inner if isinstance(one, Mapping)):
                yield from _keys(one)


def _has_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_value, value.values()))
    return bool(value) if isinstance(value, list) else value is not None
