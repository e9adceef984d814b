"""``hydractl extract-circuit``: find the order in which heads can be removed, by the paper's Algorithm 1 (D.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from hydractl.circuit.journal import check_free
from hydractl.circuit.scope import SearchOptions, scope_of
from hydractl.circuit.session import Session
from hydractl.distributed import processes
from hydractl.errors import Interrupted, UsageError
from hydractl.files.atomic import Output, file_path, named_apart, seed_mark, write_json
from hydractl.files.circuit_answer import CircuitAnswer, CircuitsAnswer, SearchEstimate
from hydractl.model.matching import of_one_member
from hydractl.model.source import open_source
from hydractl.options.call import Call, filled
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome


def run(call: Call) -> Outcome:
    """Return a circuit for each objective: the order in which a search removes attention heads; each is written.

    The greedy search removes one head after another, each time the one whose removal is best for the objective; headmap
    measures each head once. A dry run times one batch, and returns about how long the search takes.

    Raises:
        UsageError: several circuits cannot go to standard output.
        Interrupted: a signal stopped the search; the journal has what was found.
    """
    values = call.values
    options = filled(SearchOptions, values)
    with processes(values["timeout"]) as team, ExitStack() as stack:
        log = team.quieted(call.log)
        source = of_one_member(open_source(values["model"][0], opening_options(values)), "extract-circuit")
        scope = scope_of(source, options, log)

        # The files: a circuit for each objective, and a journal of the unfinished search. A circuit that goes to
        # standard output has neither.
        paths: dict[str, Path] = {}
        journal: Path | None = None
        if not call.writes_to_stdout():
            # The file is named after the model, with the seed if samples are drawn.
            drawn_by = seed_mark(options.seed) if options.limit else ""
            path = file_path(values["output"] or f"{source.name}.circuit{drawn_by}.json")
            paths = circuit_paths(path, options.objective)
            journal = path.with_name(f"{path.name}.journal")
        elif len(options.objective) > 1:
            raise UsageError("several objectives give several files", hint="name them with -o circuit.json")

        # Claim the output files before anything is computed. A resumed search may have stopped while it wrote its
        # circuits, so it may replace them. Without --resume and --force, files that exist are errors.
        outputs: dict[str, Output] = {}
        if team.rank == 0:
            is_resumed = options.resume and journal is not None and journal.exists()
            may_replace = options.force or is_resumed
            for objective, path in paths.items():
                outputs[objective] = stack.enter_context(Output(path, force=may_replace))
            if journal is not None and not may_replace:
                check_free(journal)  # raises an error if it exists; search() opens it, after reading data and model

        # A dry run: the cost of the search, by a timed batch. Of a team only the first process says it.
        if values["dry_run"]:
            plan = Session(scope, options, log, team).probe()
            if team.rank:
                return Outcome(SearchEstimate.partly(), silent=True)
            costs = {**asdict(plan), "seconds": round(plan.seconds, 1)}
            estimate = SearchEstimate(
                dry_run=True,
                model=source.name,
                budget=scope.budget,
                heads=len(scope.heads),
                objectives=list(options.objective),
                **costs,
                files_=[str(path) for path in paths.values()],
            )
            return Outcome(estimate)

        # Search, and write each circuit to its file; the one for standard output has none. With a journal a search can
        # be stopped and resumed.
        try:
            announce_reading([scope.source], log)
            circuits = Session(scope, options, log, team).search(journal)
            files = [write_json(output, circuits[objective].to_dict()) for objective, output in outputs.items()]
        except KeyboardInterrupt:
            if journal is None:
                raise
            hint = f"add --resume to the same command to go on; {journal} has what was found"
            raise Interrupted(hint=hint) from None
        if team.rank:
            return Outcome(CircuitAnswer.partly(), silent=True)

    # One circuit is the answer itself; several are a ``hydractl.circuits/1`` document.
    answers = list(circuits.values())
    if len(answers) == 1:
        return Outcome(answers[0], files=files)
    return Outcome(CircuitsAnswer(circuits=answers), files=files)


def circuit_paths(path: Path, objectives: Sequence[str]) -> dict[str, Path]:
    """Return the file of the circuit of each objective, by the objective.

    One objective has the path as it is. With several, ``circuit.json`` (or ``circuit``) becomes ``circuit.acc.json``,
    ``circuit.ood.json`` and so on.
    """
    if len(objectives) == 1:
        (objective,) = objectives
        return {objective: path}
    if not path.suffix:
        path = path.with_name(f"{path.name}.json")
    paths = {}
    for objective in objectives:
        paths[objective] = named_apart(path, objective)
    return paths
