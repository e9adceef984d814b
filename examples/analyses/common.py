"""Common parts of the analyses: models and data as the command line names them, commands, tables, figures."""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from removal import removal_order
from samples import in_memory

from hydractl.cli.app import main
from hydractl.criteria.cahp.head_choice import Batches
from hydractl.data import open_data
from hydractl.errors import HydraError
from hydractl.files.atomic import Output, write_bytes
from hydractl.heads.mask import Head
from hydractl.jsonio import read_json_file
from hydractl.model.loading import build_model
from hydractl.model.runtime import HydraModel
from hydractl.model.source import open_source

RUNS = Path("runs/analyses")


def arguments(text: str | None, ood: bool = True) -> argparse.ArgumentParser:
    """A parser with what all analyses take."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="SPEC", help="labelled ID samples")
    if ood:
        parser.add_argument("--ood", action="append", required=True, metavar="NAME=SPEC", help="OOD samples; repeat it")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N samples of every set")
    parser.add_argument("-o", "--output", type=Path, default=RUNS, metavar="FOLDER", help="where the results go")
    return parser


def named(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping in their order; the group of ``NAME:near=SPEC`` is dropped."""
    pairs = [text.partition("=") for text in texts]
    if not all(name and equals and value for name, equals, value in pairs):
        sys.exit(f"write NAME=VALUE, not {' '.join(texts)}")
    return {name.partition(":")[0]: value for name, _, value in pairs}


def open_model(ref: str, dtype: str = "float32") -> HydraModel:
    """A model of one member on the CPU."""
    try:
        return build_model(open_source(ref), "cpu", dtype)
    except HydraError as error:
        sys.exit(f"error: {error.message}")


def samples(model: HydraModel, spec: str, limit: int | None, *, labelled: bool, batch_size: int = 64) -> Batches:
    """The batches of a data set."""
    try:
        dataset = open_data(
            spec, limit=limit, labels=model.labels or [], need_labels=labelled, ignore_labels=not labelled
        )
        return in_memory(model, dataset, batch_size)
    except HydraError as error:
        sys.exit("\n".join([f"error: {error.message}", *error.problems]))


def orders(model: HydraModel, texts: Sequence[str]) -> dict[str, list[Head]]:
    """Removal orders by name, from files of ``hydractl score`` and ``hydractl extract-circuit``."""
    try:
        return {name: removal_order(read_json_file(file), model, file) for name, file in named(texts).items()}
    except HydraError as error:
        sys.exit("\n".join([f"error: {error.message}", *error.problems]))


def hydractl(*words: str) -> None:
    """Run one command of the tool in this process, as a shell would, and show it."""
    print(f"$ hydractl {shlex.join(words)}", flush=True)
    code = main([*words, "--force"])
    if code:
        sys.exit(code)


def rows_of(evaluation: Path) -> dict[str, Any]:
    """The rows of an ``eval.json`` by their names."""
    return {row["name"]: row for row in json.loads(evaluation.read_text(encoding="utf-8"))["models"]}


def mean_diversity(row: Mapping[str, Any], key: str) -> float | None:
    """``mi`` or ``disagreement`` on OOD data: the mean over the sets of one row of an evaluation, None without one."""
    values = [value[key] for name, value in row["diversity"].items() if name != "id"]
    return None if None in values else sum(values) / len(values)


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table in Markdown; numbers stand on the right, with four digits where they are no counts."""

    def text(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    right = [i > 0 and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    print()
    print(f"| {' | '.join(columns)} |")
    print(f"|{'|'.join('---:' if on_right else '---' for on_right in right)}|")
    for row in rows:
        print(f"| {' | '.join(map(text, row))} |")
    print()


def save(figure: Figure, path: Path) -> None:
    """Write a figure and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Output(path, force=True) as output:
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=120, metadata={"Software": None})
        write_bytes(output, drawn.getvalue())
    print(f"figure: {path}")
