"""``hydractl bench``: what models cost in time and memory, measured side by side.

Every round runs every model once on the same inputs, in an order drawn anew, so that a drift of the machine meets all
models alike; ratios are taken within a round (paired) before their median.
"""

from __future__ import annotations

from hydractl.benchmark.figures import COMPARED, NOISY, RESAMPLES, ROW_KEYS
from hydractl.benchmark.measuring import BenchOptions, measure_rows
from hydractl.benchmark.rows import bench_rows, check_inputs, with_ratios
from hydractl.errors import UsageError
from hydractl.files.atomic import claimed, json_path, write_json
from hydractl.files.bench_answer import BenchAnswer, BenchRow
from hydractl.model.cost import COUNTED_PRODUCTS
from hydractl.model.loading import find_models, resolve_device
from hydractl.options.call import Call, filled
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in

CONVENTIONS = {
    "latency_ms": "wall time of one call on one batch, with the device idle before and after; std with n - 1",
    "call": "the averaged prediction: log of the mean over members of their softmax; inputs are already on the device",
    "rounds": "each round runs every model once, in an order drawn anew; all models are loaded together",
    "last block": "runs for the tokens that are read out only, but for stock (or all, with --whole-last-block)",
    "inputs": "random, the same for all rows",
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


def run(call: Call) -> Outcome:
    """Return time and memory of every model at every batch size and number format, measured side by side.

    The figures are written to a file, too, if ``-o`` names one, and ``--require`` is checked on them. A dry run returns
    the costs (parameters and mult-adds), which need no measuring.
    """
    values, log = call.values, call.log
    compile_mode = (values["compile_mode"] or "default") if values["compile"] else None
    options = filled(
        BenchOptions, values, batch_sizes=values["batch_size"], dtypes=values["dtype"], compile_mode=compile_mode
    )
    requirements = values["require"]

    # The device. CUDA graphs do not exist on others.
    runs_on = resolve_device(values["device"])
    if options.compile_mode == "reduce-overhead" and runs_on.type != "cuda":
        raise UsageError(
            f"--compile-mode reduce-overhead has no effect on a {runs_on.type} device: it is CUDA graphs",
            hint="leave it out, or use --device cuda",
        )

    # The rows: the models, on inputs of one size, and what --compare sets beside them.
    found = find_models(values["model"], opening_options(values))
    check_inputs(found)
    rows = bench_rows(found, values["compare"], whole_last_block=values["whole_last_block"])

    # Check the requirements and the output path before anything is measured. The first model and the rows of --compare
    # are references ("exempt"): only a requirement that names them is checked on them.
    row_names = [row.name for row in rows]
    exempt = {rows[0].name, *(row.name for row in rows if row.kind in COMPARED)}
    check_known(requirements, row_names, ROW_KEYS, exempt)
    path = json_path(values["output"])
    costs = with_ratios([row.cost() for row in rows])
    with claimed(path, force=values["force"]) as output_file:
        if values["dry_run"]:
            results = []
            for row, cost in zip(rows, costs, strict=True):
                results.append(BenchRow.partly(model=row.name, **dict(cost)))
            return Outcome(BenchAnswer.planned(results=results, files_=[] if path is None else [str(path)]))

        # Measure. Each file is announced once, though several rows may use it.
        source_by_name = {}
        for row in rows:
            for source in row.model.sources:
                source_by_name[source.name] = source
        announce_reading(source_by_name.values(), log)
        measured = measure_rows(options, rows, costs, runs_on, log)

        # Write the answer, with what its figures mean.
        conventions = {
            **CONVENTIONS,
            "macs": COUNTED_PRODUCTS,
            "rounds_measured": options.rounds,
            "rounds_warmup": options.warmup,
            "seed": options.seed,
        }
        answer = measured.model_copy(update={"conventions": conventions})
        files = [] if output_file is None else [write_json(output_file, answer.to_dict())]
    unmet = unmet_in([(row.model, row.to_dict()) for row in measured.results], requirements, exempt)
    return Outcome(answer, files=files, unmet=unmet)
