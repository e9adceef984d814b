"""The options of ``finetune``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from hydractl.settings.common import FILES, RUNNING, Batched
from hydractl.settings.option import Option, option, options_of
from hydractl.settings.recipes import Prescribed

SEVERAL, LENGTH, OPTIMIZATION = "Several trainings", "Length", "Optimization"
TRAINED, AUGMENTATION = "What is trained", "Augmentation"

CAPTIONS = "captions:"
"""Start of the SPEC of pairs of images and captions."""

FREEZABLE = ("patch", "position", "class_token", "words", "stem", "attention", "mlp", "norm", "head", "scale")
"""Parts of a model that can be left as they are; ``stem`` is everything before the first block, ``scale`` the
factor (and bias) by which the similarities of a CLIP become logits."""

ADAPTERS = ("lora", "batch_ensemble")
"""Options that train something in the place of the weights, each by its module in ``training/adapters``."""

_RECIPE_ALSO = ("batch_size", "dtype", "max_length", "tower")
_NOT_IN_RECIPES = ("recipe", "val", "log", "tensorboard", "save_every", "resume", "timeout")


@dataclass(kw_only=True)
class Several(Batched):
    """Options of members of one model, or of one model after another, and of the devices they are trained on."""

    many_models: ClassVar[bool] = True
    models_help: ClassVar[str] = "A checkpoint (.st), a published folder, or timm:NAME; of several each is trained"

    members: int = option(
        1,
        help="Train the model this many times, with --seed and the next seeds: a.st becomes a.0.st, a.1.st and so on",
        unit="trainings",
        at_least=1,
        at_most=1000,
        group=SEVERAL,
    )
    devices: list[str] = option(
        [],
        help="Devices on which members, or several MODELs, are trained in parallel, one on each; 0 is cuda:0, and a "
        "device may be listed twice",
        metavar="DEVICE[,DEVICE...]",
        pattern=r"cpu|mps|(cuda:)?[0-9]{1,3}",
        split=True,
        repeats=True,
        default_text="--device, one after another",
        group=SEVERAL,
    )

    @property
    def several(self) -> bool:
        """Whether more than one training is asked for."""
        return len(self.model) * self.members > 1


@dataclass(kw_only=True)
class FinetuneSettings(Prescribed, Several):
    """Options of ``finetune``. ``check()`` takes in the recipe and settles ``epochs``: 3 unless there are ``steps``."""

    verb: ClassVar[str] = "finetune"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("epochs", "steps"), ("device", "devices"))
    needs_output_file: ClassVar[bool] = True

    recipe: str | None = option(
        None,
        help="Options from a recipe, for those that are given nowhere else: default, imagenet1k, cifar100, sst2, "
        "clip-locked-image, or a YAML file",
        metavar="NAME|FILE",
        group=LENGTH,
        default_text="the built-in values, which are those of the recipe named default",
    )
    val: str | None = option(
        None,
        help="Validation data, as a SPEC: the best epoch on it is kept",
        metavar="SPEC",
        default_text="none, the last epoch is kept",
        group=LENGTH,
    )
    epochs: int | None = option(
        None,
        help="Passes over the data",
        unit="epochs",
        at_least=1,
        default_text="3, unless there are --steps",
        group=LENGTH,
    )
    steps: int | None = option(
        None, help="Optimizer steps, instead of --epochs", unit="steps", at_least=1, group=LENGTH
    )
    patience: int | None = option(
        None,
        help="Stop after this many epochs without a better validation accuracy",
        unit="epochs",
        at_least=1,
        default_text="never",
        group=LENGTH,
    )
    snapshots: int | None = option(
        None,
        help="Split the training into this many cosine cycles, and write the weights at the end of each: a.1.st, "
        "a.2.st and so on for a.st",
        unit="cycles",
        at_least=2,
        default_text="one cycle, one output",
        group=LENGTH,
    )
    min_delta: float = option(
        0.0, help="Smallest improvement that counts, a fraction of all samples", at_least=0, below=1, group=LENGTH
    )
    optimizer: str = option("adamw", help="The optimizer", choices=("adamw", "sgd"), group=OPTIMIZATION)
    lr: list[float] = option(
        [1e-4],
        help="Learning rate at its peak; of several, each is trained and the best on --val is kept",
        metavar="X[,X...]",
        above=0,
        split=True,
        group=OPTIMIZATION,
    )
    weight_decay: float = option(0.01, help="Weight decay; none on biases and norms", at_least=0, group=OPTIMIZATION)
    momentum: float = option(0.9, help="Momentum of sgd", at_least=0, below=1, group=OPTIMIZATION)
    betas: list[float] = option(
        [0.9, 0.999],
        help="Decay rates of adamw's first and second moments",
        at_least=0,
        below=1,
        split=True,
        group=OPTIMIZATION,
    )
    eps: float = option(1e-8, help="The epsilon of adamw", above=0, group=OPTIMIZATION)
    warmup: float = option(
        0.05,
        help="Linear warm-up: steps, or a fraction of all steps if less than 1",
        unit="steps or fraction",
        at_least=0,
        group=OPTIMIZATION,
    )
    schedule: str = option(
        "cosine",
        help="The learning rate after the warm-up",
        choices=("cosine", "linear", "constant"),
        group=OPTIMIZATION,
    )
    lr_floor: float = option(
        1e-5,
        help="Final learning rate of the cosine, a fraction of the peak",
        at_least=0,
        at_most=1,
        group=OPTIMIZATION,
    )
    loss: str = option(
        "cross-entropy",
        help="What is minimised: the cross-entropy of the classes, or, for a CLIP on --data captions:..., the "
        "contrastive loss of open_clip",
        choices=("cross-entropy", "contrastive"),
        group=OPTIMIZATION,
    )
    label_smoothing: float = option(0.0, help="Label smoothing", at_least=0, below=1, group=OPTIMIZATION)
    clip: float = option(1.0, help="Largest gradient norm; 0 means no limit", at_least=0, group=OPTIMIZATION)
    accumulate: int = option(
        1, help="Batches that make one step, as if they were one batch", unit="batches", at_least=1, group=OPTIMIZATION
    )
    train_last: int | None = option(
        None,
        help="Train only the last N blocks and the classifier",
        unit="blocks",
        at_least=0,
        default_text="all blocks",
        group=TRAINED,
    )
    freeze: list[str] = option(
        [],
        help=f"Parts that are left as they are: {', '.join(FREEZABLE)}; stem is all before the first block",
        choices=FREEZABLE,
        metavar="PART[,PART...]",
        split=True,
        default_text="none",
        group=TRAINED,
    )
    init: str = option(
        "given",
        help="The weights to start from; head draws those of the classifier by --seed, random all of them",
        choices=("given", "head", "random"),
        group=TRAINED,
    )
    reset_head: bool = option(
        False,
        help="Start from a classifier with as many classes as the data have, of zeros but for --init head",
        group=TRAINED,
    )
    dropout: float | None = option(
        None,
        help="Dropout in each layer, behind attention and in the MLP",
        at_least=0,
        below=1,
        default_text="what the model says",
        group=TRAINED,
    )
    lora: str | None = option(
        None,
        help="Train matrices of rank R on queries, keys, values and outputs, scaled by ALPHA / R, and the classifier",
        metavar="R,ALPHA",
        pattern=r"[1-9][0-9]{0,3},[0-9]{1,5}(\.[0-9]{1,5})?",
        default_text="off, the weights themselves",
        group=TRAINED,
    )
    batch_ensemble: float | None = option(
        None,
        help="Train rank-one factors of the linear layers of the blocks, drawn around 1 by --seed with this standard "
        "deviation, their biases, and the classifier",
        metavar="STD",
        at_least=0,
        default_text="off, the weights themselves",
        group=TRAINED,
    )
    augment: list[str] = option(
        [],
        help="Augmentation of training images: crop[:SMALLEST SHARE], flip, randaugment[:N:M]",
        metavar="crop[:0.08],flip,randaugment[:2:12]",
        pattern=r"crop(:(0?\.[0-9]{1,6}|1(\.0)?))?|flip|randaugment(:[1-9]:([12]?[0-9]|30))?",
        split=True,
        default_text="none",
        group=AUGMENTATION,
    )
    log: str | None = option(
        None,
        help="Write a line of JSON for each step that is logged and each epoch; beside is a.log.jsonl for a.st",
        metavar="FILE|beside",
        default_text="no log",
        group=FILES,
    )
    tensorboard: str | None = option(
        None,
        help="Write loss, learning rate, speed and validation into this folder, for TensorBoard",
        metavar="DIR",
        default_text="none",
        group=FILES,
    )
    save_every: str = option(
        "10m",
        help="How often the unfinished run is saved beside the output, in steps or seconds, minutes, hours",
        metavar="N|Ns|Nm|Nh",
        pattern=r"[1-9][0-9]{0,8}[smh]?",
        group=RUNNING,
    )
    resume: bool = option(False, help="Resume the unfinished run that is saved beside the output", group=RUNNING)
    autocast: str | None = option(
        None,
        help="Mixed precision: compute activations of training in this format; weights keep theirs",
        choices=("bfloat16",),
        default_text="off",
        group=RUNNING,
    )
    checkpoint_blocks: bool = option(
        False,
        help="Gradient checkpointing: recompute the activations of each block in the backward pass",
        group=RUNNING,
    )
    compile: bool = option(False, help="Compile the model with torch.compile", group=RUNNING)
    timeout: float = option(
        1800.0,
        help="How long the processes of a distributed training wait for each other",
        unit="seconds",
        above=0,
        at_most=10**6,
        group=RUNNING,
    )

    def problems(self) -> list[str]:
        """As of all settings, after taking in the recipe."""
        lr: Any = self.lr
        if isinstance(lr, (int, float)):  # one number, from Python
            self.lr = [float(lr)]
        prescribed = []
        if self.recipe is not None and "recipe" not in self.unread:
            prescribed = self.take_recipe(self.recipe, list(recipe_options()))
        return prescribed + super().problems()

    def settle(self) -> None:
        """Three epochs unless said otherwise."""
        if not self.given("epochs") and not self.given("steps"):
            self.epochs = 3

    def inapplicable(self) -> dict[str, str]:
        """Momentum belongs to sgd, betas and eps to adamw, the floor to the cosine, classes to the cross-entropy.

        Of snapshots none is chosen; several devices are no device.
        """
        unused = dict.fromkeys(("betas", "eps"), "optimizer") if self.optimizer == "sgd" else {"momentum": "optimizer"}
        unused |= {"device": "devices"} if self.given("devices") else {}
        if self.loss == "contrastive":
            unused |= dict.fromkeys(("label_smoothing", "reset_head", "compile"), "loss")
        if self.snapshots is not None:
            unused |= dict.fromkeys(("patience", "min_delta"), "snapshots")
            return unused if self.schedule == "cosine" else {**unused, "schedule": "snapshots"}
        return unused if self.schedule == "cosine" else {**unused, "lr_floor": "schedule"}

    def conflicts(self) -> list[str]:
        """Data, a length, and a warm-up in whole steps."""
        problems = self.needs("data") + self.at_most_one("epochs", "steps")
        problems += self.at_most_one(*(name for name in ADAPTERS if getattr(self, name) is not False))
        problems += self._several_conflicts() + self._caption_conflicts()
        if self.given("patience") and not self.given("val"):
            problems.append(f"--patience{self.where('patience')} needs --val")
        if "lr" not in self.unread and len(self.lr) > 1 and not self.given("val"):
            problems.append(f"several values of --lr{self.where('lr')} need --val, which selects among them")
        if "lr" not in self.unread and len(self.lr) > 1 and self.snapshots is not None:
            problems.append(f"--snapshots takes one value of --lr, not {len(self.lr)}{self.where('lr')}")
        if self.log == "-":
            problems.append(f"--log - makes no sense: standard output has the answer{self.where('log')}")
        if "betas" not in self.unread and len(self.betas) != 2:
            problems.append(f"--betas takes two numbers, not {len(self.betas)}{self.where('betas')}")
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            source = self.where("warmup")
            problems.append(f"--warmup must be whole steps or a fraction below 1, not {self.warmup}{source}")
        kinds = [item.partition(":")[0] for item in self.augment]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice and "augment" not in self.unread:
            problems.append(f"--augment lists {', '.join(twice)} twice{self.where('augment')}")
        return problems

    def _several_conflicts(self) -> list[str]:
        """Names: of several trainings each writes files of its own."""
        problems, log = [], self.log
        if self.several and log not in (None, "-", "beside"):
            problems.append(f"several trainings have a log each: --log beside, not {log}{self.where('log')}")
        if len(self.model) > 1 and self.output is not None and not self.output.endswith("/"):
            hint = "names their folder, as in out/"
            problems.append(f"of several MODELs --output {hint}, not {self.output}{self.where('output')}")
        return problems

    def _caption_conflicts(self) -> list[str]:
        """Captions where classes are needed, and the reverse."""
        problems, data = [], self.data or ""
        if data.startswith(CAPTIONS) and self.loss != "contrastive" and "loss" not in self.unread:
            problems.append(f"--data {data}{self.where('data')}: captions need --loss contrastive")
        if data and self.loss == "contrastive" and not data.startswith(CAPTIONS):
            source = self.where("loss")
            problems.append(f"--loss contrastive{source} needs pairs of images and captions: --data {CAPTIONS}FILE")
        if (self.val or "").startswith(CAPTIONS):
            source = self.where("val")
            problems.append(f"--val {self.val}{source}: validation is by zero-shot accuracy, on labelled images")
        return problems

    def effective(self) -> dict[str, dict[str, Any]]:
        """Every value that a recipe may decide, and where it came from."""
        return {
            item.name: {"value": getattr(self, item.name), "source": self.sources.get(item.name, "default")}
            for item in recipe_options()
        }


def recipe_options() -> Iterator[Option]:
    """The options that a recipe may decide, in the order of the help."""
    for item in options_of(FinetuneSettings):
        own = item.name in FinetuneSettings.__annotations__
        if item.name in _RECIPE_ALSO or (own and item.name not in _NOT_IN_RECIPES):
            yield item
