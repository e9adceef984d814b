"""``hydractl finetune``: train a dense or pruned model on labelled data; the output has the format of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from hydractl.data.base import report_classes
from hydractl.data.overlap import Validation
from hydractl.distributed import Processes, alone, local_device, processes, restarted
from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, check_outputs
from hydractl.files.checkpoint import sha256_file
from hydractl.files.model_records import EpochRecord
from hydractl.files.verb_answers import FinetuneAnswer, LearningRateTrial, PlannedTraining, TrainedFile, TrainingPlan
from hydractl.files.version import __version__
from hydractl.log import Log, SayOnce
from hydractl.methods.laplace import LaplaceOptions
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.matching import asked_classes, label_differences, only_one, sites_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_sources
from hydractl.settings.finetuning import FinetuneSettings, recipe_options
from hydractl.training.checkpointing import Checkpointing, Interruptions, StateFile
from hydractl.training.course import ScheduleOptions
from hydractl.training.data import TrainingData, report_all_cut, training_data
from hydractl.training.distribution import shard
from hydractl.training.doubts import course_doubts, data_doubts
from hydractl.training.grid import CandidateResult, Trained, train_each
from hydractl.training.loop import TrainingContext
from hydractl.training.members import AnyModel
from hydractl.training.options import (
    LossOptions,
    OptimizerOptions,
    TrainingDataOptions,
    TrainOptions,
    WeightOptions,
)
from hydractl.training.outputs import FinishedTraining, RunFiles, finished, write_all
from hydractl.training.run_log import RunLog
from hydractl.training.start import Opened, adapt, open_all, speed_up, with_dropout
from hydractl.verbs.finetune_members import check_files, recipe_in_effect, train_members
from hydractl.verbs.finetune_posterior import fit_posterior
from hydractl.verbs.opening import announce_reading, model_options, opening_doubts, start_options
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.finetune/2"

_NOT_DECISIVE = (
    *("compile", "checkpoint_blocks"),  # the result is the same, to rounding
    *("max_length", "tower"),  # the provenance has their values once the model is known
)
DECISIVE = tuple(option.name for option in recipe_options() if option.name not in _NOT_DECISIVE)
"""Names of the settings that decide the trained weights, beside model, data and seed."""


@dataclass(frozen=True)
class Prepared:
    """Everything that is known and checked before a training begins.

    Attributes:
        settings: the options of the command.
        options: the same options in the form that the training code takes.
        opened: the model and its data sets.
        files: the paths that the training writes to.
        plan: what will be trained and written, as the answer shows it.
    """

    settings: FinetuneSettings
    options: TrainOptions
    opened: Opened
    files: RunFiles
    plan: TrainingPlan

    @cached_property
    def decisive(self) -> dict[str, object]:
        """Collect everything that decides the trained weights, for the provenance of the output file.

        Computing it reads all data, for their fingerprints. Values are JSON values; None means that the setting, data
        set or list of names is absent.

        Returns:
            By key: the recipe settings (such as ``epochs``), what they mean for this model (such as ``labels``, the
            class names of a new head), and the fingerprints ``train`` and ``val`` of the data.
        """
        source = self.opened.source
        settings = self.settings

        # The settings as they were set. A single learning rate is stored as a number, several as a list.
        facts: dict[str, object] = {name: getattr(settings, name) for name in DECISIVE}
        if settings.ensemble is not None:
            facts["ensemble"] = settings.ensemble.to_json()
        if len(settings.lr) == 1:
            facts["lr"] = settings.lr[0]

        # What the settings mean for this model. For a zero-shot model asked_classes() replaces ``labels`` by the class
        # names it was given, and adds ``prompt``; it adds ``tower`` if one was chosen.
        drawn_tensors = list(self.opened.drawn)
        names_of_new_head = list(self.options.weights.labels or ())
        facts["max_length"] = source.description.preprocess.get("max_length")
        facts["drawn"] = drawn_tensors or None
        facts["labels"] = names_of_new_head or None
        facts.update(asked_classes(source, settings.tower))

        # The data.
        val_set = self.opened.val_set
        facts["train"] = self.opened.train_set.fingerprint()
        facts["val"] = val_set.fingerprint() if val_set is not None else None
        return facts

    @property
    def fingerprint(self) -> dict[str, object]:
        """Return the record that identifies this training: model, seed and :attr:`decisive`.

        Unfinished runs and finished outputs with the same record belong to this training. Computing it hashes the
        model.
        """
        fingerprint: dict[str, object] = {"model": self.opened.source.sha256, "seed": self.options.seed}
        fingerprint.update(self.decisive)
        return fingerprint


def run(settings: FinetuneSettings, log: Log) -> Outcome:
    """Train one model in this process or in those that ``torchrun`` started, or several models one after another.

    With ``--ensemble laplace`` no model is trained: one gets a posterior.

    Raises:
        UsageError: the options need several processes, or do not fit the way the processes were started.
    """
    # No training, but a posterior of the model.
    if isinstance(settings.ensemble, LaplaceOptions):
        return fit_posterior(settings, settings.ensemble, log)

    # Several trainings, one after another.
    if settings.several:
        log_once = SayOnce(log)  # the trainings share their data, and each check would repeat the same sentences
        return train_members(settings, log_once, _check_training, _answer_of_finished, _train_member)

    # One training, in this process or in all processes of torchrun.
    if restarted():  # a process failed, and torchrun has started all of them again
        settings = replace(settings, resume=True)
    if settings.shard and alone():
        raise UsageError("--shard needs several processes", hint="torchrun --nproc-per-node N -m hydractl finetune ...")
    names_one_gpu = settings.device.startswith("cuda:")
    if names_one_gpu and not alone():
        hint = "--device cuda gives each process its own"
        raise UsageError(f"--device {settings.device} is one GPU for all processes", hint=hint)
    with processes(settings.timeout, nccl=True) as team:
        return _train_one_model(settings, team.quieted(log), team, Interruptions())


def _train_member(settings: FinetuneSettings, log: Log, signals: Interruptions) -> FinetuneAnswer:
    """Train one of several members in this process; return its answer."""
    with processes(settings.timeout, nccl=True) as team:
        outcome = _train_one_model(settings, log, team, signals)
    return FinetuneAnswer.model_validate(outcome.document)


def _train_one_model(settings: FinetuneSettings, log: Log, team: Processes, signals: Interruptions) -> Outcome:
    """Train one model with all processes of a team; return early for a dry run, or if the training is finished already.

    Warnings of odd data are logged here, and also go into the plan.

    Returns:
        The answer. In a team only the outcome of rank 0 is shown; those of the other processes are silent.
    """
    prepared = _prepare(settings, log)
    source = prepared.opened.source
    files = prepared.files
    doubts_of_model = opening_doubts([source])  # announce_reading() logs these
    doubts_of_data = data_doubts(prepared.opened, in_passing=settings.dry_run)
    for doubt in doubts_of_data:
        log.warn(doubt)
    plan = prepared.plan.model_copy(update={"warnings": [*doubts_of_model, *doubts_of_data]})

    if settings.dry_run:
        return _dry_run(plan, files, settings, team)
    is_first = team.rank == 0
    if is_first and not settings.resume:
        check_files(files, settings)

    announce_reading([source], log)
    state = StateFile(files.state, prepared.fingerprint, _environment(settings, team))
    # A finished training has removed its state file and left its output files.
    if settings.resume and not state.exists():
        earlier = finished(files, prepared.fingerprint, force=settings.force)
        if earlier is not None:
            names = " ".join(map(str, files.paths))
            log.info(f"the training of {names} is finished: nothing to do")
            answer = _answer_of_finished(files, earlier, plan)
            return Outcome(answer.to_dict(), files=list(files.paths), silent=not is_first)
    return _train_and_write(replace(prepared, plan=plan), state, log, team, signals)


def _dry_run(plan: TrainingPlan, files: RunFiles, settings: FinetuneSettings, team: Processes) -> Outcome:
    """Return the plan of the training, after a check that its outputs can be written.

    In a team only the first process checks and returns the plan; the outcome of the others is empty and silent.
    """
    if team.rank:
        return Outcome({}, silent=True)
    may_replace = settings.force or settings.resume
    check_outputs(files.paths, force=may_replace, folder=files.folder)
    planned = PlannedTraining(**dict(plan), recipe=recipe_in_effect(settings))
    return Outcome(planned.to_dict())


def _prepare(settings: FinetuneSettings, log: Log) -> Prepared:
    """Open and check everything that a training needs, and log what is odd about it.

    Raises:
        UsageError: the model or the settings do not allow a training.
        InputError: training and validation data have different classes.
    """
    sources = open_sources(settings.model, start_options(settings))
    source = only_one(sources, "finetune")
    sites_of(source, settings.tower)  # raises UsageError for a tower that the model does not have
    if settings.dtype not in ("float32", "float64"):
        hint = "computing in bfloat16 is --autocast bfloat16"
        raise UsageError(f"finetune trains in float32, not {settings.dtype}", hint=hint)

    # The files, and notes on settings that are not used.
    output = settings.output or f"{source.name}.tuned{settings.seed_mark}.st"
    files = RunFiles.of_output(output, settings.log, settings.outputs)
    for note in settings.passed_over:
        log.info(note)

    # Open the model and its data.
    options = train_options(settings)
    opened = open_all(source, options)
    if opened.drawn:
        drawn = ", ".join(opened.drawn)
        log.info(f"{source.name} has no classifier; drawn by --seed {options.seed}: {drawn}")
    _report_data(opened, log)

    plan = _plan_training(opened, options, files, log)
    return Prepared(settings, options, opened, files, plan)


def _report_data(opened: Opened, log: Log) -> None:
    """Log what is odd about the classes of the data, and how many validation samples were left out.

    Raises:
        InputError: training and validation data have different classes.
    """
    train_set = opened.train_set
    val_set = opened.val_set
    report_classes(train_set, log)
    if val_set is None:
        return
    report_classes(val_set, log)
    differences = label_differences(train_set.label_names, val_set.label_names)
    if differences:
        raise InputError(f"--val against the training set: {'; '.join(differences)}")
    if opened.left_out:
        validation = Validation(val_set, opened.left_out)
        log.info(validation.sentence("--val", "--train"))


def _plan_training(opened: Opened, options: TrainOptions, files: RunFiles, log: Log) -> TrainingPlan:
    """Return what will be trained and written, and log the number of steps and of multiply-adds."""
    source = opened.source
    samples = len(opened.train_set)
    steps = options.total_steps(samples)
    cost = cost_of(source.description, source.tensors)
    options.begin_course(samples)  # raises an error if there are too few steps
    plan = TrainingPlan(
        output=str(files.paths[-1]),
        model=source.name,
        samples=samples,
        steps=steps,
        cost=cost,
        files=_planned_files(files),
        val_left_out=opened.left_out or None,
    )

    # Log the amount of work.
    if options.loss.name == "contrastive":
        log.info(f"{steps} steps of {options.per_step} pairs")  # no mult-adds: they depend on the length of captions
        return plan
    # Every learning rate of a grid trains on all samples, and so may every member of a model trained together.
    passes = len(options.lr)
    if options.together is not None:
        passes *= options.together.passes
    # A step costs about three forward passes: one forward, two for the gradients of inputs and weights.
    macs_per_sample = 3 * cost["macs"] * passes
    total_macs = macs_per_sample * steps * options.per_step
    log.info(f"{steps} steps of {options.per_step} samples, about {total_macs:.2g} mult-adds")
    return plan


def _planned_files(files: RunFiles) -> list[TrainedFile] | None:
    """Return the output files with the number of the member in each; None if the training writes one model."""
    if len(files.paths) == 1:
        return None
    return [TrainedFile(output=str(path), member=number) for number, path in enumerate(files.paths, start=1)]


def _check_training(settings: FinetuneSettings, log: Log) -> tuple[TrainingPlan, Callable[[], dict[str, object]]]:
    """Check one of several trainings before any of them begins.

    Returns:
        The plan of the training, and a function that returns its fingerprint. The fingerprint is not computed here
        because it reads the model and all data, and not every caller needs it.
    """
    prepared = _prepare(settings, log)

    def fingerprint() -> dict[str, object]:
        return prepared.fingerprint

    return prepared.plan, fingerprint


def _train_and_write(
    prepared: Prepared, state: StateFile, log: Log, team: Processes, signals: Interruptions
) -> Outcome:
    """Train, write the models and remove the state file. In a team, only the first process writes.

    Args:
        prepared: everything that was checked before.
        state: the file of an unfinished training: saved while training, removed at the end.
        log: receives progress and warnings.
        team: the processes that train together.
        signals: notes a signal to stop.

    Returns:
        The answer; in processes other than the first, a silent outcome.
    """
    opened = prepared.opened
    files = prepared.files
    plan = prepared.plan
    settings = prepared.settings
    is_first = team.rank == 0
    is_resumed = settings.resume and state.exists()
    with ExitStack() as stack:
        # Claim the output files, and read what an unfinished run saved.
        outputs: list[Output] = []
        saved = None
        if is_first:
            # A resumed run may have stopped while it wrote its outputs, so it may replace them.
            may_replace = settings.force or is_resumed
            for path in files.paths:
                output = Output(path, force=may_replace, folder=files.folder)
                outputs.append(stack.enter_context(output))
            saved = state.begin(log, resume=settings.resume, force=settings.force)
        elif is_resumed:
            saved = state.load(Log())
        team.gather(None)  # wait for all: the first process must not save over the state before the others have read it
        if is_first:
            run_log = files.open_log(saved, _facts_of_run(plan, settings), log)
        else:
            run_log = RunLog()  # writes nothing
        stack.callback(run_log.close)

        # Train, once for each learning rate; the best result is kept.
        first_model = _build_model(prepared)
        report_all_cut(first_model, (opened.train_set, opened.val_set), log)
        context = TrainingContext(log, run_log, Checkpointing(state, settings.save_every), team, signals=signals)
        with team.exchanging():
            make_start = _start_maker(first_model, prepared, team)
            trained = train_each(make_start, prepared.options, context, saved)
            if settings.shard:
                trained.run.unshard()
        run_log.event("end", lr=trained.lr, kept_epoch=trained.outcome["kept_epoch"])

        # Write the models.
        if not is_first:
            return Outcome({}, silent=True)
        digests = write_all(outputs, opened, prepared.decisive, trained)
        state.remove()

    # Warn of what is odd about the course of the training.
    doubts_of_course = course_doubts(trained.outcome, opened.val_set, _classes_of_loss(prepared))
    for doubt in doubts_of_course:
        log.warn(doubt)
    plan = plan.model_copy(update={"warnings": [*plan.warnings, *doubts_of_course]})
    answer = _answer_of_training(trained, plan, digests)
    return Outcome(answer.to_dict(), files=list(files.paths))


# --- options ----------------------------------------------------------------------------------------------------------


def train_options(settings: FinetuneSettings) -> TrainOptions:
    """Return the options of the command as those of a training.

    Most options are copied from the setting of the same name. Only those that differ in name or form are given here.
    """
    # What an ensemble method changes: the model (by an adapter), the course of the training, whether members are
    # trained together, or the weights of classes. None means no change.
    adapter = None
    course = None
    together = None
    class_weights = None
    if settings.ensemble is not None:
        adapter = settings.ensemble.adapter()
        course = settings.ensemble.course()
        together = settings.ensemble.together()
        class_weights = settings.ensemble.class_weights(settings.seed)
    names_of_new_head = None
    if settings.new_head:
        class_names = model_options(settings).labels
        if class_names:
            names_of_new_head = tuple(class_names)

    # Fill the groups of options from the settings.
    data = settings.fill(TrainingDataOptions, train=settings.train, augment=tuple(settings.augment))
    weights = settings.fill(
        WeightOptions,
        labels=names_of_new_head,
        freeze=tuple(settings.freeze),
        lenient="freeze" in settings.from_recipe,
        adapter=adapter,
    )
    optimizer = settings.fill(OptimizerOptions, name=settings.optimizer, betas=tuple(settings.betas))
    schedule = ScheduleOptions(shape=settings.schedule, warmup=settings.warmup, floor=settings.lr_floor)
    return settings.fill(
        TrainOptions,
        data=data,
        lr=tuple(settings.lr),
        epochs=settings.epochs or 0,
        weights=weights,
        optimizer=optimizer,
        schedule=schedule,
        course=course,
        loss=settings.fill(LossOptions, name=settings.loss, class_weights=class_weights),
        together=together,
    )


# --- the model --------------------------------------------------------------------------------------------------------


def _build_model(prepared: Prepared) -> AnyModel:
    """Return the model to train; members that are trained together are built as one model."""
    opened = prepared.opened
    options = prepared.options
    sources = opened.members or (opened.source,)
    models = [_build_member(prepared, source) for source in sources]
    if options.together is None:
        return models[0]
    return options.together.model(models, opened.source, options.seed)


def _build_member(prepared: Prepared, source: Source) -> HydraModel:
    """Return one model on its device: with dropout and adapters, and compiled and sharded, as the settings say."""
    settings = prepared.settings
    options = prepared.options
    source_with_dropout = with_dropout(source, settings.dropout)
    device = resolve_device(local_device(settings.device))
    device_to_build_on = str(device)
    if settings.shard:
        device_to_build_on = "cpu"  # the whole model need not fit on one device
    model = build_model(source_with_dropout, device_to_build_on, settings.dtype)
    adapt(model, options.weights, options.seed)
    speed_up(model, checkpoint_blocks=settings.checkpoint_blocks, compile=settings.compile)
    if settings.shard:
        shard(model, device)
    return model


def _start_maker(first: AnyModel, prepared: Prepared, team: Processes) -> Callable[[], tuple[AnyModel, TrainingData]]:
    """Return a function that returns the model and the data a training starts from; each learning rate calls it once.

    Args:
        first: the model that the first call returns. Each later call builds a new model.
        prepared: everything that was checked before.
        team: the processes that share the data. The data are prepared once, for the first model; all calls return them.
    """
    opened = prepared.opened
    data = training_data(first, opened.train_set, opened.val_set, prepared.options, team)
    not_used_yet = [first]

    def make_start() -> tuple[AnyModel, TrainingData]:
        if not_used_yet:
            return not_used_yet.pop(), data
        return _build_model(prepared), data

    return make_start


# --- the run ----------------------------------------------------------------------------------------------------------


def _environment(settings: FinetuneSettings, team: Processes) -> dict[str, int | str | bool | None]:
    """Return what may change the rounding of a training, and so its weights by a little: versions, threads, devices."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "hydractl": __version__,
        "device": resolve_device(local_device(settings.device)).type,
        "processes": team.size,
        "compile": settings.compile,
        "shard": settings.shard,
    }


