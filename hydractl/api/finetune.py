"""The signature of ``finetune``, and how a recipe fills in its options: it ranks above built-in values only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from hydractl.api.making import made, place_for_model
from hydractl.api.options import (
    SPEC_FORMS,
    Arch,
    BatchSize,
    Config,
    Device,
    DryRun,
    Dtype,
    Force,
    Labels,
    Limit,
    MaxLength,
    OneOrMore,
    Output,
    Prompt,
    Seed,
    Tower,
    Workers,
    io,
    running,
)
from hydractl.api.values import Data, Path, Texts
from hydractl.api.verb import verb
from hydractl.errors import UsageError
from hydractl.methods import MethodOptions, ensemble_help, read_ensemble
from hydractl.methods.base import FinetuneRequest
from hydractl.options.call import Call, checking, filled
from hydractl.options.option import Option
from hydractl.options.signature import opt
from hydractl.options.sources import RECIPE, Given
from hydractl.options.yaml_files import read_recipe

if TYPE_CHECKING:
    from hydractl.api.models import Model

ensembles = partial(opt, group="Ensemble")
lengths = partial(opt, group="Length")
optimization = partial(opt, group="Optimization")
weights = partial(opt, group="What is trained")
augmentation = partial(opt, group="Augmentation")

CAPTIONS = "captions:"
"""What the SPEC of pairs of images and captions starts with."""

Part = Literal[
    "patch",
    "position",
    "class_token",
    "words",
    "stem",
    "attention",
    "mlp",
    "norm",
    "layer_scale",
    "head",
    "scale",
]
"""Parts of a model that can be excluded from training. ``stem`` is everything before the first block. ``layer_scale``
are the factors by which a block multiplies the outputs of attention and MLP (LayerScale). ``scale`` is the factor (and
bias) that turns the similarities of a CLIP into logits."""

_GROUPS_OF_A_TRAINING = ("Ensemble", "Length", "Optimization", "What is trained", "Augmentation")
_SPEED = ("autocast", "checkpoint_blocks", "compile")
_RECIPE_ALSO = (*_SPEED, "batch_size", "dtype", "max_length", "tower")
_OF_ONE_RUN = ("log", "save_every", "resume", *_SPEED, "timeout", "tower")


def _check_log(text: str) -> None:
    """Check the file of ``--log``; ValueError for standard output."""
    if text == "-":
        raise ValueError("- makes no sense: standard output has the answer")


def _check_warmup(number: float) -> None:
    """Check a number of warm-up steps: a whole number, or a fraction below 1; else ValueError."""
    if number >= 1 and number != int(number):
        raise ValueError(f"must be whole steps or a fraction below 1, not {number}")


def recipe_options() -> Iterator[Option]:
    """Yield the options that a recipe may decide, in the order of the help."""
    for option in finetune.declared.options:  # type: ignore[attr-defined]
        is_of_a_training = option.group in _GROUPS_OF_A_TRAINING and option.name not in ("recipe", "val")
        if is_of_a_training or option.name in _RECIPE_ALSO:
            yield option


def _settle(call: Call) -> None:
    """Complete the options of a training, in place, before they are checked.

    - A recipe gives values to the options that nobody gave.
    - Without ``--epochs`` and ``--steps`` there are three epochs.
    - Options without effect go back to their defaults, or become problems if somebody gave them for this command.
    """
    if call.values["recipe"] is not None and "recipe" not in call.wrong:
        _take_recipe(call, str(call.values["recipe"]))
    if not call.given("epochs") and not call.given("steps"):
        call.values["epochs"] = 3
    for names, because in _without_effect(call):
        call.unused(*names, because=because)


def _take_recipe(call: Call, recipe: str) -> None:
    """Set the options that nobody gave to the values of a recipe, a YAML file of hyper-parameters.

    What is wrong in the file is added to the problems of the call.

    Args:
        call: the call.
        recipe: the name or the file of the recipe.
    """
    # Ranks tell where a value comes from: 0 is a default, RECIPE above it, then files, variables, flags.
    option_by_key = {option.key: option for option in recipe_options()}
    contents = read_recipe(recipe, option_by_key)
    call.problems += contents.problems
    for key, raw in contents.values[None].items():  # None: keys that stand at the top of the file
        option = option_by_key[key]
        # A value that somebody gave wins, even if it could not be read; so does a length that somebody gave.
        is_length = option.name in ("epochs", "steps")
        has_length = call.rank("epochs") > RECIPE or call.rank("steps") > RECIPE
        if call.rank(option.name) or (is_length and has_length):
            continue
        call.take(option, Given(raw, f"recipe {recipe}", RECIPE))


def _without_effect(call: Call) -> Iterator[tuple[Sequence[str], str]]:
    """Yield pairs: names of options without effect, and the name of the option that makes them so.

    - an ensemble method that trains nothing: all options of a training, and no further pairs;
    - SGD has no betas and eps, and AdamW no momentum;
    - the contrastive loss has no label smoothing, no new head and no compilation;
    - other ensemble methods set some options aside;
    - only the cosine schedule has a floor of the learning rate.
    """
    # A method that trains nothing, such as laplace: every option of a training, and nothing more to say.
    method = call.values["ensemble"]
    if method is not None and not method.trains:
        names = [option.name for option in call.declared.options if option.group in _GROUPS_OF_A_TRAINING]
        yield [*(name for name in names if name not in ("ensemble", "val")), *_OF_ONE_RUN], "ensemble"
        return
    yield ["betas", "eps"] if call.values["optimizer"] == "sgd" else ["momentum"], "optimizer"
    if call.values["loss"] == "contrastive":  # it compares images with texts, and has no classes
        yield ["label_smoothing", "reset_head", "compile"], "loss"
    of_method = [] if method is None else method.sets_aside(_asked(call))
    if of_method:
        yield of_method, "ensemble"
    # Only the cosine has a floor. Where a method sets the schedule aside, the cosine is in effect.
    if call.values["schedule"] != "cosine" and "schedule" not in of_method:
        yield ["lr_floor"], "schedule"


def _asked(call: Call) -> FinetuneRequest:
    """Return what a method may look at."""
    return filled(FinetuneRequest, call.values, where=call.where, has_default=lambda name: not call.rank(name))


@verb(
    "finetune",
    writes="weights",
    alternatives=(("epochs", "steps"),),
    before=_settle,
    further_help=lambda: {"Ensemble": ensemble_help()},
)
def finetune(
    model: Annotated[
        OneOrMore,
        io(
            "A checkpoint (.st), a published folder, or timm:NAME; of several each is trained",
            metavar="MODEL...",
            kind="members",
        ),
    ],
    *,
    on_log: Callable[[Mapping[str, object]], None] | None = None,
    train: Data | None = io(f"Training data, with labels or captions; {SPEC_FORMS}", often=True),
    recipe: Path | None = lengths(
        "Options from a recipe, for those that are given nowhere else; one of default, imagenet1k, cifar100, sst2, "
        "clip-locked-image, for pruned models, base-imagenet21k, base-imagenet1k, base-cifar100, for whole ones, "
        "or a YAML file [default: the built-in values, those of the recipe default]",
        metavar="NAME|FILE",
        often=True,
    ),
    ensemble: str | MethodOptions | None = ensembles(
        "Train members of an ensemble, by one of the ways below; deep:3 trains three models by three seeds "
        "[default: one model]",
        metavar="KIND[:ARGS]",
        example="deep:3",
        type=MethodOptions,
        reads=read_ensemble,
        often=True,
    ),
    val: Data | None = lengths(
        "Validation data, as a SPEC: the best epoch on it is kept [default: none, the last epoch is kept]",
        often=True,
    ),
    epochs: int | None = lengths("Passes over the data [default: 3, or by --steps]", at_least=1, often=True),
    steps: int | None = lengths("Optimizer steps, instead of --epochs [steps]", at_least=1),
    patience: int | None = lengths(
        "Stop after this many epochs without a better validation accuracy [epochs; default: never]", at_least=1
    ),
    min_delta: float = lengths(
        "Smallest improvement that counts, a fraction of all samples", default=0.0, at_least=0, below=1, flagless=True
    ),
    optimizer: Literal["adamw", "sgd"] = optimization("The optimizer", default="adamw"),
    lr: float | Sequence[float] = optimization(
        "Learning rate at its peak; of several, each is trained and the best on --val is kept",
        default=(1e-4,),
        metavar="X[,X...]",
        above=0,
        split=True,
        often=True,
    ),
    weight_decay: float = optimization("Weight decay; none on biases and norms", default=0.01, at_least=0),
    momentum: float = optimization("Momentum of sgd", default=0.9, at_least=0, below=1, flagless=True),
    betas: Sequence[float] = optimization(
        "Decay rates of adamw's first and second moments",
        default=(0.9, 0.999),
        at_least=0,
        below=1,
        split=True,
        flagless=True,
    ),
    eps: float = optimization("The epsilon of adamw", default=1e-8, above=0, flagless=True),
    warmup: float = optimization(
        "Linear warm-up: steps, or a fraction of all steps if less than 1 [steps or fraction]",
        default=0.05,
        at_least=0,
        check=_check_warmup,
        flagless=True,
    ),
    schedule: Literal["cosine", "linear", "constant"] = optimization(
        "The learning rate after the warm-up", default="cosine"
    ),
    lr_floor: float = optimization(
        "Final learning rate of the cosine, a fraction of the peak", default=1e-5, at_least=0, at_most=1, flagless=True
    ),
    loss: Literal["cross-entropy", "contrastive"] = optimization(
        "What is minimised: the cross-entropy of the classes, or, for a CLIP on --train captions:..., the "
        "contrastive loss of open_clip",
        default="cross-entropy",
    ),
    label_smoothing: float = optimization("Label smoothing", default=0.0, at_least=0, below=1, flagless=True),
    clip: float = optimization("Largest gradient norm; 0 means no limit", default=1.0, at_least=0, flagless=True),
    accumulate: int = optimization(
        "Batches that make one step, as if they were one batch [batches]", default=1, at_least=1
    ),
    train_last: int | None = weights(
        "Train only the last N blocks and the classifier [blocks; default: all blocks]", at_least=0
    ),
    freeze: Part | Sequence[Part] = weights(
        "Parts that are left as they are: patch, position, class_token, words, stem, attention, mlp, norm, "
        "layer_scale, head, scale; stem is all before the first block [default: none]",
        default=(),
        metavar="PART[,PART...]",
        split=True,
    ),
    init: Literal["given", "head", "random"] = weights(
        "The weights to start from; head draws those of the classifier by --seed, and makes one for a body that "
        "has none, random draws all of them",
        default="given",
    ),
    reset_head: bool = weights(
        "Start from a classifier with as many classes as --labels or the data have, of zeros but for --init head",
        default=False,
    ),
    dropout: float | None = weights(
        "Dropout in each layer, behind attention and in the MLP [default: what the model says]",
        at_least=0,
        below=1,
    ),
    augment: Texts = augmentation(
        "Augmentation of training images: crop[:SMALLEST SHARE], flip, randaugment[:N:M] [default: none]",
        default=(),
        metavar="crop[:0.08],flip,randaugment[:2:12]",
        pattern=r"crop(:(0?\.[0-9]{1,6}|1(\.0)?))?|flip|randaugment(:[1-9]:([12]?[0-9]|30))?",
        example="crop:0.08,flip",
        split=True,
    ),
    log: Path | None = io(
        "Write a line of JSON for each step and each epoch; beside is a.log.jsonl for a.st [default: no log]",
        metavar="FILE|beside",
        check=_check_log,
        writes=True,
    ),
    save_every: str | int = running(
        "How often the unfinished run is saved beside the output, in steps or seconds, minutes, hours",
        default="10m",
        metavar="N|Ns|Nm|Nh",
        type=str,
        pattern=r"[1-9][0-9]{0,8}[smh]?",
        example="500 or 10m",
    ),
    resume: bool = running("Resume the unfinished run that is saved beside the output", default=False, often=True),
    autocast: Literal["bfloat16"] | None = running(
        "Mixed precision: compute activations of training in this format; weights keep theirs [default: off]"
    ),
    checkpoint_blocks: bool = running(
        "Gradient checkpointing: recompute the activations of each block in the backward pass", default=False
    ),
    compile: bool = running("Compile the model with torch.compile", default=False),
    timeout: float = running(
        "How long the processes of a distributed training wait for each other [seconds]",
        default=1800.0,
        above=0,
        at_most=10**6,
        flagless=True,
    ),
    output: Output = None,
    limit: Limit = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    tower: Tower = None,
    arch: Arch = None,
    force: Force = False,
    device: Device = "auto",
    workers: Workers = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
) -> Model:
    """Fine-tune a dense or pruned model on training data; heads that were removed stay removed.

    Several models are trained one after another, and so are the members of an ensemble by seeds. ``laplace`` trains
    nothing, but gives any model, also a fused one, a posterior of its last layer.

    Args:
        on_log: is called with every line of the log, as a dict; an error that it raises ends the training. Of several
            trainings there is none.

    Returns:
        The trained model. If several were trained, they are its ``members``. ``result`` holds the course of the
        training. Without ``output`` its files are temporary.

    Raises:
        UsageError, InputError: an option, a recipe, a data set or a model is wrong.
        NonFiniteError: the loss or a weight is not finite.
        OutputError: ``output`` or an unfinished run is there, and neither ``force`` nor ``resume`` is set.
    """
    with checking() as call:
        values = call.values
        models = values["model"]
        method: MethodOptions | None = values["ensemble"]
        trainings = len(models) * (1 if method is None else method.trainings)
        if trainings > 1 and on_log is not None:
            raise UsageError("on_log is of one training, and these are several", hint="train one after another")
        call.needs("train")
        call.at_most_one("epochs", "steps")
        if trainings > 1 and log not in (None, "-", "beside"):
            call.add(f"several trainings have a log each: --log beside, not {log}", "log")
        if len(models) > 1 and output is not None and not str(output).endswith("/"):
            call.add(f"of several MODELs --output names their folder, as in out/, not {output}", "output")
        if method is None or method.trains:
            _check_captions(call, train, loss)
        if str(val or "").startswith(CAPTIONS):
            call.add(f"--val {val}{call.where('val')}: validation is by zero-shot accuracy, on labelled images")
        if method is not None:
            for problem in method.conflicts(_asked(call)):
                call.add(problem)
        call.goes_with("patience", "val")
        if len(values["lr"]) > 1 and not call.given("val"):
            call.add(f"several values of --lr{call.where('lr')} need --val, which selects among them")
        if len(betas) != 2:
            call.add(f"betas takes two numbers, not {len(betas)}", "betas")
        kinds = [item.partition(":")[0] for item in values["augment"]]
        repeated = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if repeated:
            call.add(f"--augment lists {', '.join(repeated)} twice", "augment")

    from hydractl.verbs.finetune import run

    folder = place_for_model(call, "" if len(models) > 1 else "tuned.st")
    return made(call, run(call, recipe_options()), folder)


def _check_captions(call: Call, train: object, loss: str) -> None:
    """Add a problem to the call if captions are trained without the contrastive loss, or this loss without captions.

    Args:
        call: the call.
        train: the training data as given; None if there are none.
        loss: the name of the loss.
    """
    spec = str(train or "")
    has_captions = spec.startswith(CAPTIONS)
    if has_captions and loss != "contrastive" and "loss" not in call.wrong:
        call.add(f"--train {spec}{call.where('train')}: captions need --loss contrastive")
    if spec and loss == "contrastive" and not has_captions:
        call.add(f"--loss contrastive{call.where('loss')} needs pairs of images and captions: --train {CAPTIONS}FILE")
