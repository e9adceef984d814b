"""The options of ``bench``, and the options it shares with ``eval``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.errors import UsageError
from hydractl.expressions.conditions import parse_requirement
from hydractl.options.option import option
from hydractl.settings.common import DTYPES, Common, Requiring, Rule, run_option
from hydractl.settings.rules import needs

bench_option = partial(option, "Measuring")


@dataclass(kw_only=True)
class Measured(Common):
    """Options of the verbs that run models to measure them."""

    many_models: ClassVar[bool] = True

    whole_last_block: bool = run_option(
        "Run the last block for all tokens, not only for those that are read out", False
    )


def _one_input_for_data(settings: BenchSettings) -> list[str]:
    """Return a problem if samples of one kind are given for models with inputs of several kinds."""
    if settings.data is None or not settings.unequal_inputs:
        return []
    return ["give only one of --data, --unequal-inputs"]


def _compiled_for_a_mode(settings: BenchSettings) -> list[str]:
    """Return a problem if a mode of torch.compile is given and nothing is compiled."""
    if settings.compile_mode is None or settings.compile:
        return []
    return [f"--compile-mode{settings.where('compile_mode')} needs --compile"]


@dataclass(kw_only=True)
class BenchSettings(Requiring, Measured):
    """Options of ``bench``."""

    verb: ClassVar[str] = "bench"
    rules: ClassVar[tuple[Rule, ...]] = (_one_input_for_data, needs("limit", "data"), _compiled_for_a_mode)
    lacks: ClassVar[tuple[str, ...]] = ("workers", "tower")

    batch_size: list[int] = bench_option(
        "Samples that are computed together; several are measured one after another [samples]",
        [1, 8],
        metavar="N,...",
        at_least=1,
        split=True,
        often=True,
    )
    dtype: list[str] = bench_option(
        f"Number formats of the computation: {', '.join(DTYPES)}",
        ["float32"],
        choices=DTYPES,
        metavar="NAME,...",
        split=True,
    )
    compare: list[str] = bench_option(
        "Baselines as further rows: stock (the first MODEL by its library's own code), members (those of every fused "
        "MODEL, run sequentially, and one alone), deep (as many copies of the first one as members)",
        [],
        choices=("stock", "members", "deep"),
        metavar="NAME,...",
        split=True,
        often=True,
    )
    unequal_inputs: bool = bench_option(
        "Run each MODEL on its own input where they differ (images and texts, image sizes, lengths of texts)",
        False,
    )
    compile: bool = bench_option("Measure the models compiled by torch.compile, each as one graph", False)
    compile_mode: str | None = bench_option(
        "The mode of torch.compile; reduce-overhead is CUDA graphs [default: default]",
        choices=("default", "reduce-overhead", "max-autotune"),
    )
    rounds: int = bench_option(
        "Measured rounds; each round runs every model once, in turn. More of them narrow the intervals of a noisy "
        "machine; fewer than 5 say nothing about noise [rounds]",
        20,
        at_least=1,
        often=True,
    )
    warmup: int = bench_option("Rounds before the measured ones [rounds]", 3, at_least=0)
    threads: int | None = bench_option("CPU threads [threads; default: what torch chooses]", at_least=1)
    require: list[str] = bench_option(
        "Exit with 4 unless it holds for every MODEL but the first, as [NAME:]KEY<=NUMBER; repeat it for more; with a "
        "NAME it is about that row only",
        [],
        metavar="EXPR",
        check=parse_requirement,
        often=True,
    )

    def settle(self) -> None:
        """Drop data that were set for all verbs at once: inputs are random unless ``bench`` itself is given samples."""
        for name in ("data", "limit"):
            if not self.of_this_verb(name):
                setattr(self, name, None)

    def check_device(self, kind: str) -> None:
        """Check the options against the kind of device, once it is known.

        Args:
            kind: ``cpu``, ``cuda`` or ``mps``.

        Raises:
            UsageError: CUDA graphs are asked for on a device without CUDA.
        """
        if self.compile and self.compile_mode == "reduce-overhead" and kind != "cuda":
            raise UsageError(
                f"--compile-mode reduce-overhead has no effect on a {kind} device: it is CUDA graphs",
                hint="leave it out, or use --device cuda",
            )
