"""``hydractl finetune``: train a model, or several: members of one model by seed, or several models, in turn."""

from __future__ import annotations

import gc
import random
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
import torch

from hydractl.distributed import alone, processes, restarted
from hydractl.errors import HydraError, Interrupted, OutputError, UsageError, failure_of
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
from hydractl.verbs.finetune_request import TrainingRequest
from hydractl.verbs.finetune_training import (
    answer_of_finished,
    check_files,
    check_unfinished,
    files_of_members,
    prepare,
    train_one_model,
)
from hydractl.verbs.opening import opening_options
from hydractl.verbs.outcome import Outcome


def run(call: Call, of_recipe: Iterable[Option]) -> Outcome:
    """Return the answer of training one model or several, as the options say; the trained models are written.

    Args:
        call: the options.
        of_recipe: the options that a recipe (a set of defaults) may decide; the answer says the value of each, and
            where it comes from.
    """
    values = call.values
    method: MethodOptions | None = values["ensemble"]
    # The names of --labels are those of a new classifier, and not of the model that is opened.
    opening = opening_options(values, bodies=method is None or method.trains)
    names_of_new_head = None
    if values["reset_head"] or values["init"] == "head":
        names_of_new_head = tuple(opening.labels or ()) or None
        opening = replace(opening, labels=None)

    # Of the options that a recipe may decide, the value and where it comes from.
    in_effect = {}
    for option in of_recipe:
        value = values[option.name]
        value = str(value) if isinstance(value, MethodOptions) else value
        in_effect[option.name] = RecipeSetting(value=value, source=call.sources[option.name])
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
    """Return the answer of one of three engines, by what is asked for:

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
    """The log of one of several trainings, whose lines begin with its name."""

    def __init__(self, log: Log, name: str) -> None:
        super().__init__(log)
        self._name = name

    def info(self, message: str) -> None:
        self._log.info(f"{self._name}: {message}")

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        if message not in self._log.warnings:  # the check of all trainings has said it
            self._log.warn(f"{self._name}: {message}")


def _train_members(request: TrainingRequest, log: Log) -> Outcome:
    """Return the answers of several trainings, made one after another, each as the command for it alone would.

    A member (one of the models that are trained) that fails does not stop the others; the errors are raised together at
    the end. Members that were finished before are not trained.

    Args:
        request: what the command asks for, all trainings together.
        log: receives the lines of all trainings.

    Raises:
        HydraError: before anything has begun, if one training cannot be done; at the end, if a member has failed.
        Interrupted: a signal has stopped a training, which has saved.
    """
    if not alone():
        hint = "start it without torchrun, or start torchrun for each member, with a --seed of its own"
        raise UsageError("torchrun shares one training among processes, not several", hint=hint)
    device = resolve_device(request.device)

    # Check every training before the first begins.
    members = members_of(request)
    answers, planned = _check_members(members, log)
    if request.dry_run:
        recipe = members[0].recipe
        return Outcome(FinetunesAnswer.planned(members=planned, recipe=recipe, warnings=log.warnings))

    # Train the members that were not finished before ("answers" holds those that were). A signal to stop
    # raises Interrupted with what to do next; any other error is kept until all members are done.
    for name in answers:
        log.info(f"{name}: finished before, nothing to do")
    failures: dict[str, Exception] = {}
    with Interruptions() as signals, log.progress("members", len(members), "members") as progress:
        progress.advance(len(answers))
        for member in members:
            if member.name in answers:
                continue
            done = f"{len(answers)} of {len(members)} members are finished"
            how_to_go_on = f"add --resume to the same command to go on; {done}"
            if signals.requested:
                raise Interrupted(how_to_go_on)
            try:
                with _as_if_alone(device), processes(member.timeout, nccl=True) as team:
                    outcome = train_one_model(member, _OfMember(log, member.name), team, signals)
                answers[member.name] = cast(FinetuneAnswer, outcome.result)
            except Interrupted as interruption:
                saved = interruption.hint.rpartition("; ")[2]  # of "add --resume ...; a.st.state has step 5 of 10"
                raise Interrupted(f"{how_to_go_on}; {saved}") from None
            except Exception as error:  # whatever it is, it is no reason to lose the other members
                _forget_variables(error)
                failures[member.name] = error
                log.warn(f"{member.name} failed: {failure_of(error).message}")
            finally:
                _free_memory(request)
            progress.advance(1, member.name)
    if failures:
        _raise_failures(members, failures)

    # The answers, in the order of the members.
    trained = []
    files: list[Path] = []
    for member in members:
        training = answers[member.name]
        trained.append(TrainedMember(name=member.name, seed=member.seed, **dict(training)))
        files += member.files.paths
    answer_of_all = FinetunesAnswer(members=trained, warnings=log.warnings)
    return Outcome(answer_of_all, files=files)


@contextmanager
def _as_if_alone(device: torch.device) -> Iterator[None]:
    """Leave the random generators of Python, NumPy and torch as they were, so that every member finds the same."""
    cuda_devices = [device] if device.type == "cuda" else []
    state_of_python = random.getstate()
    state_of_numpy = np.random.get_state()
    with torch.random.fork_rng(devices=cuda_devices):
        try:
            yield
        finally:
            random.setstate(state_of_python)
            np.random.set_state(state_of_numpy)


def _forget_variables(error: BaseException | None) -> None:
    """Free what the frames of a kept error hold, such as a model; its traceback still names the lines."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _free_memory(request: TrainingRequest) -> None:
    """Free the model, the optimizer and the data of a member before the next, and what torch has compiled for it."""
    if request.compile:
        torch.compiler.reset()  # after a few models of one class it would compile no more of them
    gc.collect()
    torch.cuda.empty_cache()


