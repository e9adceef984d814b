"""``bench``: what is measured, how it is paired, and what is refused before measuring."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hydractl.benchmark import figures, measuring
from hydractl.benchmark.figures import RESAMPLES, noisy, paired_ratio, timed
from hydractl.benchmark.measuring import Contest
from hydractl.errors import HydraError, NonFiniteError, UsageError
from hydractl.files.bench_answer import LatencyRecord
from hydractl.files.checkpoint import DictTensors, write_tensors
from hydractl.files.results import value_at
from hydractl.log import Log, Progress
from hydractl.model import machine
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, open_source
from hydractl.verbs.bench import ROW_KEYS
from hydractl.verbs.outcome import Outcome
from tests.calls import ran
from tests.running import read_json

PICO = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"


def write(path: str, seed: int = 0, scale: float = 1.0) -> Path:
    source = open_source(PICO, ModelOptions(seed=seed))
    tensors = {name: source.tensors.read(name) * scale for name in source.tensors.names()}
    with open(path, "wb") as handle:
        write_tensors(handle, DictTensors(tensors), source.description.to_json())
    return Path(path)


def measure(*models: str, log: Log | None = None, **changes: Any) -> Outcome:
    few = {"batch_size": [2], "rounds": 3, "warmup": 1, "device": "cpu", **changes}
    return ran("bench", {"model": list(models) or [f"base={PICO}", f"deep={PICO}+{PICO}"], **few}, log)


# --- the document -----------------------------------------------------------------------------------------------------


def test_rows_are_documented_and_in_order() -> None:
    outcome = measure(batch_size=[1, 2], dtype=["float32", "float64"], json=True)
    document = outcome.result.to_dict()
    assert list(document) == ["schema", "results", "machine", "conventions"]
    assert document["schema"] == "hydractl.bench/1"
    order = [(row["dtype"], row["batch_size"], row["model"]) for row in document["results"]]
    assert order == [(d, b, m) for d in ("float32", "float64") for b in (1, 2) for m in ("base", "deep")]
    for row in document["results"]:
        latency = row["latency_ms"]
        assert list(latency) == ["median", "mean", "std", "min", "max", "q25", "q75", "runs"]
        assert len(latency["runs"]) == 3 and all(run > 0 for run in latency["runs"])
        assert latency["median"] == statistics.median(latency["runs"])
        assert row["throughput_per_s"] == pytest.approx(row["batch_size"] / latency["median"] * 1000)
        assert (row["device"], row["compile"], row["compile_mode"]) == ("cpu", False, None)
        peak = document["machine"]["peak_macs_per_s"][row["dtype"]]
        rate = row["macs"] * row["batch_size"] / (latency["median"] / 1000)
        assert row["peak_share"] == pytest.approx(rate / peak)
        assert (row["kind"], row["noisy"]) == ("model", None)
        assert row["peak_memory_bytes"] is None and row["checkpoint_bytes"] is None
        assert row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1]
    base, deep = document["results"][:2]
    assert (base["ratio"], base["ratio_ci"], base["mac_ratio"]) == (1.0, [1.0, 1.0], 1.0)
    pairs = zip(deep["latency_ms"]["runs"], base["latency_ms"]["runs"], strict=True)
    assert deep["ratio"] == pytest.approx(statistics.median(d / b for d, b in pairs))
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_cost_of_an_ensemble_is_the_sum_of_its_members() -> None:
    files = [write("a.st"), write("b.st", seed=1)]
    base, deep = measure("a.st", "deep=a.st+b.st").result.to_dict()["results"]
    assert base["params"] == sum(p.numel() for p in build_model(open_source("a.st")).parameters())
    for key in ("params", "macs", "bytes", "members"):
        assert deep[key] == 2 * base[key]
    assert deep["mac_ratio"] == 2.0
    assert deep["checkpoint_bytes"] == sum(file.stat().st_size for file in files)
    assert isinstance(base["sha256"], str) and len(deep["sha256"]) == 2


def test_every_key_of_a_requirement_is_in_every_row() -> None:
    for row in measure().result.to_dict()["results"]:
        for key in ROW_KEYS:
            value = value_at(row, key)
            assert value is None or type(value) in (int, float), key


def test_the_machine_is_described_without_names_of_host_or_user() -> None:
    machine = measure().result.to_dict()["machine"]
    assert set(machine) == {"python", "torch", "processor", "cores", "threads", "device_name", "peak_macs_per_s"}
    assert machine["threads"] == torch.get_num_threads() and machine["processor"]


def test_one_round_has_no_deviation() -> None:
    row = measure(rounds=1, warmup=0).result.to_dict()["results"][1]
    assert row["latency_ms"]["std"] is None and row["ratio_ci"] == [row["ratio"]] * 2


# --- pairing ----------------------------------------------------------------------------------------------------------


def test_the_interval_is_the_percentile_bootstrap() -> None:
    generator = np.random.default_rng(7)
    reference = generator.uniform(1, 2, 15)
    runs = reference * generator.uniform(2, 3, 15)
    ratio, interval = paired_ratio(list(runs), list(reference), seed=3)
    draws = np.random.default_rng(3).integers(15, size=(RESAMPLES, 15))
    ratios = [a / b for a, b in zip(runs, reference, strict=True)]
    medians = sorted(statistics.median(ratios[i] for i in draw) for draw in draws)

    def quantile(q: float) -> float:
        position = q * (RESAMPLES - 1)
        below = int(position)
        return medians[below] + (position - below) * (medians[below + 1] - medians[below])

    assert ratio == pytest.approx(statistics.median(ratios))
    assert interval == pytest.approx([quantile(0.025), quantile(0.975)])
    assert paired_ratio(list(runs), list(reference), seed=3)[1] == interval


def test_scattered_runs_are_noisy_and_single_outliers_are_not() -> None:
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.0]
    wild = [1.0, 1.4, 0.8, 1.3, 0.9, 1.2, 1.0, 1.5, 0.7, 1.1]
    assert timed(steady, steady, 1, 0).noisy is False
    assert timed([*steady[:9], 50.0], steady, 1, 0).noisy is False
    assert timed(wild, steady, 1, 0).noisy is True
    assert timed(wild, wild, 1, 0).noisy is True  # the first model: its ratio is 1 without any interval
    assert timed(steady, wild, 1, 0).noisy is True  # steady itself, but not against what it is compared with
    assert timed(wild[:4], steady[:4], 1, 0).noisy is None
    latency = LatencyRecord(runs=[1.0] * 5, median=1.0, q25=1.0, q75=1.0)
    assert [noisy(latency, 2.0, [1.9, 2.09]), noisy(latency, 2.0, [1.9, 2.11])] == [False, True]


def test_noise_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "noisy", lambda *_: True)
    log = Log()
    document = measure(log=log, batch_size=[1, 2]).result.to_dict()
    assert [row["noisy"] for row in document["results"]] == [True] * 4
    assert len(log.warnings) == 1 and log.warnings == document["warnings"]
    assert (
        "base (batch 1, float32), deep (batch 1, float32), base (batch 2, float32), ... (4 in all)" in log.warnings[0]
    )
    assert "more --rounds (now 3)" in log.warnings[0]


class Clock:
    """A clock that only models move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def perf_counter(self) -> float:
        return self.now


