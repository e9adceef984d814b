"""Several trainings of one command, each in a process of its own: members of one model by seed, or several models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl.distributed import alone
from hydractl.errors import HydraError, InputError, Interrupted, OutputError, UsageError
from hydractl.files.atomic import check_outputs
from hydractl.files.verb_answers import (
    FinetuneAnswer,
    FinetunesAnswer,
    PlannedMember,
    PlannedTrainings,
    RecipeSetting,
    TrainedMember,
    TrainingPlan,
)
from hydractl.log import Log
from hydractl.model.source import open_sources
from hydractl.settings.finetuning import FinetuneSettings
from hydractl.settings.sources import to_argv
from hydractl.training.checkpointing import Interruptions, StateFile, refuse_unfinished
from hydractl.training.outputs import FinishedTraining, RunFiles, finished, numbered, stem
from hydractl.verbs.children import Ended
from hydractl.verbs.jobs import check_devices_or_slurm, run_side_by_side, threads_each
from hydractl.verbs.opening import start_options
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.finetunes/2"

_REPLACED = (
    "output",
    "seed",
    "device",
    "devices",
    "slurm",
    "ensemble",
    "json",
    "config",
    "dry_run",
    "quiet",
    "verbose",
)
"""Options that are not copied from the command to that of a single training: it gets its own value, or none."""

Check = Callable[[FinetuneSettings, Log], tuple[TrainingPlan, Callable[[], dict[str, object]]]]
"""Checks one training without beginning it; returns its plan, and a function that returns its fingerprint."""
Finished = Callable[[RunFiles, FinishedTraining, TrainingPlan], FinetuneAnswer]
"""Returns the answer of a training that was finished before, from its files, the record in its output and its plan."""


@dataclass(frozen=True)
class Member:
    """One of several trainings.

    Attributes:
        name: the name of its output file, without the ending.
        settings: the options of this training alone.
        files: the paths that it writes to.
    """

    name: str
    settings: FinetuneSettings
    files: RunFiles

    def argv(self, device: str) -> list[str]:
        """Return the command line, without ``hydractl``, that trains this member on ``device``."""
        settings = self.settings
        arguments = ["finetune"]
        arguments += to_argv(settings, _REPLACED)
        arguments.append(f"--output={settings.output}")
        arguments.append(f"--seed={settings.seed}")
        arguments.append(f"--device={device}")
        if settings.ensemble is not None:
            arguments.append(f"--ensemble={settings.ensemble}")
        arguments.append("--json")
        if settings.quiet:
            arguments.append("--quiet")
        elif settings.verbose:
            arguments.append("--verbose")
        return [*arguments, "--", *settings.model]


def train_members(settings: FinetuneSettings, log: Log, check: Check, answer: Finished) -> Outcome:
    """Train each member in a process of its own, several at a time if there are several ``--devices``.

    Each process runs the command that would train the member alone. Members that were finished before are not trained.

    Args:
        settings: the options of the command, for all trainings together.
        log: receives the lines of all trainings.
        check: checks one training before any has begun.
        answer: returns the answer of a training that was finished before.

    Raises:
        HydraError: before anything has begun, if one training cannot be done; at the end, if a member has failed.
        Interrupted: a signal has stopped the trainings; all have saved.
    """
    if not alone():
        hint = "start it without torchrun: --devices 0,1,2 trains one on each"
        raise UsageError("torchrun shares one training among processes, not several", hint=hint)
    check_devices_or_slurm(settings.places, settings.slurm)

    # Check every training before the first process is started.
    members = members_of(settings)
    finished_before, plans = _check_members(members, log, check, answer)
    devices = settings.places[: len(members)]
    if settings.dry_run:
        devices_to_show = devices
        if settings.slurm:
            devices_to_show = ["slurm"]
        return _dry_run(members, plans, finished_before, devices_to_show)

    # Train the members that were not finished before.
    for name in finished_before:
        log.info(f"{name}: finished before, nothing to do")
    commands = {}
    for member in members:
        if member.name not in finished_before:
            commands[member.name] = member.argv
    folder = members[0].files.paths[0].parent
    with Interruptions() as signals:
        ended = run_side_by_side(commands, devices, settings.slurm, folder, log, signals)
    _raise_failures(members, ended, finished_before, interrupted=signals.requested)

    # Gather the answers, in the order of the members.
    answers = dict(finished_before)
    for name, command in ended.items():
        answers[name] = _answer_of_process(name, command)
    trained = []
    files: list[Path] = []
    for member in members:
        training = answers[member.name]
        trained.append(TrainedMember(name=member.name, seed=member.settings.seed, training=training))
        files += member.files.paths
    answer_of_all = FinetunesAnswer(schema=SCHEMA, members=trained)
    return Outcome(answer_of_all.to_json(), files=files)


def on_first_device(settings: FinetuneSettings) -> FinetuneSettings:
    """Return the settings of a single training with the first of its ``--devices`` as its device.

    Raises:
        UsageError: under ``torchrun``, which gives each process a device of its own.
    """
    if not alone():
        raise UsageError("--devices is for several trainings, not for torchrun", hint="give --device cuda or cpu")
    return replace(settings, device=settings.places[0], devices=[])


# --- before -----------------------------------------------------------------------------------------------------------


def members_of(settings: FinetuneSettings) -> list[Member]:
    """Return one member for each model and seed: ``settings.trainings`` members of each model, with consecutive seeds.

    Raises:
        UsageError: two members would write the same file.
        InputError: a model cannot be opened.
    """
    ensemble = None
    if settings.ensemble is not None:
        ensemble = settings.ensemble.of_one_training()
    members = []
    for model, output in zip(settings.model, _outputs(settings), strict=True):
        for index in range(settings.trainings):
            path = output
            if settings.trainings > 1:
                path = numbered(output, index)
            settings_of_member = replace(
                settings,
                output=path,
                seed=settings.seed + index,
                ensemble=ensemble,
                devices=[],
                slurm=[],
                model=[model],
            )
            files = RunFiles.of_output(path, settings.log, settings.outputs)
            members.append(Member(stem(path), settings_of_member, files))

    _check_names(members)
    return members


def _check_names(members: Sequence[Member]) -> None:
    """Raise UsageError if two trainings would write the same file."""
    names = set()
    repeated = set()
    for member in members:
        if member.name in names:
            repeated.add(member.name)
        names.add(member.name)
    if repeated:
        files = ", ".join(sorted(repeated))
        raise UsageError(f"several trainings would write {files}", hint="give MODELs with different file names")


def _outputs(settings: FinetuneSettings) -> list[str]:
    """Return the output path of each model.

    ``--output`` is a file for one model, and the folder for several. Without it, the outputs have the names that the
    command for each model alone would give them.
    """
    if settings.output is not None and len(settings.model) == 1:
        return [settings.output]
    folder = settings.output or ""
    outputs = []
    for source in open_sources(settings.model, start_options(settings)):
        outputs.append(f"{folder}{source.name}.tuned{settings.seed_mark}.st")
    return outputs


def _check_members(
    members: Sequence[Member], log: Log, check: Check, answer: Finished
) -> tuple[dict[str, FinetuneAnswer], dict[str, TrainingPlan]]:
    """Check every training before the first process is started.

    Args:
        members: the trainings.
        log: receives what the first check says. The other checks are silent, since they would repeat it.
        check: checks one training without beginning it; returns its plan, and a function that returns its fingerprint.
        answer: returns the answer of a training that was finished before.

    Returns:
        The answers of the members that were finished before, and the plans of all members, both by name.

    Raises:
        HydraError: a training, an unfinished one to be resumed, or an output file is not as it should be.
    """
    finished_before: dict[str, FinetuneAnswer] = {}
    plans: dict[str, TrainingPlan] = {}
    plan_of_model: dict[str, TrainingPlan] = {}
    for member in members:
        settings = member.settings
        state = member.files.state
        # An unfinished training has left a state file; a finished one has left only its weights.
        has_weights = bool(member.files.weights())
        is_resumed = settings.resume and state.exists()
        may_be_finished = settings.resume and not state.exists() and has_weights
        is_new = not is_resumed and not may_be_finished

        # New members of one model differ only in their seeds and files, so only the first of them is checked.
        model = settings.model[0]
        if is_new and model in plan_of_model:
            plans[member.name] = _plan_with_files(plan_of_model[model], member.files)
            continue

        # Check it, and compare a training to be resumed, or one that may be finished, with what the files say.
        log_of_check = log
        if plan_of_model:
            log_of_check = Log()  # silent
        plan, fingerprint = check(settings, log_of_check)
        plans[member.name] = plan
        plan_of_model[model] = plan
        if is_resumed:
            StateFile(state, fingerprint(), {}).check()
        if may_be_finished:
            earlier = finished(member.files, fingerprint(), force=settings.force)
            if earlier is not None:
                finished_before[member.name] = answer(member.files, earlier, plan)
    to_train = [member for member in members if member.name not in finished_before]
    _check_files_of_members(to_train)
    return finished_before, plans


def _plan_with_files(other: TrainingPlan, files: RunFiles) -> TrainingPlan:
    """Return the plan of another member of the same model with the output paths replaced by those of ``files``."""
    last_path = files.paths[-1]
    plan = replace(other, output=str(last_path))
    if plan.files is None:
        return plan
    files_of_member = []
    for file, path in zip(plan.files, files.paths, strict=True):
        files_of_member.append(replace(file, output=str(path)))
    return replace(plan, files=files_of_member)


def recipe_in_effect(settings: FinetuneSettings) -> dict[str, RecipeSetting]:
    """Return, by setting name, the value of every setting that a recipe may decide, and where the value came from."""
    recipe = {}
    for name, (value, source) in settings.effective().items():
        recipe[name] = RecipeSetting(value=value, source=source)
    return recipe


def check_files(files: RunFiles, settings: FinetuneSettings) -> None:
    """Check that the outputs of one training can be written and that no unfinished run is in the way.

    Raises:
        OutputError: an output exists or cannot be written, or an unfinished run is there and may not be replaced.
    """
    is_resumed = settings.resume and files.state.exists()
    may_replace_outputs = settings.force or is_resumed
    may_replace_state = settings.force or settings.resume
    check_outputs(files.paths, force=may_replace_outputs, folder=files.folder)
    refuse_unfinished(files.state, force=may_replace_state)


def _check_files_of_members(members: Sequence[Member]) -> None:
    """Check for every member that its outputs can be written and that no unfinished run is in the way.

    Raises:
        OutputError: several members have a problem; it lists all of them.
        HydraError: one member has a problem; the error of that member.
    """
    errors: list[HydraError] = []
    for member in members:
        try:
            check_files(member.files, member.settings)
        except HydraError as error:
            errors.append(error)
    if len(errors) > 1:
        problems = [error.message for error in errors]
        raise OutputError(f"{len(errors)} outputs are in the way", hint=errors[0].hint, problems=problems)
    if errors:
        raise errors[0]


def _dry_run(
    members: Sequence[Member],
    plans: dict[str, TrainingPlan],
    finished_before: dict[str, FinetuneAnswer],
    devices: Sequence[str],
) -> Outcome:
    """Return what would be trained, with which settings and on which devices.

    Args:
        members: the trainings.
        plans: the plans of all members, by name.
        finished_before: the answers of the members that are finished, by name.
        devices: one for each training that runs at the same time; ``["slurm"]`` for jobs.
    """
    planned = []
    for member in members:
        is_finished: bool | None = None  # None is left out of the answer
        if member.name in finished_before:
            is_finished = True
        plan = plans[member.name]
        planned.append(PlannedMember(name=member.name, seed=member.settings.seed, plan=plan, finished=is_finished))
    trainings = PlannedTrainings(
        schema=SCHEMA,
        devices=list(devices),
        threads=threads_each(len(devices)),
        members=planned,
        recipe=recipe_in_effect(members[0].settings),
    )
    return Outcome(trainings.to_json())


# --- after ------------------------------------------------------------------------------------------------------------


def _answer_of_process(name: str, ended: Ended) -> FinetuneAnswer:
    """Return the answer that the process of a member printed.

    Raises:
        InputError: it printed no answer.
    """
    try:
        document = json.loads(ended.answer)
        return FinetuneAnswer.from_json(document)
    except (ValueError, TypeError):
        raise InputError(f"{name} ended without an answer") from None


def _raise_failures(
    members: Sequence[Member], ended: dict[str, Ended], finished_before: dict[str, FinetuneAnswer], *, interrupted: bool
) -> None:
    """Raise an error unless all members are trained.

    Args:
        members: the trainings.
        ended: how each command that was started has ended, by the name of its member.
        finished_before: the answers of the members that were finished before and needed no command, by name.
        interrupted: whether a signal has stopped the trainings.

    Raises:
        Interrupted: a signal came before all members were trained.
        HydraError: some members failed. It names all of them, and has the hint and the exit code of the first.
    """
    # A member is trained if its command succeeded, or if it was finished before.
    failed = {name: command for name, command in ended.items() if command.code != 0}
    finished_names = []
    for member in members:
        has_succeeded = member.name in ended and member.name not in failed
        if has_succeeded or member.name in finished_before:
            finished_names.append(member.name)
    if len(finished_names) == len(members):
        return
    if interrupted:
        progress = f"{len(finished_names)} of {len(members)} members are finished"
        raise Interrupted(hint=f"add --resume to the same command to go on; {progress}")

    # Without a signal, an untrained member means a failed command.
    problems = []
    for name, command in failed.items():
        message = command.message or "it said nothing"
        problems.append(f"{name}: {message} (exit code {command.code})")
        problems += [f"{name}: {problem}" for problem in command.problems]
    first_name = next(iter(failed))
    first = failed[first_name]
    summary = f"{len(failed)} of {len(members)} members failed, first {first_name}"
    if finished_names:
        names = ", ".join(finished_names)
        summary += f"; {names} finished"
    error = HydraError(summary, first.hint, problems)
    error.exit_code = first.code
    raise error
