"""``bench --compile``: every model is one compiled graph, or the bench is an error; nothing runs eager unsaid."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hydractl.benchmark.measuring import Contest
from hydractl.errors import HydraError, UsageError
from hydractl.log import Progress
from tests.calls import ran

PICO = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Graphs:
    """Stands in for the code generator of torch.compile; what is captured as a graph stays torch's own work."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []
        self.count = 0

    def backend(self, graph: Any, _: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs()
    original = torch.compile

    @functools.wraps(original)
    def without_code_generation(model: Any, *, mode: str, **options: Any) -> Any:
        found.options.append({"mode": mode, **options})
        return original(model, backend=found.backend, **options)

    monkeypatch.setattr(torch, "compile", without_code_generation)
    return found


def measure(*models: str, **changes: Any) -> list[dict[str, Any]]:
    few = {"batch_size": [2], "rounds": 2, "warmup": 1, "device": "cpu", "json": True, "compile": True, **changes}
    return ran("bench", {"model": list(models) or [f"base={PICO}", f"deep={PICO}+{PICO}"], **few}).result.to_dict()[
        "results"
    ]


def contest(models: dict[str, nn.Module]) -> Contest:
    return Contest(models, 2, torch.device("cpu"), 0, "default", "here")


@pytest.mark.long
def test_every_model_is_one_graph_at_every_batch_size(graphs: Graphs) -> None:
    rows = measure(batch_size=[1, 2], compile_mode="max-autotune")
    assert [(row["compile"], row["compile_mode"]) for row in rows] == [(True, "max-autotune")] * 4
    assert graphs.count == len(graphs.options) == 4
    assert all(options["fullgraph"] and options["mode"] == "max-autotune" for options in graphs.options)


@pytest.mark.long
def test_what_a_model_computes_once_and_keeps_is_no_part_of_its_graph(graphs: Graphs) -> None:
    from tests.pico import publish, stock

    Path("clip").mkdir()
    publish(stock("clip"), "clip", Path("clip"))
    measure("clip", compare=["stock"], batch_size=[1])
    assert graphs.count == 2


class Sized(nn.Module):
    """A model of as many layers as it is told, which looks at a number of its own."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(layers))
        self.shift = 0

    def example_inputs(self, batch: int, seed: int) -> torch.Tensor:
        return torch.ones(batch, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs + self.shift


@pytest.mark.long
def test_more_models_of_one_class_than_torch_recompiles_are_all_compiled(graphs: Graphs) -> None:
    import torch._dynamo.config

    count = torch._dynamo.config.recompile_limit + 3
    contest({str(n): Sized(n) for n in range(1, count + 1)}).run(0, 1, Progress())
    assert graphs.count == count


@pytest.mark.usefixtures("graphs")
def test_a_graph_break_is_an_error_even_where_errors_are_suppressed() -> None:
    import torch._dynamo.config

    class Broken(Sized):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return inputs

    suppressed = torch._dynamo.config.patch(suppress_errors=True)  # as by TORCHDYNAMO_SUPPRESS_ERRORS=1
    with suppressed, pytest.raises(HydraError, match=r"broken cannot be compiled and run \(here\)"):
        contest({"broken": Broken()}).run(0, 1, Progress())


def test_compilation_that_is_switched_off_is_an_error(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # torch.compile then gives the model back as it is
    with pytest.raises(HydraError, match="a was not compiled") as caught:
        contest({"a": Sized()}).run(0, 1, Progress())
    assert graphs.count == 0 and "TORCHDYNAMO_DISABLE" in str(caught.value.hint)


@pytest.mark.usefixtures("graphs")
def test_nothing_is_compiled_again_while_it_is_measured() -> None:
    model = Sized()
    measured = contest({"a": model})

    class Changing(Progress):
        def advance(self, amount: int = 1, note: str = "") -> None:
            model.shift += 1

    with pytest.raises(HydraError, match="compiled again in the middle of the measurement"):
        measured.run(0, 3, Changing())


def test_a_failed_compilation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any, **_: Any) -> Any:
        def call(_: Any) -> Any:
            raise RuntimeError("no compiler found")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(HydraError, match="base cannot be compiled and run .*: no compiler found") as caught:
        measure()
    assert caught.value.hint is not None and "without --compile" in caught.value.hint


def test_modes_without_effect_are_refused() -> None:
    with pytest.raises(UsageError, match="reduce-overhead has no effect on a cpu device"):
        measure(compile_mode="reduce-overhead")
    with pytest.raises(UsageError, match=r"^--compile-mode \(flag\) needs --compile$"):
        measure(compile=False, compile_mode="default")
