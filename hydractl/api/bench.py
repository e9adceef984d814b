"""The signature of ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.api.options import (
    Arch,
    Config,
    Device,
    DryRun,
    DtypeName,
    Figures,
    Force,
    Labels,
    MaxLength,
    Models,
    Prompt,
    Seed,
    WholeLastBlock,
    requiring,
)
from hydractl.api.values import Texts
from hydractl.api.verb import verb
from hydractl.options.call import (
    checking,
)
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Benchmark

measuring = partial(opt, group="Measuring")

Baseline = Literal["stock", "members", "deep"]


@verb("bench")
def bench(
    models: Models = (),
    *,
    batch_size: int | Sequence[int] = measuring(
        "Samples that are computed together; several are measured one after another [samples]",
        default=(1, 8),
        at_least=1,
        split=True,
        often=True,
    ),
    dtype: DtypeName | Sequence[DtypeName] = measuring(
        "Number formats of the computation: float32, bfloat16, float16, float64", default=("float32",), split=True
    ),
    compare: Baseline | Sequence[Baseline] = measuring(
        "Baselines as further rows: stock (the first MODEL by its library's own code), members (those of every "
        "fused MODEL, run sequentially, and one alone), deep (as many copies of the first one as members)",
        default=(),
        split=True,
        often=True,
    ),
    compile: bool = measuring("Measure the models compiled by torch.compile, each as one graph", default=False),
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] | None = measuring(
        "The mode of torch.compile; reduce-overhead is CUDA graphs [default: default]"
    ),
    rounds: int = measuring(
        "Measured rounds; each round runs every model once, in turn. More of them narrow the intervals of a noisy "
        "machine; fewer than 5 say nothing about noise [rounds]",
        default=20,
        at_least=1,
        often=True,
    ),
    warmup: int = measuring("Rounds before the measured ones [rounds]", default=3, at_least=0),
    require: Texts = requiring(
        "Exit with 4 unless it holds for every MODEL but the first, as [NAME:]KEY<=NUMBER; repeat it for more; "
        "with a NAME it is about that row only",
        default=(),
        group="Measuring",
    ),
    output: Figures = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    arch: Arch = None,
    force: Force = False,
    device: Device = "auto",
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
    whole_last_block: WholeLastBlock = False,
) -> Benchmark:
    """Measure latency, memory and mult-adds of models; ratios are to the first model, in paired rounds.

    :mod:`hydractl.verbs.bench` runs every model once in each round, on the same inputs, in an order drawn anew. A ratio
    is taken within a round, and its median over the rounds is reported.

    Args:
        models: one model, several, or a mapping from the names of rows to models. A list in the mapping is an ensemble
            whose models run one after another.

    Returns:
        The rows, one for each model, batch size and number format, in its ``results``.

    Raises:
        UsageError, InputError: an option or a model is wrong, or the models do not read the same inputs.
        RequirementError: one of ``require`` is not met.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    with checking() as call:
        if compile_mode is not None and not compile:
            call.of("compile_mode", "needs --compile")

    from hydractl.verbs.bench import run

    return run(call).returned()
