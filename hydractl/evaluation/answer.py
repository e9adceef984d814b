"""The row of one model as ``eval.json`` holds it, the keys it may have, and the sentences that explain them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hydractl.evaluation import mc_dropout, probes
from hydractl.evaluation.fitting import RowFit, unused_sets
from hydractl.evaluation.gathering import Gathered
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, OOD_VAL, TRAIN, VAL, EvalSet, of_role, tested
from hydractl.files.eval_answer import (
    EvalCurves,
    EvalRow,
    MemberDiversity,
    OodDetection,
    SampleMetrics,
    SeverityMetrics,
)
from hydractl.files.model_records import DataSetRecord, MeasuredThreshold
from hydractl.metrics import bootstrap, calibrators, cascade, conformal, curves, rows, threshold
from hydractl.metrics.declaration import MetricKind, metrics
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.rows import DetectionBlocks, id_block, row_blocks, row_keys
from hydractl.metrics.samples import Samples

_KEYED_BY_DATA = ("ood", "diversity", "roc", "scores", "ood_flagged", "corruptions", "seen")
"""Objects whose keys are names that people give, and no names of metrics."""


def row_of(
    model: LogitsProvider,
    sets: Sequence[EvalSet],
    gathered: Mapping[str, Gathered],
    fitted: RowFit,
    score: str,
) -> EvalRow:
    """Return what is measured of every model; the caller adds what only some commands ask for.

    Args:
        model: the row.
        sets: the data sets.
        gathered: the samples of those that are measured, by name.
        fitted: what it was measured with.
        score: the OOD score that leads.
    """
    inside_set, *outside_sets = tested(sets)
    inside = gathered[inside_set.name].samples
    outside = {dataset.name: gathered[dataset.name].samples for dataset in outside_sets}
    groups = {dataset.name: dataset.group for dataset in outside_sets}
    blocks = row_blocks(inside, outside, groups)
    detection: DetectionBlocks = {
        "ood": blocks["ood"],
        "near_avg": blocks["near_avg"],
        "far_avg": blocks["far_avg"],
        "ood_avg": blocks["ood_avg"],
    }
    scores = {name: OodDetection.from_json(block) for name, block in blocks.get("scores", {}).items()}
    diversity = {name: MemberDiversity.from_json(block) for name, block in blocks["diversity"].items()}
    members = [SampleMetrics.from_json(id_block(member)) for member in gathered[inside_set.name].members]
    corrupted = [(dataset, gathered[dataset.name].samples) for dataset in of_role(sets, CORRUPTION)]
    by_corruption = corruption_metrics(corrupted)
    return EvalRow(
        name=model.name,
        sha256=model.sha256,
        ood_score=score,
        id=SampleMetrics.from_json(blocks["id"]),
        detection=OodDetection.from_json(detection),
        diversity=diversity,
        scores=scores,
        members=members,
        curves=EvalCurves.from_json(curves.curves(inside, outside)),
        heads=model.heads,
        cost=model.cost,
        training=model.training,
        calibration=fitted.calibration_record(),
        threshold=_measured_threshold(fitted, inside, outside),
        corruptions=by_corruption,
        corruption_avg=_means_over_corruptions(by_corruption),
    )


def _measured_threshold(fitted: RowFit, inside: Samples, outside: Mapping[str, Samples]) -> MeasuredThreshold | None:
    """Return the threshold of a row and what it flags; None without one, and where the score says nothing."""
    if fitted.threshold is None or inside.score is None:
        return None
    scores = {name: samples.score for name, samples in outside.items() if samples.score is not None}
    return MeasuredThreshold.from_json(threshold.threshold_block(fitted.threshold, inside.score, scores))


ByCorruption = Mapping[str, Mapping[str, SeverityMetrics]]
"""Metrics by corruption and severity."""


def corruption_metrics(measured: Sequence[tuple[EvalSet, Samples]]) -> ByCorruption:
    """Return the metrics declared ``by_severity`` of each corruption and severity; only n without labels."""
    by_corruption: dict[str, dict[str, SeverityMetrics]] = {}
    for dataset, samples in measured:
        kind, _, severity = dataset.name.rpartition("/")
        block = id_block(samples)
        values = {key: block[key] for key in _by_severity() if key in block}
        by_corruption.setdefault(kind, {})[severity] = SeverityMetrics(n=block["n"], metrics=values)
    return by_corruption


def _means_over_corruptions(by_corruption: ByCorruption) -> dict[str, SeverityMetrics]:
    """Return the mean of each metric at each severity, where all corruptions have it."""
    means: dict[str, SeverityMetrics] = {}
    if not by_corruption:
        return means
    severities = next(iter(by_corruption.values()))  # which are those of all corruptions
    for severity in severities:
        measured = [of_kind[severity].metrics for of_kind in by_corruption.values()]
        of_severity = {}
        for key in _by_severity():
            values: list[Any] = [metrics[key] for metrics in measured if key in metrics]
            if len(values) == len(measured):
                of_severity[key] = math.fsum(values) / len(measured)
        means[severity] = SeverityMetrics(metrics=of_severity)
    return means


def _by_severity() -> list[str]:
    """Return the keys of the metrics that are taken of each corruption."""
    return [metric.key for metric in metrics("id") if metric.by_severity]


# --- data sets --------------------------------------------------------------------------------------------------------


class SetRecords(NamedTuple):
    """The data sets that were run, as the answer lists them; validation data only where they chose something."""

    test: Mapping[str, DataSetRecord]
    val: DataSetRecord | None
    ood_val: Mapping[str, DataSetRecord]
    train: DataSetRecord | None


def records_of_sets(sets: Sequence[EvalSet], options: EvalOptions, *, all_used: bool = False) -> SetRecords:
    """Return the records of the data sets by their roles.

    Args:
        sets: the data sets.
        options: what is chosen on them.
        all_used: whether something else is chosen on all of them.
    """
    unused_roles = {dataset.role for dataset in unused_sets(sets, options) if not all_used}
    used = [dataset for dataset in sets if dataset.role not in unused_roles]
    return SetRecords(
        test=_records(tested(used)),
        val=_records(of_role(used, VAL)).get("val"),
        ood_val=_records(of_role(used, OOD_VAL)),
        train=_records(of_role(used, TRAIN)).get("train"),
    )


def _records(sets: Sequence[EvalSet]) -> dict[str, DataSetRecord]:
    return {dataset.name: DataSetRecord.from_json(dataset.to_json()) for dataset in sets}


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
    explained: dict[str, Any] = {}
    for key, text in sentences().items():
        if key in present:
            explained[key] = text
    explained["ood_scores"] = _sentences_on_scores(rows)
    explained["ood_score"] = rows[0].ood_score
    if any(row.ood_score != rows[0].ood_score for row in rows):
        explained["ood_score"] = {row.name: row.ood_score for row in rows}
    for model in models:
        for key, value in model.conventions.items():
            explained.setdefault(key, {})[model.name] = value
    return explained


def _sentences_on_scores(rows: Sequence[EvalRow]) -> dict[str, str]:
    """Return the sentence on each OOD score: those that lead first, then those that are reported beside."""
    used = [row.ood_score for row in rows if row.ood_score is not None]
    for row in rows:
        used += row.scores
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
