"""The answer of an evaluation: its data sets, the keys that a row may have, and the sentences that explain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydractl.evaluation import mc_dropout
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, ID, OOD, OOD_VAL, TRAIN, VAL, EvalSet, of_role
from hydractl.files.eval_answer import EvalRow
from hydractl.files.model_records import DataSetRecord
from hydractl.metrics import bootstrap, calibrators, conformal, curves, errors, rows, threshold
from hydractl.metrics.declaration import MetricKind, metrics
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.rows import dotted_numbers, id_block, means_of, no_samples, row_keys
from hydractl.metrics.samples import Samples


def corruption_metrics(measured: Sequence[tuple[EvalSet, Samples]]) -> dict[str, Any]:
    """Return the metrics on corrupted data (e.g. blurred images): each corruption has several severities.

    The keys of the result:

    * ``corruptions``: by corruption, then by severity, the number of samples and, if there are labels, the metrics that
      are declared with ``by_severity``;
    * ``corruption_avg``: by severity, the mean of each metric over all corruptions, which have the same severities.

    Args:
        measured: the corrupted data sets, each with a name ``CORRUPTION/SEVERITY``, and the predictions on them.
    """
    # Measure each data set, and enter its block of metrics twice: by corruption, and by severity alone.
    keys = [metric.key for metric in metrics("id") if metric.by_severity]
    by_corruption: dict[str, dict[str, dict[str, Any]]] = {}
    blocks_by_severity: dict[str, list[dict[str, Any]]] = {}
    for dataset, samples in measured:
        corruption, _, severity = dataset.name.rpartition("/")
        block = dict(id_block(samples, keys))
        by_corruption.setdefault(corruption, {})[severity] = block
        blocks_by_severity.setdefault(severity, []).append(block)

    # The mean over corruptions at each severity; all blocks have the same metrics, and without labels none.
    means = {}
    for severity, blocks in blocks_by_severity.items():
        measured_keys = [key for key in keys if key in blocks[0]]
        means[severity] = means_of(blocks, measured_keys)
    return {"corruptions": by_corruption, "corruption_avg": means}


# --- data sets --------------------------------------------------------------------------------------------------------


def records_of_sets(sets: Sequence[EvalSet]) -> dict[str, Any]:
    """Return the records of the data sets by their roles, which are keys of an answer."""

    def by_name(*roles: str) -> dict[str, DataSetRecord]:
        return {dataset.name: dataset.record() for dataset in of_role(sets, *roles)}

    # There is at most one validation set and one training set.
    return {
        "test": by_name(ID, OOD),
        "val": by_name(VAL).get("val"),
        "ood_val": by_name(OOD_VAL) or None,
        "train": by_name(TRAIN).get("train"),
    }


# --- keys -------------------------------------------------------------------------------------------------------------


def known_keys(options: EvalOptions, sets: Sequence[EvalSet]) -> list[str]:
    """Return the dotted keys of all numbers that at least one row will have, e.g. ``id.accuracy``.

    These are the keys that ``--require`` accepts.

    Args:
        options: the options of the command.
        sets: all data sets of the command, the ID set first.
    """
    ood_names = [dataset.name for dataset in of_role(sets, OOD)]
    labelled = sets[0].labels is not None

    # Every row has these.
    metric_keys = row_keys(ood_names, options.scores, labelled=labelled)
    keys = list(metric_keys)
    keys += ["cost.params", "cost.macs", "cost.single_macs", "threshold.value", "threshold.id_flagged"]
    keys += [f"threshold.ood_flagged.{name}" for name in ood_names]
    keys.append("calibration.temperature")
    # Those on corrupted data: measured on no samples, all keys are there.
    nothing = no_samples(["msp"], labelled=labelled)
    corrupted = corruption_metrics([(dataset, nothing) for dataset in of_role(sets, CORRUPTION)])
    keys += [key for key, _ in dotted_numbers(corrupted)]

    # Some rows have these, depending on options and models.
    if options.conformal is not None and labelled:
        keys += ["conformal.qhat", "conformal.coverage", "conformal.mean_size", "conformal.empty"]
    if options.allow_seen:
        keys += [f"seen.{name}" for name in ("id", *ood_names)]
    if options.bootstrap:
        for key in metric_keys:
            if not key.endswith(".n"):  # numbers of samples have no intervals
                keys += [f"ci.{key}.0", f"ci.{key}.1"]
                keys += [f"difference.{key}.value", f"difference.{key}.ci.0", f"difference.{key}.ci.1"]
    return keys


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
    """Return the object ``conventions`` of an answer of eval, which says what the numbers in its rows mean.

    * by each key that a row (the measurements of one model) may have: a sentence;
    * ``ood_scores``: a sentence for each OOD score that a row has, by its name;
    * ``ood_score``: the main OOD score, that of the OOD metrics in the row itself: one name, or one for each row by the
      name of the row, if rows differ;
    * ``max_length`` and ``prompt``: these settings by the name of the model, where a model has them.

    Args:
        rows: all rows of the answer.
        models: the models of the rows.
    """
    explained: dict[str, object] = {**sentences()}

    # The OOD scores: the main one of each row, then all that rows report.
    main_scores = {row.name: row.ood_score for row in rows if row.ood_score is not None}
    names = list(main_scores.values())
    for row in rows:
        names += row.scores
    score_sentences = {}
    for name in names:
        score = SCORES[name] if name in SCORES else FEATURE_SCORES[name]
        score_sentences[name] = score.convention
    explained["ood_scores"] = score_sentences
    are_equal = len(set(main_scores.values())) == 1
    explained["ood_score"] = rows[0].ood_score if are_equal else main_scores

    # Settings of single models.
    for key in ("max_length", "prompt"):
        values = {model.name: getattr(model.record, key) for model in models}
        by_model = {name: value for name, value in values.items() if value is not None}
        if by_model:
            explained[key] = by_model
    return explained
