"""``hydractl extract-circuit``: in which order heads can go, by the paper's Algorithm 1 (D.1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

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
    source = only_one(open_sources(settings.model, model_options(settings)), "extract-circuit")
    options = settings.fill(SearchOptions)
    scope = scope_of(source, options, log)

    paths: dict[str, Path] = {}
    journal: Path | None = None
    if not settings.to_stdout:
        path = _output_path(settings, source.name)
        paths = circuit_paths(path, settings.objective)
        journal = path.with_name(f"{path.name}.journal")
    elif len(settings.objective) > 1:
        raise UsageError("several objectives give several files", hint="name them with -o circuit.json")

    if settings.dry_run:
        check_outputs(paths.values(), force=settings.force or settings.resume)
        return _dry_run(scope, options, log, [str(path) for path in paths.values()], team)
    _announce(scope, options, log)
    try:
        return _search_and_write(scope, options, log, team, paths, journal)
    except KeyboardInterrupt:
        if journal is None:
            raise
        raise Interrupted(hint=f"add --resume to the same command to go on; {journal} has what was found") from None


def _output_path(settings: CircuitSettings, model: str) -> Path:
    """Return the file that ``-o`` names, or one named after the model."""
    seed_mark = settings.seed_mark if settings.limit else ""
    return file_path(settings.output or f"{model}.circuit{seed_mark}.json")


def circuit_paths(path: Path, objectives: Sequence[str]) -> dict[str, Path]:
    """Return one file per objective: ``circuit.json`` becomes ``circuit.acc.json`` and so on when there are several."""
    if len(objectives) == 1:
        return {objectives[0]: path}
    if not path.suffix:
        path = path.with_name(f"{path.name}.json")
    return {objective: named_apart(path, objective) for objective in objectives}


def _announce(scope: Scope, options: SearchOptions, log: Log) -> None:
    """Say how much is to be searched."""
    heads = len(scope.heads)
    count = heads
    if options.algorithm == "greedy":
        count = evaluations(heads, scope.budget)
    may_end_early = options.subject_to or options.max_drop is not None
    up_to = "up to " if may_end_early else ""
    log.info(
        f"removing {up_to}{scope.budget} of {heads} heads: {count:,} evaluations of the whole data per "
        f"objective, {', '.join(options.objective)}; steps that objectives share are measured once"
    )


def _search_and_write(
    scope: Scope,
    options: SearchOptions,
    log: Log,
    team: Processes,
    paths: Mapping[str, Path],
    journal: Path | None,
) -> Outcome:
    """Search, and write the circuit of each objective.

    Args:
        scope, options: of the search.
        log: of this process.
        team: who searches together; only the first process writes.
        paths: the file of each objective; none where the circuit goes to standard output.
        journal: where the search is kept.
    """
    with ExitStack() as stack:
        outputs: dict[str, Output] = {}
        if team.rank == 0:
            # A search that is resumed replaces what an earlier end of it wrote.
            resumes = options.resume and journal is not None and journal.exists()
            replaces = options.force or resumes
            for objective, path in paths.items():
                outputs[objective] = stack.enter_context(Output(path, force=replaces))
            if journal is not None and not replaces:
                check_free(journal)  # the journal is opened later, when the data and the model are read
        announce_reading([scope.source], log)
        circuits = Session(scope, options, log, team).search(journal)
        if team.rank:
            return Outcome({}, silent=True)
        documents = {objective: dict(circuit) for objective, circuit in circuits.items()}
        first = next(iter(documents.values()))
        if not outputs:
            return Outcome(first, print_document=True)
        files = [write_json(outputs[objective], document) for objective, document in documents.items()]
    if len(documents) == 1:
        return Outcome(first, files=files)
    return Outcome({"schema": "hydractl.circuits/1", "circuits": list(documents.values())}, files=files)


def _dry_run(scope: Scope, options: SearchOptions, log: Log, files: list[str], team: Processes) -> Outcome:
    """Say what the search would take."""
    plan = Session(scope, options, log, team).probe()
    if team.rank:
        return Outcome({}, silent=True)
    return Outcome(
        {
            "schema": "hydractl.circuit/2",
            "dry_run": True,
            "model": scope.source.name,
            "budget": scope.budget,
            "heads": len(scope.heads),
            "objectives": list(options.objective),
            **plan.to_json(),
            "files": files,
        }
    )
