"""The options of ``finetune``, and how a recipe fills them in: a recipe ranks above built-in values only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from hydractl.methods import MethodOptions, ensemble_help, read_ensemble
from hydractl.options.option import Option, option, options_of
from hydractl.options.sources import RECIPE
from hydractl.options.yaml_files import read_recipe
from hydractl.settings.common import SPEC_FORMS, Batched, Rule, file_option, run_option
from hydractl.settings.rules import at_most_one, needs, required

ensemble_option = partial(option, "Ensemble")
length_option = partial(option, "Length")
optimizer_option = partial(option, "Optimization")
weights_option = partial(option, "What is trained")
augment_option = partial(option, "Augmentation")

CAPTIONS = "captions:"
"""What the SPEC of pairs of images and captions starts with."""

FREEZABLE = (
    *("patch", "position", "class_token", "words", "stem", "attention", "mlp", "norm", "layer_scale", "head", "scale"),
)
"""Parts of a model that can be excluded from training. ``stem`` is everything before the first block. ``layer_scale``
are the factors by which a block multiplies the outputs of attention and MLP (LayerScale). ``scale`` is the factor (and
bias) that turns the similarities of a CLIP into logits."""

_RECIPE_ALSO = ("batch_size", "dtype", "max_length", "tower")
_NOT_IN_RECIPES = ("train", "recipe", "val", "log", "save_every", "resume", "shard", "timeout")


def _check_log(text: str) -> None:
    """Check the file of ``--log``; ValueError for standard output."""
    if text == "-":
        raise ValueError("- makes no sense: standard output has the answer")


def _check_warmup(number: float) -> None:
    """Check a number of warm-up steps: a whole number, or a fraction below 1; else ValueError."""
    if number >= 1 and number != int(number):
        raise ValueError(f"must be whole steps or a fraction below 1, not {number}")


@dataclass(kw_only=True)
class Prescribed(Batched):
    """Options that a recipe may fill in if nobody gave them; ``val`` is one of the options.

    Attributes:
        from_recipe: the values that came from the recipe, by option name.
        passed_over: sentences about values of the recipe that cannot be used.
    """

    from_recipe: dict[str, object] = field(default_factory=dict, repr=False, compare=False)
    passed_over: list[str] = field(default_factory=list, repr=False, compare=False)

    def _rank(self, name: str) -> int:
        """Return the rank of an option's source; in settings built in Python, a value of the recipe ranks as one."""
        if self.ranks is None and name in self.from_recipe:
            return RECIPE
        return super()._rank(name)

    def take_recipe(self, recipe: str, may_decide: Sequence[Option]) -> list[str]:
        """Set the options that nobody gave to the values of a recipe, and return the problems of the recipe.

        Each value is recorded in ``from_recipe``, ``sources`` and ``ranks``. Early stopping without ``--val`` is taken
        back.

        Args:
            recipe: its name or file.
            may_decide: the options that a recipe may have values for.
        """
        source = f"recipe {recipe}"
        option_by_key = {declared_option.key: declared_option for declared_option in may_decide}
        contents = read_recipe(recipe, option_by_key)
        for key, value_as_written in contents.shared.items():
            declared_option = option_by_key[key]
            # A value that somebody gave wins, even if it could not be read; so does a given alternative of the option.
            was_given = self._rank(declared_option.name) > 0 or declared_option.name in self.unread
            if was_given or self._has_given_alternative(declared_option.name):
                continue

            # A value that cannot be read is a problem of the recipe.
            try:
                value = declared_option.parse(value_as_written)
            except ValueError as error:
                contents.problems.append(f"{declared_option.label} {error} ({source})")
                continue

            setattr(self, declared_option.name, value)
            self.from_recipe[declared_option.name] = value
            self.sources[declared_option.name] = source
            if self.ranks is not None:
                self.ranks[declared_option.name] = RECIPE
        self._pass_over_without_val(recipe)
        return contents.problems

    def _has_given_alternative(self, name: str) -> bool:
        """Return whether somebody gave this option, or an alternative to it, other than by the recipe."""
        alternatives: set[str] = set()
        for group in self.alternatives:
            if name in group:
                alternatives.update(group)
        return any(self._rank(alternative) > RECIPE for alternative in alternatives)

    def _pass_over_without_val(self, recipe: str) -> None:
        """Take back the recipe's options of early stopping if there are no validation data; say so in ``passed_over``.

        Args:
            recipe: the name or file of the recipe, for the messages.
        """
        self.passed_over = []
        if self.given("val"):
            return
        for name in ("patience", "min_delta"):
            is_of_recipe = name in self.from_recipe and self._rank(name) == RECIPE
            if is_of_recipe:  # a value that somebody gave is left to the check of options
                self._put_back(name, "val")
                del self.from_recipe[name]
                self.sources[name] = f"default, as recipe {recipe} needs --val for it"
                self.passed_over.append(f"{self.called(name)} of recipe {recipe} is passed over: it needs --val")


