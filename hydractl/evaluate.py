"""``hydractl eval``: accuracy, calibration, OOD detection and diversity of one or more models, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError
from hydractl.log import Log
from hydractl.matching import check_labels, named_by_data
from hydractl.outcome import Outcome

if TYPE_CHECKING:
    import numpy as np

    from hydractl.atomic import Output
    from hydractl.fusion.opening import ModelArgument
    from hydractl.settings import EvalSettings


def run(settings: EvalSettings, log: Log) -> Outcome:
    """Evaluate every MODEL on the same data."""
    from hydractl.atomic import Output, check_outputs, file_path, write_json
    from hydractl.fusion.opening import find_models
    from hydractl.machine import slow_format
    from hydractl.metrics.summary import CONVENTIONS, row_keys
    from hydractl.models import ModelOptions, resolve_device, resolve_dtype
    from hydractl.requirements import check, check_known

    requirements = settings.requirements()
    device = resolve_device(settings.device)
    arguments = find_models(settings.model, ModelOptions.of(settings))
    names = [argument.name for argument in arguments]
    predictions = _prediction_paths(settings, names)
    assert settings.data is not None  # settings.check() holds it
    arguments = [_named(argument, settings.data, settings) for argument in arguments]
    sets = _open_sets(settings, arguments)
    check_known(requirements, names, row_keys([name for name, _, _ in sets[1:]]), skip_first=False)
    to_stdout = settings.output == "-" or (settings.json and settings.output is None)
    path = None if to_stdout else file_path(settings.output or f"{names[0]}.eval.json")
    if settings.dry_run:
        planned = [*([path] if path else []), *predictions.values()]
        check_outputs(planned, force=settings.force)
        sizes = {name: len(dataset) for name, _, dataset in sets}
        plan = {"schema": "hydractl.eval/1", "dry_run": True, "models": names, "samples": sizes}
        return Outcome({**plan, "files": [str(p) for p in planned]})
    with ExitStack() as stack:
        # Every output is claimed before anything is computed.
        output = None if path is None else stack.enter_context(Output(path, force=settings.force))
        claimed = {n: stack.enter_context(Output(p, force=settings.force)) for n, p in predictions.items()}
        slow = slow_format(resolve_dtype(settings.dtype), device)
        if slow is not None:
            log.warn(slow)
        _report_cut(sets, arguments, log)
        rows, files = [], []
        for argument in arguments:
            row, written = _row(argument, sets, settings, claimed.get(argument.name), log)
            rows.append(row)
            files += written
        document: dict[str, Any] = {
            "schema": "hydractl.eval/1",
            "models": rows,
            "data": {n: {"spec": d.spec, "n": len(d), "fingerprint": d.fingerprint()} for n, _, d in sets},
            "conventions": {**CONVENTIONS, "ood_score": settings.ood_score, **_conventions(arguments)},
        }
        named = [(row["name"], row) for row in rows]
        unmet = [line for r in requirements for line in check(r, named, skip_first=False)]
        if output is not None:
            files.insert(0, write_json(output, document))
    return Outcome(document, files=files, unmet=unmet, print_document=to_stdout)


def _named(argument: ModelArgument, data: str, settings: EvalSettings) -> ModelArgument:
    """The argument, its zero-shot models with classes named by the data where nothing else names them."""
    return replace(argument, sources=[named_by_data(source, data, settings.limit) for source in argument.sources])


def _class_names(arguments: Sequence[ModelArgument]) -> Sequence[str] | None:
    """The names of the classes; all rows are measured on the same labels, so they must agree.

    Raises:
        InputError: listing the models that differ from the first.
    """
    from hydractl.fusion.plan import label_differences

    sources = [(argument.name, argument.sources[0]) for argument in arguments]
    counts = [source.classes for _, source in sources]
    known = next((source.description.labels for _, source in sources if source.description.labels is not None), None)
    problems = []
    for (name, source), count in zip(sources, counts, strict=True):
        differences = [f"{count} classes, not {counts[0]}"] if count != counts[0] else []
        differences = differences or label_differences(known, source.description.labels)
        problems += [f"{name}: {what}" for what in differences]
    if problems:
        raise InputError("these models do not have the same classes", problems=problems)
    return known


def _conventions(arguments: Sequence[ModelArgument]) -> dict[str, Any]:
    """At how many tokens each model cuts a text, and how zero-shot models are asked; nothing for other models."""
    found: dict[str, Any] = {}
    for argument in arguments:
        description = argument.sources[0].description
        if description.preprocess.get("max_length") is not None:
            found.setdefault("max_length", {})[argument.name] = description.preprocess["max_length"]
        if description.prompt is not None:
            found.setdefault("prompt", {})[argument.name] = list(description.prompt)
    return found


def _open_sets(settings: EvalSettings, arguments: Sequence[ModelArgument]) -> list[tuple[str, Any, Any]]:
    """(name, group, data set) of the ID set, named ``id``, and every OOD set."""
    from hydractl.data import open_data
    from hydractl.models import read_json_file

    labels = _class_names(arguments)
    reads = {a.name: a.sources[0].description.reads for a in arguments}
    label_map = None
    if settings.label_map is not None:
        label_map = read_json_file(settings.label_map)
        if not isinstance(label_map, dict) or not all(isinstance(v, str) for v in label_map.values()):
            raise InputError(f"{settings.label_map} is not a JSON object from name to name")
    assert settings.data is not None  # settings.check() holds it
    inside = open_data(settings.data, limit=settings.limit, labels=labels or [], label_map=label_map, reads=reads)
    check_labels(inside, arguments[0].sources[0])
    sets: list[tuple[str, Any, Any]] = [("id", None, inside)]
    for name, group, spec in settings.ood_sets():
        outside = open_data(spec, option=f"--ood {name}", limit=settings.limit, ignore_labels=True, reads=reads)
        sets.append((name, group, outside))
        if outside.sample_fingerprints() == inside.sample_fingerprints():
            raise InputError(f"--ood {name} and --data are the same samples", hint="give an OOD set of its own")
    return sets


def _report_cut(sets: list[tuple[str, Any, Any]], arguments: Sequence[ModelArgument], log: Log) -> None:
    """Say how many texts of each set are cut, once for all models that cut alike."""
    from hydractl.data.text_cut import report_cut

    told: list[Any] = []
    for source in (argument.sources[0] for argument in arguments):
        preprocess = source.description.preprocess
        if source.description.reads == "text" and preprocess not in told:
            told.append(preprocess)
            for _, _, dataset in sets:
                report_cut(dataset, source.family.collate(preprocess), log)


def predict(model: Any, dataset: Any, settings: Any, log: Log, title: str) -> np.ndarray:
    """Member logits ``[M, N, C]`` of a whole data set, as float32 (or float64 where computed in it)."""
    import numpy as np
    import torch

    from hydractl.data import batches
    from hydractl.fusion.runtime import move

    parameter = next(model.parameters())
    gathered: np.ndarray | None = None
    with torch.inference_mode(), log.progress(title, len(dataset), "samples") as progress:
        for batch in batches(dataset, model.preprocess, settings.batch_size, workers=settings.workers):
            logits = model.member_logits(move(batch.inputs, parameter.device, parameter.dtype))
            wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
            values = logits.to("cpu", wide).numpy()
            if gathered is None:
                gathered = np.empty((values.shape[0], len(dataset), values.shape[2]), dtype=values.dtype)
            gathered[:, batch.indices] = values  # texts come by length
            progress.advance(len(batch.indices))
    assert gathered is not None  # no data set is empty
    return gathered


def _row(
    argument: ModelArgument,
    sets: list[tuple[str, Any, Any]],
    settings: EvalSettings,
    predictions: Output | None,
    log: Log,
) -> tuple[dict[str, Any], list[Path]]:
    """The row of one model, and the prediction file written."""

    from hydractl.metrics.ood import OOD_SCORES
    from hydractl.metrics.summary import diversity, group_averages, id_metrics, ood_metrics
    from hydractl.predictions import write_predictions

    name, model = (
        argument.name,
        argument.build(settings.device, settings.dtype, whole_last_block=settings.whole_last_block),
    )
    score = OOD_SCORES[settings.ood_score]
    inside: np.ndarray | None = None
    inside_scores: Any = None
    row: dict[str, Any] = {"name": name, "sha256": argument.sha256}
    ood: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    files: list[Path] = []
    for set_name, group, dataset in sets:
        logits = predict(model, dataset, settings, log, f"{name} on {set_name}")
        _check_finite(logits, dataset, name)
        spread[set_name] = diversity(logits)
        if inside is None:
            inside, inside_scores = logits, score(logits)
            labels = dataset.labels
            row["id"] = id_metrics(logits, labels) if labels is not None else {"n": len(dataset)}
            row["members"] = _members(logits, labels)
            if predictions is not None:
                files.append(write_predictions(predictions, logits, dataset, model.labels, settings.ood_score))
            continue
        ood[set_name] = {"group": group, **ood_metrics(inside_scores, score(logits))}
    row["ood"] = ood
    row.update(group_averages(ood))
    row["diversity"] = spread
    return row, files


def _members(logits: np.ndarray, labels: Any) -> list[dict[str, Any]]:
    """The ID metrics of every member alone; empty for a single model."""
    from hydractl.metrics.summary import id_metrics

    if len(logits) == 1 or labels is None:
        return []
    return [id_metrics(logits[m : m + 1], labels) for m in range(len(logits))]


def _check_finite(logits: np.ndarray, dataset: Any, name: str) -> None:
    import numpy as np

    from hydractl.errors import NonFiniteError

    bad = ~np.isfinite(logits).all(axis=(0, 2))
    if bad.any():
        first = int(bad.argmax())
        raise NonFiniteError(
            f"{name} gives NaN or infinite logits for {int(bad.sum())} samples, the first is {dataset.ids[first]}"
        )


def _prediction_paths(settings: EvalSettings, names: list[str]) -> dict[str, Path]:
    """Where the predictions of each model go: as named for one model, with its name put in for several."""
    if settings.predictions is None:
        return {}
    from hydractl.atomic import file_path

    path = file_path(settings.predictions)
    if len(names) == 1:
        return {names[0]: path}
    return {name: path.with_name(f"{path.stem}.{name}{path.suffix}") for name in names}
