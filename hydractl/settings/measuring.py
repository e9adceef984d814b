"""The options of ``bench``, and those it shares with ``eval``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.errors import UsageError
from hydractl.expressions.conditions import Requirement, parse_requirement
from hydractl.settings.common import DTYPES, Common, Rule, run_option
from hydractl.settings.option import ends_in, option, options_of
from hydractl.settings.rules import needs

bench_option = partial(option, "Measuring")
show_option = partial(option, "Showing")


@dataclass(kw_only=True)
class Measured(Common):
    """What both verbs share: how a model runs, and ``--from``, with which nothing is measured.

    Attributes:
        of_showing: the options that go with ``--from``.
    """

    many_models: ClassVar[bool] = True
    of_showing: ClassVar[tuple[str, ...]] = ("require", "json", "force", "dry_run", "config", "quiet", "verbose")

    whole_last_block: bool = run_option(
        "Run the last block for all tokens, not only for those that are read out", False
    )

    def inapplicable(self) -> dict[str, str]:
        """Return the options of measuring where nothing is measured."""
        if not self.given("from_file"):
            return {}
        unused = {}
        for item in options_of(type(self)):
            if item.name != "from_file" and item.name not in self.of_showing:
                unused[item.name] = "from_file"
        return unused

    def _model_problems(self) -> list[str]:
        """List problems of the models; none is needed where nothing is measured."""
        if self.given("from_file"):
            return []
        problems = []
        for problem in super()._model_problems():
            if "needs" in problem:
                problem += ", or --from FILE"
            problems.append(problem)
        return problems


def _one_input_for_data(settings: BenchSettings) -> list[str]:
    """Find samples of one kind for models of several kinds."""
    if settings.data is None or not settings.unequal_inputs:
        return []
    return ["give only one of --data, --unequal-inputs"]


def _compiled_for_a_mode(settings: BenchSettings) -> list[str]:
    """Find a mode of torch.compile where nothing is compiled."""
    if settings.compile_mode is None or settings.compile or settings.from_file is not None:
        return []
    return [f"--compile-mode{settings.where('compile_mode')} needs --compile"]


@dataclass(kw_only=True)
class BenchSettings(Measured):
    """Options of ``bench``."""

    verb: ClassVar[str] = "bench"
    rules: ClassVar[tuple[Rule, ...]] = (_one_input_for_data, needs("limit", "data"), _compiled_for_a_mode)
    of_showing: ClassVar[tuple[str, ...]] = (*Measured.of_showing, "plot")
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
    plot: str | None = show_option(
        "Also draw the measurement: .png or .svg",
        metavar="FILE",
        check=ends_in(".png", ".svg", any_case=True),
        writes=True,
    )
    from_file: str | None = show_option(
        "Measure nothing: show, plot or check a bench.json written before", metavar="FILE", flag="--from", often=True
    )

    def requirements(self) -> list[Requirement]:
        """The ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]

    def settle(self) -> None:
        """Leave data alone that every verb was given: inputs are random unless samples are asked for."""
        for name in ("data", "limit"):
            if not self.of_this_verb(name):
                setattr(self, name, None)

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

    def check_exported(self, files: list[str], kind: str) -> None:
        """Refuse what exported files cannot do.

        Args:
            files: their names; none: nothing is refused.
            kind: of the device.

        Raises:
            UsageError: they would run on another device, in another format or another way than the other models.
        """
        as_written = self.dtype == ["float32"] and not self.whole_last_block
        if not files or (kind == "cpu" and as_written):
            return
        raise UsageError(
            f"exported files run on the CPU, in float32 and as they were written: {', '.join(files)}",
            hint="--device cpu" if as_written else "leave out --dtype and --whole-last-block",
        )
