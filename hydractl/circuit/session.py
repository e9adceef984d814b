"""One search from its options to its documents: data, journal, processes and what is said on the way."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydractl.circuit.cost import FusedCost
from hydractl.circuit.documents import (
    agreement,
    agreement_text,
    check_exact,
    dear_text,
    document_of,
    ended_text,
    gain_text,
    repeated_text,
    tied_text,
)
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.headmap import Headmap
from hydractl.circuit.journal import Journal, NoJournal
from hydractl.circuit.lazy import Lazy
from hydractl.circuit.plan import Plan, free_memory, plan_of, tell_plan, tell_work, with_memory
from hydractl.circuit.race import Step
from hydractl.circuit.samples import SampleSet, logits_of, measure_certainty, undecided_first
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import Found, GreedySearch, check_records
from hydractl.circuit.tasks import data_doubts, open_tasks, role_of, run_once, whole_of, with_classes
from hydractl.circuit.tower import Candidate
from hydractl.data.batching import longest_first
from hydractl.data.text import report_cut
from hydractl.distributed import Processes, local_device
from hydractl.expressions.conditions import parse_constraint
from hydractl.files.version import __version__
from hydractl.heads.mask import Head, ranking_from_json
from hydractl.jsonio import canonical_json, read_json_file
from hydractl.log import Log, Progress
from hydractl.metrics.probabilities import Floats
from hydractl.model.loading import build_model
from hydractl.model.matching import asked_classes
from hydractl.report.texts import number

_ROWS_AT_ONCE = 1 << 16
"""Tokens that run together on a GPU, where a batch of one candidate has fewer."""


class Session:
    """The model and the data of one search.

    Raises:
        InputError: for data that do not fit the model.
    """

    def __init__(self, scope: Scope, options: SearchOptions, log: Log, team: Processes) -> None:
        self.options, self.log, self.team = options, log, team
        source, names = with_classes(scope.source, options)
        members = [with_classes(member, options)[0] for member in scope.members]
        self.scope = replace(scope, source=source, members=members)
        self.sets, self.tasks = open_tasks(source, names, options, log)
        self.doubts = data_doubts(self.sets)
        for doubt in self.doubts:
            log.warn(doubt)
        self._sizes = {name: len(dataset) for name, dataset in self.sets.items()}
        self._exact = None if options.check_against is None else self._read_exact(options.check_against)
        self.model = build_model(source, local_device(options.device), options.dtype)
        self._device = next(self.model.parameters()).device
        for dataset in self.sets.values():
            report_cut(dataset, self.model.preprocess, log)
        kept = source.description.mask.kept
        self.names: dict[Candidate, Head] = {
            (index, position): (site.path, head)
            for index, site in enumerate(self.model.sites)
            if site.path in self.scope.sites
            for position, head in enumerate(kept[site.path])
        }
        self._memory = self._memory_bytes()

    @property
    def _bounds(self) -> bool:
        """Whether candidates are given up early: only an exact search does."""
        return self.options.bounds and self.options.algorithm == "greedy" and self.options.approx is None

    # --- data ---------------------------------------------------------------------------------------------------------

    def _beside(self) -> dict[str, Floats]:
        """Return the logits of the other members on each set, ``[M - 1, N, classes]``, in the set's order.

        Empty for a circuit alone.
        """
        found: dict[str, list[Floats]] = {}
        options, members = self.options, self.scope.members
        total = sum(self._sizes.values()) * len(members)
        with self.log.progress("running the other members", total, "samples") as progress:
            for member in members:
                model = build_model(member, local_device(options.device), options.dtype)
                for name, dataset in self.sets.items():
                    logits = logits_of(dataset, model, options.batch_size, options.workers, progress.advance)
                    found.setdefault(name, []).append(logits.double().numpy())
        return {name: np.stack(parts) for name, parts in found.items()}

    def _order(self, journal: Journal, beside: Mapping[str, Floats]) -> dict[str, list[int]]:
        """The order of the samples: found once, kept by the journal, the same in all processes."""
        if journal.order is not None:
            return journal.order
        options = self.options
        order: dict[str, list[int]] = {}
        if self._bounds:
            certain = {}
            total = sum(self._sizes.values())
            with self.log.progress("finding what is undecided", total, "samples") as progress:
                for name, dataset in self.sets.items():
                    labelled, others = role_of(name) == "id", beside.get(name)
                    how = (options.batch_size, options.workers, options.ood_score, labelled, others)
                    columns = next(task.columns for task in self.tasks if name in (task.data, task.ood))
                    certain[name] = measure_certainty(dataset, self.model, *how, progress.advance, columns)
            for task in self.tasks:
                outside = certain.get(task.ood or "")
                lengths = {"id": self.sets[task.data].lengths()}
                lengths |= {"ood": self.sets[task.ood].lengths()} if task.ood else {}
                own = undecided_first(certain[task.data], outside, options.objective, lengths)
                order |= {task.data: own["id"]} | ({task.ood: own["ood"]} if task.ood else {})
        else:
            order = {name: longest_first(dataset) for name, dataset in self.sets.items()}
        order = self.team.gather(None if self.team.rank else order)[0]
        if self.team.rank == 0:
            journal.set_order(order)
        self.team.gather(None)  # nobody appends before the order is kept
        return order

    def _evaluator(
        self, order: dict[str, list[int]], memory_bytes: int, beside: Mapping[str, Floats] | None = None
    ) -> Evaluator:
        options, others = self.options, beside or {}
        how = (self.model, options.batch_size, options.workers)
        parts = [
            SampleSet(self.sets[name], order[name], *how, role_of(name) == "id", others.get(name), tasks, columns)
            for (name, columns), tasks in run_once(self.tasks).items()
        ]

        def stream() -> Iterator[Any]:
            with self.log.progress(
                "reading", sum(sample.size for part in parts for sample in part.batches), "samples"
            ) as progress:
                for part in parts:
                    for sample, inputs in zip(part.batches, part.stream(), strict=True):
                        yield inputs
                        progress.advance(sample.size)

        return Evaluator(
            self.model,
            [batch for part in parts for batch in part.batches],
            stream=stream(),
            ood_score=options.ood_score,
            memory_bytes=memory_bytes,
            lanes=len(options.objective),
            aside=options.approx is not None,
            weights=[task.weight for task in self.tasks],
        )

    def _memory_bytes(self) -> int:
        text = self.options.memory
        if text is None:
            return free_memory(self._device) // (2 * self.team.size if self._device.type == "cpu" else 2)
        factor = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(text[-1], 1)
        return int(float(text.rstrip("KMGT")) * factor)

    def _at_once(self, evaluator: Evaluator) -> int:
        """Return how many candidates run together: on a CPU a batch of one is enough work."""
        if self._device.type != "cuda":
            return 1
        return max(1, min(8, _ROWS_AT_ONCE // max(1, evaluator.largest_batch_tokens)))

    def _read_exact(self, path: str) -> tuple[list[Head], dict[str, Any]]:
        document = read_json_file(path)
        removed = list(ranking_from_json(document, self.scope.source.sites, path).removed)
        check_exact(document, path, self.scope.source.description.arch)
        return removed, document

    # --- searching ----------------------------------------------------------------------------------------------------

    def probe(self) -> Plan:
        """Plan the search, judging by one batch of each set."""
        part = {}
        for name, dataset in self.sets.items():
            order = longest_first(dataset)
            middle = max(0, (len(order) - self.options.batch_size) // 2)  # texts are sorted by length
            part[name] = order[middle : middle + self.options.batch_size]
        plan = self._plan(self._evaluator(part, sys.maxsize))
        batches = sum(-(-size // self.options.batch_size) for size in self._sizes.values())
        lanes, tried = len(self.options.objective), self.options.approx is not None
        return with_memory(plan, batches, len(self.model.sites), lanes, self._memory, tried=tried)

    def _plan(self, evaluator: Evaluator) -> Plan:
        sizes = {"id": 0, "ood": 0}
        for name, _ in run_once(self.tasks):
            sizes[role_of(name)] += self._sizes[name]
        return plan_of(evaluator, list(self.names), self.scope.budget, self.options, sizes, self.team.size)

    def search(self, journal_path: Path | None) -> dict[str, dict[str, Any]]:
        """Search: the circuit document of each objective."""
        options = self.options
        with self._journal(journal_path) as journal:
            beside = self._beside()
            evaluator = self._evaluator(self._order(journal, beside), self._memory, beside)
            plan = self._plan(evaluator)
            tell_plan(self.log, plan, self._bounds)
            if not evaluator.keeps_data:
                self.log.warn("the data do not fit into --memory: they are read and prepared anew at every step")
            before = evaluator.work
            several = ["objective"] if len(options.objective) > 1 else []
            columns = ["step", *several, "removed at", "head", "score", "accuracy", "AUROC"]
            with self.log.progress("circuit", plan.evaluations_per_objective, "evaluations", columns) as progress:
                search = self._make(evaluator, journal, progress)
                found = search.run(options.objective, self.scope.budget)
            tell_work(self.log, plan, search.evaluations, evaluator.work - before, self.team.size)
        return self._documents(found)

    def _make(self, evaluator: Evaluator, journal: Journal, progress: Progress) -> GreedySearch:
        options, heads = self.options, list(self.names)

        def removed(objective: str, index: int, step: Step) -> None:
            (site, head), m = self.names[step.candidate], step.measured
            auroc = "" if m.two_u is None else number(m.score("ood"))
            named = [objective] if len(options.objective) > 1 else []
            scores = [number(m.score(objective)), number(m.score("acc")), auroc]
            progress.row([f"{index}/{self.scope.budget}", *named, site, str(head), *scores])

        common: dict[str, Any] = {
            "at_once": self._at_once(evaluator),
            "journal": journal,
            "processes": self.team,
            "progress": progress,
            "removed": removed,
            "constraints": [parse_constraint(text) for text in options.subject_to],
            "max_drop": None if options.max_drop is None else Fraction(str(options.max_drop)),
        }
        if options.max_cost is not None:
            common["affordable"] = self._affordable
        if options.algorithm == "headmap":
            kept = self.scope.kept or {}
            by_index = {index: kept[site.path] for index, site in enumerate(self.model.sites) if site.path in kept}
            return Headmap(evaluator, heads, kept=by_index, **common)
        if options.approx is None:
            return GreedySearch(evaluator, heads, bounds=self._bounds, **common)
        return Lazy(evaluator, heads, size=int(options.approx.removeprefix("lazy:")), **common)

    @cached_property
    def _cost(self) -> FusedCost | None:
        return FusedCost(self.scope.members, self.scope.source) if self.scope.members else None

    def _affordable(self, removed: Sequence[Candidate], head: Candidate) -> bool:
        """Return whether the fused model stays within ``--max-cost``; one that is above it must not become dearer."""
        assert self._cost is not None
        before, after = (self._cost.without([self.names[one] for one in gone]) for gone in (removed, [*removed, head]))
        return after <= max(before, Fraction(str(self.options.max_cost)))

    @contextlib.contextmanager
    def _journal(self, path: Path | None) -> Iterator[Journal]:
        if path is None:
            yield NoJournal()
            return
        if self.team.rank:
            self.team.gather(None)  # the first one opens first
        journal = Journal.open(
            path,
            self.fingerprint(),
            self.environment(),
            resume=self.options.resume,
            force=self.options.force,
            log=self.log,
            rank=self.team.rank,
        )
        with journal:
            check_records(
                path, journal, self._sizes, self.names, self.options.objective, whole_of(self.tasks, self._sizes)
            )
            if not self.team.rank:
                self.team.gather(None)
            self.team.gather(None)  # none may append before all have read
            yield journal

    def fingerprint(self) -> dict[str, Any]:
        """Return all that decides the result: a journal of another search is of no use."""
        options, scope, source = self.options, self.scope, self.scope.source
        gone = source.description.mask.removed_heads
        return {
            "model": source.sha256,
            "heads already removed": f"{len(gone)}, {_digest(gone)}" if gone else "none",
            "candidates": f"{len(self.names)}, {_digest(list(self.names.values()))}",
            **{name: dataset.fingerprint() for name, dataset in self.sets.items()},
            **({"tasks": [list(vars(task).values()) for task in self.tasks]} if len(self.tasks) > 1 else {}),
            "objective": list(options.objective),
            **({"ensemble_with": [one.sha256 for one in scope.members]} if scope.members else {}),
            "ood_score": options.ood_score,
            "algorithm": options.algorithm,
            "approx": options.approx,
            **({"subject_to": list(options.subject_to)} if options.subject_to else {}),
            **({"max_cost": options.max_cost} if options.max_cost is not None else {}),
            **({"kept": list(scope.kept.values())} if scope.kept is not None else {}),
            "batch_size": options.batch_size,
            "dtype": options.dtype,
            "device": self._device.type,
            "max_length": source.description.preprocess.get("max_length"),
            "classes": _digest(asked_classes(source, None)),
        }

    def environment(self) -> dict[str, Any]:
        """Return what may change the rounding, and so in rare cases the result."""
        return {"threads": torch.get_num_threads(), "torch": torch.__version__, "hydractl": __version__}

    def _documents(self, found: dict[str, Found]) -> dict[str, dict[str, Any]]:
        documents = {}
        for objective, ranking in found.items():
            document = document_of(
                self.scope, self.options, objective, ranking, self.names, self.sets, self.tasks, self._cost
            )
            if self.doubts:
                document["warnings"] = list(self.doubts)
            if ranking.ended:
                self.log.warn(ended_text(document))
            if self._exact is not None and ranking.steps:
                document["agreement"] = agreement(document, *self._exact)
                self.log.info(f"{objective} against {self.options.check_against}: {agreement_text(document)}")
            documents[objective] = document
            if (dear := dear_text(document)) is not None:
                self.log.warn(dear)
            if "gain" in document:
                (self.log.warn if document["gain"]["low"] else self.log.info)(gain_text(document))
        for text in filter(None, [*map(tied_text, documents.values()), repeated_text(documents)]):
            self.log.warn(text)
        steps = {o: [step["step"] for step in document.get("rounding", ())] for o, document in documents.items()}
        undecided = "; ".join(f"{o} {', '.join(map(str, numbers))}" for o, numbers in steps.items() if numbers)
        if undecided:
            self.log.warn(
                f"steps decided by less than rounding, which may go otherwise on another machine: {undecided}"
            )
        return documents


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json({"of": value}).encode()).hexdigest()[:16]
