"""The answer of a bench (``hydractl.bench/1``): the record that the verb builds and that its tables read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from hydractl.files.results import Count, Number, Record, Result, optional

Positive = Annotated[float, Field(gt=0)]
PositiveCount = Annotated[int, Field(gt=0)]


class LatencyRecord(Record):
    """Times of one call on one batch, in milliseconds."""

    median: Positive
    """Median of the runs."""
    mean: Number = optional("Mean of the runs.")
    std: Number = None
    """Standard deviation of the runs, with n - 1; null for one run."""
    min: Number = optional("The fastest run.")
    max: Number = optional("The slowest run.")
    q25: Number = optional("First quartile of the runs.")
    q75: Number = optional("Third quartile of the runs.")
    runs: Annotated[Sequence[Positive], Field(min_length=1)]
    """Every run, in the order of the rounds."""


class TimedFigures(Record):
    """The figures of timed runs."""

    latency_ms: LatencyRecord
    """How long a call takes."""
    throughput_per_s: Positive
    """Batch size over median latency."""
    ratio: Positive
    """Median over rounds of the time over the first model's in the same round."""
    ratio_ci: Annotated[Sequence[Positive], Field(min_length=2, max_length=2)]
    """95 % bootstrap interval of the ratio."""
    noisy: bool | None = None
    """Whether the runs scatter too far; null for fewer than five rounds."""
    peak_memory_bytes: Count | None = None
    """Most memory in use; null where it is not counted."""


class BenchInput(Record):
    """One sample of the input of a row."""

    image: Sequence[Count] | None = optional("Channels, height and width of an image.")
    tokens: Count | None = optional("Number of tokens of a text.")


class BenchCost(Record):
    """What is known of a row before it runs: what it is, how large it is, and what one sample costs."""

    kind: str | None = optional("`model`, or of `--compare` the baseline.")
    input: BenchInput | None = optional("What it ran on.")
    checkpoint_bytes: Count | None = None
    """Size of the files; null where there are none."""
    members: Count | None = optional("Number of members.")
    params: PositiveCount
    """Number of stored parameters of all members."""
    macs: PositiveCount
    """Mult-adds of one sample."""
    bytes: Count | None = None
    """Size of the stored weights."""
    params_nonzero: Count | None = optional("Those that are not zero, where single weights were pruned.")
    mac_ratio: Positive | None
    """`macs` over the first model's; null where they are not known."""


class BenchSetting(Record):
    """What is timed."""

    model: str
    """Name of the row."""
    sha256: Any = None
    """SHA-256 of its file; a list where several run one after another."""
    batch_size: PositiveCount
    """Samples of a batch."""
    dtype: str
    """Number format of the computation."""
    device: str | None = optional("Where it ran.")
    compile: bool | None = optional("Whether it was compiled.")
    compile_mode: str | None = None
    """Mode of `torch.compile`; null where it was not compiled."""


class BenchRow(BenchCost, TimedFigures, BenchSetting):
    """One model at one batch size and dtype."""

    peak_share: Number = None
    """Rate of mult-adds over that of the machine at its best."""


class MachineRecord(Record):
    """What the times were taken on."""

    python: str | None = optional("Version of Python.")
    torch: str | None = optional("Version of torch.")
    processor: str | None = optional("Name of the processor.")
    cores: Count | None = optional("Number of its cores.")
    threads: Count | None = optional("Number of threads that torch used.")
    device_name: str | None = None
    """Name of the accelerator; null on a CPU."""
    peak_macs_per_s: Mapping[str, Number] | None = optional(
        "By dtype the best rate of a large matrix product, mult-adds a second."
    )


class BenchAnswer(Result):
    """What `hydractl bench` measured."""

    schema_: Literal["hydractl.bench/1"] = "hydractl.bench/1"
    rows_in = "results"
    results: Annotated[Sequence[BenchRow], Field(min_length=1)]
    """A row for each model, batch size and dtype."""
    files_: Sequence[str] | None = optional("What a dry run would write.")
    machine: MachineRecord | None = optional("What the times were taken on.")
    conventions: Mapping[str, object] | None = optional("A sentence on each key.")
