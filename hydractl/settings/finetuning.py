"""The options of ``finetune``, and how a recipe fills them in: only built-in values weigh less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

from hydractl.errors import InputError, did_you_mean
from hydractl.methods import Method, MethodOption, all_methods
from hydractl.settings.common import RECIPE, Batched, SideBySide, file_option, run_option
from hydractl.settings.option import Option, option, options_of
from hydractl.settings.yaml_files import read_recipe

several_option = partial(option, "Several trainings")
length_option = partial(option, "Length")
optimizer_option = partial(option, "Optimization")
weights_option = partial(option, "What is trained")
augment_option = partial(option, "Augmentation")

CAPTIONS = "captions:"
"""Start of the SPEC of pairs of images and captions."""

FREEZABLE = (
    *("patch", "position", "class_token", "words", "stem", "attention", "mlp", "norm", "layer_scale", "head", "scale"),
)
"""Parts of a model that can be left as they are; ``stem`` is everything before the first block, ``layer_scale`` the
factors by which a block multiplies what attention and MLP add (LayerScale), ``scale`` the factor (and bias) by which
the similarities of a CLIP become logits."""

_BEHIND = {"Length": "patience", "What is trained": "dropout"}
"""The option that those of methods stand behind in the help, by their heading."""

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Names of ``--track``; see ``hydractl.training.trackers``."""

_RECIPE_ALSO = ("batch_size", "dtype", "max_length", "tower")
_NOT_IN_RECIPES = ("recipe", "val", "log", "track", "save_every", "resume", "shard", "timeout")


def parse_tracker(text: str) -> tuple[str, str | None]:
    """Read ``NAME[:WHERE]``."""
    name, _, where = text.partition(":")
    if name not in TRACKERS:
        raise ValueError(f"must be one of {', '.join(TRACKERS)}, not {name!r}{did_you_mean(name, TRACKERS)}")
    return name, where or None


def _check_log(text: str) -> None:
    if text == "-":
        raise ValueError("- makes no sense: standard output has the answer")


def _check_warmup(number: float) -> None:
    if number >= 1 and number != int(number):
        raise ValueError(f"must be whole steps or a fraction below 1, not {number}")


@dataclass(kw_only=True)
class Prescribed(Batched):
    """Options of which a recipe fills in those that nobody gave; ``val`` is one of them.

    Attributes:
        from_recipe: what the recipe decided, by option name.
        passed_over: what it says and nothing can be made of, in sentences.
    """

    from_recipe: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    passed_over: list[str] = field(default_factory=list, repr=False, compare=False)

    def _rank(self, name: str) -> int:
        return RECIPE if self.ranks is None and name in self.from_recipe else super()._rank(name)

    def take_recipe(self, recipe: str, may_decide: Sequence[Option]) -> list[str]:
        """Fill in what a recipe says and nobody gave, of the options it may decide; return what is wrong with it."""
        options, source = {item.key: item for item in may_decide}, f"recipe {recipe}"
        contents = read_recipe(recipe, options)
        for key, raw in contents.shared.items():
            name = options[key].name
            rivals = [rival for group in self.alternatives if name in group for rival in group]
            if self._rank(name) > 0 or name in self.unread or any(self._rank(rival) > RECIPE for rival in rivals):
                continue
            try:
                value = options[key].parse(raw)
            except ValueError as error:
                contents.problems.append(f"{options[key].label} {error} ({source})")
                continue
            setattr(self, name, value)
            self.from_recipe[name], self.sources[name] = value, source
            if self.ranks is not None:
                self.ranks[name] = RECIPE
        self._pass_over(recipe)
        return contents.problems

    def _pass_over(self, recipe: str) -> None:
        """Put back what only the recipe says and nothing can be made of without validation data."""
        self.passed_over = []
        for name in () if self.given("val") else ("patience", "min_delta"):
            if name in self.from_recipe and self._rank(name) == RECIPE:
                self._put_back(name, "val")
                del self.from_recipe[name]
                self.sources[name] = f"default, as recipe {recipe} needs --val for it"
                self.passed_over.append(f"{self.called(name)} of recipe {recipe} is passed over: it needs --val")


@dataclass(kw_only=True)
class Several(SideBySide):
    """Options of members of one model, or of one model after another."""

    many_models: ClassVar[bool] = True
    models_help: ClassVar[str] = "A checkpoint (.st), a published folder, or timm:NAME; of several each is trained"

    members: int = several_option(
        "Train the model this many times, with --seed and the next seeds; a.st becomes a.0.st, a.1.st and so on "
        "[trainings]",
        1,
        at_least=1,
        at_most=1000,
        often=True,
    )

    @property
    def several(self) -> bool:
        """Whether more than one training is asked for."""
        return len(self.model) * self.members > 1


SettingsT = TypeVar("SettingsT", bound=type[Batched])


