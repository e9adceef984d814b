"""From a contender to its row: choose on validation data, measure on test data, keep predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.evaluate.choosing import Chosen, choose
from hydractl.evaluate.contenders import Contender, Running
from hydractl.evaluate.eval_set import CORRUPTION, EvalSet
from hydractl.evaluate.gathering import Gathered, Sink, gather
from hydractl.evaluate.leaks import chosen_entries
from hydractl.evaluate.predictions.lines import write_lines
from hydractl.evaluate.predictions.reading import is_predictions, read_predictions
from hydractl.evaluate.predictions.store import PredictionsWriter
from hydractl.evaluate.rows import row_of
from hydractl.evaluate.running import Reading, predictions_writer
from hydractl.evaluate.sets import chosen_on, tested
from hydractl.evaluate.stored import Stored
from hydractl.files.atomic import Output, write_with
from hydractl.files.checkpoint import write_tensors
from hydractl.files.fingerprints import merged
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import SetCounts
from hydractl.settings import EvalSettings


class Measuring:
    """Makes the rows of one command, one after another.

    Args:
        sets: all data sets.
        settings: of the command.
        log: hears of the progress.
    """

    def __init__(self, sets: Sequence[EvalSet], settings: EvalSettings, log: Log) -> None:
        self._sets, self._settings, self._log = list(sets), settings, log
        self._first: bootstrap.Resampled | None = None
        self._chosen: dict[str, Chosen] = {}

    def row(self, contender: Contender, output: Output | None, seen: Mapping[str, int]) -> dict[str, Any]:
        """Measure one contender; its predictions go to ``output``.

        Raises:
            NonFiniteError: a logit is not finite.
        """
        name = contender.name
        writer = None
        if output is not None and output.path.suffix == ".st":
            contender, writer = self._writer(contender, output, dict(seen))
        try:
            row, inside = self._measured(contender, writer, seen)
        finally:
            contender.release()
            if writer is not None:
                writer.close()
        if writer is not None and output is not None:
            output.adopt(writer.path)
            output.commit()
        elif output is not None and output.path.suffix != ".st":
            threshold = self._chosen[name].threshold
            value = None if threshold is None else float(threshold["value"])
            ids = [self._sets[0].ids[i] for i in inside.rows]
            write_lines(output, inside.samples, ids, contender.labels, value)
        return row

    def _writer(
        self, contender: Contender, output: Output, seen: dict[str, int]
    ) -> tuple[Contender, PredictionsWriter | None]:
        """The file to fill; or the contender that a finished file of the same run is."""
        assert isinstance(contender, Running)  # check_writable() has been here
        part = output.target.with_name(f"{output.target.name}.part")
        settings, log = self._settings, self._log
        if settings.resume and not part.exists():
            if is_predictions(output.target):
                # Of other settings or data it is refused, as an unfinished one would be.
                with predictions_writer(output.target, contender, self._sets, seen, settings) as finished:
                    missing = [np.flatnonzero(finished.missing(i)) for i in range(len(self._sets))]
                if self._skips(missing):
                    log.info(f"{output.path} is complete: its predictions are read")
                    return Stored(contender.name, read_predictions(output.target)), None
            log.info(f"nothing to resume: {output.path} is begun")
        elif part.exists() and not settings.resume:
            log.info(f"an unfinished {part} is begun anew; --resume would have gone on with it")
        writer = predictions_writer(part, contender, self._sets, seen, settings)
        if writer.resumed:
            left = sum(int(writer.missing(i).sum()) for i in range(len(self._sets)))
            log.info(f"{part} is resumed: {left:,} of {sum(map(len, self._sets)):,} samples are left")
        return contender, writer

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
        self, contender: Contender, writer: PredictionsWriter | None, seen: Mapping[str, int]
    ) -> tuple[dict[str, Any], Gathered]:
        settings = self._settings
        read = Reading(contender, self._sets, writer, self._log)
        chosen = self._chosen[contender.name] = choose(contender, self._sets, settings, read)
        tests, found = tested(self._sets), {}
        counts = None
        for one in tests:
            sinks: list[Sink] = []
            if one is tests[0] and chosen.conformal is not None and one.labels is not None:
                counts = SetCounts(chosen.conformal, chosen.calibration)
                sinks.append(_counting(counts, one.labels))
            found[one.name] = gather(
                read(one), one, contender.name, score=settings.ood_score, calibration=chosen.calibration,
                alone=one is tests[0] and one.labels is not None, pairs=contender.mc_dropout is None, sinks=sinks,
            )  # fmt: skip
        extras: dict[str, Any] = {
            "mc_dropout": contender.mc_dropout,
            "conformal": None if counts is None else counts.to_json(),
            "seen": dict(seen) or None,
        }
        for one in chosen_on(self._sets, CORRUPTION):
            found[one.name] = gather(
                read(one), one, contender.name, score=settings.ood_score, calibration=chosen.calibration, pairs=False
            )
        for one in [] if writer is None else read.unread():  # what is kept is kept of all sets
            gather(read(one), one, contender.name, score=settings.ood_score, calibration=None, pairs=False)
        row = row_of(contender, self._sets, found, chosen, {**extras, **self._intervals(contender, tests, found)})
        return row, found[tests[0].name]

    def _intervals(
        self, contender: Contender, tests: Sequence[EvalSet], found: Mapping[str, Gathered]
    ) -> dict[str, Any]:
        """``ci`` of the row, and ``difference`` to the first row."""
        settings = self._settings
        if not settings.bootstrap:
            return {}
        outside = {one.name: found[one.name].samples for one in tests[1:]}
        groups = {one.name: one.group for one in tests[1:]}
        rounds = settings.bootstrap
        with self._log.progress(f"intervals of {contender.name}", rounds, "resamples") as progress:
            own = bootstrap.resample(
                found[tests[0].name].samples, outside, groups, rounds=rounds, seed=settings.seed,
                advance=progress.advance,
            )  # fmt: skip
        extras: dict[str, Any] = {"ci": bootstrap.intervals(own)}
        if self._first is None:
            self._first = own
        else:
            extras["difference"] = bootstrap.differences(self._first, own)
        return extras

    def write_calibrated(self, contender: Contender, output: Output) -> Path:
        """The checkpoint of a contender with what was chosen for it in its description."""
        assert isinstance(contender, Running)  # check_writable() has been here
        (source,) = contender.argument.sources
        chosen = self._chosen[contender.name]
        extra = dict(source.description.extra)
        calibration = chosen.calibration_json()
        if calibration is not None:
            calibration["stored"] = True
        for key, value in (("calibration", calibration), ("threshold", chosen.threshold)):
            extra.pop(key, None)
            if value is not None:
                extra[key] = value
        seen = tuple(merged(source.description.seen, chosen_entries(self._sets)))
        description = replace(source.description, extra=extra, seen=seen, layout="sliced")
        digests: list[str] = []
        return write_with(
            output, lambda handle: digests.append(write_tensors(handle, source.tensors, description.to_json()))
        )


def _counting(counts: SetCounts, labels: npt.NDArray[Any]) -> Sink:
    """A sink for the prediction sets of the samples with these labels."""
    return lambda rows, logits: counts.add(logits, labels[list(rows)])