def _facts_of_run(plan: TrainingPlan, settings: FinetuneSettings) -> dict[str, object]:
    """Return the header of the training log: the model, the size of the training, and the settings in effect."""
    values = {name: setting.value for name, setting in recipe_in_effect(settings).items()}
    return {
        "model": plan.model,
        "samples": plan.samples,
        "steps": plan.steps,
        "seed": settings.seed,
        "settings": values,
    }


def _classes_of_loss(prepared: Prepared) -> int | None:
    """Return the number of classes if the loss is the cross-entropy of one model, else None."""
    options = prepared.options
    if options.loss.name == "contrastive" or options.together is not None:
        return None
    return prepared.opened.source.classes


# --- the answer -------------------------------------------------------------------------------------------------------


def _answer_of_training(trained: Trained, plan: TrainingPlan, digests: Sequence[str]) -> FinetuneAnswer:
    """Return the answer of a training that has just ended.

    Args:
        trained: the trained model and its history.
        plan: the plan of the training.
        digests: SHA-256 of each weight file that was written; the answer names the last.
    """
    outcome = trained.outcome
    trained_params = sum(parameter.numel() for parameter in trained.run.parameters.values())
    return FinetuneAnswer(
        **dict(_with_digests(plan, digests)),
        epochs=[EpochRecord.model_validate(epoch) for epoch in outcome["epochs"]],
        kept_epoch=outcome["kept_epoch"],
        stopped_early=outcome["stopped_early"],
        lr=trained.lr,
        trained_params=trained_params,
        grid=_trials(trained.grid),
        loss_curve=outcome["loss_curve"],
        sha256=digests[-1],
    )


