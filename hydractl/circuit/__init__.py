"""``hydractl extract-circuit``: in which order heads can go, by the paper's Algorithm 1 (D.1.2)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError, UsageError
from hydractl.log import Log
from hydractl.matching import asked_classes, check_labels, known, named_by_data, only_one, sites_of
from hydractl.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.circuit.evaluator import Evaluator, Sample
    from hydractl.fusion.runtime import HydraModel
    from hydractl.models import Source
    from hydractl.settings import CircuitSettings


def run(settings: CircuitSettings, log: Log) -> Outcome:
    """Search one ranking per objective and write a circuit file for each."""
    from hydractl.atomic import Output, check_outputs, write_json
    from hydractl.circuit.search import evaluations
    from hydractl.models import ModelOptions, open_sources
    from hydractl.select import total_budget

    opened = open_sources(settings.model, ModelOptions.of(settings))
    source = only_one(opened, "extract-circuit")
    objectives = list(settings.objective)
    mask = source.description.mask.at(site.path for site in sites_of(source, settings.tower))
    budget = total_budget(mask, settings.keep, settings.budget, "--budget")
    if budget < 1:
        raise UsageError("the budget removes no head")
    there = len(mask.kept_heads)
    if settings.output == "-" or (settings.json and settings.output is None):
        if len(objectives) > 1:
            raise UsageError("several objectives give several files", hint="name them with -o circuit.json")
        paths: dict[str, Path | None] = {objectives[0]: None}
    else:
        paths = dict(circuit_paths(settings.output or f"{source.name}.circuit.json", objectives))
    work = evaluations(there, budget)
    log.info(
        f"removing {budget} of {there} heads: {work} evaluations of the whole data per objective, "
        f"{', '.join(objectives)}; steps that objectives share are measured once"
    )
    if settings.dry_run:
        check_outputs([p for p in paths.values() if p is not None], force=settings.force)
        plan = {"schema": "hydractl.circuit/1", "dry_run": True, "model": source.name, "budget": budget, "heads": there}
        planned = [str(p) for p in paths.values() if p is not None]
        return Outcome({**plan, "objectives": objectives, "evaluations_per_objective": work, "files": planned})
    with ExitStack() as stack:
        outputs = {o: stack.enter_context(Output(p, force=settings.force)) for o, p in paths.items() if p is not None}
        documents = _search(source, settings, budget, log)
        if not outputs:
            return Outcome(documents[objectives[0]], print_document=True)
        files = [write_json(outputs[o], documents[o]) for o in objectives]
    if len(objectives) == 1:
        return Outcome(documents[objectives[0]], files=files)
    return Outcome({"schema": "hydractl.circuits/1", "circuits": list(documents.values())}, files=files)


def circuit_paths(output: str, objectives: list[str]) -> dict[str, Path]:
    """One file per objective: ``circuit.json`` becomes ``circuit.acc.json`` and so on when there are several."""
    from hydractl.atomic import file_path

    path = file_path(output)
    if len(objectives) == 1:
        return {objectives[0]: path}
    suffix = path.suffix or ".json"
    return {o: path.with_name(f"{path.name.removesuffix(path.suffix)}.{o}{suffix}") for o in objectives}


def _search(source: Source, settings: CircuitSettings, budget: int, log: Log) -> dict[str, dict[str, Any]]:
    """The circuit document of each objective."""
    from hydractl.circuit.evaluator import Evaluator
    from hydractl.circuit.search import GreedySearch, Step
    from hydractl.models import build_model

    assert settings.data is not None  # settings.check() holds it
    source = named_by_data(source, settings.data, settings.limit)
    model = build_model(source, settings.device, settings.dtype)
    batches, data = search_data(source, model, settings, log)
    evaluator: Evaluator = Evaluator(model, batches)
    kept = source.description.mask.kept
    meant = {site.path for site in sites_of(source, settings.tower)}
    sites = [i for i, site in enumerate(model.sites) if site.path in meant]
    heads = [(i, position) for i in sites for position in range(len(kept[model.sites[i].path]))]
    search = GreedySearch(evaluator, heads)
    documents = {}
    for objective in settings.objective:
        number = 0

        def report(step: Step, objective: str = objective) -> None:
            nonlocal number
            number += 1
            site = model.sites[step.candidate[0]].path
            head = kept[site][step.candidate[1]]
            m = step.measured
            auroc = "" if m.two_u is None else f", AUROC {m.score('ood'):.4f}"
            log.info(
                f"{objective} {number}/{budget}: removed {site} head {head}, "
                f"score {m.score(objective):.4f} (accuracy {m.score('acc'):.4f}{auroc})"
            )

        base, steps = search.rank(objective, budget, report)
        removed = []
        for index, step in enumerate(steps, start=1):
            site = model.sites[step.candidate[0]].path
            removed.append(
                {
                    "step": index,
                    "site": site,
                    "head": kept[site][step.candidate[1]],
                    **step.measured.to_json(objective),
                }
            )
        documents[objective] = _document(source, settings, objective, budget, base.to_json(objective), removed, data)
    log.info(f"{search.evaluations} evaluations of the whole data were run")
    return documents


def _document(
    source: Source,
    settings: CircuitSettings,
    objective: str,
    budget: int,
    base: dict[str, Any],
    removed: list[dict[str, Any]],
    data: dict[str, Any],
) -> dict[str, Any]:
    from hydractl.provenance import provenance

    mask = source.description.mask
    details = {
        "objective": objective,
        "algorithm": "greedy",
        "budget": budget,
        "batch_size": settings.batch_size,
        "dtype": settings.dtype,
        "max_length": source.description.preprocess.get("max_length"),
        **asked_classes(source, settings.tower),
        **data,
    }
    document: dict[str, Any] = {
        "schema": "hydractl.circuit/1",
        "arch": source.description.arch,
        "objective": objective,
        "algorithm": "greedy",
        "ood_score": "msp",
        "budget": budget,
        "sites": dict(mask.heads),
        "base": base,
        "removed": removed,
        "source": provenance("extract-circuit", settings, [source.sha256], details),
    }
    if settings.tower not in (None, "both"):
        document["tower"] = settings.tower
    if not mask.is_full:
        document["start_mask"] = mask.to_json()
    return document


def search_data(
    source: Source, model: HydraModel, settings: CircuitSettings, log: Log
) -> tuple[list[Sample], dict[str, str | None]]:
    """ID and OOD validation batches in memory on the model's device, and the fingerprints of both sets."""
    from hydractl.circuit.evaluator import Sample
    from hydractl.data import batches, open_data
    from hydractl.data.text_cut import report_cut
    from hydractl.fusion.runtime import move

    assert settings.data is not None  # settings.check() holds it
    labels = source.description.labels or []  # names are never taken by position
    reads = {source.name: source.description.reads}
    inside = open_data(settings.data, limit=settings.limit, labels=labels, need_labels=True, reads=reads)
    check_labels(inside, source)
    sets = [inside]
    if settings.ood is not None:
        sets.append(open_data(settings.ood, option="--ood", limit=settings.limit, ignore_labels=True, reads=reads))
    if len(sets) == 2 and sets[0].sample_fingerprints() == sets[1].sample_fingerprints():
        raise InputError("--data and --ood are the same samples", hint="give an OOD validation set")
    parameter = next(model.parameters())
    samples = []
    for dataset in sets:
        report_cut(dataset, model.preprocess, log)
        for batch in batches(dataset, model.preprocess, settings.batch_size, workers=settings.workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            target = known(batch.labels).to(parameter.device) if dataset is inside else None
            samples.append(Sample(inputs, target, len(batch.indices)))
    return samples, {"data": inside.fingerprint(), "ood": sets[1].fingerprint() if len(sets) == 2 else None}
