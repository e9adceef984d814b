"""The row of one model as ``eval.json`` holds it, the keys it may have, and the sentences that explain them."""

from __future__ import annotations

import math
import re
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
from hydractl.metrics import bootstrap, calibrators, cascade, conformal, curves, errors, rows, threshold
from hydractl.metrics.declaration import MetricKind, metrics
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.rows import DetectionBlocks, id_block, row_blocks, row_keys
from hydractl.metrics.samples import Samples

_KEYED_BY_DATA = ("ood", "diversity", "roc", "scores", "ood_flagged", "corruptions", "seen")
"""The objects of a row whose keys are names of data sets and groups, which no sentence explains."""


def row_of(
    model: LogitsProvider,
    sets: Sequence[EvalSet],
    gathered: Mapping[str, Gathered],
    fitted: RowFit,
    score: str,
) -> EvalRow:
    """Return the row with everything that is measured of every model; the caller adds what only some commands measure.

    Args:
        model: the model of the row.
        sets: the data sets.
        gathered: the samples of the measured data sets, by the name of the set.
        fitted: the calibration and the threshold that the model was measured with.
        score: the name of the leading OOD score.
    """
    # The ID set comes first among the tested sets; all others are OOD.
    tested_sets = tested(sets)
    inside_set = tested_sets[0]
    outside_sets = tested_sets[1:]
    inside = gathered[inside_set.name].samples
    outside = {}
    groups = {}
    for dataset in outside_sets:
        outside[dataset.name] = gathered[dataset.name].samples
        groups[dataset.name] = dataset.group

    # The metrics of the ID set, of OOD detection and of the members.
    blocks = row_blocks(inside, outside, groups)
    detection: DetectionBlocks = {
        "ood": blocks["ood"],
        "near_avg": blocks["near_avg"],
        "far_avg": blocks["far_avg"],
        "ood_avg": blocks["ood_avg"],
    }
    if "errors" in blocks:
        detection["errors"] = blocks["errors"]
    scores_beside = blocks.get("scores", {})
    scores = {name: OodDetection.from_json(block) for name, block in scores_beside.items()}
    diversity = {name: MemberDiversity.from_json(block) for name, block in blocks["diversity"].items()}
    members = []
    for member_samples in gathered[inside_set.name].members:
        member_metrics = id_block(member_samples)
        members.append(SampleMetrics.from_json(member_metrics))

    # The metrics of the corrupted copies of the ID set.
    corrupted = []
    for dataset in of_role(sets, CORRUPTION):
        corrupted.append((dataset, gathered[dataset.name].samples))
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
    """Return the threshold of a row and the shares of samples it flags.

    None if no threshold was fitted, or if the samples have no OOD score.
    """
    if fitted.threshold is None:
        return None
    if inside.score is None:
        return None
    outside_scores = {}
    for name, samples in outside.items():
        if samples.score is not None:
            outside_scores[name] = samples.score
    block = threshold.threshold_block(fitted.threshold, inside.score, outside_scores)
    return MeasuredThreshold.from_json(block)


_OF_ERRORS = re.compile(r"(ci\.|difference\.)?(scores\.[^.]+\.)?errors\.")
"""The start of the dotted key of a metric of wrong answers, of its interval, or of its difference."""

ByCorruption = Mapping[str, Mapping[str, SeverityMetrics]]
"""Metrics by corruption, and below that by severity."""


def corruption_metrics(measured: Sequence[tuple[EvalSet, Samples]]) -> ByCorruption:
    """Return the metrics that are declared ``by_severity``, for each corruption and severity.

    Without labels, only the number of samples is there.

    Args:
        measured: the corrupted data sets, named ``CORRUPTION/SEVERITY``, and their samples.
    """
    by_corruption: dict[str, dict[str, SeverityMetrics]] = {}
    for dataset, samples in measured:
        corruption, severity = _corruption_and_severity(dataset)
        block = id_block(samples)
        metrics_here = {}
        for key in _keys_by_severity():
            if key in block:
                metrics_here[key] = block[key]
        severities = by_corruption.setdefault(corruption, {})
        severities[severity] = SeverityMetrics(n=block["n"], metrics=metrics_here)
    return by_corruption


def _corruption_and_severity(dataset: EvalSet) -> tuple[str, str]:
    """Return the two parts of the name of a corrupted data set, ``CORRUPTION/SEVERITY``."""
    corruption, _, severity = dataset.name.rpartition("/")
    return corruption, severity


