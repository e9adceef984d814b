"""The options of ``bench``, and those it shares with ``eval``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.errors import UsageError
from hydractl.settings.common import DTYPES, RUNNING, Common
from hydractl.settings.option import option
from hydractl.settings.require import Requirement, parse_requirement

_OF_MEASURING = (
    *(
        "model",
        "output",
        "batch_size",
        "dtype",
        "compare",
        "whole_last_block",
        "compile",
        "compile_mode",
        "rounds",
        "warmup",
        "threads",
    ),
    *("device", "seed", "arch", "labels", "prompt", "max_length"),
)


@dataclass(kw_only=True)
class LastBlock(Common):
    """Options of both verbs for how a model runs."""

    whole_last_block: bool = option(
        False, help="Run the last block for all tokens, not only for those that are read out", group=RUNNING
    )


@dataclass(kw_only=True)
class BenchSettings(LastBlock):
    """Options of ``bench``."""

    verb: ClassVar[str] = "bench"
    many_models: ClassVar[bool] = True

    batch_size: list[int] = option(
        [1, 8],
        help="Samples that are computed together; several are measured one after another",
        metavar="N,...",
        unit="samples",
        at_least=1,
        split=True,
        group="Measuring",
    )
    dtype: list[str] = option(
        ["float32"],
        help=f"Number formats of the computation: {', '.join(DTYPES)}",
        choices=DTYPES,
        metavar="NAME,...",
        split=True,
        group="Measuring",
    )
    compare: list[str] = option(
        [],
        help="Baselines as further rows: stock (the first MODEL by its library's own code), members (those of every "
        "fused MODEL, run sequentially, and one alone), deep (as many copies of the first one as members)",
        choices=("stock", "members", "deep"),
        metavar="NAME,...",
        split=True,
        group="Measuring",
    )
    compile: bool = option(
        False, help="Measure the models compiled by torch.compile, each as one graph", group="Measuring"
    )
    compile_mode: str | None = option(
        None,
        help="The mode of torch.compile; reduce-overhead is CUDA graphs",
        choices=("default", "reduce-overhead", "max-autotune"),
        group="Measuring",
        default_text="default",
    )
    rounds: int = option(
        20,
        help="Measured rounds; each round runs every model once, in turn. More of them narrow the intervals of a noisy "
        "machine; fewer than 5 say nothing about noise",
        unit="rounds",
        at_least=1,
        group="Measuring",
    )
    warmup: int = option(3, help="Rounds before the measured ones", unit="rounds", at_least=0, group="Measuring")
    threads: int | None = option(
        None, help="CPU threads", unit="threads", at_least=1, default_text="what torch chooses", group="Measuring"
    )
    require: list[str] = option(
        [],
        help="Exit with 4 unless it holds for every MODEL but the first, as [NAME:]KEY<=NUMBER; repeat it for more; "
        "with a NAME it is about that row only",
        metavar="EXPR",
        group="Measuring",
    )
    plot: str | None = option(None, help="Also draw the measurement: .png or .svg", metavar="FILE", group="Showing")
    from_file: str | None = option(
        None,
        help="Measure nothing: show, plot or check a bench.json written before",
        metavar="FILE",
        flag="--from",
        group="Showing",
    )

    def requirements(self) -> list[Requirement]:
        """The ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]

    def conflicts(self) -> list[str]:
        """Requirements that can be read, a known format of the plot, and a mode only of what is compiled."""
        found = require_problems(self, self.require)
        if self.plot is not None and not self.plot.lower().endswith((".png", ".svg")):
            found.append(f"--plot must end in .png or .svg, not {self.plot!r}{self.where('plot')}")
        if self.compile_mode is not None and not self.compile and self.from_file is None:
            found.append(f"--compile-mode{self.where('compile_mode')} needs --compile")
        return found

    def inapplicable(self) -> dict[str, str]:
        """Options of measuring have no effect where nothing is measured."""
        return {} if self.from_file is None else dict.fromkeys(_OF_MEASURING, "from_file")

    def check_device(self, kind: str) -> None:
        """Refuse what has no effect on this kind of device, once it is known.

        Raises:
            UsageError: for CUDA graphs where there is no CUDA.
        """
        if self.compile and self.compile_mode == "reduce-overhead" and kind != "cuda":
            raise UsageError(
                f"--compile-mode reduce-overhead has no effect on a {kind} device: it is CUDA graphs",
                hint="leave it out, or use --device cuda",
            )

    def _model_problems(self) -> list[str]:
        """No MODEL is needed where nothing is measured."""
        if self.from_file is not None:
            return []
        return [f"{one}, or --from FILE" if "needs" in one else one for one in super()._model_problems()]


def require_problems(settings: Common, expressions: list[str]) -> list[str]:
    """Problems of the ``--require`` expressions."""
    found = []
    for text in expressions:
        try:
            parse_requirement(text)
        except ValueError as error:
            found.append(f"--require {error}{settings.where('require')}")
    return found
