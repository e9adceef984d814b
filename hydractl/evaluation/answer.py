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
from hydractl.files.eval_answer import EvalRow
from hydractl.metrics import bootstrap, calibrators, cascade, conformal, curves, rows, threshold
from hydractl.metrics.declaration import MetricKind, metrics
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
) -> EvalRow:
    """Return everything that is measured of one model.

    Args:
        model: the row.
        sets: the data sets.
        gathered: the samples of those that are measured, by name.
        fitted: what it was measured with.
        extras: ``ood_score``, and what only some commands ask for (``conformal``, ``seen``, ``ci``, ...); None is left
            out.
    """
    inside_set, *outside_sets = tested(sets)
    inside = gathered[inside_set.name].samples
    outside = {dataset.name: gathered[dataset.name].samples for dataset in outside_sets}
    groups = {dataset.name: dataset.group for dataset in outside_sets}
    row: dict[str, Any] = {
        "name": model.name,
        "sha256": model.sha256,
        "ood_score": extras["ood_score"],
        **row_blocks(inside, outside, groups),
        "members": [id_block(member) for member in gathered[inside_set.name].members],
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
    corrupted = [(dataset, gathered[dataset.name].samples) for dataset in of_role(sets, CORRUPTION)]
    row.update(corruption_blocks(corrupted))
    for key, value in extras.items():
        if value is not None:
            row[key] = value
    return EvalRow.from_json(row)


SeverityTable = dict[str, dict[str, dict[str, Any]]]
"""Metrics by corruption, severity and key."""


def corruption_blocks(measured: Sequence[tuple[EvalSet, Samples]]) -> dict[str, Any]:
    """Return the metrics declared ``by_severity`` of each corruption and severity, and their means over corruptions.

    Only n where the images have no labels; empty without corruptions.
    """
    if not measured:
        return {}
    table: SeverityTable = {}
    for dataset, samples in measured:
        kind, _, severity = dataset.name.rpartition("/")
        block = id_block(samples)
        by_severity = {key: block[key] for key in ("n", *_by_severity()) if key in block}
        table.setdefault(kind, {})[severity] = by_severity
    return {"corruptions": table, "corruption_avg": _means_over_corruptions(table)}


def _means_over_corruptions(table: SeverityTable) -> dict[str, dict[str, float]]:
    """Return the mean of each metric at each severity, where all corruptions have it."""
    severities = next(iter(table.values()))  # which are those of all corruptions
    means: dict[str, dict[str, float]] = {}
    for severity in severities:
        means[severity] = {}
        blocks = [of_kind[severity] for of_kind in table.values()]
        for key in _by_severity():
            values = [block[key] for block in blocks if key in block]
            if len(values) == len(blocks):
                means[severity][key] = math.fsum(values) / len(blocks)
    return means


def _by_severity() -> list[str]:
    """Return the keys of the metrics that are taken of each corruption."""
    return [metric.key for metric in metrics("id") if metric.by_severity]


# --- keys -------------------------------------------------------------------------------------------------------------


def known_keys(options: EvalOptions, sets: Sequence[EvalSet], models: Sequence[LogitsProvider]) -> list[str]:
    """Return the dotted keys of all numbers that these options give, in some row at least, for ``--require``."""
    tests = [dataset.name for dataset in tested(sets)]
    outside = tests[1:]
    of_metrics = row_keys(outside, options.fit.scores.beside)
    keys = [*of_metrics, "cost.params", "cost.macs", "cost.single_macs", "threshold.value", "threshold.id_flagged"]
    keys += [f"threshold.ood_flagged.{name}" for name in outside]
    keys.append("calibration.temperature")
    keys += _corruption_keys(of_role(sets, CORRUPTION))
    if any(model.cascade is not None for model in models):
        keys += [f"cascade.share.{name}" for name in ["id", *outside]]
    if options.fit.conformal is not None:
        keys += [f"conformal.{key}" for key in ("qhat", "coverage", "mean_size", "empty")]
    if options.data.allow_seen:
        keys += [f"seen.{name}" for name in tests]
    if options.bootstrap:
        keys += _interval_keys(of_metrics)
    if sets[0].labels is None:
        keys = [key for key in keys if not _needs_labels(key)]
    return keys


def _corruption_keys(sets: Sequence[EvalSet]) -> list[str]:
    """Return the keys of corrupted sets and of their means, each once."""
    of_metrics = _by_severity()
    keys = []
    for dataset in sets:
        kind, _, severity = dataset.name.rpartition("/")
        keys.append(f"corruptions.{kind}.{severity}.n")
        keys += [f"corruptions.{kind}.{severity}.{key}" for key in of_metrics]
        keys += [f"corruption_avg.{severity}.{key}" for key in of_metrics]
    return list(dict.fromkeys(keys))


def _interval_keys(of_metrics: Sequence[str]) -> list[str]:
    """Return the keys of intervals and paired differences; numbers of samples have none."""
    measured = [key for key in of_metrics if not key.endswith(".n")]
    keys = []
    for key in measured:
        keys += [f"ci.{key}.0", f"ci.{key}.1"]
    for key in measured:
        keys.append(f"difference.{key}.value")
    for key in measured:
        keys += [f"difference.{key}.ci.0", f"difference.{key}.ci.1"]
    return keys


def _needs_labels(key: str) -> bool:
    """Return whether a number is there for labelled ID data only."""
    if key.endswith(".n"):
        return False
    return key.startswith(("id.", "ci.id.", "difference.id.", "conformal.", "corruption"))


# --- conventions ------------------------------------------------------------------------------------------------------


def sentences() -> dict[str, str]:
    """Return a sentence on everything that a row may hold, by its key, in the order in which documents list them."""
    return {
        "n": "Number of samples; of the OOD samples in a block of OOD metrics.",
        "probability": "p = mean over members of the softmax of each member's logits, in float64"
        " (never of the logits).",
        **_sentences_on("id"),
        "risk_coverage": curves.RISK_COVERAGE,
        **_sentences_on("ood"),
        **rows.CONVENTIONS,
        **_sentences_on("diversity"),
        "pairs": rows.PAIRS_CONVENTION,
        **curves.CONVENTIONS,
        **calibrators.CONVENTIONS,
        **bootstrap.CONVENTIONS,
        **conformal.CONVENTIONS,
        **threshold.CONVENTIONS,
        **cascade.CONVENTIONS,
        **mc_dropout.CONVENTIONS,
        **probes.CONVENTIONS,
    }


def _sentences_on(kind: MetricKind) -> dict[str, str]:
    return {metric.key: metric.convention for metric in metrics(kind)}


def conventions(rows: Sequence[EvalRow], models: Sequence[LogitsProvider]) -> dict[str, Any]:
    """Return one sentence on everything in the rows and on each OOD score.

    Also which row has which score, and how texts are cut and zero-shot models are prompted.
    """
    present = {"probability"}
    for row in rows:
        present.update(_keys(row.to_json()))
    explained: dict[str, Any] = {key: text for key, text in sentences().items() if key in present}
    leading = {row.name: row.ood_score for row in rows}
    explained["ood_scores"] = _sentences_on_scores(rows)
    explained["ood_score"] = leading if len({*leading.values()}) > 1 else rows[0].ood_score
    for model in models:
        for key, value in model.conventions.items():
            explained.setdefault(key, {})[model.name] = value
    return explained


def _sentences_on_scores(rows: Sequence[EvalRow]) -> dict[str, str]:
    """Return the sentence on each OOD score: those that lead first, then those that are reported beside."""
    used = [row.ood_score for row in rows if row.ood_score is not None]
    for row in rows:
        used += row.scores or {}
    explained = {}
    for score in dict.fromkeys(used):
        declared = SCORES[score] if score in SCORES else FEATURE_SCORES[score]
        explained[score] = declared.convention
    return explained


def _keys(block: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of everything that has a value, at any depth."""
    for key, value in block.items():
        if not _has_value(value):
            continue
        yield key
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if not isinstance(part, Mapping):
                continue
            inner = part.values() if key in _KEYED_BY_DATA else [part]
            for inner_block in inner:
                if isinstance(inner_block, Mapping):
                    yield from _keys(inner_block)


def _has_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_value(part) for part in value.values())
    if isinstance(value, list):
        return bool(value)
    return value is not None
