"""The answer of an evaluation: its data sets, the keys that a row may have, and the sentences that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.evaluation import mc_dropout
from hydractl.evaluation.fitting import unused_sets
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, OOD_VAL, TRAIN, VAL, EvalSet, of_role, tested
from hydractl.files.eval_answer import EvalRow, SeverityMetrics
from hydractl.files.model_records import DataSetRecord
from hydractl.metrics import bootstrap, calibrators, conformal, curves, errors, rows, threshold
from hydractl.metrics.declaration import MetricKind, metrics
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.rows import id_block, means_of, row_keys
from hydractl.metrics.samples import Samples

ByCorruption = Mapping[str, Mapping[str, SeverityMetrics]]
"""Metrics by corruption and then by severity."""


def corruption_metrics(measured: Sequence[tuple[EvalSet, Samples]]) -> ByCorruption:
    """Return metrics for each corruption and severity: the number of samples, and all metrics with ``by_severity``.

    If the sets have no labels, only the number of samples is given.

    Args:
        measured: the corrupted data sets, each with a name ``CORRUPTION/SEVERITY``, and the predictions on them.
    """
    by_corruption: dict[str, dict[str, SeverityMetrics]] = {}
    for dataset, samples in measured:
        corruption, severity = _corruption_and_severity(dataset)
        severities = by_corruption.setdefault(corruption, {})
        severities[severity] = SeverityMetrics(**dict(id_block(samples, _keys_by_severity())))
    return by_corruption


def _corruption_and_severity(dataset: EvalSet) -> tuple[str, str]:
    """Return the two parts of the name of a corrupted data set, ``CORRUPTION/SEVERITY``."""
    corruption, _, severity = dataset.name.rpartition("/")
    return corruption, severity


def means_over_corruptions(by_corruption: ByCorruption) -> dict[str, SeverityMetrics]:
    """Return the means over all corruptions, for each severity and each metric that every corruption has."""
    means: dict[str, SeverityMetrics] = {}
    if not by_corruption:
        return means

    # All corruptions were measured at the same severities, on the same samples, so that they have the same metrics.
    first_corruption = next(iter(by_corruption.values()))
    for severity, metrics_of_first in first_corruption.items():
        of_corruptions = [severities[severity].metrics for severities in by_corruption.values()]
        means[severity] = SeverityMetrics(**means_of(of_corruptions, metrics_of_first.metrics))
    return means


def _keys_by_severity() -> list[str]:
    """Return the keys of the metrics that are reported for each corruption and severity."""
    id_metrics = metrics("id")
    return [metric.key for metric in id_metrics if metric.by_severity]


# --- data sets --------------------------------------------------------------------------------------------------------


def records_of_sets(sets: Sequence[EvalSet], options: EvalOptions, *, all_used: bool = False) -> dict[str, Any]:
    """Return the records of the data sets by their roles, the keys of an answer; unused validation data are left out.

    Args:
        sets: all data sets of the command.
        options: the options of the command; they decide which validation sets are used.
        all_used: whether all sets are used, whatever the options say.
    """
    used_sets = list(sets)
    if not all_used:
        unused_roles = {dataset.role for dataset in unused_sets(sets, options)}
        used_sets = [dataset for dataset in sets if dataset.role not in unused_roles]

    # There is at most one validation set and one training set.
    return {
        "test": _records_by_name(tested(used_sets)),
        "val": _records_by_name(of_role(used_sets, VAL)).get("val"),
        "ood_val": _records_by_name(of_role(used_sets, OOD_VAL)) or None,
        "train": _records_by_name(of_role(used_sets, TRAIN)).get("train"),
    }


def _records_by_name(sets: Sequence[EvalSet]) -> dict[str, DataSetRecord]:
    """Return the record of each data set, by its name."""
    return {dataset.name: dataset.record() for dataset in sets}


# --- keys -------------------------------------------------------------------------------------------------------------


def known_keys(options: EvalOptions, sets: Sequence[EvalSet], models: Sequence[LogitsProvider]) -> list[str]:
    """Return the dotted keys of all numbers that at least one row will have, e.g. ``id.accuracy``.

    These are the keys that ``--require`` accepts.

    Args:
        options: the options of the command.
        sets: all data sets of the command, the ID set first.
        models: the models of all rows.
    """
    test_names = [dataset.name for dataset in tested(sets)]
    labelled = sets[0].labels is not None

    # Every row has these.
    metric_keys = row_keys(test_names[1:], options.scores, labelled=labelled)
    keys = list(metric_keys)
    keys += ["cost.params", "cost.macs", "cost.single_macs", "threshold.value", "threshold.id_flagged"]
    keys += [f"threshold.ood_flagged.{name}" for name in test_names[1:]]
    keys.append("calibration.temperature")
    keys += _corruption_keys(of_role(sets, CORRUPTION), labelled)

    # Some rows have these, depending on options and models.
    if options.conformal is not None and labelled:
        keys += ["conformal.qhat", "conformal.coverage", "conformal.mean_size", "conformal.empty"]
    if options.allow_seen:
        keys += [f"seen.{name}" for name in test_names]
    if options.bootstrap:
        for key in metric_keys:
            if not key.endswith(".n"):  # numbers of samples have no intervals
                keys += [f"ci.{key}.0", f"ci.{key}.1"]
                keys += [f"difference.{key}.value", f"difference.{key}.ci.0", f"difference.{key}.ci.1"]
    return keys


def _corruption_keys(sets: Sequence[EvalSet], labelled: bool) -> list[str]:
    """Return the keys for corrupted data sets and for the means over corruptions, without repetitions.

    Examples are ``corruptions.fog.3.accuracy`` and ``corruption_avg.3.accuracy``.

    Args:
        sets: the corrupted data sets, each with a name ``CORRUPTION/SEVERITY``.
        labelled: whether they have labels; otherwise there are only numbers of samples.
    """
    metric_keys = _keys_by_severity() if labelled else []
    keys = []
    for dataset in sets:
        corruption, severity = _corruption_and_severity(dataset)
        keys.append(f"corruptions.{corruption}.{severity}.n")
        keys += [f"corruptions.{corruption}.{severity}.{key}" for key in metric_keys]
        keys += [f"corruption_avg.{severity}.{key}" for key in metric_keys]  # again for each corruption
    return list(dict.fromkeys(keys))


# --- conventions ------------------------------------------------------------------------------------------------------


def sentences() -> dict[str, str]:
    """Return one sentence for every key that a row may have, in the order in which documents list them."""
    return {
        "n": "Number of samples; of the OOD samples in a block of OOD metrics.",
        "probability": "p = mean over members of the softmax of each member's logits, in float64"
        " (never of the logits).",
        **_sentences_on("id"),
        **_sentences_on("ood"),
        # Their keys are also keys of other metrics.
        "errors": " ".join([errors.CONVENTION, *(f"{key}: {text}" for key, text in _sentences_on("errors").items())]),
        **rows.CONVENTIONS,
        **_sentences_on("diversity"),
        **curves.CONVENTIONS,
        **calibrators.CONVENTIONS,
        **bootstrap.CONVENTIONS,
        **conformal.CONVENTIONS,
        **threshold.CONVENTIONS,
        **mc_dropout.CONVENTIONS,
    }


def _sentences_on(kind: MetricKind) -> dict[str, str]:
    """Return the sentence on each metric of one kind (e.g. ``ood``), by the key of the metric."""
    metrics_of_kind = metrics(kind)
    return {metric.key: metric.convention for metric in metrics_of_kind}


def conventions(rows: Sequence[EvalRow], models: Sequence[LogitsProvider]) -> dict[str, object]:
    """Return the object ``conventions`` of an answer: a sentence on every key that a row may have, by the key.

    Beside them it has a sentence for each OOD score (``ood_scores``), the name of the leading OOD score
    (``ood_score``), and by the name of the model its ``max_length`` and ``prompt``, where it has them.

    Args:
        rows: all rows of the answer.
        models: the models of the rows.
    """
    explained: dict[str, object] = {**sentences()}

    # The OOD scores. The leading score is one name, or one for each row if rows differ.
    score_names = [row.ood_score for row in rows if row.ood_score is not None]
    for row in rows:
        score_names += row.scores
    explained["ood_scores"] = {
        name: SCORES[name].convention if name in SCORES else FEATURE_SCORES[name].convention for name in score_names
    }
    leading_score = rows[0].ood_score
    explained["ood_score"] = leading_score
    if any(row.ood_score != leading_score for row in rows):
        explained["ood_score"] = {row.name: row.ood_score for row in rows}

    # Settings of single models.
    settings_by_model: dict[str, dict[str, object]] = {}
    for model in models:
        for key, value in (("max_length", model.max_length), ("prompt", model.prompt)):
            if value is not None:
                settings_by_model.setdefault(key, {})[model.name] = value
    return {**explained, **settings_by_model}