def _answer_of_finished(files: RunFiles, earlier: FinishedTraining, plan: TrainingPlan) -> FinetuneAnswer:
    """Return the answer of a training that was finished before this command.

    Args:
        files: the files that the training wrote.
        earlier: the record of the training that its output file holds.
        plan: the plan of the training.
    """
    digests = [sha256_file(path) for path in files.weights()]
    return FinetuneAnswer(
        **dict(_with_digests(plan, digests)),
        epochs=[EpochRecord.model_validate(epoch) for epoch in earlier.history],
        kept_epoch=earlier.kept_epoch,
        stopped_early=earlier.stopped_early,
        lr=earlier.lr,
        grid=_trials(earlier.grid),
        sha256=digests[-1],
    )


def _with_digests(plan: TrainingPlan, digests: Sequence[str]) -> TrainingPlan:
    """Return the plan with the digest of each file if there are several files; a plan of one file unchanged."""
    if plan.files is None:
        return plan
    files = []
    for file, digest in zip(plan.files, digests, strict=True):
        files.append(file.model_copy(update={"sha256": digest}))
    return plan.model_copy(update={"files": files})


def _trials(grid: Sequence[CandidateResult]) -> list[LearningRateTrial] | None:
    """Return what each learning rate reached if several were tried, else None."""
    if not grid:
        return None
    return [LearningRateTrial.model_validate(trial) for trial in grid]