# --- before -----------------------------------------------------------------------------------------------------------


def members_of(request: TrainingRequest) -> list[TrainingRequest]:
    """Return one training for each model and seed: ``request.trainings`` members of each model, with consecutive seeds.

    Of two models a and b with two trainings each they write a.tuned.0.st, a.tuned.1.st, b.tuned.0.st and b.tuned.1.st.

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

    members = []
    for model, output in zip(request.models, outputs, strict=True):
        for index in range(request.trainings):
            path = numbered(output, index) if request.trainings > 1 else output
            members.append(request.of_member(model, path, index))

    # The name of a member is that of its file, which no other member may have.
    times = Counter(member.name for member in members)
    repeated = sorted(name for name in times if times[name] > 1)
    if repeated:
        names = ", ".join(repeated)
        raise UsageError(f"several trainings would write {names}", hint="give MODELs with different file names")
    return members


def _check_members(
    members: Sequence[TrainingRequest], log: Log
) -> tuple[dict[str, FinetuneAnswer], list[TrainedMember]]:
    """Return the answers of the trainings that were finished before, by name, and all of them as a dry run shows them.

    Every training is checked before the first begins.

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
        is_begun = files.state.exists()
        is_new = not member.resume or not (is_begun or files.weights())

        # New members of one model differ only in their seeds and files, so only the first of them is checked.
        if is_new and model in plan_of_model:
            update = {"output": str(files.paths[-1]), "files_": files_of_members(files)}
            plan = plan_of_model[model].model_copy(update=update)
        else:
            log_of_check = Log() if plan_of_model else log
            prepared = prepare(member, log_of_check)
            plan = plan_of_model[model] = prepared.plan

            # With --resume, compare the training with what the files say: an unfinished run of it, or its outputs.
            # answer_of_finished() returns None if it is still to be done.
            if not is_new and is_begun:
                check_unfinished(prepared, log)
            earlier = None if is_new else answer_of_finished(prepared, log_of_check)
            if earlier is not None:
                finished_before[member.name] = earlier
        is_finished = True if member.name in finished_before else None  # None is left out of the answer
        name_and_seed = {"name": member.name, "seed": member.seed}
        planned.append(TrainedMember.partly(**name_and_seed, **dict(plan), finished=is_finished))

    # Check that the outputs of each can be written and that no unfinished run is in the way. One error is raised as it
    # is, several as a list.
    errors: list[HydraError] = []
    for member in members:
        try:
            if member.name not in finished_before:
                check_files(member)
        except HydraError as error:
            errors.append(error)
    if len(errors) > 1:
        problems = [error.message for error in errors]
        raise OutputError(f"{len(errors)} outputs are in the way", hint=errors[0].hint, problems=problems)
    if errors:
        raise errors[0]
    return finished_before, planned


# --- members that are not trained -------------------------------------------------------------------------------------


def _raise_failures(members: Sequence[TrainingRequest], failures: Mapping[str, Exception]) -> NoReturn:
    """Raise an error that lists what all members failed of, with the hint and the exit code of the first.

    Raises:
        HydraError: always; its cause is the error of the first.
    """
    problems = []
    for name, error in failures.items():
        failure = failure_of(error)
        problems += [f"{name}: {problem}" for problem in (failure.message, *failure.problems)]
    first_error = next(iter(failures.values()))
    first = failure_of(first_error)
    summary = f"{len(failures)} of {len(members)} members failed; the others are finished"
    error_of_all = HydraError(summary, first.hint, problems)
    error_of_all.exit_code = first.exit_code
    raise error_of_all from first_error
