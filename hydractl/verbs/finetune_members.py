"""Several trainings of one command: members of one model by seed, or several models, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from hydractl.training.outputs import RunFiles, finished, numbered, stem
from hydractl.verbs.children import Ended
from hydractl.verbs.jobs import check_places, run_side_by_side, threads_each
from hydractl.verbs.opening import start_options
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.finetunes/1"

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

Check = Callable[[FinetuneSettings, Log], tuple[TrainingPlan, Callable[[], dict[str, Any]]]]
"""Checks one training without beginning it; gives its plan, and what computes its fingerprint."""
Finished = Callable[[RunFiles, dict[str, Any], TrainingPlan], FinetuneAnswer]
"""The answer of a training that was finished before, from its files, its provenance and its plan."""


@dataclass(frozen=True)
class Member:
    """One of several trainings.

    Attributes:
        name: its output without the ending.
        settings: of its training alone.
        files: it writes.
    """

    name: str
    settings: FinetuneSettings
    files: RunFiles

    def argv(self, device: str) -> list[str]:
        """The command line that trains it on a device."""
        settings = self.settings
        words = ["finetune", *to_argv(settings, _REPLACED)]
        words += [f"--output={settings.output}", f"--seed={settings.seed}", f"--device={device}"]
        if settings.ensemble is not None:
            words.append(f"--ensemble={settings.ensemble}")
        words.append("--json")
        if settings.quiet:
            words.append("--quiet")
        elif settings.verbose:
            words.append("--verbose")
        return [*words, "--", *settings.model]


def train_members(settings: FinetuneSettings, log: Log, check: Check, answer: Finished) -> Outcome:
    """Train each member as the command for it alone would, several at a time where there are ``--devices``.

    Raises:
        HydraError: before anything has begun, as of one training; at the end, when a member has failed.
        Interrupted: by a signal, after all have saved.
    """
    if not alone():
        hint = "start it without torchrun: --devices 0,1,2 trains one on each"
        raise UsageError("torchrun shares one training among processes, not several", hint=hint)
    check_places(settings.places, settings.slurm)
    members = members_of(settings)
    done, plans = _checked(members, log, check, answer)
    devices = settings.places[: len(members)]
    if settings.dry_run:
        return _dry_run(members, plans, done, ["slurm"] if settings.slurm else devices)
    for name in done:
        log.info(f"{name}: finished before, nothing to do")
    commands = {member.name: member.argv for member in members if member.name not in done}
    with Interruptions() as signals:
        folder = members[0].files.paths[0].parent
        ended = run_side_by_side(commands, devices, settings.slurm, folder, log, signals)
    _raise_failures(members, ended, done, interrupted=signals.requested)
    answers = {name: _answer(name, end) for name, end in ended.items()} | done
    trained = []
    files: list[Path] = []
    for member in members:
        trained.append(TrainedMember(name=member.name, seed=member.settings.seed, training=answers[member.name]))
        files += member.files.paths
    return Outcome(FinetunesAnswer(schema=SCHEMA, members=trained).to_json(), files=files)


def on_first_device(settings: FinetuneSettings) -> FinetuneSettings:
    """The settings of a single training that was given a list of devices.

    Raises:
        UsageError: under ``torchrun``, where each process has a device of its own.
    """
    if not alone():
        raise UsageError("--devices is for several trainings, not for torchrun", hint="give --device cuda or cpu")
    return replace(settings, device=settings.places[0], devices=[])


# --- before -----------------------------------------------------------------------------------------------------------


def members_of(settings: FinetuneSettings) -> list[Member]:
    """The trainings that are asked for: of each model as many as there are members.

    Raises:
        UsageError: two of them would write the same file.
        InputError: for models that cannot be opened.
    """
    members = []
    for model, output in zip(settings.model, _outputs(settings), strict=True):
        for index in range(settings.trainings):
            path = numbered(output, index) if settings.trainings > 1 else output
            files = RunFiles.of(path, settings.log, settings.outputs)
            name = stem(path)
            own = {
                "output": path,
                "seed": settings.seed + index,
                "ensemble": None if settings.ensemble is None else settings.ensemble.of_one_training(),
                "devices": [],
                "slurm": [],
                "model": [model],
            }
            members.append(Member(name, replace(settings, **own), files))  # type: ignore[arg-type]
    names = [member.name for member in members]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        hint = "give MODELs with different file names"
        raise UsageError(f"several trainings would write {', '.join(twice)}", hint=hint)
    return members


def _outputs(settings: FinetuneSettings) -> list[str]:
    """The output of each model, as its command alone would name it; in a folder where ``-o`` names one."""
    if settings.output is not None and len(settings.model) == 1:
        return [settings.output]
    folder = settings.output or ""
    sources = open_sources(settings.model, start_options(settings))
    return [f"{folder}{source.name}.tuned{settings.seed_mark}.st" for source in sources]


def _checked(
    members: Sequence[Member], log: Log, check: Check, answer: Finished
) -> tuple[dict[str, FinetuneAnswer], dict[str, TrainingPlan]]:
    """Check everything that can be checked before the first process is started."""
    done: dict[str, FinetuneAnswer] = {}
    plans: dict[str, TrainingPlan] = {}
    of_model: dict[str, TrainingPlan] = {}
    for member in members:
        settings, state = member.settings, member.files.state
        begun = settings.resume and (state.exists() or bool(member.files.weights()))
        model = settings.model[0]
        if model in of_model and not begun:
            plans[member.name] = _plan_of(of_model[model], member.files)
            continue
        plan, fingerprint = check(settings, Log() if of_model else log)
        plans[member.name] = of_model[model] = plan
        if begun and state.exists():
            StateFile(state, fingerprint(), {}).check()
        elif begun:
            made_by = finished(member.files, fingerprint(), force=settings.force)
            if made_by is not None:
                done[member.name] = answer(member.files, made_by, plan)
    _check_files([member for member in members if member.name not in done])
    return done, plans


def _plan_of(other: TrainingPlan, files: RunFiles) -> TrainingPlan:
    """Return the plan of a member, from that of another one of the same model."""
    plan = replace(other, output=str(files.paths[-1]))
    if plan.snapshots is None:
        return plan
    snapshots = []
    for snapshot, path in zip(plan.snapshots, files.paths, strict=True):
        snapshots.append(replace(snapshot, output=str(path)))
    return replace(plan, snapshots=snapshots)


def recipe_in_effect(settings: FinetuneSettings) -> dict[str, RecipeSetting]:
    """Return every value that a recipe may decide, and where it came from."""
    return {name: RecipeSetting(value=value, source=source) for name, (value, source) in settings.effective().items()}


def check_files(files: RunFiles, settings: FinetuneSettings) -> None:
    """See that the outputs of one training can be written and no unfinished run is in the way.

    Raises:
        OutputError: as :class:`hydractl.files.atomic.Output` does, or for an unfinished run.
    """
    force = settings.force or (settings.resume and files.state.exists())
    check_outputs(files.paths, force=force, folder=files.folder)
    refuse_unfinished(files.state, force=settings.force or settings.resume)


def _check_files(members: Sequence[Member]) -> None:
    """See that every output can be written and no unfinished run is in the way."""
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
    done: dict[str, FinetuneAnswer],
    devices: Sequence[str],
) -> Outcome:
    planned = []
    for member in members:
        is_finished = True if member.name in done else None
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


def _answer(name: str, ended: Ended) -> FinetuneAnswer:
    try:
        return FinetuneAnswer.from_json(json.loads(ended.answer))
    except (ValueError, TypeError):
        raise InputError(f"{name} ended without an answer") from None


def _raise_failures(
    members: Sequence[Member], ended: dict[str, Ended], done: dict[str, FinetuneAnswer], *, interrupted: bool
) -> None:
    """Say which members are not trained, if any."""
    failed = {name: end for name, end in ended.items() if end.code != 0}
    succeeded = (ended.keys() - failed.keys()) | done.keys()
    written = [member.name for member in members if member.name in succeeded]
    if len(written) == len(members):
        return
    if interrupted:
        said = f"{len(written)} of {len(members)} members are finished"
        raise Interrupted(hint=f"add --resume to the same command to go on; {said}")
    first = next(iter(failed))
    problems = []
    for name, end in failed.items():
        problems.append(f"{name}: {end.message or 'it said nothing'} (exit code {end.code})")
        problems += [f"{name}: {problem}" for problem in end.problems]
    done_text = f"; {', '.join(written)} finished" if written else ""
    message = f"{len(failed)} of {len(members)} members failed, first {first}{done_text}"
    error = HydraError(message, failed[first].hint, problems)
    error.exit_code = failed[first].code
    raise error