def with_method_options(settings: SettingsT) -> SettingsT:
    """Add the options that methods declare to a settings class that is no dataclass yet.

    Raises:
        InputError: for one that is an option already, of the verb or of another method.
    """
    behind: dict[str, list[MethodOption]] = {}
    for method in all_methods():
        for declared in method.options:
            if hasattr(settings, declared.name):
                raise InputError(f"the method {method.name} declares the option {declared.name!r}, which is taken")
            setattr(settings, declared.name, _field_of(declared))
            behind.setdefault(_BEHIND[declared.heading], []).append(declared)
    own_annotations = dict(settings.__annotations__)
    settings.__annotations__.clear()
    for name, annotation in own_annotations.items():
        settings.__annotations__[name] = annotation
        for declared in behind.get(name, ()):
            is_switch = declared.value_type is bool
            settings.__annotations__[declared.name] = bool if is_switch else declared.value_type | None
    return settings


def _field_of(declared: MethodOption) -> Any:
    """Return the dataclass field of an option that a method declares."""
    default = False if declared.value_type is bool else None
    return option(
        declared.heading,
        declared.help,
        default,
        metavar=declared.metavar,
        pattern=declared.pattern,
        example=declared.example,
        at_least=declared.at_least,
        at_most=declared.at_most,
    )


