"""``hydractl finetune``: train a model, or several: members of one model by seed, or several models, in turn."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch

from hydractl.distributed import Processes, alone, processes, restarted
from hydractl.errors import HydraError, Interrupted, UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.atomic import seed_mark
from hydractl.files.verb_answers import FinetuneAnswer, FinetunesAnswer, RecipeSetting, TrainedMember, TrainingPlan
from hydractl.log import Log, PassedOn, SayOnce
from hydractl.methods import MethodOptions
from hydractl.methods.laplace import LaplaceOptions
from hydractl.model.loading import resolve_device
from hydractl.model.source import open_sources
from hydractl.options.call import Call, filled
from hydractl.options.option import Option
from hydractl.options.sources import RECIPE
from hydractl.training.checkpointing import Interruptions
from hydractl.training.course import ScheduleOptions
from hydractl.training.outputs import numbered
from hydractl.verbs.finetune_posterior import fit_posterior
from hydractl.verbs.finetune_training import (
    TrainingRequest,
    check_files,
    earlier_answer,
    files_of_members,
    prepare,
    train_one_model,
)
from hydractl.verbs.opening import opening_options
from hydractl.verbs.outcome import Outcome


def run(call: Call, of_recipe: Iterable[Option]) -> Outcome:
    """Return the answer of training one model or several, as the options say; the trained models are written.

    Args:
        call: the options: their values, and where each value comes from (the command, a recipe, ...).
        of_recipe: the options that a recipe (a set of defaults) may decide; the answer says the value of each, and
            where it comes from.
    """
    values = call.values
    method: MethodOptions | None = values["ensemble"]

    # How the model is opened. If it gets a new classifier, --labels names the classes of that one, and not those of the
    # model that is opened.
    opening = opening_options(values, bodies=method is None or method.trains)
    names_of_new_head = None
    if values["reset_head"] or values["init"] == "head":
        names_of_new_head = tuple(opening.labels or ()) or None
        opening = replace(opening, labels=None)

    # Of the options that a recipe may decide, the value as JSON and where it comes from.
    in_effect = {}
    for option in of_recipe:
        value = values[option.name]
        as_json = str(value) if isinstance(value, MethodOptions) else value
        in_effect[option.name] = RecipeSetting(value=as_json, source=call.sources[option.name])

    # `filled` takes all other fields of the record from the options of the same names.
    request = filled(
        TrainingRequest,
        values,
        models=values["model"],
        opening=opening,
        lr=tuple(values["lr"]),
        epochs=values["epochs"] or 0,
        labels=names_of_new_head,
        lenient=call.rank("freeze") == RECIPE,
        betas=tuple(values["betas"]),
        schedule=filled(ScheduleOptions, values, shape=values["schedule"], floor=values["lr_floor"]),
        recipe=in_effect,
    )
    return train(request, call.log)


def train(request: TrainingRequest, log: Log) -> Outcome:
    """Return the answer of what is asked for, after doing it. The first line that fits counts:

    ==================================  ==========================================================
    ``--ensemble laplace``              nothing is trained: the model gets a posterior
    several models, or several seeds    trained one after another, in this process
    else                                one training, in this process or in those of ``torchrun``
    ==================================  ==========================================================

    Raises:
        UsageError: the options need several processes, or do not fit the way the processes were started.
    """
    # No training, but a posterior of the model.
    if isinstance(request.ensemble, LaplaceOptions):
        return fit_posterior(request, request.ensemble, log)

    # Several trainings, one after another.
    if len(request.models) * request.trainings > 1:
        log_once = SayOnce(log)  # the trainings share their data, and each check would repeat the same sentences
        return _train_members(request, log_once)

    # One training, in this process or in all processes of torchrun.
    if restarted():  # a process failed, and torchrun has started all of them again
        request = replace(request, resume=True)
    names_one_gpu = request.device.startswith("cuda:")
    if names_one_gpu and not alone():
        hint = "--device cuda gives each process its own"
        raise UsageError(f"--device {request.device} is one GPU for all processes", hint=hint)
    with processes(request.timeout, nccl=True) as team:
        return train_one_model(request, team.quieted(log), team, Interruptions())


# --- several trainings ------------------------------------------------------------------------------------------------


class _OfMember(PassedOn):
    """The log of one of several trainings, whose warnings begin with its name."""

    def __init__(self, log: Log, name: str) -> None:
        super().__init__(log)
        self._name = name

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        if message not in self._log.warnings:  # the check of all trainings has said it
            self._log.warn(f"{self._name}: {message}")


def _train_members(request: TrainingRequest, log: Log) -> Outcome:
    """Train several models one after another, and return one answer that lists them all.

    Each is trained as the command for it alone would do. The first that fails ends the command; those that were
    finished stay, and are not trained again with ``--resume``. A dry run only lists what would be trained.

    Args:
        request: what the command asks for, all trainings together.
        log: receives the lines of all trainings.

    Raises:
        HydraError: a training cannot be done, or has failed.
        Interrupted: a signal has stopped a training, which has saved.
    """
    if not alone():
        hint = "start it without torchrun, or start torchrun for each member, with a --seed of its own"
        raise UsageError("torchrun shares one training among processes, not several", hint=hint)
    resolve_device(request.device)  # raises UsageError for a device that is not there

    # Check every training before the first begins. Those that were finished before already have their answers.
    members = members_of(request)
    answers, planned = _check_members(members, log)
    if request.dry_run:
        return Outcome(FinetunesAnswer.planned(members=planned, recipe=members[0].recipe, warnings=log.warnings))

    # Train the other members, and add their answers.
    with Interruptions() as signals, log.progress("members", len(members), "members") as progress:
        for member in members:
            if member.name in answers:
                log.info(f"{member.name}: finished before, nothing to do")
            else:
                done = f"{len(answers)} of {len(members)} members are finished"
                answers[member.name] = _train_member(member, done, log, signals)
            progress.advance(1, member.name)

    # The answers, in the order of the members.
    trained = [TrainedMember(name=member.name, seed=member.seed, **dict(answers[member.name])) for member in members]
    files = [path for member in members for path in member.files.paths]
    return Outcome(FinetunesAnswer(members=trained, warnings=log.warnings), files=files)


def _train_member(member: TrainingRequest, done: str, log: Log, signals: Interruptions) -> FinetuneAnswer:
    """Return the answer of one of several trainings, after making it.

    Args:
        member: the training.
        done: how many trainings are finished, in words for the messages of errors.
        log: receives its lines; the first, and warnings, have the name of the member.
        signals: notes a signal to stop.

    Raises:
        HydraError: the training has failed; the message names the member.
        Interrupted: a signal has stopped it, or came before it began.
    """
    if signals.requested:  # between two trainings
        raise Interrupted(f"add --resume to the same command to go on; {done}")
    log.info(f"training {member.name}: {done}")
    try:
        outcome = train_one_model(member, _OfMember(log, member.name), Processes(), signals)
    except Interrupted as interruption:
        raise Interrupted(f"{interruption.hint}; {done}") from None
    except HydraError as error:
        error.reword(lambda said: f"{member.name}: {said}")
        log.info(f"{done}; --resume goes on with the others")
        raise

    # Free memory before the next training: the model, the optimizer and the data. Also forget what torch has compiled,
    # since after a few models of one class it would compile no more of them.
    if member.compile:
        torch.compiler.reset()
    gc.collect()
    return cast(FinetuneAnswer, outcome.result)


def members_of(request: TrainingRequest) -> list[TrainingRequest]:
    """Return the request of each training: ``request.trainings`` for each model, with consecutive seeds.

    Each is called a member. Of two models a and b with two trainings each, the four members write a.tuned.0.st,
    a.tuned.1.st, b.tuned.0.st and b.tuned.1.st.

    Raises:
        UsageError: two members would write the same file.
        InputError: a model cannot be opened.
    """
    # --output is a file for one model, and the folder for several. Without it, the outputs have the names that the
    # command for each model alone would give them.
    if request.output is not None and len(request.models) == 1:
        outputs = [request.output]
    else:
        ending = f"tuned{seed_mark(request.seed)}.st"
        sources = open_sources(request.models, request.opening)
        outputs = [f"{request.output or ''}{source.name}.{ending}" for source in sources]

    members: dict[str, TrainingRequest] = {}  # by name, which is that of the file
    for model, output in zip(request.models, outputs, strict=True):
        for index in range(request.trainings):
            path = numbered(output, index) if request.trainings > 1 else output
            member = request.of_member(model, path, index)
            if member.name in members:
                hint = "give MODELs with different file names"
                raise UsageError(f"several trainings would write {member.name}", hint=hint)
            members[member.name] = member
    return list(members.values())


def _check_members(
    members: Sequence[TrainingRequest], log: Log
) -> tuple[dict[str, FinetuneAnswer], list[TrainedMember]]:
    """Check several trainings before the first begins, and return what was finished before, and the plan of all.

    Returns:
        The answers of the trainings that an earlier command finished, by name; empty without ``--resume``.
        All trainings as a dry run shows them.

    Args:
        members: the trainings.
        log: receives what the first check says. The other checks are silent, since they would repeat it.

    Raises:
        HydraError: a training, an unfinished one to be resumed, or an output file is not as it should be.
    """
    finished_before: dict[str, FinetuneAnswer] = {}
    planned: list[TrainedMember] = []
    plan_of_model: dict[ModelRef, TrainingPlan] = {}
    for member in members:
        files = member.files
        model = member.models[0]
        is_begun = files.state.exists() or bool(files.weights())

        # Members of one model differ only in their seeds and files, so only the first of them is checked; others get
        # its plan with files of their own. But with --resume, each that was begun is compared with its files.
        answer = None
        if model in plan_of_model and not (member.resume and is_begun):
            update = {"output": str(files.paths[-1]), "files_": files_of_members(files)}
            plan = plan_of_model[model].model_copy(update=update)
        else:
            prepared = prepare(member, Log() if plan_of_model else log)
            plan = plan_of_model[model] = prepared.plan
            answer = earlier_answer(prepared, log)
        if answer is None:
            check_files(member)  # raises an error for a file that is in the way
        else:
            finished_before[member.name] = answer
        is_finished = None if answer is None else True  # None is left out of the answer
        planned.append(TrainedMember.partly(name=member.name, seed=member.seed, **dict(plan), finished=is_finished))
    return finished_before, planned
