"""The plan of a study: its rows, and the list of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydractl.expressions.data_sets import DataSpec, OodSet
from hydractl.expressions.models import ModelRef
from hydractl.methods.study_rows import MEMBERS
from hydractl.metrics.ood_scores import HEDGE, ON_FEATURES
from hydractl.studies.request import Options, StudyRequest
from hydractl.studies.scale import Scale
from hydractl.studies.steps import Step

_OF_A_MODEL = ("device", "labels", "prompt", "arch", "seed")
_OF_BATCHES = (*_OF_A_MODEL, "batch_size", "dtype", "workers", "max_length")
_SHARED: Mapping[str, Sequence[str]] = {
    "extract-circuit": (*_OF_BATCHES, "tower"),
    "prune": (*_OF_BATCHES, "tower"),
    "finetune": _OF_BATCHES,
    "fuse": _OF_A_MODEL,
    "eval": (*_OF_BATCHES, "limit", "on_bad"),
    "calibrate": (*_OF_BATCHES, "limit", "on_bad"),
    "bench": (*_OF_A_MODEL, "max_length"),
}
"""By verb, the options of a study that its steps share."""

_OF_SAMPLES = ("limit", "on_bad", "seed")
"""The options of a study that say which samples are read."""

SHARED = {name for names in _SHARED.values() for name in names}
"""All options that steps of any verb share with the study."""


@dataclass(frozen=True)
class Row:
    """One row of a study: a model or an ensemble that is compared with the others.

    Attributes:
        name: its name in tables and in the names of its files.
        model: its MODEL.
        options: further options of ``eval`` for this row.
        stored: whether it is a single file, so that it can become ``best.st``.
        trained: the models that trainings made for it, in their order; one for each training.
    """

    name: str
    model: ModelRef
    options: Options = field(default_factory=dict)
    stored: bool = True
    trained: Sequence[Path] = ()


@dataclass
class Plan:
    """What the rows of a study are made from, and the list of steps that grows while they are planned.

    Nothing runs here. A site is an attention layer of the model, given by its index; a tower is an encoder, of images
    or of texts.

    Attributes:
        request: what is asked of the study.
        scale: which rows there are, and how large the search is.
        folder: the folder of the study.
        heads: by site, the number of its heads, for the sites that heads may be removed from.
        late: the sites in the last third of each tower.
        has_classifier: whether the model has a classifier; a zero-shot model has none.
        fitted: options of ``eval`` for OOD scores on features; empty if there are no such scores.
        allow_seen: whether ``eval`` cannot tell what the model has seen. The study has compared its own sets, so the
            steps measure all the same.
        steps: the steps up to the choice, each behind those that it needs.
        rows: the rows; the single model is the first.
    """

    request: StudyRequest
    scale: Scale
    folder: Path
    heads: Mapping[int, int]
    late: Sequence[int]
    has_classifier: bool = True
    fitted: Options = field(default_factory=dict)
    allow_seen: bool = False
    steps: list[Step] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def model(self) -> ModelRef:
        """The studied model."""
        return self.request.model

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds of members that differ only in their seed; studies with different seeds share none."""
        first = MEMBERS * self.request.seed
        return range(first, first + MEMBERS)

    def share(self, part: float) -> int:
        """Return about this share of the number of all heads, at least one, and never all of them.

        A sixth of 144 heads are 24.
        """
        total = sum(self.heads.values())  # over all sites (attention layers)
        rounded = round(part * total)
        at_least_one = max(1, rounded)
        return min(at_least_one, total - 1)

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(
        self,
        verb: str,
        models: Sequence[str | ModelRef],
        arguments: Options,
        outputs: Sequence[str],
        *,
        output: str | None = None,
        shared: Sequence[str] | None = None,
    ) -> Step:
        """Return the step of one call of a verb (a command of hydractl), with its files in the folder of the study.

        Args:
            verb: the verb.
            models: its MODEL arguments.
            arguments: its options; they override the shared ones. None leaves an option out.
            outputs: the names of the files that it writes.
            output: the name for ``-o``; None for the last of ``outputs``.
            shared: the options that it shares with the study where somebody gave them; None for those of its verb.
        """
        paths = tuple(self.folder / name for name in outputs)
        written = self.folder / (output or outputs[-1])
        # Of the options that it shares with the study, those that somebody gave; arguments override them.
        given = self.request.given
        shared_names = _SHARED[verb] if shared is None else shared
        options = {name: given[name] for name in shared_names if name in given}
        options |= {name: value for name, value in arguments.items() if value is not None}
        options["output"] = str(written)
        return Step(verb, tuple(models), options, paths)

    def add(self, step: Step) -> Step:
        """Add a step to the plan, unless it is there; return it."""
        if step not in self.steps:
            self.steps.append(step)
        return step

    # --- searches -----------------------------------------------------------------------------------------------------

    @property
    def search_of_circuits(self) -> Step:
        """The step that searches the circuits of all objectives, with a file for each.

        It removes as many heads as the row that needs most; the other rows use only its first removals. That is a
        quarter of the heads for one objective (whole-avg), and a third for three (circuits).
        """
        objectives = self.scale.objectives
        part = 1 / 4 if len(objectives) == 1 else 1 / 3
        return self._search("circuit", objectives, self.share(part))

    def circuit(self, objective: str) -> Path:
        """Return the file of the circuit of an objective; the search for circuits is added to the plan.

        The search of all objectives is one step, which is added once.
        """
        search = self.add(self.search_of_circuits)
        index = self.scale.objectives.index(objective)
        return search.outputs[index]

    def late_circuit(self) -> tuple[Path, int]:
        """Return the file of a circuit of the late sites (attention layers) alone, and how many heads it removes.

        The search is added to the plan. It removes a sixth of all heads, but leaves at least one head in these sites.
        """
        removable = sum(self.heads[site] for site in self.late) - 1  # a head must stay
        budget = max(1, min(self.share(1 / 6), removable))
        search = self._search("circuit.late", ("avg",), budget, sites=",".join(map(str, self.late)))
        return self.add(search).outputs[0], budget

    def _search(self, name: str, objectives: Sequence[str], budget: int, **sites: str) -> Step:
        """Return the step of a search for circuits (which heads to remove), on the first half of the validation data.

        Rows and scores are chosen on the second half, so that a search cannot favour its own row.

        Args:
            name: how the names of its files begin; of several objectives each has a file.
            objectives: the objectives.
            budget: how many heads are removed.
            sites: the option ``sites`` with the attention layers to search; empty for all of them.
        """
        arguments = {
            "val": half(self.request.val, 1),
            "ood_val": half(self.request.ood_val_sets()[0].spec, 1),
            "objective": list(objectives),
            "budget": budget,
            "approx": self.scale.approx,
            "limit": self.scale.samples,
            **sites,
            "resume": True,
        }

        # One file, or of several objectives a file for each: circuit.acc.json, circuit.ood.json, circuit.avg.json.
        output = f"{name}.json"
        outputs = [output]
        if len(objectives) > 1:
            outputs = [f"{name}.{objective}.json" for objective in objectives]
        return self.step("extract-circuit", [self.model], arguments, outputs, output=output)

    # --- members ------------------------------------------------------------------------------------------------------

    def pruned_by_circuit(self, name: str, circuit: Path, **removed: object) -> ModelRef:
        """Plan a member that is pruned by the file of a circuit, and return its file.

        Args:
            name: the name of the member.
            circuit: the file of the circuit.
            removed: the options of ``prune`` that say how many heads are removed.
        """
        return self.pruned(name, {"circuit": str(circuit), **removed}, shared=_OF_A_MODEL)

    def pruned(self, name: str, arguments: Options, shared: Sequence[str] | None = None) -> ModelRef:
        """Return the file of the model without some heads; the step that removes them is added to the plan.

        Args:
            name: the name of the member; it writes ``NAME.mask.json`` and ``NAME.st``.
            arguments: the options of ``prune`` that say which heads are removed.
            shared: see :meth:`step`.
        """
        outputs = [f"{name}.mask.json", f"{name}.st"]
        step = self.step("prune", [self.model], {**arguments, "force": True}, outputs, shared=shared)
        _, model = self.made(step)
        return model

    def made(self, step: Step) -> list[ModelRef]:
        """Return the files of a step that makes models; the step is added to the plan."""
        return [ModelRef(str(path)) for path in self.add(step).outputs]

    def tuned(self, member: ModelRef) -> ModelRef:
        """Plan the fine-tuning of a member, and return its file."""
        name = Path(member.text).stem
        return self.trained(f"{name}.tuned", {}, model=member)[0]

    def trained(
        self,
        name: str,
        arguments: Options,
        *,
        members: int | None = None,
        model: ModelRef | None = None,
        seed: int | None = None,
    ) -> list[ModelRef]:
        """Return the files of the models that one training writes; its step is added to the plan.

        Args:
            name: the name of the model; with ``members``, the beginning of their names.
            arguments: options beside those of every training.
            members: the number of models that it writes; None for one, without a number in its name.
            model: the model to train; None for the studied one.
            seed: its seed; None for that of the study.
        """
        request = self.request
        training = {"train": request.train, "val": half(request.val, 1), "epochs": request.epochs, "lr": request.lr}
        # The files: NAME.st, or with a number of members NAME.1.st, NAME.2.st and so on.
        outputs = [f"{name}.st"]
        if members is not None:
            outputs = [f"{name}.{number}.st" for number in range(1, members + 1)]
        # Options of this row override those of every training.
        options = {**training, **arguments, "resume": True, "seed": seed}
        return self.made(self.step("finetune", [model or self.model], options, outputs, output=f"{name}.st"))

    def trained_by_seeds(self, name: str, arguments: Options, members: int = MEMBERS) -> list[ModelRef]:
        """Plan trainings of the studied model that differ only in their seeds, and return the files of the models.

        Args:
            name: the beginning of the names of their files; the number of the member follows.
            arguments: options beside those of every training.
            members: the number of trainings.
        """
        models = []
        for member, seed in enumerate(self.seeds[:members]):
            models += self.trained(f"{name}{member}", arguments, seed=seed)
        return models

    # --- rows ---------------------------------------------------------------------------------------------------------

    def add_fused(
        self, name: str, members: Sequence[ModelRef], *, merge: str | None = None, file: str | None = None
    ) -> None:
        """Plan the fusion of members, and add its row.

        Args:
            name: the name of the row.
            members: the files of the members.
            merge: the value of ``fuse --merge``; None for the default.
            file: the name of the file without ``.st``; None for that of the row.
        """
        (model,) = self.made(self.step("fuse", members, {"force": True, "merge": merge}, [f"{file or name}.st"]))
        self.add_file(name, model, members)

    def add_file(self, name: str, model: ModelRef, members: Sequence[ModelRef] = ()) -> None:
        """Add the row of one file, fused from these members or, without any, made in another way.

        The row gets the files that trainings made for it, to read their learning rates from.
        """
        files = {Path(one.text) for one in members or [model]}
        # The trainings that wrote one of these files. The last file of a training stands for it.
        trained = []
        for step in self.steps:
            wrote_one = not files.isdisjoint(step.outputs)
            if step.verb == "finetune" and wrote_one:
                trained.append(step.outputs[-1])
        self.add_row(Row(name, model, trained=trained))

    def add_row(self, row: Row) -> None:
        """Add a row (a model of the study), and its two steps on the second halves of the validation data.

        The first stores its logits, by ``eval``. The second fits its temperature to those, by ``calibrate``.
        """
        self.rows.append(row)
        self.add(self.choosing_step(row))

        # NAME=FILE stands for a model whose predictions are stored.
        predictions = f"{row.name}={self.predictions(row, 'choose')}"
        fitted = {"val": half(self.request.val, 2), "temperature": "fit"}
        file = self.calibration_file(row).relative_to(self.folder)
        self.add(self.step("calibrate", [predictions], fitted, [str(file)], shared=_OF_SAMPLES))

    # --- measuring ----------------------------------------------------------------------------------------------------

    def predictions(self, row: Row, purpose: str) -> Path:
        """Return the file that holds the predictions of a row.

        Args:
            row: the row.
            purpose: ``choose`` for predictions on the data that rows are chosen by, ``test`` for those on the test
                data.
        """
        return self.folder / purpose / f"{row.name}.pred.st"

    def calibration_file(self, row: Row) -> Path:
        """Return the file that holds the temperature of a row."""
        return self.folder / "choose" / f"{row.name}.calibration.json"

    def choosing_step(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the second halves of the validation data.

        The model may have been trained on these samples, because no figure measured on them is reported.
        """
        ood = []
        for ood_set in self.request.choosing_sets():
            spec = half(ood_set.spec, 2)
            ood.append(OodSet(f"{ood_set.name}={spec}", ood_set.name, None, spec))
        return self._eval_step(row, "choose", {"test": half(self.request.val, 2), "ood": ood, "allow_seen": True})

    def testing_steps(self, rows: Sequence[Row]) -> list[Step]:
        """Return the steps that store the logits of rows on the test data."""
        data = self._test_data()
        return [self._eval_step(row, "test", data) for row in rows]

    def _test_data(self) -> Options:
        """Return the options of ``eval`` that name the test data."""
        return {"test": self.request.test, "ood": self.request.ood, "allow_seen": self.allow_seen or None}

    def _eval_step(self, row: Row, purpose: str, data: Options) -> Step:
        """Return the step that evaluates a row and stores its predictions.

        Args:
            row: the row.
            purpose: ``choose`` or ``test``; names the subfolder of the outputs.
            data: the options of ``eval`` that name the data.
        """
        predictions = f"{purpose}/{row.name}.pred.st"
        document = f"{purpose}/{row.name}.json"
        arguments = {
            **data,
            **self._feature_arguments(row),
            **row.options,
            "predictions": str(self.folder / predictions),
            "resume": True,
        }
        model = ModelRef.of_row(row.name, [row.model])
        return self.step("eval", [model], arguments, [predictions, document])

    def _feature_arguments(self, row: Row) -> Options:
        """Return the options of ``eval`` for OOD scores on features; empty if the row has none.

        A row that is no single file (``stored`` is False) has none. The single model has one score more: hedge.
        """
        if not self.fitted or not row.stored:
            return {}
        arguments = dict(self.fitted)
        # Hedge is what the single model is used with if no OOD samples can choose a score. It is the first row.
        if row is self.rows[0]:
            names = self.fitted["ood_score"]
            assert isinstance(names, list)
            arguments["ood_score"] = [*names, HEDGE]
        return arguments

    # --- the best row -------------------------------------------------------------------------------------------------

    def last_steps(self, row: Row, score: str, note: str, score_of_table: str, tested: Sequence[Row]) -> list[Step]:
        """Return the steps that remain when the row to use (a model of the study) is known, with its OOD score.

        In this order: ``eval`` makes one table of all tested rows; ``calibrate`` fits temperature and threshold of the
        row; ``calibrate`` writes ``best.st`` with them; ``eval`` measures it; ``bench`` times it, if that is asked for.

        Args:
            row: the row.
            score: its OOD score.
            note: a sentence on how it was chosen; empty without one.
            score_of_table: the OOD score of the table of the tested rows.
            tested: the rows that ran on the test data.
        """
        # The row as MODEL arguments: its file, and its stored predictions on validation data and on test data.
        best = ModelRef.of_row("best", [row.model])
        chosen_on = f"best={self.predictions(row, 'choose')}"
        tested_on = f"best={self.predictions(row, 'test')}"
        force = {"force": True}

        # The table: the stored predictions of the tested rows, each with its own temperature.
        table = {
            "bootstrap": self.request.bootstrap,
            **force,
            "ood_score": score_of_table,
            "calibration": [str(self.calibration_file(row)) for row in tested],
            "seed": self.request.seed or None,
        }
        rows = [f"{row.name}={self.predictions(row, 'test')}" for row in tested]
        steps = [self.step("eval", rows, table, ["test.json"], shared=())]

        # Temperature and threshold of the row for its score, fitted to its stored predictions.
        fitted = {**self._calibration_data(), "ood_score": score, **force}
        fitting = self.step("calibrate", [chosen_on], fitted, ["best.calibration.json"], shared=_OF_SAMPLES)
        steps.append(fitting)

        # The row with them as a file, best.st, and its figures on the test data.
        calibration = str(fitting.outputs[0])
        calibrated = {**self._score_arguments(row, score), "calibration": calibration, **force, "note": note or None}
        measured = {**self._test_data(), "bootstrap": self.request.bootstrap, "calibration": calibration, **force}
        steps.append(self.step("calibrate", [best], calibrated, ["best.st"]))
        steps.append(self.step("eval", [tested_on], measured, ["best.json"]))

        # Its latency beside that of the single model; if it is the single model, there is nothing to compare.
        if self.request.timed and row.name != "single":
            single = ModelRef.of_row("single", [self.model])
            steps.append(self.step("bench", [single, f"best={self.folder / 'best.st'}"], force, ["bench.json"]))
        return steps

    def outline(self) -> list[Step]:
        """Return all steps as they are known before the choice: the last row stands in place of the one to use.

        Its score is called ``SCORE``.
        """
        last_steps = self.last_steps(self.rows[-1], "SCORE", "", "SCORE", self.rows)
        return [*self.steps, *self.testing_steps(self.rows), *last_steps]

    def calibration(self, row: Row, score: str) -> Options:
        """Return the options of ``calibrate`` that fit temperature and threshold of a row with this OOD score."""
        return {**self._calibration_data(), **self._score_arguments(row, score)}

    def _calibration_data(self) -> Options:
        """Return the options that fit temperature and threshold on the second half of the validation data."""
        return {"val": half(self.request.val, 2), "temperature": "fit", "threshold": self.request.threshold}

    def _score_arguments(self, row: Row, score: str) -> Options:
        """Return the options that give a row this OOD score; a score on features needs the options for these, too."""
        of_features = self._feature_arguments(row) if score in ON_FEATURES else {}
        return {**of_features, "ood_score": score}  # the other options name all scores


def half(spec: DataSpec, number: int) -> DataSpec:
    """Return one half of a data set: the first half for ``number`` 1, the second for 2."""
    return spec.with_setting(f"part={number}/2")