@dataclass(kw_only=True)
@with_method_options
class FinetuneSettings(Prescribed, Several):
    """Options of ``finetune``. ``check()`` takes in the recipe and settles ``epochs``: 3 unless there are ``steps``."""

    verb: ClassVar[str] = "finetune"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("epochs", "steps"), *Several.alternatives)
    needs_output_file: ClassVar[bool] = True

    recipe: str | None = length_option(
        "Options from a recipe, for those that are given nowhere else; one of default, imagenet1k, cifar100, sst2, "
        "clip-locked-image, for pruned models, base-imagenet21k, base-imagenet1k, base-cifar100, for whole ones, or a "
        "YAML file [default: the built-in values, those of the recipe default]",
        metavar="NAME|FILE",
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
        "Smallest improvement that counts, a fraction of all samples", 0.0, at_least=0, below=1
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
    momentum: float = optimizer_option("Momentum of sgd", 0.9, at_least=0, below=1)
    betas: list[float] = optimizer_option(
        "Decay rates of adamw's first and second moments", [0.9, 0.999], at_least=0, below=1, split=True
    )
    eps: float = optimizer_option("The epsilon of adamw", 1e-8, above=0)
    warmup: float = optimizer_option(
        "Linear warm-up: steps, or a fraction of all steps if less than 1 [steps or fraction]",
        0.05,
        at_least=0,
        check=_check_warmup,
    )
    schedule: str = optimizer_option(
        "The learning rate after the warm-up", "cosine", choices=("cosine", "linear", "constant")
    )
    lr_floor: float = optimizer_option(
        "Final learning rate of the cosine, a fraction of the peak", 1e-5, at_least=0, at_most=1
    )
    loss: str = optimizer_option(
        "What is minimised: the cross-entropy of the classes, or, for a CLIP on --data captions:..., the contrastive "
        "loss of open_clip",
        "cross-entropy",
        choices=("cross-entropy", "contrastive"),
    )
    label_smoothing: float = optimizer_option("Label smoothing", 0.0, at_least=0, below=1)
    clip: float = optimizer_option("Largest gradient norm; 0 means no limit", 1.0, at_least=0)
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
    track: list[str] = file_option(
        "Send loss, learning rate, speed and validation to trackers: tensorboard[:DIR], wandb[:PROJECT], mlflow[:URI]; "
        "the run has the name of the output [default: none]",
        [],
        metavar="NAME[:WHERE],...",
        check=parse_tracker,
        split=True,
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
        "How long the processes of a distributed training wait for each other [seconds]", 1800.0, above=0, at_most=10**6
    )

    @property
    def new_head(self) -> bool:
        """Whether the training starts from another classifier than the given one."""
        return self.reset_head or self.init == "head"

    @property
    def outputs(self) -> int | None:
        """The number of models one training writes: its snapshots, or members; None: one."""
        for method in self.methods:
            models = method.models(self.values_of(method))
            if models is not None:
                return models
        return None

    @property
    def methods(self) -> list[Method]:
        """The methods that are asked for."""
        asked_for = []
        for method in all_methods():
            value = getattr(self, method.options[0].name) if method.options else None
            if value is not None and value is not False:  # 0.0 is a value
                asked_for.append(method)
        return asked_for

    def values_of(self, method: Method) -> dict[str, Any]:
        """Return the values of a method's own options."""
        return {declared.name: getattr(self, declared.name) for declared in method.options}

    def has_default(self, name: str) -> bool:
        """Return whether nobody has given an option."""
        return not self._rank(name)

    def _asking_for(self, role: str) -> list[str]:
        """Return the options that ask for a method of a role, but for switches that are off."""
        names = [method.options[0].name for method in all_methods() if method.options and method.role == role]
        return [name for name in names if getattr(self, name) is not False]

    def problems(self) -> list[str]:
        """List every problem, after taking in the recipe."""
        lr: Any = self.lr
        if isinstance(lr, (int, float)):  # one number, from Python
            self.lr = [float(lr)]
        prescribed = []
        if self.recipe is not None and "recipe" not in self.unread:
            prescribed = self.take_recipe(self.recipe, list(recipe_options()))
        return prescribed + super().problems()

    def settle(self) -> None:
        """Fill in three epochs unless said otherwise."""
        if not self.given("epochs") and not self.given("steps"):
            self.epochs = 3

    def inapplicable(self) -> dict[str, str]:
        """Return the options set aside: momentum belongs to sgd, betas and eps to adamw, the floor to the cosine.

        Classes belong to the cross-entropy. No snapshot is chosen, nor an average over part of a training.
        """
        unused = dict.fromkeys(("betas", "eps"), "optimizer") if self.optimizer == "sgd" else {"momentum": "optimizer"}
        unused |= super().inapplicable()
        if self.loss == "contrastive":
            unused |= dict.fromkeys(("label_smoothing", "reset_head", "compile", "shard"), "loss")
        if self.shard:
            unused["compile"] = "shard"
        is_cosine = self.schedule == "cosine"
        for method in self.methods:
            unused |= method.sets_aside(self)
            is_cosine = is_cosine or method.needs_cosine
        if not is_cosine:
            unused["lr_floor"] = "schedule"
        return unused

    def trackers(self) -> dict[str, str | None]:
        """Return where each tracker of ``--track`` has its runs."""
        return dict(map(parse_tracker, self.track))

    def conflicts(self) -> list[str]:
        """List problems: data, a length, and what belongs together."""
        problems = super().conflicts() + self.needs("data") + self.at_most_one("epochs", "steps")
        problems += self.twice_named("track")
        problems += self.at_most_one(*self._asking_for("weights"))
        problems += self._several_conflicts() + self._caption_conflicts() + self._method_conflicts()
        problems += self.goes_with("patience", "val")
        problems += self.at_most_one(*self._asking_for("models"))
        if self.classes is not None and not self.new_head:
            problems.append(f"--classes{self.where('classes')} needs --reset-head or --init head")
        if len(self.lr) > 1 and not self.given("val"):
            problems.append(f"several values of --lr{self.where('lr')} need --val, which selects among them")
        if len(self.betas) != 2:
            problems.append(f"--betas takes two numbers, not {len(self.betas)}{self.where('betas')}")
        kinds = [item.partition(":")[0] for item in self.augment]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            problems.append(f"--augment lists {', '.join(twice)} twice{self.where('augment')}")
        return problems

    def _several_conflicts(self) -> list[str]:
        """List problems of names: each of several trainings writes files of its own."""
        problems, log = [], self.log
        if self.several and log not in (None, "-", "beside"):
            problems.append(f"several trainings have a log each: --log beside, not {log}{self.where('log')}")
        if len(self.model) > 1 and self.output is not None and not self.output.endswith("/"):
            hint = "names their folder, as in out/"
            problems.append(f"of several MODELs --output {hint}, not {self.output}{self.where('output')}")
        return problems

    def _method_conflicts(self) -> list[str]:
        """List the options that do not go with the methods that are asked for."""
        problems = []
        for method in self.methods:
            problems += method.conflicts(self)
        for method in all_methods():
            for declared in method.options[1:]:
                problems += self.goes_with(declared.name, method.options[0].name)
        return problems

    def _caption_conflicts(self) -> list[str]:
        """List captions where classes are needed, and the reverse."""
        problems, data = [], self.data or ""
        if data.startswith(CAPTIONS) and self.loss != "contrastive" and "loss" not in self.unread:
            problems.append(f"--data {data}{self.where('data')}: captions need --loss contrastive")
        if data and self.loss == "contrastive" and not data.startswith(CAPTIONS):
            where = self.where("loss")
            problems.append(f"--loss contrastive{where} needs pairs of images and captions: --data {CAPTIONS}FILE")
        if (self.val or "").startswith(CAPTIONS):
            where = self.where("val")
            problems.append(f"--val {self.val}{where}: validation is by zero-shot accuracy, on labelled images")
        return problems

    def effective(self) -> dict[str, dict[str, Any]]:
        """Return every value that a recipe may decide, and where it came from."""
        return {
            item.name: {"value": getattr(self, item.name), "source": self.sources.get(item.name, "default")}
            for item in recipe_options()
        }


def recipe_options() -> Iterator[Option]:
    """Yield the options that a recipe may decide, in the order of the help."""
    for item in options_of(FinetuneSettings):
        own = item.name in FinetuneSettings.__annotations__
        if item.name in _RECIPE_ALSO or (own and item.name not in _NOT_IN_RECIPES):
            yield item