# --- rules ------------------------------------------------------------------------------------------------------------


def _a_log_each(settings: FinetuneSettings) -> list[str]:
    """Return a problem if several trainings have one log."""
    if not settings.several:
        return []
    if settings.log in (None, "-", "beside"):
        return []
    where = settings.where("log")
    return [f"several trainings have a log each: --log beside, not {settings.log}{where}"]


def _a_folder_for_several_models(settings: FinetuneSettings) -> list[str]:
    """Return a problem if several models are trained and ``--output`` is no folder."""
    if len(settings.model) < 2 or settings.output is None:
        return []
    if settings.output.endswith("/"):
        return []
    hint = "names their folder, as in out/"
    where = settings.where("output")
    return [f"of several MODELs --output {hint}, not {settings.output}{where}"]


def _the_loss_of_captions(settings: FinetuneSettings) -> list[str]:
    """Return a problem if captions are trained without the contrastive loss, or this loss without captions."""
    if not settings.trains:
        return []
    train = settings.train or ""
    has_captions = train.startswith(CAPTIONS)
    is_contrastive = settings.loss == "contrastive"
    loss_is_misspelt = "loss" in settings.unread  # that is reported by itself
    if has_captions and not is_contrastive and not loss_is_misspelt:
        where = settings.where("train")
        return [f"--train {train}{where}: captions need --loss contrastive"]
    if train and is_contrastive and not has_captions:
        where = settings.where("loss")
        return [f"--loss contrastive{where} needs pairs of images and captions: --train {CAPTIONS}FILE"]
    return []


def _labels_to_validate_on(settings: FinetuneSettings) -> list[str]:
    """Return a problem if the validation data have captions and not labels."""
    if not (settings.val or "").startswith(CAPTIONS):
        return []
    where = settings.where("val")
    return [f"--val {settings.val}{where}: validation is by zero-shot accuracy, on labelled images"]


def _what_the_ensemble_refuses(settings: FinetuneSettings) -> list[str]:
    """Return the problems of options that cannot be combined with the ensemble method."""
    if settings.ensemble is None:
        return []
    return settings.ensemble.conflicts(settings)


def _a_new_classifier_for_classes(settings: FinetuneSettings) -> list[str]:
    """Return a problem if ``--classes`` is given and the classifier is not made anew."""
    if settings.classes is None or settings.new_head:
        return []
    return [f"--classes{settings.where('classes')} needs --reset-head or --init head"]


def _data_to_choose_a_rate(settings: FinetuneSettings) -> list[str]:
    """Return a problem if several learning rates are given, and no validation data to choose one."""
    if len(settings.lr) < 2 or settings.given("val"):
        return []
    where = settings.where("lr")
    return [f"several values of --lr{where} need --val, which selects among them"]


def _two_betas(settings: FinetuneSettings) -> list[str]:
    """Return a problem if ``betas`` are not exactly the two that adamw has."""
    count = len(settings.betas)
    if count == 2:
        return []
    where = settings.where("betas")
    return [f"betas takes two numbers, not {count}{where}"]


