"""``hydractl extract-circuit``: in which order heads can go, by the paper's Algorithm 1 (D.1.2)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydractl.circuit.journal import check_free
from hydractl.circuit.scope import Scope, SearchOptions, scope_of
from hydractl.circuit.search import evaluations
from hydractl.circuit.session import Session
from hydractl.distributed import Processes, processes
from hydractl.errors import Interrupted, UsageError
from hydractl.files.atomic import Output, check_outputs, file_path, named_apart, write_json
from hydractl.log import Log
from hydractl.model.matching import only_one
from hydractl.model.source import open_sources
from hydractl.settings.pruning import CircuitSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome


def run(settings: CircuitSettings, log: Log) -> Outcome:
    """Search one ranking per objective and write a circuit file for each."""
    with processes(settings.timeout) as team:
        return _run(settings, team.quieted(log), team)


def _run(settings: CircuitSettings, log: Log, team: Processes) -> Outcome:
    found = open_sources([*settings.model, *settings.ensemble_with], model_options(settings))
    source, members = only_one(found[: len(settings.model)], "extract-circuit"), found[len(settings.model) :]
    objectives = list(settings.objective)
    options = settings.fill(SearchOptions)
    scope = scope_of(source, options, log, members)
    paths: dict[str, Path] = {}
    journal: Path | None = None
    if not settings.to_stdout:
        path = file_path(settings.output or f"{source.name}.circuit{settings.seed_mark if settings.limit else ''}.json")
        paths = circuit_paths(path, objectives)
        journal = path.with_name(f"{path.name}.journal")
    elif len(objectives) > 1:
        raise UsageError("several objectives give several files", hint="name them with -o circuit.json")
    if settings.dry_run:
        check_outputs(paths.values(), force=settings.force or settings.resume)
        return _dry_run(scope, options, log, list(map(str, paths.values())), team)
    count = evaluations(len(scope.heads), scope.budget) if settings.algorithm == "greedy" else len(scope.heads)
    most = "up to " if options.subject_to or (options.max_drop, options.max_cost) != (None, None) else ""
    log.info(
        f"removing {most}{scope.budget} of {len(scope.heads)} heads: {count:,} evaluations of the whole data per "
        f"objective, {', '.join(objectives)}; steps that objectives share are measured once"
    )
    try:
        return _search_and_write(scope, options, log, team, paths, journal)
    except KeyboardInterrupt:
        if journal is None:
            raise
        raise Interrupted(hint=f"add --resume to the same command to go on; {journal} has what was found") from None


def circuit_paths(path: Path, objectives: list[str]) -> dict[str, Path]:
    """One file per objective: ``circuit.json`` becomes ``circuit.acc.json`` and so on when there are several."""
    if len(objectives) == 1:
        return {objectives[0]: path}
    path = path if path.suffix else path.with_name(f"{path.name}.json")
    return {objective: named_apart(path, objective) for objective in objectives}


def _search_and_write(
    scope: Scope, options: SearchOptions, log: Log, team: Processes, paths: dict[str, Path], journal: Path | None
) -> Outcome:
    with ExitStack() as stack:
        outputs = {}
        if team.rank == 0:
            # A search that is resumed replaces what an earlier end of it wrote.
            replace = options.force or (options.resume and journal is not None and journal.exists())
            outputs = {o: stack.enter_context(Output(p, force=replace)) for o, p in paths.items()}
            if journal is not None and not replace:
                check_free(journal)  # the journal is opened later, when the data and the model are read
        announce_reading([scope.source, *scope.members], log)
        documents = Session(scope, options, log, team).search(journal)
        if team.rank:
            return Outcome({}, silent=True)
        objectives = list(documents)
        if not outputs:
            return Outcome(documents[objectives[0]], print_document=True)
        files = [write_json(outputs[o], documents[o]) for o in objectives]
    if len(objectives) == 1:
        return Outcome(documents[objectives[0]], files=files)
    return Outcome({"schema": "hydractl.circuits/1", "circuits": list(documents.values())}, files=files)


def _dry_run(scope: Scope, options: SearchOptions, log: Log, files: list[str], team: Processes) -> Outcome:
    plan = Session(scope, options, log, team).probe()
    if team.rank:
        return Outcome({}, silent=True)
    document: dict[str, Any] = {"schema": "hydractl.circuit/1", "dry_run": True, "model": scope.source.name}
    document |= {"budget": scope.budget, "heads": len(scope.heads), "objectives": list(options.objective)}
    return Outcome({**document, **plan.to_json(), "files": files})
