"""``hydractl bench``: what models cost in time and memory, measured side by side.

Every round runs every model once on the same inputs, in an order drawn anew, so that a drift of the machine meets all
models alike; ratios are taken within a round (paired) before their median.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.benchmark.figures import COMPARED, NOISY, RESAMPLES, ROW_KEYS
from hydractl.files.atomic import Output, check_outputs, file_path, write_json
from hydractl.files.collecting import importing
from hydractl.log import Log
from hydractl.settings.measuring import BenchSettings
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_of_bench

if TYPE_CHECKING:
    from hydractl.benchmark.rows import BenchModel
    from hydractl.data.base import Dataset
    from hydractl.files.bench_answer import BenchCost

SCHEMA = "hydractl.bench/1"

CONVENTIONS = {
    "latency_ms": "wall time of one call on one batch, with the device idle before and after; std with n - 1",
    "call": "the averaged prediction: log of the mean over members of their softmax; inputs are already on the device",
    "rounds": "each round runs every model once, in an order drawn anew; all models are loaded together",
    "last block": "runs for the tokens that are read out only, but for stock (or all, with --whole-last-block)",
    "inputs": "random, the same for all rows; with --unequal-inputs for those of one input",
    "input": "one sample: image [channels, height, width], or tokens of a text",
    "throughput_per_s": "batch size over median latency",
    "ratio": "median over rounds of this model's time over the first model's in the same round",
    "ratio_ci": f"95 % percentile interval of that median, {RESAMPLES} bootstrap resamples of the rounds",
    "noisy": f"the middle half of the runs is wider than {NOISY:.0%} of their median, or ratio_ci wider than "
    f"{NOISY:.0%} of the ratio; null for fewer than five rounds",
    "mac_ratio": "macs over the first model's",
    "peak_share": "macs * batch size / median latency, over peak_macs_per_s of the machine",
    "peak_macs_per_s": "the best of six runs of a large product of two square matrices in this dtype, half of them "
    "before and half after the models ran, by as many threads",
    "kind": "model: a MODEL as given; stock: the library's own model and attention on the first MODEL's weights; "
    "members: the members of a fused MODEL one after another; member: its first member; deep: copies of the first "
    "MODEL one after another, as many as the largest fused MODEL has members",
    "params": "stored elements, all members",
    "bytes": "stored weights, without the headers of files",
    "peak_memory_bytes": "weights and inputs of this model, and the most one call adds to them; null where not counted",
}


def run(settings: BenchSettings, log: Log) -> Outcome:
    """Measure every model at every batch size and number format, write the figures, and check requirements on them."""
    with importing():
        from hydractl.benchmark.measuring import BenchOptions, measure_rows
        from hydractl.benchmark.rows import bench_rows, on_one_input, open_samples, with_ratios
        from hydractl.model.loading import find_models, resolve_device
        from hydractl.verbs.opening import announce_reading, model_options

    # The rows: the models and what they are compared with. Requirements are checked against their names.
    device = resolve_device(settings.device)
    settings.check_device(device.type)
    models = find_models(settings.model, model_options(settings))
    if not settings.unequal_inputs:
        models = on_one_input(models, log)
    rows = bench_rows(models, settings.compare, whole_last_block=settings.whole_last_block)

    # Check the requirements, and open the data and the output path, before anything is measured.
    row_names = [row.name for row in rows]
    names_of_compared_rows = {row.name for row in rows if row.kind in COMPARED}
    check_known(settings.requirements(), row_names, ROW_KEYS, skip_first=True, named_only=names_of_compared_rows)
    data = None
    if settings.data is not None:
        largest_batch = max(settings.batch_size)
        data = open_samples(rows, settings.data, settings.limit, settings.seed, largest_batch)
    path = None
    if not settings.to_stdout:
        path = file_path(settings.output or f"{rows[0].name}.bench.json")
    costs = with_ratios([row.cost() for row in rows])
    if settings.dry_run:
        files_to_write = []
        if path is not None:
            files_to_write.append(path)
        check_outputs(files_to_write, force=settings.force)
        return Outcome(_plan(settings, rows, costs, files_to_write))

    with contextlib.ExitStack() as stack:
        # Claim the output file, then measure.
        output = None
        if path is not None:
            output = stack.enter_context(Output(path, force=settings.force))
        compile_mode = None
        if settings.compile:
            compile_mode = settings.compile_mode or "default"
        options = settings.fill(
            BenchOptions,
            batch_sizes=settings.batch_size,
            dtypes=settings.dtype,
            compile_mode=compile_mode,
            data=data,
        )
        source_by_name = {}
        for row in rows:
            for source in row.model.sources:
                source_by_name[source.name] = source
        announce_reading(source_by_name.values(), log)
        measured = measure_rows(options, rows, costs, device, log)

        # Write the answer.
        conventions = _conventions(settings, data)
        document = measured.model_copy(update={"conventions": conventions}).to_dict()
        files = []
        if output is not None:
            files.append(write_json(output, document))
    results = [result.to_dict() for result in measured.results]
    unmet = unmet_of_bench(results, settings.requirements(), names_of_compared_rows)
    return Outcome(document, files=files, unmet=unmet, print_document=path is None)


def _conventions(settings: BenchSettings, data: Dataset | None) -> dict[str, object]:
    """Return, by key, how the numbers of the answer are defined, with what this command has set (rounds, data, seed).

    Args:
        settings: the options of the command.
        data: the samples that models run on; None for random inputs.
    """
    from hydractl.model.cost import COUNTED_PRODUCTS

    conventions: dict[str, object] = {**CONVENTIONS, "macs": COUNTED_PRODUCTS}
    conventions["rounds_measured"] = settings.rounds
    conventions["rounds_warmup"] = settings.warmup
    if data is not None:
        conventions["inputs"] = f"all full batches of {data.spec}, the same for all rows; times are means over them"
    conventions["seed"] = settings.seed
    return conventions


def _plan(
    settings: BenchSettings, rows: Sequence[BenchModel], costs: Sequence[BenchCost], files: Sequence[Path]
) -> dict[str, object]:
    """Return the answer of a dry run: the cost of each row, and how many times models will be called in all."""
    results = []
    for row, cost in zip(rows, costs, strict=True):
        results.append({"model": row.name, **cost.to_dict()})
    measurements = len(rows) * len(settings.batch_size) * len(settings.dtype)
    calls_each = settings.rounds + settings.warmup + 1  # and one call that checks the model
    return {
        "schema": SCHEMA,
        "dry_run": True,
        "results": results,
        "batch_sizes": list(settings.batch_size),
        "dtypes": list(settings.dtype),
        "calls": measurements * calls_each,
        "files": [str(file) for file in files],
    }