def _means_over_corruptions(by_corruption: ByCorruption) -> dict[str, SeverityMetrics]:
    """Return, for each severity, the mean over corruptions of each metric that all corruptions have."""
    means: dict[str, SeverityMetrics] = {}
    if not by_corruption:
        return means

    # All corruptions were measured at the same severities.
    first_corruption = next(iter(by_corruption.values()))
    for severity in first_corruption:
        metrics_by_corruption = [severities[severity].metrics for severities in by_corruption.values()]
        mean_metrics = {}
        for key in _keys_by_severity():
            values: list[Any] = []
            for corruption_values in metrics_by_corruption:
                if key in corruption_values:
                    values.append(corruption_values[key])
            all_have_it = len(values) == len(metrics_by_corruption)
            if all_have_it:
                mean_metrics[key] = math.fsum(values) / len(values)
        means[severity] = SeverityMetrics(metrics=mean_metrics)
    return means


def _keys_by_severity() -> list[str]:
    """Return the keys of the metrics that are reported for each corruption and severity."""
    id_metrics = metrics("id")
    return [metric.key for metric in id_metrics if metric.by_severity]


# --- data sets --------------------------------------------------------------------------------------------------------


class SetRecords(NamedTuple):
    """The data sets that were run, as the answer lists them; validation data only if something was chosen on them."""

    test: Mapping[str, DataSetRecord]
    val: DataSetRecord | None
    ood_val: Mapping[str, DataSetRecord]
    train: DataSetRecord | None


def records_of_sets(sets: Sequence[EvalSet], options: EvalOptions, *, all_used: bool = False) -> SetRecords:
    """Return the records of the data sets by their roles.

    Args:
        sets: the data sets.
        options: say what is chosen on them.
        all_used: whether all of them serve a choice that the options do not tell of.
    """
    used = list(sets)
    if not all_used:
        unused_roles = {dataset.role for dataset in unused_sets(sets, options)}
        used = [dataset for dataset in sets if dataset.role not in unused_roles]

    validation = _records_by_name(of_role(used, VAL))
    training = _records_by_name(of_role(used, TRAIN))
    return SetRecords(
        test=_records_by_name(tested(used)),
        val=validation.get("val"),
        ood_val=_records_by_name(of_role(used, OOD_VAL)),
        train=training.get("train"),
    )


def _records_by_name(sets: Sequence[EvalSet]) -> dict[str, DataSetRecord]:
    """Return the records of data sets, by the name of the set."""
    records = {}
    for dataset in sets:
        as_json = dataset.to_json()
        records[dataset.name] = DataSetRecord.from_json(as_json)
    return records


# --- keys -------------------------------------------------------------------------------------------------------------


def known_keys(options: EvalOptions, sets: Sequence[EvalSet], models: Sequence[LogitsProvider]) -> list[str]:
    """Return the dotted keys of all numbers that at least one row has under these options.

    They are the keys that ``--require`` accepts.
    """
    test_names = [dataset.name for dataset in tested(sets)]
    ood_names = test_names[1:]

    # Every row has these.
    metric_keys = row_keys(ood_names, options.fit.scores.beside)
    keys = list(metric_keys)
    keys += ["cost.params", "cost.macs", "cost.single_macs", "threshold.value", "threshold.id_flagged"]
    keys += [f"threshold.ood_flagged.{name}" for name in ood_names]
    keys.append("calibration.temperature")
    keys += _corruption_keys(of_role(sets, CORRUPTION))

    # An option or a kind of model adds these.
    some_cascade = any(model.cascade is not None for model in models)
    if some_cascade:
        keys.append("cascade.share.id")
        keys += [f"cascade.share.{name}" for name in ood_names]
    if options.fit.conformal is not None:
        keys += ["conformal.qhat", "conformal.coverage", "conformal.mean_size", "conformal.empty"]
    if options.data.allow_seen:
        keys += [f"seen.{name}" for name in test_names]
    if options.bootstrap:
        keys += _interval_keys(metric_keys)

    id_set = sets[0]
    if id_set.labels is None:
        keys = [key for key in keys if not _needs_labels(key)]
    return keys


def _corruption_keys(sets: Sequence[EvalSet]) -> list[str]:
    """Return the keys of corrupted sets and of their means, each once."""
    metric_keys = _keys_by_severity()
    keys = []
    for dataset in sets:
        corruption, severity = _corruption_and_severity(dataset)
        keys.append(f"corruptions.{corruption}.{severity}.n")
        keys += [f"corruptions.{corruption}.{severity}.{key}" for key in metric_keys]
        keys += [f"corruption_avg.{severity}.{key}" for key in metric_keys]
    without_repeats = dict.fromkeys(keys)
    return list(without_repeats)


