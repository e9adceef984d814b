"""From a model to its row: fit on validation data, measure on test data, keep predictions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.answer import row_of
from hydractl.evaluation.doubts import row_doubts
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.fitting import Fitted, fit_on_validation
from hydractl.evaluation.gathering import Gathered, Reading, Sink, WentOn, gather
from hydractl.evaluation.models import Model, RunningModel
from hydractl.evaluation.options import EvalOptions, RowScores
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, FIT, VAL, EvalSet, fitted_entries, of_role, tested
from hydractl.files.atomic import Output, write_with
from hydractl.files.checkpoint import TensorSource, beside, with_tensors, write_checkpoint
from hydractl.files.fingerprints import merged
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import SetCounts
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.samples import Samples
from hydractl.model.laplace import START as POSTERIOR


class Measuring:
    """Makes the rows of one command, one after another.

    Attributes:
        warnings: of the rows measured so far.
    """

    def __init__(self, sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> None:
        self._sets = [one for one in sets if one.role != FIT]
        self._training, self._options, self._log = of_role(sets, FIT), options, log
        self._first: bootstrap.Resampled | None = None
        self._fitted: dict[str, Fitted] = {}
        self.warnings: list[str] = []

    def row(
        self, model: Model, output: Output | None, seen: Mapping[str, int], features: Path | Output | None = None
    ) -> dict[str, Any]:
        """Measure one model.

        Args:
            model: the row.
            output: where its predictions go.
            seen: how many samples of each set it has seen.
            features: its features of the training data: a file that holds them, or one that they go to.

        Raises:
            NonFiniteError: a logit is not finite.
        """
        if self._options.fit.probe is not None:
            model.fit_probe(self._training[0], next(iter(of_role(self._sets, VAL)), None))
        kept = None if features is None else FeaturesFile(features)
        writer = self._writer(model, output, seen) if output is not None and self._options.keep_logits else None
        try:
            row, inside = self._measured(model, writer, seen, kept)
        finally:
            model.release()
            if writer is not None:
                writer.close()
        if writer is not None and output is not None:
            if writer.path != output.target:
                output.adopt(writer.path)
                output.commit()
        elif output is not None:
            threshold = self._fitted[model.name].threshold
            value = None if threshold is None else float(threshold["value"])
            ids = [self._sets[0].ids[i] for i in inside.rows]
            write_lines(output, inside.samples, ids, model.labels, value)
        return row

    def _writer(self, model: Model, output: Output, seen: Mapping[str, int]) -> PredictionsWriter:
        """The predictions file to fill; with ``resume``, the finished one of the same run, which is only read."""
        assert isinstance(model, RunningModel)  # check_writable() has been here
        part = output.target.with_name(f"{output.target.name}.part")
        resume, log = self._options.resume, self._log
        kept = self._kept(model)
        if resume and not part.exists():
            if is_predictions(output.target):
                # Of other settings or data it is refused, as an unfinished one would be.
                finished = predictions_writer(output.target, model, self._sets, seen, True, kept)
                if self._skips([np.flatnonzero(finished.missing(i)) for i in range(len(self._sets))]):
                    log.info(f"{output.path} is complete: its predictions are read")
                    return finished
                finished.close()
            log.info(f"nothing to resume: {output.path} is begun")
        elif part.exists() and not resume:
            log.info(f"an unfinished {part} is begun anew; --resume would have gone on with it")
        writer = predictions_writer(part, model, self._sets, seen, resume, kept)
        if writer.resumed:
            left = sum(int(writer.missing(i).sum()) for i in range(len(self._sets)))
            log.info(f"{part} is resumed: {left:,} of {sum(map(len, self._sets)):,} samples are left")
        return writer

    def _kept(self, model: Model) -> dict[str, Any]:
        """Return the entries for the OOD scores on features in the header of predictions."""
        names = row_scores(model, self._options).on_features
        data = [{**one.to_json(), "knn_k": self._options.fit.knn_k} for one in self._training]
        return {} if not names else {"feature_scores": names, **({"fitted_on": data[0]} if data else {})}

    def _skips(self, missing: Sequence[npt.NDArray[np.int64]]) -> bool:
        """Whether samples that a finished file has no logits of are left out now too; they are noted as skipped."""
        lacking = [(one.dataset, rows) for one, rows in zip(self._sets, missing, strict=True) if len(rows)]
        if any(dataset is None or dataset.skipped is None for dataset, _ in lacking):
            return False
        for dataset, rows in lacking:
            assert dataset is not None and dataset.skipped is not None
            dataset.skipped.update({int(row): "it could not be read for these predictions" for row in rows})
        return True

    def _measured(
        self, model: Model, writer: PredictionsWriter | None, seen: Mapping[str, int], kept: FeaturesFile | None
    ) -> tuple[dict[str, Any], Gathered]:
        read = Reading(model, self._sets, writer, self._log)
        scores = self._scores(model)
        if scores.on_features:
            model.fit_scores(scores.on_features, next(iter(self._training), None), self._options.fit.knn_k, kept)
            self.warnings += [
                f"{model.name}: {name} learns from wrong and right predictions, and those on --fit are all alike: it "
                "is constant; give data that the model was not trained on"
                for name in ([] if model.detector is None else model.detector.constant)
            ]
        fitted = fit_on_validation(model, self._sets, self._options.fit, scores, read)
        self._fitted[model.name] = fitted
        how: dict[str, Any] = {"scores": scores, "calibration": fitted.calibration}
        tests, gathered = tested(self._sets), {}
        counts, went_on = None, {}
        for dataset in tests:
            sinks: list[Sink] = []
            if model.cascade is not None:
                went_on[dataset.name] = WentOn()
                sinks.append(went_on[dataset.name])
            if dataset is tests[0] and fitted.conformal is not None and dataset.labels is not None:
                counts = SetCounts(fitted.conformal, fitted.calibration)
                sinks.append(_counting(counts, dataset.labels))
            alone, pairs = dataset is tests[0] and dataset.labels is not None, model.mc_dropout is None
            alone = alone and model.cascade is None  # in which the others have not run for all samples
            gathered[dataset.name] = gather(
                read(dataset), dataset, model.name, **how, alone=alone, pairs=pairs, sinks=sinks
            )
        for name, found in went_on.items():
            self._log.info(f"{model.name}: {found.share:.1%} of the samples of {name} run all members")
        self.warnings += row_doubts(model, gathered[tests[0].name].samples, fitted, counts, tests)
        for dataset in of_role(self._sets, CORRUPTION):
            gathered[dataset.name] = gather(read(dataset), dataset, model.name, **how, pairs=False)
        for one in [] if writer is None else read.unread():  # what is kept is kept of all sets
            gather(read(one), one, model.name, pairs=False)
        extras: dict[str, Any] = {
            "ood_score": scores.leading,
            "fitted_on": (None if model.detector is None else dict(model.detector.fitted_on)) or None,
            "mc_dropout": model.mc_dropout,
            "probe": model.probe,
            "conformal": None if counts is None else counts.to_json(),
            "seen": dict(seen) or None,
            **_of_cascade(model, {name: found.share for name, found in went_on.items()}),
            **self._intervals(model, tests, gathered),
        }
        return row_of(model, self._sets, gathered, fitted, extras), gathered[tests[0].name]

    def _scores(self, model: Model) -> RowScores:
        """The OOD scores of a row, with a warning of those that say nothing of it."""
        scores = row_scores(model, self._options)
        if model.stored.score is not None and not self._options.fit.scores.told:
            self._log.info(f"{model.name}: the OOD score of its file is taken: {scores.leading}")
        idle = [name for name in dict.fromkeys([scores.leading, *scores.beside]) if says_nothing(name, model.members)]
        if idle:
            names = " and ".join(idle)
            self.warnings.append(f"{model.name}: no OOD metrics by {names}, which of a single model is constant")
        return scores

    def _intervals(self, model: Model, tests: Sequence[EvalSet], gathered: Mapping[str, Gathered]) -> dict[str, Any]:
        """``ci`` of the row, and ``difference`` to the first row."""
        rounds = self._options.bootstrap
        if not rounds:
            return {}
        outside = {dataset.name: gathered[dataset.name].samples for dataset in tests[1:]}
        groups = {dataset.name: dataset.group for dataset in tests[1:]}
        with self._log.progress(f"intervals of {model.name}", rounds, "resamples") as progress:
            own = bootstrap.resample(
                gathered[tests[0].name].samples, outside, groups, rounds=rounds, seed=self._options.seed,
                advance=progress.advance,
            )  # fmt: skip
        extras: dict[str, Any] = {"ci": bootstrap.intervals(own)}
        if self._first is None:
            self._first = own
        else:
            extras["difference"] = bootstrap.differences(self._first, own)
        return extras

    def write_calibrated(self, model: Model, output: Output) -> Path:
        """The checkpoint of a model with what was fitted for it in its description."""
        assert isinstance(model, RunningModel)  # check_writable() has been here
        (source,) = model.argument.sources
        fitted = self._fitted[model.name]
        calibration = fitted.calibration_json()
        if calibration is not None:
            calibration["stored"] = True
        own: dict[str, Any] = {"calibration": calibration, "threshold": fitted.threshold, "ood_score": None}
        tensors: TensorSource = with_tensors(source.tensors, beside(source.tensors, POSTERIOR))
        scores, detector = row_scores(model, self._options), model.detector
        if self._options.fit.scores.told or model.stored.score:
            own["ood_score"] = {"score": scores.leading}
            if detector is not None and scores.leading in detector.names:
                own["ood_score"]["fitted_on"] = dict(detector.fitted_on)
                tensors = with_tensors(tensors, detector.tensors(scores.leading))
        extra = {key: value for key, value in source.description.extra.items() if key not in own}
        extra.update({key: value for key, value in own.items() if value is not None})
        seen = tuple(merged(source.description.seen, fitted_entries([*self._sets, *self._training])))
        origin = {**source.description.provenance, "bases": source.lineage}
        if self._options.note is not None:
            origin["note"] = self._options.note
        document = replace(source.description, extra=extra, seen=seen, layout="sliced", provenance=origin).to_json()
        write_checkpoint(output, tensors, document)
        return output.path


def _of_cascade(model: Model, share: Mapping[str, float]) -> dict[str, Any]:
    """``cascade`` of the row, with the share of each set that goes on; and its ``cost``, with the mean mult-adds."""
    if model.cascade is None:
        return {}
    first, rest = (model.cascade[key] for key in ("first_macs", "rest_macs"))
    mean = round(first + next(iter(share.values())) * rest)
    return {"cascade": {**model.cascade, "share": dict(share)}, "cost": {**model.cost, "macs": mean}}


def _counting(counts: SetCounts, labels: npt.NDArray[Any]) -> Sink:
    """A sink for the prediction sets of the samples with these labels."""
    return lambda rows, logits: counts.add(logits, labels[list(rows)])


def predictions_writer(
    path: Path,
    model: RunningModel,
    sets: Sequence[EvalSet],
    seen: Mapping[str, int],
    resume: bool,
    kept: Mapping[str, Any],
) -> PredictionsWriter:
    """The unfinished predictions file of one row, beside the finished one to be."""
    description: dict[str, Any] = {
        "name": model.name.encode("utf-8", "backslashreplace").decode("utf-8"),  # that of a file may be no UTF-8
        "sha256": model.sha256,
        "labels": None if model.labels is None else list(model.labels),
        "heads": model.heads,
        "cost": model.cost,
        **model.decisive(),
        **kept,
    }
    if model.training:
        description["training"] = list(model.training)
    stored = model.stored
    if stored.calibration is not None:
        description["calibration"] = stored.calibration.to_json()
        if stored.fitted_on is not None:
            description["calibration"]["fitted_on"] = dict(stored.fitted_on)
    if stored.score is not None:
        description["ood_score"] = {"score": stored.score}
    if stored.threshold is not None:
        description["threshold"] = dict(stored.threshold)
    return PredictionsWriter(
        path,
        description,
        [replace(one, seen=seen.get(one.name, 0)) for one in sets],
        members=model.members,
        classes=model.classes,
        kind="F64" if model.options.dtype == "float64" else "F32",
        scores=kept.get("feature_scores", ()),
        resume=resume,
    )


# --- predictions as lines: `.jsonl` or `.csv`, one sample each --------------------------------------------------------

FIELDS = ("id", "label", "predicted", "confidence", "entropy", "mi", "ood_score")
FLAG = "is_ood"
"""A field more, where a threshold is known."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def _sample_rows(
    samples: Samples, ids: Sequence[str], labels: Sequence[str] | None, threshold: float | None
) -> Iterator[dict[str, Any]]:
    """One mapping per sample: label (or null), predicted label, its probability, entropy and MI (nats), OOD score."""
    for i, sample in enumerate(ids):
        own = None if samples.labels is None else int(samples.labels[i])
        top = int(samples.predicted[i])
        row = {
            "id": sample,
            "label": own if own is None or labels is None else labels[own],
            "predicted": top if labels is None else labels[top],
            "confidence": float(samples.confidence[i]),
            "entropy": float(samples.entropy[i]),
            "mi": float(samples.mi[i]),
            "ood_score": None if samples.score is None else float(samples.score[i]),
        }
        if threshold is not None and samples.score is not None:
            row[FLAG] = bool(samples.score[i] >= threshold)
        yield row


def _cell(value: Any) -> Any:
    """A text for a table that a spreadsheet may open: a formula has a ``'`` before it, control characters are spelled.

    Source: OWASP, "CSV injection".
    """
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA) else "") + value.translate(_CONTROLS)


def write_lines(
    output: Output,
    samples: Samples,
    ids: Sequence[str],
    labels: Sequence[str] | None,
    threshold: float | None = None,
) -> Path:
    """Write ``.jsonl``, or ``.csv`` with a line of names first.

    Args:
        output: the file.
        samples: N of them.
        ids: their ids.
        labels: class names; without them the label is the class index.
        threshold: OOD scores from here on are ``is_ood``; None: nothing is said of it.
    """
    rows = _sample_rows(samples, ids, labels, threshold)

    def lines(handle: IO[bytes]) -> None:
        if output.path.suffix == ".csv":
            text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
            names = FIELDS if threshold is None else (*FIELDS, FLAG)
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
            text.detach()
            return
        for row in rows:
            handle.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))

    return write_with(output, lines)
