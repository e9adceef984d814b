"""One search from its options to its circuit documents: data, journal, processes and messages."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from hydractl.circuit.advice import ended_text, gain_text, repeated_text, tied_text
from hydractl.circuit.documents import CircuitWriter
from hydractl.circuit.evaluator import Evaluator, MemoryPlan, plan_memory
from hydractl.circuit.headmap import Headmap
from hydractl.circuit.journal import Journal, NoJournal
from hydractl.circuit.lazy import Lazy
from hydractl.circuit.plan import (
    SearchPlan,
    asked_by_lazy,
    free_memory,
    plan_search,
    tell_plan,
    tell_work,
)
from hydractl.circuit.samples import ClassRange, SampleSet, undecided_first
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import GreedySearch, SearchKeywords
from hydractl.circuit.tasks import open_tasks, role_of, set_runs, warnings_of_sets, with_classes_of_data
from hydractl.circuit.winners import CandidateHead, Trial
from hydractl.data.batching import longest_first
from hydractl.data.text import cut_warning
from hydractl.distributed import Processes, local_device
from hydractl.files.circuit_answer import CircuitAnswer
from hydractl.files.version import __version__
from hydractl.heads.mask import Head
from hydractl.jsonio import canonical_json
from hydractl.log import Log, Progress
from hydractl.model.loading import build_model
from hydractl.model.matching import asked_classes
from hydractl.report.texts import number

_TOKENS_AT_ONCE = 1 << 16
"""How many tokens run together on a GPU: if one candidate's batch has fewer, several candidates run at once."""

_MOST_AT_ONCE = 8
"""How many candidates run together at most, however few tokens they have."""

_BYTES_OF_UNIT = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
"""The units of ``--memory``."""