class Ticking(nn.Module):
    """A model whose calls take known times."""

    def __init__(self, clock: Clock, name: str, seconds: list[float], width: int = 3) -> None:
        super().__init__()
        self.clock, self.name, self.seconds, self.width = clock, name, seconds, width
        self.seen: list[Any] = []

    def example_inputs(self, batch: int, seed: int) -> torch.Tensor:
        return torch.full((batch, self.width), float(seed))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        self.seen.append(inputs)
        self.clock.calls.append(self.name)
        self.clock.now += self.seconds[min(len(self.seen), len(self.seconds)) - 1]
        return inputs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measuring.time, "perf_counter", clock.perf_counter)
    return clock


def contest(models: dict[str, Any], seed: int = 0) -> Contest:
    return Contest(models, 4, torch.device("cpu"), seed, None, "here")


def test_only_measured_rounds_are_timed(clock: Clock) -> None:
    # The check, two warm-up rounds, then three measured ones.
    slow = Ticking(clock, "slow", [100.0, 50.0, 25.0, 2.0, 4.0, 8.0])
    fast = Ticking(clock, "fast", [99.0, 98.0, 97.0, 1.0, 1.0, 1.0])
    seconds = contest({"slow": slow, "fast": fast}).run(2, 3, Progress())
    assert seconds == {"slow": [2.0, 4.0, 8.0], "fast": [1.0, 1.0, 1.0]}


def test_every_round_runs_every_model_once_in_an_order_of_the_seed(clock: Clock) -> None:
    def orders(seed: int) -> list[tuple[str, ...]]:
        clock.calls.clear()
        contest({name: Ticking(clock, name, [1.0]) for name in "abc"}, seed).run(0, 12, Progress())
        rounds = [tuple(clock.calls[i : i + 3]) for i in range(3, len(clock.calls), 3)]
        assert len(rounds) == 12 and all(sorted(order) == ["a", "b", "c"] for order in rounds)
        return rounds

    first = orders(0)
    assert len(set(first)) > 1
    assert orders(0) == first and orders(1) != first


