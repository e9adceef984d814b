"""What one command asks to be trained: the models, how each is trained, and where it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hydractl.expressions.models import ModelRef
from hydractl.files.verb_answers import RecipeSetting
from hydractl.methods import MethodOptions
from hydractl.model.source import ModelOptions
from hydractl.training.options import TrainOptions
from hydractl.training.outputs import RunFiles, stem


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

    @property
    def outputs(self) -> int | None:
        """The number of models that a training of an ensemble writes, e.g. of packed:3 three; None if it writes one."""
        return None if self.ensemble is None else self.ensemble.models()

    @cached_property
    def files(self) -> RunFiles:
        """The paths that one training writes to; it has an output."""
        assert self.output is not None
        return RunFiles.of_output(self.output, self.log, self.outputs)

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
        method = RecipeSetting(value=None if ensemble is None else str(ensemble), source=self.recipe["ensemble"].source)
        return replace(
            self,
            models=[model],
            opening=replace(self.opening, seed=seed),
            seed=seed,
            ensemble=ensemble,
            output=output,
            recipe={**self.recipe, "ensemble": method},
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
