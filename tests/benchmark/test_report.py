"""``report`` of a bench: the table is made of the document alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hydractl.benchmark.figures import timed
from hydractl.errors import InputError, UsageError
from hydractl.files.bench_answer import BenchAnswer
from hydractl.report.terminal import render
from hydractl.verbs.outcome import Outcome
from tests.answers import result_of
from tests.calls import ran

PICO = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"
pytestmark = pytest.mark.usefixtures("unmeasured")
MODELS = {"single": (1.0, "model", 1), "single.stock": (0.95, "stock", 1), "hydra": (2.5, "model", 3)}


def document(sizes: tuple[int, ...] = (1, 8), dtypes: tuple[str, ...] = ("float32",)) -> dict[str, Any]:
    """A bench of known times: model times batch size, with five per cent of scatter."""
    rows = []
    scatter = 1 + 0.05 * np.linspace(-1, 1, 11)
    for dtype in dtypes:
        for size in sizes:
            for name, (cost, kind, members) in MODELS.items():
                runs, reference = 0.01 * size * cost * scatter, 0.01 * size * scatter[::-1]
                figures = timed(list(runs), list(reference), size, 0).to_dict()
                known = {"kind": kind, "members": members, "params": 1000 * members, "macs": int(1e8 * cost)}
                shown = {"device": "cpu", "compile": False, "peak_share": 0.5, "mac_ratio": cost + 0.1 * (cost > 2)}
                rows.append({"model": name, "batch_size": size, "dtype": dtype, **figures, **known, **shown})
    machine = {"processor": "a processor", "threads": 1, "peak_macs_per_s": dict.fromkeys(dtypes, 2e10)}
    return {"schema": "hydractl.bench/1", "results": rows, "machine": machine, "warnings": [], "conventions": {}}


def again(found: Any = None, **changes: Any) -> Outcome:
    Path("bench.json").write_text(json.dumps(document() if found is None else found))
    return ran("report", {"model": ["bench.json"], **changes})


def table(found: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render(result_of(found), width))
    return [line.rstrip() for line in console.export_text().splitlines()]


# --- the document again -----------------------------------------------------------------------------------------------


def test_the_document_is_the_answer() -> None:
    outcome = again()
    assert outcome.result == BenchAnswer.model_validate(document()) and outcome.files == []


def test_a_list_is_refused_and_so_is_a_dry_run() -> None:
    with pytest.raises(InputError, match=r"bench.json is no document of eval, bench or study \(schema None\)"):
        again([1])
    with pytest.raises(InputError, match="bench.json is no document of eval, .*hydractl.mask/1"):
        again({"schema": "hydractl.mask/1"})
    plan = ran("bench", {"model": [PICO], "dry_run": True, "device": "cpu"}).result.to_dict()
    with pytest.raises(InputError) as caught:
        again(plan)
    assert caught.value.hint == "a dry run measures nothing"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"html": "r.html"}, "--html is of an eval, and bench.json is of another verb"),
        ({"require": ["ratio<=2"]}, "--require is of an eval, and bench.json is of another verb"),
        ({"over": "seed"}, "--over is of an eval, and bench.json is of another verb"),
    ],
)
def test_what_is_of_an_eval_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        again(**options)
    assert caught.value.message == message


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_sets_times_beside_mult_adds_within_80_columns() -> None:
    found = document()
    found["results"][2]["noisy"] = True
    lines = table(found)
    assert max(map(len, lines)) <= 80
    assert lines[0] == "batch 1, float32, cpu, 11 rounds"
    hydra = next(line for line in lines if line.startswith("hydra")).split()
    row = found["results"][2]
    low, high = row["ratio_ci"]
    assert hydra == [
        *["hydra", "25.0", "40.0", f"{row['ratio']:.3f}", f"{low:.3f}..{high:.3f}~", "2.600", "50", "%"],
    ]
    assert sum("~ noisy" in line for line in lines) == 1
    assert any(line.split() == ["single.stock", "stock", "1", "1.00", "K", "95.00", "M"] for line in lines)
    assert lines[-1] == "peak, mult-adds a second: float32 20.00 G"