def test_models_of_one_input_shape_get_the_same_numbers(clock: Clock) -> None:
    models = {name: Ticking(clock, name, [1.0], width) for name, width in (("a", 3), ("b", 3), ("c", 5))}
    contest(models, seed=9).run(0, 1, Progress())
    a, b, c = (models[name].seen[0] for name in "abc")
    assert torch.equal(a, b) and a.shape == (4, 3) and c.shape == (4, 5) and float(a[0, 0]) == 9.0


def test_peak_memory_leaves_out_the_other_models(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stand-in for a GPU's counters: the weights of all models are allocated, one call adds 500 bytes at its peak.
    model = Ticking(clock, "a", [1.0])
    model.weight = nn.Parameter(torch.zeros(10))
    measured = contest({"a": model})
    measured.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 9000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 9500)
    measured.run(0, 1, Progress())
    assert measured.peak_memory_bytes == {"a": 500 + 4 * 10 + 4 * 4 * 3}


# --- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault(110)
@pytest.mark.parametrize("changes", [{}, {"output": "-"}, {"json": True}])
def test_without_a_named_output_no_file_is_written(changes: dict[str, Any], tmp_path: Path) -> None:
    for _ in range(2):
        outcome = measure(**changes)
        assert outcome.files == [] and list(tmp_path.iterdir()) == []


def test_a_named_output_holds_the_figures() -> None:
    outcome = measure(json=True, output="b.json")
    assert outcome.files == [Path("b.json")]
    assert read_json("b.json") == outcome.result.to_dict()


@pytest.mark.usefixtures("unmeasured")
def test_a_dry_run_measures_and_writes_nothing(tmp_path: Path) -> None:
    outcome = measure(dry_run=True, batch_size=[1, 8])
    document = outcome.result.to_dict()
    assert document["dry_run"] is True and outcome.files == [] and list(tmp_path.iterdir()) == []
    base, deep = document["results"]
    assert deep["params"] == 2 * base["params"] and deep["macs"] == 2 * base["macs"] and deep["mac_ratio"] == 2
    assert "latency_ms" not in base and "ratio" not in base
    assert document["files"] == []


# --- requirements -----------------------------------------------------------------------------------------------------


def test_unmet_requirements_name_the_row_and_the_value() -> None:
    outcome = measure(json=True, require=["mac_ratio<=1.5", "params>=1", "base:mac_ratio==1"])
    assert outcome.unmet == ["mac_ratio<=1.5: mac_ratio of deep (batch 2, float32) is 2"]


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("text", ["rato<=1.5", "hydra:ratio<=1.5", "latency_ms<=3"])
def test_unknown_keys_and_rows_are_refused_before_measuring(text: str) -> None:
    with pytest.raises(UsageError, match="--require"):
        measure(require=[text])


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_non_finite_outputs_are_an_error_and_leave_no_file(tmp_path: Path) -> None:
    write("wild.st", scale=1e30)
    with pytest.raises(NonFiniteError, match=r"wild gives NaN or infinity \(batch 2, float32, cpu\)"):
        measure("wild.st")
    assert [path.name for path in tmp_path.iterdir()] == ["wild.st"]


def test_a_model_that_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError('"addmm" not implemented\nand more')

    monkeypatch.setattr("hydractl.model.loading.SequentialEnsemble.forward", fail)
    with pytest.raises(
        HydraError, match=r'deep cannot run \(batch 2, float32, cpu\): "addmm" not implemented$'
    ) as caught:
        measure()
    assert caught.value.hint == "use another --dtype or --device"


def test_half_precision_on_a_cpu_warns_where_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.slow_format.cache_clear()
    for factor, expected in (
        (0.7, []),
        (1.05, []),
        (37.4, ["bfloat16 is 37 times slower than float32 on this CPU (measured on a matrix product)"]),
    ):
        rates = {torch.float32: 1e9, torch.bfloat16: 1e9 / factor}
        monkeypatch.setattr(machine, "peak_macs_per_s", lambda _, dtype, rates=rates: rates[dtype])
        machine.slow_format.cache_clear()
        log = Log()
        document = measure(log=log, dtype=["bfloat16", "float32"], force=True).result.to_dict()
        assert log.warnings == document.get("warnings", []) == expected
        machine.slow_format.cache_clear()
