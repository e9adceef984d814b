"""The arguments that several verbs share, each declared once: its type for Python, and its option.

A signature repeats them by name, as ``output: Output = None``. What a type checker sees is what a program may pass; the
function itself gets a text, which stands for an object of the program where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NewType, TypeAlias

from hydractl.api.values import Data, Names, Path, Texts
from hydractl.expressions.conditions import Requirement, parse_requirement
from hydractl.options.signature import opt

io = partial(opt, group="Input and output")
running = partial(opt, group="Running")
general = partial(opt, group="General")

if TYPE_CHECKING:
    from hydractl.api.models import ModelLike
else:
    from hydractl.expressions.models import ModelRef

    ModelLike = NewType("ModelLike", ModelRef)

OneOrMore: TypeAlias = ModelLike | Sequence[ModelLike]
"""One model, or several."""

# --- models -----------------------------------------------------------------------------------------------------------

_MODELS = partial(io, "One or more models; NAME=MODEL names it, A+B+C are members of one ensemble", metavar="MODEL...")
_ONE = partial(io, "A checkpoint (.st), a published folder, or timm:NAME", metavar="MODEL")

Models: TypeAlias = Annotated[OneOrMore | Mapping[str, OneOrMore], _MODELS(kind="rows")]
"""One model, several, or a mapping from row names. In a mapping, a list is an ensemble whose models run in turn."""

Members: TypeAlias = Annotated[OneOrMore, _MODELS(kind="members")]
"""One model or several."""

OneModel: TypeAlias = Annotated[ModelLike, _ONE(kind="model")]
"""One model: a file, a folder, a name, or a model that a program has opened."""

AnyModel: TypeAlias = Annotated[
    ModelLike,
    io(
        "A checkpoint (.st), a published folder, or timm:NAME; members A+B+C, or predictions of eval (F.st)",
        metavar="MODEL",
        kind="model",
    ),
]
"""One model, or whatever has logits on validation data."""

ModelAndInputs: TypeAlias = Annotated[
    ModelLike,
    io(
        "A checkpoint, and what to predict: image files, a SPEC as of --data, or - for standard input with a path, or "
        "a text, in each line",
        metavar="MODEL [INPUT...]",
        kind="inputs",
    ),
]
"""One model. On a command line its inputs follow it, so the verb gets a list of texts."""

OneFile: TypeAlias = Annotated[ModelLike, _ONE(kind="file")]
"""One model, named by its file, folder or name where it has one, because commands that are kept name it."""

# --- input and output -------------------------------------------------------------------------------------------------

SPEC_FORMS = (
    "a folder of class folders, an .npz, an image list, texts (.csv, .tsv, .jsonl, .parquet), or NAME/SPLIT after a "
    "scheme"
)
"""The forms that the SPEC of a data set can have, for help texts."""

_output = partial(io, metavar="PATH", short="-o", writes=True, often=True)

Output: TypeAlias = Annotated[
    Path | None,
    _output("Output file; - is standard output for JSON [default: named after the input and what was done]"),
]
Figures: TypeAlias = Annotated[
    Path | None, _output("File for the figures as JSON; - is standard output [default: the table alone]")
]
DataSet: TypeAlias = Annotated[Data | None, io(f"The data set: {SPEC_FORMS}", often=True)]

Limit: TypeAlias = Annotated[
    int | None,
    io(
        "Use only N samples, before anything else: the first ones, but of class folders and other sets sorted by class "
        "as many of each class, drawn by --seed [samples; default: all]",
        at_least=1,
    ),
]
MaxLength: TypeAlias = Annotated[
    int | None,
    io(
        "Maximum number of tokens of a text; longer texts are truncated [tokens; default: what the checkpoint says]",
        at_least=1,
    ),
]
Labels: TypeAlias = Annotated[
    Names | None,
    io(
        "Class names: a file with one per line, a JSON list, a folder of class folders, or a set with names built in "
        "(imagenet, cifar10, cifar100, food101, sun397, pets, dtd, eurosat, caltech101); they name the classes of a "
        "zero-shot model [default: those of the checkpoint, else of the data]",
        metavar="FILE|NAME",
        copied=True,
    ),
]
Prompt: TypeAlias = Annotated[
    Texts,
    io(
        "Template that turns a class name into a prompt, for a zero-shot model; repeat it to average several, or give "
        "a file of templates, or openai-imagenet for CLIP's own 80 [default: A photo of a {label}.]",
        metavar="TEMPLATE|FILE",
        copied=True,
    ),
]
Tower: TypeAlias = Annotated[
    Literal["visual", "text", "both"] | None,
    io("The tower whose heads are meant, in a model with two towers [default: both]"),
]
Arch: TypeAlias = Annotated[
    str | None,
    io(
        "The architecture of a bare safetensors or .pth file, such as timm:vit_base_patch16_224 "
        "[default: what the file says]",
        metavar="NAME",
    ),
]
Force: TypeAlias = Annotated[bool, io("Replace an output that exists", often=True, flag_only=True)]
OnBad: TypeAlias = Annotated[
    Literal["error", "skip"],
    io("A sample that cannot be read: error stops and names it; skip leaves it out, counts and lists it"),
]

# --- running ----------------------------------------------------------------------------------------------------------

Device: TypeAlias = Annotated[
    str,
    running(
        "The device to compute on",
        metavar="auto|cpu|cuda[:i]|mps",
        pattern=r"auto|cpu|mps|cuda(:[0-9]{1,3})?",
        example="cuda:0",
        often=True,
    ),
]
Workers: TypeAlias = Annotated[
    int | None,
    running(
        "Processes that read data; 0 is the main one [processes; default: 0; up to 8 where images are decoded for a "
        "CUDA device]",
        at_least=0,
    ),
]
Seed: TypeAlias = Annotated[int, running("The seed of everything random", at_least=0, often=True)]
DryRun: TypeAlias = Annotated[bool, running("Print the plan and stop", often=True)]
DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]
Dtype: TypeAlias = Annotated[DtypeName, running("Number format of the computation")]
BatchSize: TypeAlias = Annotated[int, running("Samples that are computed together [samples]", at_least=1)]
WholeLastBlock: TypeAlias = Annotated[
    bool, running("Run the last block for all tokens, not only for those that are read out")
]

# --- general ----------------------------------------------------------------------------------------------------------

Config: TypeAlias = Annotated[
    Path | None,
    general(
        "The file of defaults, or a YAML mapping in braces [default: hydra.yaml, if there is one]", metavar="FILE|{...}"
    ),
]

# --- figures ----------------------------------------------------------------------------------------------------------


requiring = partial(opt, metavar="EXPR", type=Requirement, reads=parse_requirement, often=True)
"""The option ``--require`` of a verb, with the help and the heading that are the verb's own."""
