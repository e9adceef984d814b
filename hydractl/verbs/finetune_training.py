"""One training: a dense or pruned model on labelled data; the output has the format of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from hydractl.data.base import one_class_warning
from hydractl.data.overlap import left_out_words
from hydractl.data.plausibility import sample_warnings
from hydractl.distributed import Processes, local_device
from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, check_outputs, seed_mark
from hydractl.files.checkpoint import sha256_file
from hydractl.files.verb_answers import FinetuneAnswer, TrainedFile, TrainingPlan
from hydractl.files.version import __version__
from hydractl.log import Log
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.matching import asked_classes, label_differences, only_one, sites_of
from hydractl.model.source import open_sources
from hydractl.training.checkpointing import Interruptions, StateFile, refuse_unfinished
from hydractl.training.data import report_all_cut, training_data
from hydractl.training.grid import train_each
from hydractl.training.loop import TrainingContext
from hydractl.training.members import AnyModel
from hydractl.training.outputs import RunFiles, finished, write_all
from hydractl.training.plausibility import warnings_of_course
from hydractl.training.run_log import RunLog
from hydractl.training.start import Opened, adapt, open_all, speed_up, with_dropout
from hydractl.verbs.finetune_request import TrainingRequest
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome

_NOT_DECISIVE = (
    *("compile", "checkpoint_blocks"),  # the result is the same, to rounding
    *("max_length", "tower"),  # the provenance has their values once the model is known
)
"""Options that a recipe may decide, and that do not decide the trained weights."""


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
        facts: dict[str, object] = {}
        for name, option in request.recipe.items():
            if name not in _NOT_DECISIVE:
                facts[name] = option.value
        if request.ensemble is not None:
            facts["ensemble"] = request.ensemble.to_json()
        if len(request.lr) == 1:
            facts["lr"] = request.lr[0]

        # What the settings mean for this model: "drawn" are the tensors of a new classifier with random values.
        drawn_tensors = list(self.drawn)
        names_of_new_head = list(request.labels or ())
        facts["max_length"] = source.description.preprocess.get("max_length")
        facts["drawn"] = drawn_tensors or None
        facts["labels"] = names_of_new_head or None
        # For a zero-shot model this overrides "labels" by the class names it was given, and adds "prompt"; it adds
        # "tower" (the encoder of images or of texts) if one was chosen.
        facts.update(asked_classes(source, request.tower))

        # The data.
        val_set = self.val_set
        facts["train"] = self.train_set.fingerprint()
        facts["val"] = val_set.fingerprint() if val_set is not None else None
        return facts

    @property
    def fingerprint(self) -> dict[str, object]:
        """Return the record that identifies this training: model, seed and :attr:`decisive`.

        Unfinished runs and finished outputs with the same record belong to this training. Computing it hashes the
        model.
        """
        fingerprint: dict[str, object] = {"model": self.source.sha256, "seed": self.request.seed}
        fingerprint.update(self.decisive)
        return fingerprint


def train_one_model(request: TrainingRequest, log: Log, team: Processes, signals: Interruptions) -> Outcome:
    """Return the answer of training one model, in this process or in all of a team; its files are written, too.

    In a team only the answer of the first process (rank 0) is shown; the others return a silent one.

    ======================================  ====================================
    dry run                                 what would be done; nothing is trained
    ``--resume``, and finished before       the answer of that training
    ``--resume``, and begun before          trained from where it stopped
    else                                    trained from the beginning
    ======================================  ====================================
    """
    prepared = prepare(request, log)
    paths = prepared.request.files.paths
    log.warn_all(sample_warnings(prepared.train_set, in_passing=request.dry_run))
    if prepared.val_set is not None:
        log.warn_all(sample_warnings(prepared.val_set, in_passing=request.dry_run))
    is_first = team.rank == 0

    # Check the outputs early. With --resume they may be there, and are looked at below.
    if is_first and not request.resume:
        check_files(prepared.request)

    # A dry run also checks that an unfinished run, if there is one, is this training.
    if request.dry_run:
        if not is_first:
            return Outcome(FinetuneAnswer.partly(), silent=True)
        if request.resume and prepared.request.files.state.exists():
            check_unfinished(prepared, log)
        plan = FinetuneAnswer.planned(**dict(prepared.plan), recipe=request.recipe, warnings=log.warnings)
        return Outcome(plan)

    announce_reading([prepared.source], log)
    if request.resume:
        answer = answer_of_finished(prepared, log)
        if answer is not None:
            names = " ".join(map(str, paths))
            log.info(f"the training of {names} is finished: nothing to do")
            return Outcome(answer, files=list(paths), silent=not is_first)
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


def check_unfinished(prepared: Prepared, log: Log) -> None:
    """Check that the unfinished run of a training to be resumed is its own; a dry run says how far it is.

    Raises:
        InputError: the file is of another kind, or belongs to another run; all differences are listed.
    """
    state = prepared.request.files.state
    header = StateFile(state, prepared.fingerprint, {}).header()
    if prepared.request.dry_run:
        log.info(f"would go on with the run in {state}, at step {header['progress'].get('steps', 0)}")


def prepare(request: TrainingRequest, log: Log) -> Prepared:
    """Return the opened model and data of a training, checked, with the plan of what will be trained and written.

    What is odd about them is logged.

    Raises:
        UsageError: the model or the settings do not allow a training.
        InputError: training and validation data have different classes.
    """
    # The model, as far as its file tells.
    sources = open_sources(request.models, request.opening)
    source = only_one(sources, "finetune")
    sites_of(source, request.tower)  # raises UsageError for a tower that the model does not have
    if request.dtype not in ("float32", "float64"):
        hint = "computing in bfloat16 is --autocast bfloat16"
        raise UsageError(f"finetune trains in float32, not {request.dtype}", hint=hint)

    # The files.
    output = request.output or f"{source.name}.tuned{seed_mark(request.seed)}.st"
    request = replace(request, output=output)
    request.files  # noqa: B018 - raises UsageError for a log that is another file of this training

    # Open the model and its data.
    request = request.with_method()
    opened = open_all(source, request)
    if opened.drawn:
        drawn = ", ".join(opened.drawn)
        log.info(f"{source.name} has no classifier; drawn by --seed {request.seed}: {drawn}")

    # What is odd about the classes of the data, and how many validation samples were left out.
    train_set = opened.train_set
    val_set = opened.val_set
    log.warn_all([one_class_warning(train_set)])
    if val_set is not None:
        log.warn_all([one_class_warning(val_set)])
        differences = label_differences(train_set.label_names, val_set.label_names)
        if differences:
            raise InputError(f"--val against the training set: {'; '.join(differences)}")
        if opened.left_out:
            log.info(left_out_words(val_set, opened.left_out))
    return Prepared(**vars(opened), request=request, plan=_plan_training(opened, request, log))


def files_of_members(files: RunFiles) -> list[TrainedFile] | None:
    """Return the output files of one training with the number of the member in each; None if it writes one model."""
    if len(files.paths) == 1:
        return None
    return [TrainedFile(output=str(path), member=number) for number, path in enumerate(files.paths, start=1)]


def _plan_training(opened: Opened, request: TrainingRequest, log: Log) -> TrainingPlan:
    """Return what will be trained and written; log the number of steps, each of which takes about 3 forward passes."""
    source = opened.source
    samples = len(opened.train_set)
    steps = request.total_steps(samples)
    request.begin_course(samples)  # raises an error if there are too few steps
    plan = TrainingPlan(
        output=str(request.files.paths[-1]),
        model=source.name,
        samples=samples,
        steps=steps,
        cost=cost_of(source.description, source.tensors),
        files=files_of_members(request.files),
        val_left_out=opened.left_out or None,
    )

    things = "pairs" if request.loss == "contrastive" else "samples"
    log.info(f"{steps} steps of {request.per_step} {things}")
    return plan


def _train_and_write(prepared: Prepared, log: Log, team: Processes, signals: Interruptions) -> Outcome:
    """Return the answer of a training that was checked before; train, and write the models.

    While it runs, a state file holds how far it is; it is removed at the end. In a team, only the first process writes.

    Args:
        prepared: everything that was checked before.
        log: receives progress and warnings.
        team: the processes that train together.
        signals: notes a signal to stop.
    """
    plan = prepared.plan
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
                output = Output(path, force=may_replace, folder=files.folder)
                outputs.append(stack.enter_context(output))
            saved = state.begin(log, resume=request.resume, force=request.force)
        elif is_resumed:
            saved = state.load(Log())  # every process needs what was saved; only the first says so
        team.gather(None)  # wait for all: the first process must not save over the state before the others have read it

        # The log of the run, a file of the first process. A resumed run goes on behind what it had written by then.
        run_log = RunLog()  # writes nothing
        if is_first:
            position = 0 if saved is None else saved.progress["log"]
            run_log = RunLog(log, files.log, position)
            facts = {
                "model": plan.model,
                "samples": plan.samples,
                "steps": plan.steps,
                "seed": request.seed,
                "settings": {name: setting.value for name, setting in request.recipe.items()},
            }
            run_log.begin(facts, resumed=saved is not None)
        stack.callback(run_log.close)

        # Train, once for each learning rate; the best result is kept.
        model = _build_model(prepared)
        report_all_cut(model, (prepared.train_set, prepared.val_set), log)
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
    answer = _answer(plan, results, digests, log)
    return Outcome(answer, files=list(files.paths))


# --- the model --------------------------------------------------------------------------------------------------------


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


# --- the answer -------------------------------------------------------------------------------------------------------


def answer_of_finished(prepared: Prepared, log: Log) -> FinetuneAnswer | None:
    """Return the answer of a training that was finished before this command; None if it is still to be done.

    A finished training has removed its state file and left its output files, whose headers hold its settings and what
    came of it.

    Raises:
        InputError: an output belongs to another training; all differences are listed.
    """
    files = prepared.request.files
    if files.state.exists() or not files.weights():
        return None
    settings = finished(files, prepared.fingerprint, force=prepared.request.force)
    if settings is None:
        return None
    results = {
        "epochs": settings["history"],
        "kept_epoch": settings.get("kept_epoch"),
        "stopped_early": settings.get("stopped_early"),
        "lr": settings["lr"],
        "grid": settings.get("grid"),
    }
    digests = [sha256_file(path) for path in files.weights()]
    return _answer(prepared.plan, results, digests, log)


def _answer(plan: TrainingPlan, results: Mapping[str, object], digests: Sequence[str], log: Log) -> FinetuneAnswer:
    """Return the answer of a training.

    Args:
        plan: the plan of the training.
        results: by field what came of it.
        digests: SHA-256 of each weight file; the answer names the last.
        log: has the warnings of the command.
    """
    # The files of several members, each with its digest; None for one file, whose digest is in the answer itself.
    files = None
    if plan.files_ is not None:
        files = []
        for file, digest in zip(plan.files_, digests, strict=True):
            files.append(file.model_copy(update={"sha256": digest}))
    facts = {**dict(plan), **results, "files_": files, "sha256": digests[-1], "warnings": log.warnings}
    return FinetuneAnswer.model_validate(facts)
