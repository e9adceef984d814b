"""One training: a dense or pruned model on labelled data; the output has the format of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest

import torch

from hydractl.data.base import one_class_warning
from hydractl.data.overlap import left_out_words
from hydractl.data.plausibility import sample_warnings
from hydractl.distributed import Processes, local_device
from hydractl.errors import UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.atomic import Output, check_outputs, seed_mark
from hydractl.files.checkpoint import sha256_file
from hydractl.files.verb_answers import FinetuneAnswer, RecipeSetting, TrainedFile, TrainingPlan
from hydractl.files.version import __version__
from hydractl.log import Log
from hydractl.methods import MethodOptions
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.matching import asked_classes, of_one_member, sites_of
from hydractl.model.source import ModelOptions, open_source
from hydractl.training.checkpointing import Interruptions, StateFile, refuse_unfinished
from hydractl.training.data import report_all_cut, training_data
from hydractl.training.grid import train_each
from hydractl.training.loop import TrainingContext
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions
from hydractl.training.outputs import RunFiles, finished, stem, write_all
from hydractl.training.plausibility import warnings_of_course
from hydractl.training.run_log import RunLog
from hydractl.training.start import Opened, adapt, open_all, speed_up, with_dropout
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome

_NOT_DECISIVE = (
    *("compile", "checkpoint_blocks"),  # the result is the same, to rounding
    *("max_length", "tower"),  # the provenance has their values once the model is known
)
"""Options that a recipe may decide, and that do not decide the trained weights."""


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(TrainOptions):
    """One training, or several: of each model, one for each seed that its method asks for.

    The options of a training are those of each, but for what the method changes.

    Attributes:
        models: the MODELs.
        opening: how they are opened.
        ensemble: the method of an ensemble; None for one model.
        device, dtype: where and in which numbers it is trained.
        dropout: the dropout in each layer; None for what the model says.
        checkpoint_blocks, compile: how the model is sped up, or spares memory.
        timeout: how long the processes of a team wait for each other, in seconds.
        output: the file, the folder of several models, or None for names after the models.
        log: the file of the log of the training, ``beside``, or None.
        save_every: how often the unfinished training is saved, such as ``10m`` or ``500``.
        resume, force, dry_run: as every verb has them.
        recipe: every option that a recipe may decide, with its value and the source of that.
    """

    models: Sequence[ModelRef]
    opening: ModelOptions
    ensemble: MethodOptions | None
    device: str
    dtype: str
    dropout: float | None
    checkpoint_blocks: bool
    compile: bool
    timeout: float
    output: str | None
    log: str | None
    save_every: str
    resume: bool
    force: bool
    dry_run: bool
    recipe: Mapping[str, RecipeSetting]

    @property
    def trainings(self) -> int:
        """The number of trainings of each model."""
        return 1 if self.ensemble is None else self.ensemble.trainings

    @cached_property
    def files(self) -> RunFiles:
        """The paths that one training writes to; it has an output."""
        assert self.output is not None
        models = None if self.ensemble is None else self.ensemble.models()
        return RunFiles.of_output(self.output, self.log, models)

    @property
    def name(self) -> str:
        """The name of the output of one training, without folder and ending."""
        assert self.output is not None
        return stem(self.output)

    def of_member(self, model: ModelRef, output: str, index: int) -> TrainingRequest:
        """Return the request of one of several trainings: with its model, its file, and a seed of its own.

        Args:
            model: its MODEL.
            output: its file.
            index: how many seeds after the first it has.
        """
        seed = self.seed + index
        # Of an ensemble by several trainings, what each training does; None if it trains like a single model.
        ensemble = None if self.ensemble is None else self.ensemble.of_one_training()
        return replace(
            self,
            models=[model],
            opening=replace(self.opening, seed=seed),
            seed=seed,
            ensemble=ensemble,
            output=output,
        )

    def with_method(self) -> TrainingRequest:
        """Return the request with what the method changes: adapter, course, members, class weights."""
        if self.ensemble is None:
            return self
        return replace(
            self,
            adapter=self.ensemble.adapter(),
            course=self.ensemble.course(),
            together=self.ensemble.together(),
            class_weights=self.ensemble.class_weights(self.seed),
        )


@dataclass(frozen=True)
class Prepared(Opened):
    """Everything that is known and checked before a training begins.

    Attributes:
        request: what the command asks for, with what the method changes.
        plan: what will be trained and written, as the answer shows it.
    """

    request: TrainingRequest
    plan: TrainingPlan

    @cached_property
    def decisive(self) -> dict[str, object]:
        """Everything that decides the trained weights, by key, as JSON values; it is stored in the output file.

        Later keys override earlier ones: the settings as given (such as ``epochs``), what they mean for this model
        (such as ``labels``, the class names of a new head), and the fingerprints ``train`` and ``val`` of the data, for
        which all data are read. None stands for a setting, a data set or a list of names that is absent.
        """
        source = self.source
        request = self.request

        # The options as they were set. A single learning rate is stored as a number, several as a list.
        facts = {name: option.value for name, option in request.recipe.items() if name not in _NOT_DECISIVE}
        if request.ensemble is not None:
            facts["ensemble"] = request.ensemble.to_json()
        if len(request.lr) == 1:
            facts["lr"] = request.lr[0]

        # What the settings mean for this model: "drawn" are the tensors of a new classifier with random values.
        facts["max_length"] = source.description.preprocess.get("max_length")
        facts["drawn"] = list(self.drawn) or None
        facts["labels"] = list(request.labels or ()) or None
        # For a zero-shot model this overrides "labels" by the class names it was given, and adds "prompt"; it adds
        # "tower" (the encoder of images or of texts) if one was chosen.
        facts.update(asked_classes(source, request.tower))

        # The data.
        facts["train"] = self.train_set.fingerprint()
        facts["val"] = None if self.val_set is None else self.val_set.fingerprint()
        return facts

    @property
    def fingerprint(self) -> dict[str, object]:
        """Return the record that identifies this training: model, seed and :attr:`decisive`.

        Unfinished runs and finished outputs with the same record belong to this training. Computing it hashes the
        model.
        """
        return {"model": self.source.sha256, "seed": self.request.seed, **self.decisive}


def train_one_model(request: TrainingRequest, log: Log, team: Processes, signals: Interruptions) -> Outcome:
    """Train one model, write its files, and return the answer.

    A team is several processes that train together; only the answer of the first process (rank 0) is shown, and the
    others return a silent one. The answer is

    ======================================  ====================================
    dry run                                 what would be done; nothing is trained
    ``--resume``, and finished before       the answer of that training
    ``--resume``, and begun before          trained from where it stopped
    else                                    trained from the beginning
    ======================================  ====================================
    """
    # Open and check everything. From here on, `request` has what the method of --ensemble adds, e.g. an adapter.
    prepared = prepare(request, log)
    request = prepared.request
    is_first = team.rank == 0
    for dataset in prepared.data_sets:
        log.warn_all(sample_warnings(dataset, in_passing=request.dry_run))

    # Check the outputs early. With --resume they may be there, and are compared with this training.
    if is_first and not request.resume:
        check_files(request)
    if not request.dry_run:
        announce_reading([prepared.source], log)
    answer = earlier_answer(prepared, log)  # None unless the training is finished

    # A dry run, and a finished training, have an answer without training.
    if request.dry_run:
        plan = FinetuneAnswer.planned(**dict(prepared.plan), recipe=request.recipe, warnings=log.warnings)
        return Outcome(plan, silent=not is_first)
    if answer is not None:
        names = " ".join(map(str, request.files.paths))
        log.info(f"the training of {names} is finished: nothing to do")
        return Outcome(answer, files=list(request.files.paths), silent=not is_first)
    return _train_and_write(prepared, log, team, signals)


def check_files(request: TrainingRequest) -> None:
    """Check that the outputs of one training can be written and that no unfinished run is in the way.

    ``--force`` may replace both. ``--resume`` may replace outputs only if there is an unfinished run to go on with.

    Raises:
        OutputError: an output exists or cannot be written, or an unfinished run is there and may not be replaced.
    """
    files = request.files
    is_resumed = request.resume and files.state.exists()
    may_replace_outputs = request.force or is_resumed
    may_replace_state = request.force or request.resume
    check_outputs(files.paths, force=may_replace_outputs, folder=files.folder)
    refuse_unfinished(files.state, force=may_replace_state)


def prepare(request: TrainingRequest, log: Log) -> Prepared:
    """Return the opened model and data of a training, checked, with the plan of what will be trained and written.

    Nothing is trained or written here. What is odd about the model and the data is logged.

    Raises:
        UsageError: the model or the settings do not allow a training.
        InputError: the data do not fit the model or each other.
    """
    # Find the model and check what its header tells; its weights are read later.
    source = of_one_member(open_source(request.models[0], request.opening), "finetune")
    sites_of(source, request.tower)  # raises UsageError for a tower that the model does not have
    if request.dtype not in ("float32", "float64"):
        hint = "computing in bfloat16 is --autocast bfloat16"
        raise UsageError(f"finetune trains in float32, not {request.dtype}", hint=hint)

    # Complete the request: the name of the output, and what the method of --ensemble adds, e.g. an adapter. Then open
    # the data and make the start of the model.
    output = request.output or f"{source.name}.tuned{seed_mark(request.seed)}.st"
    request = replace(request, output=output).with_method()
    files = request.files  # raises UsageError for a log that is another file of this training
    opened = open_all(source, request)
    if opened.drawn:
        drawn = ", ".join(opened.drawn)
        log.info(f"{source.name} has no classifier; drawn by --seed {request.seed}: {drawn}")

    # What is odd about the classes of the data, and how many validation samples were left out.
    log.warn_all(one_class_warning(dataset) for dataset in opened.data_sets)
    if opened.val_set is not None and opened.left_out:
        log.info(left_out_words(opened.val_set, opened.left_out))

    # Plan the training: the number of steps, the costs of the model, and the files.
    samples = len(opened.train_set)
    steps = request.total_steps(samples)
    request.begin_course(samples)  # raises UsageError if there are too few steps
    things = "pairs" if request.loss == "contrastive" else "samples"
    log.info(f"{steps} steps of {request.per_step} {things}")
    plan = TrainingPlan(
        output=str(files.paths[-1]),
        model=opened.source.name,
        samples=samples,
        steps=steps,
        cost=cost_of(opened.source.description, opened.source.tensors),
        files=files_of_members(files),
        val_left_out=opened.left_out or None,
    )
    return Prepared(**vars(opened), request=request, plan=plan)


def files_of_members(files: RunFiles, digests: Sequence[str] = ()) -> list[TrainedFile] | None:
    """Return the output files of one training that writes several models (members); None if it writes one.

    Each file has the number of its member, from 1, and its SHA-256.

    Args:
        files: the files of the training.
        digests: SHA-256 of each; empty as long as they are not written, which gives None for each.
    """
    if len(files.paths) == 1:
        return None
    with_digests = enumerate(zip_longest(files.paths, digests), start=1)
    return [TrainedFile(output=str(path), member=number, sha256=digest) for number, (path, digest) in with_digests]


def earlier_answer(prepared: Prepared, log: Log) -> FinetuneAnswer | None:
    """Return the answer of a training that an earlier command has finished; None if it is still to be done.

    ================================  =======================================================
    without ``--resume``              None
    a state file is there             None: it is unfinished; a dry run logs how far it is
    some of its outputs are missing   None
    all its outputs are there         the answer, from the settings and results in their headers
    ================================  =======================================================

    Raises:
        InputError: an output, or the unfinished run, belongs to another training; all differences are listed.
    """
    request = prepared.request
    files = request.files
    if not request.resume:
        return None
    if files.state.exists():
        header = StateFile(files.state, prepared.fingerprint, {}).header()
        if request.dry_run:
            log.info(f"would go on with the run in {files.state}, at step {header['progress'].get('steps', 0)}")
        return None
    settings = finished(files, prepared.fingerprint, force=request.force)
    if settings is None:
        return None
    results = {key: settings.get(key) for key in ("kept_epoch", "stopped_early", "lr", "grid")}
    digests = [sha256_file(path) for path in files.weights()]
    return _answer(prepared, {**results, "epochs": settings["history"]}, digests, log)


def _answer(prepared: Prepared, results: Mapping[str, object], digests: Sequence[str], log: Log) -> FinetuneAnswer:
    """Return the answer of a finished training: its plan, its results, and the SHA-256 of what it has written.

    Args:
        prepared: the training, with its plan.
        results: the results, by the names of the answer's fields; they replace fields of the plan of the same names.
        digests: SHA-256 of each weight file, at least one; of several models the answer names the last one's.
        log: has the warnings of the command.
    """
    facts = {**dict(prepared.plan), **results}
    files = files_of_members(prepared.request.files, digests)
    return FinetuneAnswer(**{**facts, "files_": files}, sha256=digests[-1], warnings=log.warnings)


def _train_and_write(prepared: Prepared, log: Log, team: Processes, signals: Interruptions) -> Outcome:
    """Train a model that was checked before, write the trained model or models, and return the answer.

    While it runs, it is saved in a state file from time to time; the file is removed at the end. If several processes
    train together (a team), only the first one writes, and the answers of the others are silent.

    Args:
        prepared: everything that was checked before.
        log: receives progress and warnings.
        team: the processes that train together.
        signals: notes a signal to stop.
    """
    request = prepared.request
    files = request.files
    is_first = team.rank == 0
    # What may change the rounding of a training, and so its weights by a little.
    environment = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "hydractl": __version__,
        "device": resolve_device(local_device(request.device)).type,
        "processes": team.size,
        "compile": request.compile,
    }
    state = StateFile(files.state, prepared.fingerprint, environment, request.save_every)
    is_resumed = request.resume and state.exists()
    with ExitStack() as stack:
        # Claim the output files, and read what an unfinished run saved.
        outputs: list[Output] = []
        saved = None
        if is_first:
            # A resumed run may have stopped while it wrote its outputs, so it may replace them.
            may_replace = request.force or is_resumed
            for path in files.paths:
                outputs.append(stack.enter_context(Output(path, force=may_replace, folder=files.folder)))
            saved = state.begin(log, resume=request.resume, force=request.force)
        elif is_resumed:
            saved = state.load(Log())  # every process needs what was saved; only the first says so
        # Wait until all processes have read the state: only then may the first one save over it.
        team.gather(None)

        # The log of the run, a file of the first process. A resumed run goes on behind what it had written by then.
        run_log = RunLog()  # writes nothing
        if is_first:
            run_log = RunLog(log, files.log, position=0 if saved is None else saved.progress["log"])
            facts = {
                "model": prepared.source.name,
                "samples": prepared.plan.samples,
                "steps": prepared.plan.steps,
                "seed": request.seed,
                "settings": {name: setting.value for name, setting in request.recipe.items()},
            }
            run_log.begin(facts, resumed=saved is not None)
        stack.callback(run_log.close)

        # Train, once for each learning rate; the best result is kept.
        model = _build_model(prepared)
        report_all_cut(model, prepared.data_sets, log)
        context = TrainingContext(log, run_log, state, team, signals=signals)
        with team.exchanging():
            data = training_data(model, prepared.train_set, prepared.val_set, request, team)
            trained = train_each(model, partial(_build_model, prepared), data, request, context, saved)
        run_log.event("end", lr=trained.outcome["lr"], kept_epoch=trained.outcome["kept_epoch"])

        # Write the models.
        if not is_first:
            return Outcome(FinetuneAnswer.partly(), silent=True)
        digests = write_all(outputs, prepared, prepared.decisive, trained)
        state.remove()

    # Only the cross-entropy of one model is compared with that of the uniform prediction.
    has_classes = request.loss != "contrastive" and request.together is None
    classes = prepared.source.classes if has_classes else None
    log.warn_all(warnings_of_course(trained.outcome, prepared.val_set, classes))
    trained_params = sum(parameter.numel() for parameter in trained.run.parameters.values())
    results = {**trained.outcome, "grid": trained.grid or None, "trained_params": trained_params}
    return Outcome(_answer(prepared, results, digests, log), files=list(files.paths))


def _build_model(prepared: Prepared) -> AnyModel:
    """Return the model to train, on its device, with dropout, adapters and compilation as the settings say.

    Members that are trained together (``request.together``) are built as one model.
    """
    request = prepared.request
    device = resolve_device(local_device(request.device))
    models = []
    for source in prepared.members:
        model = build_model(with_dropout(source, request.dropout), str(device), request.dtype)
        adapt(model, request)
        speed_up(model, checkpoint_blocks=request.checkpoint_blocks, compile=request.compile)
        models.append(model)
    if request.together is None:
        return models[0]
    return request.together.model(models, prepared.source, request.seed)