def _each_augmentation_once(settings: FinetuneSettings) -> list[str]:
    """Return a problem if a kind of augmentation is listed twice."""
    kinds = [item.partition(":")[0] for item in settings.augment]
    repeated = {kind for kind in kinds if kinds.count(kind) > 1}
    if not repeated:
        return []
    listed = ", ".join(sorted(repeated))
    where = settings.where("augment")
    return [f"--augment lists {listed} twice{where}"]


@dataclass(kw_only=True)
class FinetuneSettings(Prescribed):
    """Options of ``finetune``. ``check()`` applies the recipe and settles ``epochs``: 3 unless ``steps`` are given."""

    verb: ClassVar[str] = "finetune"
    lacks: ClassVar[tuple[str, ...]] = ("data",)
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("epochs", "steps"),)
    many_models: ClassVar[bool] = True
    models_help: ClassVar[str] = "A checkpoint (.st), a published folder, or timm:NAME; of several each is trained"
    needs_output_file: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        required("train"),
        at_most_one("epochs", "steps"),
        _a_log_each,
        _a_folder_for_several_models,
        _the_loss_of_captions,
        _labels_to_validate_on,
        _what_the_ensemble_refuses,
        needs("patience", "val"),
        _a_new_classifier_for_classes,
        _data_to_choose_a_rate,
        _two_betas,
        _each_augmentation_once,
    )

    train: str | None = file_option(f"Training data, with labels or captions; {SPEC_FORMS}", metavar="SPEC", often=True)
    recipe: str | None = length_option(
        "Options from a recipe, for those that are given nowhere else; one of default, imagenet1k, cifar100, sst2, "
        "clip-locked-image, for pruned models, base-imagenet21k, base-imagenet1k, base-cifar100, for whole ones, or a "
        "YAML file [default: the built-in values, those of the recipe default]",
        metavar="NAME|FILE",
        often=True,
    )
    ensemble: MethodOptions | None = ensemble_option(
        "Train members of an ensemble, by one of the ways below; deep:3 trains three models by three seeds "
        "[default: one model]",
        metavar="KIND[:ARGS]",
        example="deep:3",
        reads=read_ensemble,
        often=True,
    )
    val: str | None = length_option(
        "Validation data, as a SPEC: the best epoch on it is kept [default: none, the last epoch is kept]",
        metavar="SPEC",
        often=True,
    )
    epochs: int | None = length_option("Passes over the data [default: 3, or by --steps]", at_least=1, often=True)
    steps: int | None = length_option("Optimizer steps, instead of --epochs [steps]", at_least=1)
    patience: int | None = length_option(
        "Stop after this many epochs without a better validation accuracy [epochs; default: never]", at_least=1
    )
    min_delta: float = length_option(
        "Smallest improvement that counts, a fraction of all samples", 0.0, at_least=0, below=1, flagless=True
    )
    optimizer: str = optimizer_option("The optimizer", "adamw", choices=("adamw", "sgd"))
    lr: list[float] = optimizer_option(
        "Learning rate at its peak; of several, each is trained and the best on --val is kept",
        [1e-4],
        metavar="X[,X...]",
        above=0,
        split=True,
        often=True,
    )
    weight_decay: float = optimizer_option("Weight decay; none on biases and norms", 0.01, at_least=0)
    momentum: float = optimizer_option("Momentum of sgd", 0.9, at_least=0, below=1, flagless=True)
    betas: list[float] = optimizer_option(
        "Decay rates of adamw's first and second moments", [0.9, 0.999], at_least=0, below=1, split=True, flagless=True
    )
    eps: float = optimizer_option("The epsilon of adamw", 1e-8, above=0, flagless=True)
    warmup: float = optimizer_option(
        "Linear warm-up: steps, or a fraction of all steps if less than 1 [steps or fraction]",
        0.05,
        at_least=0,
        check=_check_warmup,
        flagless=True,
    )
    schedule: str = optimizer_option(
        "The learning rate after the warm-up", "cosine", choices=("cosine", "linear", "constant")
    )
    lr_floor: float = optimizer_option(
        "Final learning rate of the cosine, a fraction of the peak", 1e-5, at_least=0, at_most=1, flagless=True
    )
    loss: str = optimizer_option(
        "What is minimised: the cross-entropy of the classes, or, for a CLIP on --train captions:..., the contrastive "
        "loss of open_clip",
        "cross-entropy",
        choices=("cross-entropy", "contrastive"),
    )
    label_smoothing: float = optimizer_option("Label smoothing", 0.0, at_least=0, below=1, flagless=True)
    clip: float = optimizer_option("Largest gradient norm; 0 means no limit", 1.0, at_least=0, flagless=True)
    accumulate: int = optimizer_option("Batches that make one step, as if they were one batch [batches]", 1, at_least=1)
    train_last: int | None = weights_option(
        "Train only the last N blocks and the classifier [blocks; default: all blocks]", at_least=0
    )
    freeze: list[str] = weights_option(
        f"Parts that are left as they are: {', '.join(FREEZABLE)}; stem is all before the first block [default: none]",
        [],
        choices=FREEZABLE,
        metavar="PART[,PART...]",
        split=True,
    )
    init: str = weights_option(
        "The weights to start from; head draws those of the classifier by --seed, and makes one for a body that has "
        "none, random draws all of them",
        "given",
        choices=("given", "head", "random"),
    )
    reset_head: bool = weights_option(
        "Start from a classifier with as many classes as --labels, --classes or the data have, of zeros but for --init "
        "head",
        False,
    )
    classes: int | None = weights_option(
        "Classes of a new classifier, for data without class names [default: what the data have]", at_least=2
    )
    dropout: float | None = weights_option(
        "Dropout in each layer, behind attention and in the MLP [default: what the model says]", at_least=0, below=1
    )
    augment: list[str] = augment_option(
        "Augmentation of training images: crop[:SMALLEST SHARE], flip, randaugment[:N:M] [default: none]",
        [],
        metavar="crop[:0.08],flip,randaugment[:2:12]",
        pattern=r"crop(:(0?\.[0-9]{1,6}|1(\.0)?))?|flip|randaugment(:[1-9]:([12]?[0-9]|30))?",
        example="crop:0.08,flip",
        split=True,
    )
    log: str | None = file_option(
        "Write a line of JSON for each step that is logged and each epoch; beside is a.log.jsonl for a.st "
        "[default: no log]",
        metavar="FILE|beside",
        check=_check_log,
        writes=True,
    )
    save_every: str = run_option(
        "How often the unfinished run is saved beside the output, in steps or seconds, minutes, hours",
        "10m",
        metavar="N|Ns|Nm|Nh",
        pattern=r"[1-9][0-9]{0,8}[smh]?",
        example="500 or 10m",
    )
    resume: bool = run_option("Resume the unfinished run that is saved beside the output", False, often=True)
    autocast: str | None = run_option(
        "Mixed precision: compute activations of training in this format; weights keep theirs [default: off]",
        choices=("bfloat16",),
    )
    checkpoint_blocks: bool = run_option(
        "Gradient checkpointing: recompute the activations of each block in the backward pass", False
    )
    compile: bool = run_option("Compile the model with torch.compile", False)
    shard: bool = run_option(
        "Under torchrun, divide weights, gradients and optimizer state among the processes, for a model that does not "
        "fit a device",
        False,
    )
    timeout: float = run_option(
        "How long the processes of a distributed training wait for each other [seconds]",
        1800.0,
        above=0,
        at_most=10**6,
        flagless=True,
    )

    @property
    def new_head(self) -> bool:
        """Whether the training starts with a classifier that is not the given one."""
        return self.reset_head or self.init == "head"

    @property
    def trains(self) -> bool:
        """Whether a model is trained; ``--ensemble laplace`` fits a posterior instead."""
        return self.ensemble is None or self.ensemble.trains

    @property
    def trainings(self) -> int:
        """The number of trainings of each model."""
        if self.ensemble is None:
            return 1
        return self.ensemble.trainings

    @property
    def several(self) -> bool:
        """Whether more than one training is asked for: several models, or an ensemble of several trainings."""
        trainings = len(self.model) * self.trainings
        return trainings > 1

    @property
    def outputs(self) -> int | None:
        """The number of models that a training of an ensemble writes, e.g. of packed:3 three; None if it writes one."""
        if self.ensemble is None:
            return None
        return self.ensemble.models()

    def has_default(self, name: str) -> bool:
        """Return whether neither a person nor a recipe has set an option."""
        return not self._rank(name)

    def problems(self) -> list[str]:
        """Apply the recipe, and return every problem."""
        lr: Any = self.lr
        if isinstance(lr, (int, float)):  # Python may pass one number
            self.lr = [float(lr)]
        prescribed = []
        if self.recipe is not None and "recipe" not in self.unread:
            prescribed = self.take_recipe(self.recipe, list(recipe_options()))
        return prescribed + super().problems()

    def settle(self) -> None:
        """Fill in three epochs if neither epochs nor steps are given."""
        is_said = self.given("epochs") or self.given("steps")
        if not is_said:
            self.epochs = 3

    def inapplicable(self) -> dict[str, str]:
        """Return each option without effect, with the option that makes it so.

        Momentum belongs to sgd, betas and eps to adamw, the floor to the cosine schedule, classes to the cross-entropy.
        Some ensembles have no use for a choice on validation data, or for an average over part of a training.
        """
        if not self.trains:
            return dict.fromkeys(_of_a_training(), "ensemble")
        unused = super().inapplicable()

        # Options of the other optimizer.
        of_other_optimizer = ["momentum"]
        if self.optimizer == "sgd":
            of_other_optimizer = ["betas", "eps"]
        unused |= dict.fromkeys(of_other_optimizer, "optimizer")

        # The contrastive loss compares images with texts and has no classes.
        if self.loss == "contrastive":
            of_classes = ("label_smoothing", "reset_head", "compile", "shard")
            unused |= dict.fromkeys(of_classes, "loss")

        if self.shard:
            unused["compile"] = "shard"
        if self.ensemble is not None:
            unused |= dict.fromkeys(self.ensemble.sets_aside(self), "ensemble")

        # Only the cosine has a floor. Where a method sets the schedule aside, the cosine is in effect.
        if self.schedule != "cosine" and "schedule" not in unused:
            unused["lr_floor"] = "schedule"
        return unused

    def effective(self) -> dict[str, tuple[Any, str]]:
        """Return every value that a recipe may decide, in the form JSON has it, and its source, by option name."""
        effective = {}
        for declared_option in recipe_options():
            value = getattr(self, declared_option.name)
            if isinstance(value, MethodOptions):
                value = str(value)
            effective[declared_option.name] = (value, self.sources.get(declared_option.name, "default"))
        return effective

    @classmethod
    def further_help(cls) -> dict[str, list[tuple[str, str]]]:
        """Return the kinds of ``--ensemble``, for the help."""
        rows = []
        for shape, text in ensemble_help():
            rows.append((f"      {shape}", text))
        return {"Ensemble": rows}


def _of_a_training() -> Iterator[str]:
    """Yield the names of the options that have an effect on a training alone, and none where a posterior is fitted."""
    elsewhere = {declared_option.name for declared_option in options_of(Batched)}
    elsewhere |= {"train", "val", "ensemble"}
    for declared_option in options_of(FinetuneSettings):
        if declared_option.name not in elsewhere or declared_option.name == "tower":
            yield declared_option.name


def recipe_options() -> Iterator[Option]:
    """Yield the options that a recipe may decide, in the order of the help.

    They are the options that ``finetune`` itself declares, except a few, and a few that other verbs have, too.
    """
    for declared_option in options_of(FinetuneSettings):
        is_declared_here = declared_option.name in FinetuneSettings.__annotations__
        if declared_option.name in _RECIPE_ALSO or (is_declared_here and declared_option.name not in _NOT_IN_RECIPES):
            yield declared_option