class Session:
    """The model and the data of one search.

    Args:
        scope: the heads that may be removed, and how many.
        options: the options of the search.
        log: receives messages to the user.
        team: the processes that share the search.

    Raises:
        InputError: for data that do not fit the model.
    """

    def __init__(self, scope: Scope, options: SearchOptions, log: Log, team: Processes) -> None:
        """Open the data, build the model, and name the candidates; also warn of what is odd about the data."""
        self.options = options
        self.log = log
        self.team = team
        source, classes = with_classes_of_data(scope.source, options)
        self.scope = replace(scope, source=source)

        # Open the data first: errors in them are raised before the model is built.
        self.sets, self.tasks = open_tasks(source, classes, options, log)
        self.warnings = warnings_of_sets(self.sets)
        log.warn_all(self.warnings)
        self._size_of_set = {name: len(dataset) for name, dataset in self.sets.items()}

        # Build the model, and see how much of each sample it reads.
        self.model = build_model(source, local_device(options.device), options.dtype)
        self._device_of_model = next(self.model.parameters()).device
        for dataset in self.sets.values():
            log.warn_all([cut_warning(dataset, self.model.preprocess)])

        # The name of each candidate, in model order: the path of its site and its number in the whole model. A
        # candidate is the index of a site (attention block) and a position among the heads that are present there.
        kept = self.scope.source.description.mask.kept
        self.names: dict[CandidateHead, Head] = {}
        for index, site in enumerate(self.model.sites):
            if site.path not in self.scope.sites:
                continue
            for position, original_number in enumerate(kept[site.path]):
                self.names[CandidateHead(index, position)] = (site.path, original_number)
        self._memory_for_states = self._bytes_for_states()  # measured after the model and the sets are in memory

    def _bytes_for_states(self) -> int:
        """Return how many bytes the states of a search may take: as ``--memory`` says, or half of what is free.

        Processes on a CPU share that half.
        """
        text = self.options.memory
        if text is not None:
            bytes_of_unit = _BYTES_OF_UNIT.get(text[-1], 1)  # a bare number is in bytes
            return int(float(text.rstrip("KMGT")) * bytes_of_unit)

        # Processes share the memory of a CPU, while each has its own GPU.
        free = free_memory(self._device_of_model)
        processes_that_share = self.team.size if self._device_of_model.type == "cpu" else 1
        return free // (2 * processes_that_share)

    @property
    def _gives_up_early(self) -> bool:
        """Whether candidates are given up early, which only an exact search does."""
        options = self.options
        return options.algorithm == "greedy" and options.approx is None

    # --- data ---------------------------------------------------------------------------------------------------------

    def _order_of_samples(self, journal: Journal) -> dict[str, list[int]]:
        """Return the order in which the samples of each set are read: their indices, by the name of the set.

        ================================  ==============================================================
        the journal has an order          that one, from the run that is resumed
        candidates are given up early     first the samples that tell the candidates apart
        otherwise                         the longest first
        ================================  ==============================================================

        It is the same in all processes, and is stored in the journal.
        """
        if journal.order is not None:
            return journal.order
        if self._gives_up_early:
            order = self._order_by_certainty()
        else:
            order = {name: longest_first(dataset) for name, dataset in self.sets.items()}

        # Use the order of rank 0 in all processes: the orders of other processes may differ by rounding.
        order_of_first: dict[str, list[int]]
        order_of_first, *_ = self.team.gather(order if self.team.rank == 0 else None)
        journal.set_order(order_of_first)
        return order_of_first

    def _order_by_certainty(self) -> dict[str, list[int]]:
        """Return the order of the samples of each set in which losing candidates stop early: undecided ones first.

        A sample is undecided if the model is nearly wrong about it. The whole model runs once over all sets to tell.

        Returns:
            The indices of the samples, by the name of the set.
        """
        # For each set the classes (columns of the logits) of the first task that reads it.
        first_columns: dict[str, ClassRange] = {}
        for task in self.tasks:
            for name in task.sets:
                first_columns.setdefault(name, task.columns)

        order = {}
        total = sum(self._size_of_set.values())
        with self.log.progress("finding what is undecided", total, "samples") as progress:
            for name, dataset in self.sets.items():
                order[name] = undecided_first(
                    dataset,
                    self.model,
                    self.options.objective,
                    self.options.batch_size,
                    self.options.workers,
                    self.options.ood_score,
                    labelled=role_of(name) == "id",
                    advance=progress.advance,
                    columns=first_columns[name],
                )
        return order

    def _build_evaluator(self, order: Mapping[str, Sequence[int]], memory_bytes: int) -> Evaluator:
        """Return an evaluator of the model on the samples in a given order.

        Args:
            order: for each set the indices of its samples, perhaps only some of them.
            memory_bytes: how many bytes the states may take.
        """
        # One sample set for each set and each group of tasks that run over it together. A task is an ID set with the
        # OOD set it is measured against.
        sample_sets = []
        for (name, columns), tasks in set_runs(self.tasks).items():
            sample_set = SampleSet(
                self.sets[name],
                order[name],
                self.model,
                self.options.batch_size,
                self.options.workers,
                labelled=role_of(name) == "id",
                tasks=tasks,
                columns=columns,
            )
            sample_sets.append(sample_set)

        # Evaluate the batches of all these sets, with the memory and the tasks of this search. Each objective removes
        # other heads, so its model (a lane) has states of its own in memory. `aside`: a model that is only tried, too.
        batches = [batch for sample_set in sample_sets for batch in sample_set.batches]
        return Evaluator(
            self.model,
            batches,
            stream=self._inputs_of_all_batches(sample_sets),
            ood_score=self.options.ood_score,
            memory_bytes=memory_bytes,
            lanes=len(self.options.objective),
            aside=self.options.approx is not None,
            tasks=len(self.tasks),
        )

    def _inputs_of_all_batches(self, sample_sets: Sequence[SampleSet]) -> Iterator[Any]:
        """Yield the inputs of all batches in turn, read ahead by worker processes, and show the progress of reading."""
        samples = 0
        for sample_set in sample_sets:
            samples += sum(batch.size for batch in sample_set.batches)
        with self.log.progress("reading", samples, "samples") as progress:
            for sample_set in sample_sets:
                for batch, inputs in zip(sample_set.batches, sample_set.stream(), strict=True):
                    yield inputs
                    progress.advance(batch.size)

    # --- planning -----------------------------------------------------------------------------------------------------

    def probe(self) -> SearchPlan:
        """Return the plan of the search, estimated from one batch of each set, without reading all data."""
        batch_size = self.options.batch_size
        middle_batches = {}
        for name, dataset in self.sets.items():
            order = longest_first(dataset)
            # Take the batch in the middle: if samples differ in length, it has samples of medium length.
            start = max(0, (len(order) - batch_size) // 2)
            end = start + batch_size
            middle_batches[name] = order[start:end]
        evaluator = self._build_evaluator(middle_batches, sys.maxsize)

        # Plan the memory for the batches of all data, whose samples are taken to be as large as those read here are on
        # average. A stem is the state of a batch before the first block.
        samples_here = sum(batch.size for batch in evaluator.batches)
        bytes_of_sample = sum(evaluator.stem_bytes) / samples_here
        stem_bytes = []
        for name, _ in set_runs(self.tasks):
            size = self._size_of_set[name]
            for start in range(0, size, batch_size):
                samples = min(batch_size, size - start)  # the last batch may be smaller
                stem_bytes.append(round(samples * bytes_of_sample))
        memory = plan_memory(
            stem_bytes,
            blocks=len(evaluator.sample_tower.sites),
            limit=self._memory_for_states,
            lanes=len(self.options.objective),
            aside=self.options.approx is not None,
        )
        return self._plan_of_evaluator(evaluator, memory)

    def _plan_of_evaluator(self, evaluator: Evaluator, memory: MemoryPlan) -> SearchPlan:
        """Return the plan of the search, with times measured on an evaluator that may have only some of the data."""
        # Samples are counted once for each run over their set.
        samples_by_role = {"id": 0, "ood": 0}
        for name, _ in set_runs(self.tasks):
            samples_by_role[role_of(name)] += self._size_of_set[name]
        return plan_search(
            evaluator,
            list(self.names),
            self.scope.budget,
            self.options,
            samples_by_role,
            memory,
            processes=self.team.size,
        )

    # --- searching ----------------------------------------------------------------------------------------------------

    def search(self, journal_path: Path | None) -> dict[str, CircuitAnswer]:
        """Run the search, and return the circuit of each objective.

        Args:
            journal_path: the journal that stores measurements; None: nothing is stored.
        """
        with self._open_journal(journal_path) as journal:
            order = self._order_of_samples(journal)
            evaluator = self._build_evaluator(order, self._memory_for_states)
            plan = self._plan_of_evaluator(evaluator, evaluator.memory)
            tell_plan(self.log, plan, self.scope, self.options, self._gives_up_early)

            # States that do not fit into memory are computed anew each time.
            if not evaluator.memory.keeps_stems:
                self.log.warn("the data do not fit into --memory: they are read and prepared anew at every step")

            # The evaluator has counted its work from the beginning, so take the difference.
            work_before = evaluator.work
            with self.log.progress("circuit", plan.evaluations_per_objective, "evaluations") as progress:
                search = self._search_of_options(evaluator, journal, progress)
                rankings = search.run(self.options.objective, self.scope.budget)
            work = evaluator.work - work_before
            tell_work(self.log, plan, search.evaluations, work, self.team.size)
        # Write the circuits, and tell the user what to know about them.
        writer = CircuitWriter(
            scope=self.scope,
            options=self.options,
            names=self.names,
            data=self.sets,
            tasks=self.tasks,
            warnings=self.warnings,
        )

        circuits = {}
        for objective, ranking in rankings.items():
            circuit = writer.answer(objective, ranking)
            if circuit.ended is not None:
                self.log.warn(ended_text(circuit))
            if circuit.gain is not None:
                tell = self.log.warn if circuit.gain.low else self.log.info
                tell(gain_text(objective, circuit.gain))
            circuits[objective] = circuit

        # Ties may have decided a search, and several circuits may remove the same heads.
        of_each = [tied_text(circuit) for circuit in circuits.values()]
        self.log.warn_all([*of_each, repeated_text(circuits)])
        return circuits

    def _search_of_options(self, evaluator: Evaluator, journal: Journal, progress: Progress) -> GreedySearch:
        """Return the search that the options ask for: Headmap, lazy or exact greedy elimination."""
        options = self.options
        heads = list(self.names)

        def show_removal(objective: str, step: int, removal: Trial) -> None:
            """Log in one line the removal of a head, with the score and accuracy after it, and the AUROC if measured.

            The objective is named if there are several.
            """
            site, head = self.names[removal.head]
            counts = removal.counts
            parts = [f"circuit: step {step}/{self.scope.budget}", f"removed at {site}", f"head {head}"]
            if len(self.options.objective) > 1:
                parts.insert(1, f"objective {objective}")
            parts += [f"score {number(counts.score(objective))}", f"accuracy {number(counts.score('acc'))}"]
            if counts.two_u is not None:
                parts.append(f"AUROC {number(counts.score('ood'))}")
            self.log.info("  ".join(parts))

        keywords: SearchKeywords = {
            "at_once": self._candidates_at_once(evaluator),
            "journal": journal,
            "processes": self.team,
            "progress": progress,
            "on_removal": show_removal,
        }
        if options.max_drop is not None:
            keywords["max_drop"] = Fraction(str(options.max_drop))

        # Headmap, exact elimination, or lazy elimination.
        if options.algorithm == "headmap":
            kept_by_path = self.scope.kept or {}
            numbered = enumerate(self.model.sites)
            kept = {index: kept_by_path[site.path] for index, site in numbered if site.path in kept_by_path}
            return Headmap(evaluator, heads, kept=kept, **keywords)
        asked_at_most = asked_by_lazy(options)
        if asked_at_most is None:
            return GreedySearch(evaluator, heads, **keywords)
        return Lazy(evaluator, heads, size=asked_at_most, **keywords)

    def _candidates_at_once(self, evaluator: Evaluator) -> int:
        """Return how many candidates run together: enough to fill a GPU; one on a CPU, where that is enough work."""
        if self._device_of_model.type != "cuda":
            return 1
        tokens_of_candidate = max(1, evaluator.largest_batch_tokens)
        most_by_tokens = _TOKENS_AT_ONCE // tokens_of_candidate
        return max(1, min(_MOST_AT_ONCE, most_by_tokens))

    # --- journal ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open_journal(self, path: Path | None) -> Iterator[Journal]:
        """Yield the journal, whose records (earlier measurements) are of this search; it is closed at the end.

        With several processes the first one writes the file; the others get a copy of its records, and store nothing.

        Args:
            path: the journal; None: nothing is stored.
        """
        journal: Journal = NoJournal()
        if path is not None and self.team.rank == 0:
            journal = Journal.open(
                path,
                self.fingerprint(),
                # What may change the rounding, and so in rare cases the result.
                {"threads": torch.get_num_threads(), "torch": torch.__version__, "hydractl": __version__},
                resume=self.options.resume,
                force=self.options.force,
                log=self.log,
            )
        with journal:
            # All processes give and get lists; the first one is of the process that has the file.
            of_first, *_ = self.team.gather([journal.records, journal.order])
            if self.team.rank:
                records, order = of_first
                journal = NoJournal(records, order)
            yield journal

    def fingerprint(self) -> dict[str, object]:
        """Return all settings that decide the result, by the names that messages show.

        The records of a journal can be used only by a search with the same settings.
        """
        options = self.options
        scope = self.scope
        source = scope.source

        # The model and the candidates.
        removed_heads = source.description.mask.removed_heads
        removed_text = f"{len(removed_heads)}, {_digest(removed_heads)}" if removed_heads else "none"
        candidates = list(self.names.values())
        settings: dict[str, object] = {
            "model": source.sha256,
            "heads already removed": removed_text,
            "candidates": f"{len(candidates)}, {_digest(candidates)}",
        }

        # The data.
        for name, dataset in self.sets.items():
            settings[name] = dataset.fingerprint()
        if len(self.tasks) > 1:  # a single task is fully described by its sets
            # 1: every task counts equally.
            settings["tasks"] = [[task.data, task.ood, 1, task.columns] for task in self.tasks]

        # The search.
        settings |= {
            "objective": list(options.objective),
            "ood_score": options.ood_score,
            "algorithm": options.algorithm,
            "approx": options.approx,
        }
        if scope.kept is not None:
            settings["kept"] = list(scope.kept.values())

        # How the model runs.
        return {
            **settings,
            "batch_size": options.batch_size,
            "dtype": options.dtype,
            "device": self._device_of_model.type,
            "max_length": source.description.preprocess.get("max_length"),
            "classes": _digest(asked_classes(source, None)),
        }


def _digest(value: Any) -> str:
    """Return the first 16 digits of the SHA-256 of a JSON value."""
    text = canonical_json({"of": value})
    return hashlib.sha256(text.encode()).hexdigest()[:16]
