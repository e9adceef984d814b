"""The answer of a bench (``hydractl.bench/1``): the record that the verb builds and that its tables and plot read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from hydractl.files.model_records import FILE_HASH
from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, Sized, Within, described, inline, needed

BENCH_SCHEMA: Literal["hydractl.bench/1"] = "hydractl.bench/1"

Positive = Annotated[float, Within(above=0)]


@dataclass(frozen=True, kw_only=True)
class LatencyRecord(Record, form="Latency"):
    """Times of one call on one batch, in milliseconds."""

    median: Positive = needed("Median of the runs.")
    mean: Number = described("Mean of the runs.")
    std: Number = described("Standard deviation of the runs, with n - 1; null for one run.", null=True)
    min: Number = described("The fastest run.")
    max: Number = described("The slowest run.")
    q25: Number = described("First quartile of the runs.")
    q75: Number = described("Third quartile of the runs.")
    runs: Annotated[Sequence[Positive], Sized(1)] = needed("Every run, in the order of the rounds.")


@dataclass(frozen=True, kw_only=True)
class TimedFigures(Record):
    """The figures of timed runs."""

    latency_ms: LatencyRecord = needed("How long a call takes.")
    throughput_per_s: Positive = needed("Batch size over median latency.")
    ratio: Positive = needed("Median over rounds of the time over the first model's in the same round.")
    ratio_ci: Annotated[Sequence[Positive], Sized(2, 2)] = needed("95 % bootstrap interval of the ratio.")
    noisy: bool | None = described("Whether the runs scatter too far; null for fewer than five rounds.", null=True)


@dataclass(frozen=True, kw_only=True)
class BenchInput(Record):
    """One sample of the input of a row."""

    image: Sequence[Count] | None = described("Channels, height and width of an image.")
    tokens: Count | None = described("Number of tokens of a text.")


@dataclass(frozen=True, kw_only=True)
class BenchCost(Record):
    """What is known of a row before it runs: what it is, how large it is, and what one sample costs."""

    kind: str | None = described("`model`, or of `--compare` the baseline.")
    input: BenchInput | None = described("What it ran on.")
    checkpoint_bytes: Count | None = described("Size of the files; null where there are none.", null=True)
    members: Count | None = described("Number of members.")
    params: Positive = needed("Number of stored parameters of all members.")
    macs: Positive = needed("Multiply-adds of one sample.")
    bytes: Count | None = described("Size of the stored weights.", null=True)
    params_nonzero: Count | None = described("Those that are not zero, where single weights were pruned.")
    mac_ratio: Positive | None = needed("`macs` over the first model's; null where they are not known.")


@dataclass(frozen=True, kw_only=True)
class PlannedBenchRow(Record):
    """A row of a bench that was not run."""

    model: str = needed("Name of the row.")
    cost: BenchCost = inline(BenchCost)


@dataclass(frozen=True, kw_only=True)
class BenchRow(Record):
    """One model at one batch size and dtype."""

    model: str = needed("Name of the row.")
    sha256: Any = described(FILE_HASH, null=True)
    batch_size: Positive = needed("Samples of a batch.")
    dtype: str = needed("Number format of the computation.")
    device: str | None = described("Where it ran.")
    compile: bool | None = described("Whether it was compiled.")
    compile_mode: str | None = described("Mode of `torch.compile`; null where it was not compiled.", null=True)
    timing: TimedFigures = inline(TimedFigures)
    peak_memory_bytes: Count | None = described("Most memory in use; null where it is not counted.", null=True)
    cost: BenchCost = inline(BenchCost)
    peak_share: Number = described("Rate of multiply-adds over that of the machine at its best.", null=True)


@dataclass(frozen=True, kw_only=True)
class MachineRecord(Record, form="Machine"):
    """What the times were taken on."""

    python: str | None = described("Version of Python.")
    torch: str | None = described("Version of torch.")
    processor: str | None = described("Name of the processor.")
    cores: Count | None = described("Number of its cores.")
    threads: Count | None = described("Number of threads that torch used.")
    device_name: str | None = described("Name of the accelerator; null on a CPU.", null=True)
    peak_macs_per_s: Mapping[str, Number] | None = described(
        "By dtype the best rate of a large matrix product, multiply-adds a second."
    )


@dataclass(frozen=True, kw_only=True)
class BenchAnswer(Record, form="Bench"):
    """What `hydractl bench` measured."""

    schema: Literal["hydractl.bench/1"] = needed(SCHEMA_TEXT, BENCH_SCHEMA)
    results: Annotated[Sequence[BenchRow], Sized(1)] = needed("A row for each model, batch size and dtype.")
    machine: MachineRecord | None = described("What the times were taken on.")
    warnings: Sequence[str] | None = described("What to know before trusting the times.")
    conventions: Mapping[str, object] | None = described("A sentence on each key.")