def _interval_keys(metric_keys: Sequence[str]) -> list[str]:
    """Return the keys of the confidence intervals and paired differences; numbers of samples have none."""
    measured = [key for key in metric_keys if not key.endswith(".n")]
    keys = []
    for key in measured:
        keys += [f"ci.{key}.0", f"ci.{key}.1"]
    for key in measured:
        keys.append(f"difference.{key}.value")
    for key in measured:
        keys += [f"difference.{key}.ci.0", f"difference.{key}.ci.1"]
    return keys


def _needs_labels(key: str) -> bool:
    """Return whether rows have this number only if the ID data are labelled."""
    if key.endswith(".n"):
        return False
    labelled = ("id.", "ci.id.", "difference.id.", "conformal.", "corruption")
    return key.startswith(labelled) or _OF_ERRORS.match(key) is not None


# --- conventions ------------------------------------------------------------------------------------------------------


def sentences() -> dict[str, str]:
    """Return the sentences on everything that a row may hold, by key, in the order in which documents list them."""
    return {
        "n": "Number of samples; of the OOD samples in a block of OOD metrics.",
        "probability": "p = mean over members of the softmax of each member's logits, in float64"
        " (never of the logits).",
        **_sentences_on("id"),
        "risk_coverage": curves.RISK_COVERAGE,
        **_sentences_on("ood"),
        "errors": _sentence_on_errors(),
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
    """Return the conventions of all metrics of one kind, by the key of the metric."""
    of_kind = metrics(kind)
    return {metric.key: metric.convention for metric in of_kind}


def _sentence_on_errors() -> str:
    """Return one text on all metrics of wrong answers, whose keys are those of other metrics too."""
    texts = [errors.CONVENTION]
    for key, sentence in _sentences_on("errors").items():
        texts.append(f"{key}: {sentence}")
    return " ".join(texts)


def conventions(rows: Sequence[EvalRow], models: Sequence[LogitsProvider]) -> dict[str, object]:
    """Return one sentence on each thing that the rows hold, and on each OOD score.

    It also tells which row has which score, and how texts are cut and zero-shot models are prompted.
    """
    # A sentence on every key that some row has.
    present = {"probability"}
    for row in rows:
        present.update(_keys_with_value(row.to_json()))
    explained: dict[str, object] = {}
    for key, sentence in sentences().items():
        if key in present:
            explained[key] = sentence

    # The OOD scores; the leading one is told row by row only if rows differ in it.
    explained["ood_scores"] = _sentences_on_scores(rows)
    leading = rows[0].ood_score
    explained["ood_score"] = leading
    if any(row.ood_score != leading for row in rows):
        explained["ood_score"] = {row.name: row.ood_score for row in rows}

    # What is particular to a model.
    by_model: dict[str, dict[str, object]] = {}
    for model in models:
        for key, value in model.conventions.items():
            by_model.setdefault(key, {})[model.name] = value
    return {**explained, **by_model}


def _sentences_on_scores(rows: Sequence[EvalRow]) -> dict[str, str]:
    """Return the sentence on each OOD score: first the leading scores, then those reported beside them."""
    used = [row.ood_score for row in rows if row.ood_score is not None]
    for row in rows:
        used += row.scores

    explained = {}
    for score in used:
        if score in SCORES:
            explained[score] = SCORES[score].convention
        else:
            explained[score] = FEATURE_SCORES[score].convention
    return explained


def _keys_with_value(block: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of everything that has a value, at any depth; names of data sets are no keys."""
    for key, value in block.items():
        if not _has_value(value):
            continue
        yield key
        for inner_block in _inner_blocks(key, value):
            yield from _keys_with_value(inner_block)


def _inner_blocks(key: str, value: Any) -> list[Mapping[str, object]]:
    """Return the objects within the value of a key whose own keys name metrics and fields."""
    if key == "errors":  # its sentence is on all of them
        return []
    parts = [value]
    if isinstance(value, list):
        parts = value
    blocks = [part for part in parts if isinstance(part, Mapping)]
    if key not in _KEYED_BY_DATA:
        return blocks

    by_data: list[Any] = []
    for block in blocks:
        by_data += block.values()
    return [part for part in by_data if isinstance(part, Mapping)]


def _has_value(value: Any) -> bool:
    """Return whether there is anything but None in a value; an empty list holds nothing."""
    if isinstance(value, Mapping):
        return any(_has_value(part) for part in value.values())
    if isinstance(value, list):
        return bool(value)
    return value is not None
