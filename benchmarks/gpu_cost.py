"""Cost of a fused model on a GPU compared with a single one, its members run sequentially and a deep ensemble.

    python benchmarks/gpu_cost.py -o gpu.json                           # everything, at most 8 minutes
    python benchmarks/gpu_cost.py -o gpu.json                           # again: goes on where it was cut off
    python benchmarks/gpu_cost.py --device cpu --arch vit_tiny_patch16_224 --batches 1 --rounds 2      # try it out

Weights are random. The members keep two thirds of the heads of every site, drawn for each; behind the sites they share
their attention has weights of its own, and everything else is the same in all of them, as when fusing has averaged it.
``whole + circuit`` has the single model as its first member, and as its second one the same without two thirds of the
heads of the last sites. Before anything is timed every fused member is compared with that member alone, and the single
model with the library's.

Every row is measured in rounds with the single model of the same format, batch and mode, to which its ratios are, and
written before the next is begun. The most informative come first: bfloat16 at batch 4, compiled and with CUDA graphs,
then eager. The time is bounded from the start of the script; what it does not allow is said. What the columns mean:
docs/numbers/gpu-cost.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

BEGUN = time.perf_counter()
"""Before anything heavy is imported: that too is time of the run."""

from hydractl.families.torchvision_operators import declare_operators  # noqa: E402

declare_operators()

import torch  # noqa: E402
from gpu.devices import CallTimes, Device, device_of  # noqa: E402
from gpu.rows import CannotMeasure, Clock, Place, Record, measure_all  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hydractl.benchmark.figures import paired_ratio, timed  # noqa: E402
from hydractl.benchmark.rows import build_stock  # noqa: E402
from hydractl.families.reading import first_line  # noqa: E402
from hydractl.files.checkpoint import DictTensors  # noqa: E402
from hydractl.fusion.plan import plan_fusion  # noqa: E402
from hydractl.heads.mask import HeadMask  # noqa: E402
from hydractl.model.cost import macs  # noqa: E402
from hydractl.model.loading import SequentialEnsemble, resolve_device, resolve_dtype  # noqa: E402
from hydractl.model.machine import peak_macs_per_s  # noqa: E402
from hydractl.model.runtime import HydraModel  # noqa: E402
from hydractl.model.source import Source, open_source, pruned  # noqa: E402

ARCHITECTURES = "vit_base_patch16_224,bert-base,open_clip:ViT-B-32"
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference of logits, times max(1, largest logit); a GPU may compute convolutions in TF32."""


SINGLE = "single"
STOCK = "stock"
APART = "members one after another"
FIRST = "first member alone"
DEEP = "deep ensemble"
UNBATCHED = ", not batched"
PAPER_S_BATCH = 4
_LARGE = 32
"""The batch from which on a GPU is busy with any of the models."""
PAPER = 1.07
"""The paper's ratio of three members of 8 heads: eager, bfloat16, batch 4."""
EQUAL = 1.0
"""The aim under CUDA graphs, bfloat16, batch 4."""


def opened(arch: str, folder: Path) -> Source:
    """A dense model with random weights, large enough that every head matters."""
    if arch.startswith("bert-"):
        source = open_source(str(bert(arch.removeprefix("bert-"), folder)))
    else:
        name = arch if ":" in arch else f"timm:{arch}"
        source = open_source(name if "pretrained=" in name else f"{name}?pretrained=0")
    return replace(source, tensors=DictTensors({name: source.tensors.read(name) for name in source.tensors.names()}))


def bert(size: str, folder: Path) -> Path:
    """A folder as transformers saves one, with a vocabulary of numbers; texts of 128 tokens."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    small = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 96}
    config = transformers.BertConfig(**({} if size == "base" else small), num_labels=2)
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder / size)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(config.vocab_size - 5))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **special, mask_token="[MASK]", model_max_length=128
    )
    fast.save_pretrained(folder / size)
    return folder / size


def member(base: Source, number: int, shared: int) -> Source:
    """Return one member: its own heads and weights of them, in the sites of each tower behind the first ``shared``."""
    sites = base.sites
    common_draw = torch.Generator().manual_seed(0)
    draw = torch.Generator().manual_seed(number)
    kept = {}
    changed = {}
    place_in_tower = dict.fromkeys((site.tower for site in sites), 0)
    for site in sites:
        count = max(1, 2 * site.heads // 3)
        common_heads = _drawn_heads(site.heads, count, common_draw)
        heads = _drawn_heads(site.heads, count, draw)
        is_shared = place_in_tower[site.tower] < shared
        place_in_tower[site.tower] += 1
        kept[site.path] = common_heads if is_shared or number == 0 else heads
        if is_shared:
            continue
        for name in base.tensors.names():
            if name.startswith(f"{site.path}.") and base.family.part(name) == "attention":
                tensor = base.tensors.read(name)
                changed[name] = tensor + 0.01 * torch.randn(tensor.shape, generator=draw)
    tensors = DictTensors({name: changed.get(name, base.tensors.read(name)) for name in base.tensors.names()})
    return with_heads(replace(base, tensors=tensors), kept, f"member{number}-{shared}")


def _drawn_heads(heads: int, count: int, generator: torch.Generator) -> tuple[int, ...]:
    drawn = torch.randperm(heads, generator=generator)[:count]
    return tuple(drawn.sort().values.tolist())


def circuit(base: Source, late: int) -> Source:
    """Return the model without two thirds of the heads in the last ``late`` sites of each tower, all others whole."""
    kept = {}
    left_in_tower = {tower: sum(site.tower == tower for site in base.sites) for tower in {s.tower for s in base.sites}}
    for site in base.sites:
        heads = range(site.heads)
        if left_in_tower[site.tower] <= late:
            heads = range(max(1, site.heads // 3))
        left_in_tower[site.tower] -= 1
        kept[site.path] = tuple(heads)
    return with_heads(base, kept, f"circuit-{late}")


def with_heads(base: Source, kept: dict[str, tuple[int, ...]], name: str) -> Source:
    """Return the model with some heads of each site."""
    mask = HeadMask({site.path: site.heads for site in base.sites}, kept)
    description, tensors = pruned(base, mask, "sliced")
    return replace(base, name=name, digest=name, description=description, tensors=tensors)


class Operators(TorchDispatchMode):
    """Counts what torch is told to compute: a GPU that runs eagerly has to be given each of them.

    Attributes:
        count: of operators, without views and without dropout, which does nothing here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one."""
        name = function.overloadpacket.__name__
        self.count += not function.is_view and name not in ("_unsafe_view", "empty", "detach", "dropout")
        return function(*args, **(kwargs or {}))


@torch.inference_mode()
def operators(model: Any) -> int:
    """How many operators one call takes."""
    inputs = model.example_inputs(1)
    model(inputs)  # what is made once is none of a call
    with Operators() as counted:
        model(inputs)
    return counted.count


class Models:
    """The models of one architecture in one format, each built when it is first asked for.

    Args:
        base: the dense model.
        options: what was asked for.
        dtype: the format.
        device: where they go.

    Attributes:
        names: all of them, the most informative first.
    """

    def __init__(self, base: Source, options: argparse.Namespace, dtype: str, device: torch.device) -> None:
        self.dtype = dtype
        self._base = base
        self._options = options
        self._device = device
        self._built: dict[str, Any] = {}
        self._macs: dict[str, int] = {}
        self._operators: dict[str, int] = {}

    def model(self, name: str) -> Any:
        """Return a model, compared with what it should be before it is first returned.

        Raises:
            SystemExit: it gives something else.
        """
        if name not in self._built:
            model = self._build_by_name(name)
            self._operators[name] = operators(model)
            self._built[name] = model
        return self._built[name]

    def macs(self, name: str) -> int:
        """Return the mult-adds of one sample."""
        self.model(name)
        return self._macs[name]

    def operators(self, name: str) -> int:
        """Return how many operators one eager call takes."""
        self.model(name)
        return self._operators[name]

    def _build_by_name(self, name: str) -> Any:
        base = self._base
        if name == SINGLE:
            single = self._build(base)
            self._macs[name] = macs(base.description, base.tensors)
            stock = build_stock(base, str(self._device), self.dtype)
            self._agree(stock, single, "single")
            return single
        if name == STOCK:
            self._macs[name] = macs(base.description, base.tensors, whole_last_block=True)
            return build_stock(base, str(self._device), self.dtype)
        if name == DEEP:
            self._macs[name] = self._options.members * self.macs(SINGLE)
            return SequentialEnsemble([self._build(base) for _ in range(self._options.members)])
        if name in (APART, FIRST):
            members = self._members(0)
            if name == FIRST:
                members = members[:1]
            self._macs[name] = sum(macs(source.description, source.tensors) for source in members)
            models = [self._build(source) for source in members]
            return models[0] if name == FIRST else SequentialEnsemble(models)
        sources = self._sources_of_fused(name)
        plan = plan_fusion(sources)
        self._macs[name] = macs(plan.description, plan.tensors)
        fused = self._build(replace(base, description=plan.description, tensors=plan.tensors))
        fused.batched = not name.endswith(UNBATCHED)
        fused.side_by_side = True
        alone = SequentialEnsemble([self._build(source) for source in sources])
        self._agree(alone, fused, name)
        return fused

    def _sources_of_fused(self, name: str) -> list[Source]:
        number = sites_in(name)
        if name.startswith("whole"):
            all_heads = {site.path: tuple(range(site.heads)) for site in self._base.sites}
            return [with_heads(self._base, all_heads, "whole"), circuit(self._base, number)]
        return self._members(number)

    def _members(self, shared: int) -> list[Source]:
        return [member(self._base, number, shared) for number in range(self._options.members)]

    def _build(self, source: Source) -> HydraModel:
        return HydraModel(source.description, source.tensors, self._device, resolve_dtype(self.dtype)).with_classes()

    def _agree(self, expected: Any, model: Any, name: str) -> None:
        share = difference(expected, model, self.dtype, name)
        print(f"{name}, {self.dtype}: agrees, {share:.1%} of what is allowed", file=sys.stderr, flush=True)


def names_of_models(options: argparse.Namespace) -> list[str]:
    """Return the models, the most informative first."""
    shared = sorted(options.shared, reverse=True)
    names = [SINGLE]
    if True in options.batched:
        names += [f"whole + circuit, last {late}" for late in options.late]
        names += [f"fused, {count} shared" for count in shared]
    if False in options.batched:
        names += [f"whole + circuit, last {late}{UNBATCHED}" for late in options.late]
        names += [f"fused, {count} shared{UNBATCHED}" for count in shared]
    return [*names, APART, FIRST, DEEP, STOCK]


def sites_in(name: str) -> int:
    """Return the number of sites that the name of a fused model speaks of; 0 for the other models."""
    numbers = [int(word) for word in name.replace(",", "").split() if word.isdigit()]
    return sum(numbers)


@torch.inference_mode()
def difference(one: Any, other: Any, dtype: str, name: str) -> float:
    """The largest difference of predictions, by the largest allowed one; ends the run where it is above that."""
    inputs = one.example_inputs(4, 1)
    if isinstance(one, SequentialEnsemble):
        expected, found = one.member_logits(inputs).double(), other.member_logits(inputs).double()
    else:
        expected, found = one(inputs).double(), other(inputs).double()
    allowed = TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))
    share = float((expected - found).abs().max()) / allowed
    if not share <= 1:
        sys.exit(f"{name} ({dtype}): differs by {share:.2f} times of what is allowed; nothing was timed")
    return share


def plan(options: argparse.Namespace) -> list[Place]:
    """Return the rows to be measured, the most informative first."""
    places = []
    names = names_of_models(options)
    for arch in options.arch:
        for dtype in options.dtypes:
            for mode in options.modes:
                for batch in options.batches:
                    # A graph is for small batches; at the larger ones launching takes no time beside computing.
                    has_graph = mode == "compiled"
                    if has_graph and (batch >= _LARGE or dtype != options.dtypes[0]):
                        continue
                    names_here = names
                    if has_graph:  # the single model, and what is fused in the way a GPU runs it
                        names_here = [name for name in names if name == SINGLE or _is_batched(name)]
                    places += [Place(arch, dtype, batch, mode, name) for name in names_here]

    def rank(place: Place) -> tuple[bool, int, int]:
        first_dtype = place.dtype == options.dtypes[0]
        is_paper_s = place.batch_size == PAPER_S_BATCH
        if is_paper_s:
            step = {"compiled": 0, "eager": 1}[place.mode] if first_dtype else 2
        else:
            step = 5 if not first_dtype else 4 if place.mode == "compiled" else 3
        return not is_paper_s, options.arch.index(place.arch), step

    return sorted(places, key=rank)  # rows of one rank stay in order


def _is_batched(name: str) -> bool:
    is_fused = name.startswith(("fused", "whole"))
    return is_fused and not name.endswith(UNBATCHED)


class Measuring:
    """Measures rows, with what they need built when it is needed.

    Args:
        options: what was asked for.
        device: what measures.
        folder: for files in between.
    """

    def __init__(self, options: argparse.Namespace, device: Device, folder: Path) -> None:
        self._options = options
        self._device = device
        self._folder = folder
        self._bases: dict[str, Source] = {}
        self._models: dict[str, Models] = {}  # of one architecture, by format
        self._arch_of_models: str | None = None
        self._calls: dict[str, Any] = {}
        self._of_calls: Place | None = None

    def base(self, arch: str) -> Source:
        """Return the dense model of an architecture."""
        if arch not in self._bases:
            self._bases[arch] = opened(arch, self._folder)
        return self._bases[arch]

    def __call__(self, place: Place) -> dict[str, Any]:
        """Return the figures of one row.

        Raises:
            CannotMeasure: there is no such model, it does not compile, or it needs more memory than there is.
        """
        options = self._options
        towers = [site.tower for site in self.base(place.arch).sites]
        sites = max(towers.count(tower) for tower in towers)
        if sites_in(place.model) >= sites:
            raise CannotMeasure(f"the model has {sites} sites")
        models = self._models_of(place)
        try:
            for name in (SINGLE, place.model):  # not in inference mode, where parameters could not be stacked
                models.model(name)
            with torch.inference_mode():
                calls = {name: self._call(place, name) for name in (SINGLE, place.model)}
                times = self._rounds(calls, place)
                kernels = self._device.kernels(calls[place.model])
                memory = self._device.peak_memory(calls[place.model])
        except Exception as error:  # of a compiler there are many kinds; the other rows can be measured
            raise CannotMeasure(first_line(error)) from error
        own = times[place.model]
        reference = times[SINGLE]
        figures = timed([t.wall for t in own], [t.wall for t in reference], place.batch_size, 0)
        on_device = [t.device for t in own]
        device_ratio, device_interval = paired_ratio(on_device, [t.device for t in reference], 0)
        of_kernels: dict[str, Any] = {"kernels": None, "kernel_ms": None}
        if kernels is not None:
            of_kernels = {"kernels": kernels.count, "kernel_ms": kernels.seconds * 1e3}
        compile_mode = options.compile_mode if place.mode == "compiled" else None
        return {
            "macs": models.macs(place.model),
            "mac_ratio": models.macs(place.model) / models.macs(SINGLE),
            "operators": models.operators(place.model),
            **figures.to_dict(),
            "device_ms": statistics.median(on_device) * 1e3,
            "device_runs_ms": [seconds * 1e3 for seconds in on_device],
            "device_ratio": device_ratio,
            "device_ratio_ci": device_interval,
            "host_ms": statistics.median(t.host for t in own) * 1e3,
            **of_kernels,
            "peak_memory_bytes": memory,
            "compile_mode": compile_mode,
        }

    def _models_of(self, place: Place) -> Models:
        if self._arch_of_models != place.arch:  # dropped before those of the next are built
            self._calls = {}
            self._models = {}
            gc.collect()
            self._arch_of_models = place.arch
        if place.dtype not in self._models:
            base = self.base(place.arch)
            self._models[place.dtype] = Models(base, self._options, place.dtype, self._device.torch_device)
        return self._models[place.dtype]

    def _call(self, place: Place, name: str) -> Any:
        """Return a call that has run before; of one batch, format and mode each is prepared once."""
        before = self._of_calls
        where = replace(place, model="")
        if before != where:
            self._calls = {}
            self._device.forget_graphs()
            self._of_calls = where
        if name not in self._calls:
            model = self._models_of(place).model(name)
            inputs = self._models_of(place).model(SINGLE).example_inputs(place.batch_size, 0)
            compile_mode = self._options.compile_mode if place.mode == "compiled" else None
            self._calls[name] = self._device.prepared(model, inputs, compile_mode)
        return self._calls[name]

    def _rounds(self, calls: dict[str, Any], place: Place) -> dict[str, list[CallTimes]]:
        """Time a model and the single one by turns, in an order that is drawn for each round."""
        rounds = self._options.rounds if place.batch_size < _LARGE else max(2, self._options.rounds // 2)
        order = random.Random(0)
        times: dict[str, list[CallTimes]] = {name: [] for name in calls}
        names = list(calls)
        for round_number in range(-self._options.warmup, rounds):
            order.shuffle(names)
            for name in names:
                measured = self._device.times(calls[name])
                if round_number >= 0:
                    times[name].append(measured)
        return times


def aims(record: Record) -> list[dict[str, Any]]:
    """Compare the rows that the paper and the project speak of with what they are to reach.

    A ratio is reached where the whole interval lies at or below it, missed where the whole interval lies above it.
    """
    compared = []
    for row in record.rows:
        if row["dtype"] != "bfloat16" or row["batch_size"] != PAPER_S_BATCH or not _is_batched(row["model"]):
            continue
        is_plain = row["model"].startswith("fused, 0 ")
        aim = PAPER if row["mode"] == "eager" and is_plain else EQUAL if row["mode"] == "compiled" else None
        if aim is None:
            continue
        low, high = row["ratio_ci"]
        verdict = "reached" if high <= aim else "missed" if low > aim else "cannot tell"
        place = {key: row[key] for key in ("arch", "mode", "model")}
        compared.append({**place, "aim": aim, "ratio": row["ratio"], "ratio_ci": [low, high], "verdict": verdict})
    return compared


def table(record: Record) -> str:
    """Return the rows in Markdown, as for docs/numbers/."""
    lines = [
        "| model | format | batch | mode | row | wall ms | over single (95 %) | device ms | over single (95 %) "
        "| host ms | kernel ms | kernels | operators | mult-adds | of peak |",
        "|---|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record.rows:
        peak = record.machine.get("peak_macs_per_s", {}).get(row["dtype"])
        share = "" if peak is None else f"{row['macs'] * row['throughput_per_s'] / peak:.0%}"
        noisy = " ~" if row["noisy"] else ""
        kernel_ms = "" if row["kernel_ms"] is None else f"{row['kernel_ms']:.3g}"
        kernels = "" if row["kernels"] is None else row["kernels"]
        counted = f"{kernels} | {row['operators']} | {row['mac_ratio']:.2f} | {share}"
        lines.append(
            f"| {row['arch']} | {row['dtype']} | {row['batch_size']} | {row['mode']} | {row['model']} "
            f"| {row['latency_ms']['median']:.3g} | {_ratio(row['ratio'], row['ratio_ci'])}{noisy} "
            f"| {row['device_ms']:.3g} | {_ratio(row['device_ratio'], row['device_ratio_ci'])} "
            f"| {row['host_ms']:.3g} | {kernel_ms} | {counted} |"
        )
    return "\n".join(lines)


def _ratio(middle: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def say(record: Record) -> None:
    """Print the table, what was to be reached, what is missing, and the machine."""
    print(table(record))
    for aim in record.aims:
        print(
            f"\n{aim['arch']}, batch 4, bfloat16, {aim['mode']}, {aim['model']}: "
            f"{_ratio(aim['ratio'], aim['ratio_ci'])} of the single model, at most {aim['aim']:.2f}: {aim['verdict']}"
        )
    for line in record.document()["missing"]:
        print(f"\nnot measured: {line}")
    print(json.dumps(record.machine))


def arguments() -> argparse.Namespace:
    """The command-line arguments."""

    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    def ways(text: str) -> list[bool]:
        return {"on": [True], "off": [False], "both": [True, False]}[text]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--arch", type=words, default=words(ARCHITECTURES), help="of timm, bert-base, open_clip:NAME")
    parser.add_argument("--dtypes", type=words, default=["bfloat16", "float32"])
    parser.add_argument("--batches", type=numbers, default=[1, 4, 32, 128])
    parser.add_argument("--modes", type=words, default=["compiled", "eager"])
    parser.add_argument("--compile-mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--shared", type=numbers, default=[0, 6, 10], help="numbers of leading sites in common")
    parser.add_argument(
        "--late", type=numbers, default=[2], help="whole + circuit: numbers of last sites that the circuit is pruned in"
    )
    parser.add_argument("--batched", type=ways, default=[True, False], help="on, off or both")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30, help="half as many from a batch of 32 on")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=470, help="of the whole script, which ends then")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON; rows that it holds are not measured")
    return parser.parse_args()


def main() -> None:
    """Measure and print a table."""
    options = arguments()
    clock = Clock(options.seconds, BEGUN)
    settings = {key: value for key, value in vars(options).items() if key not in ("output", "seconds")}
    record = Record(options.output, settings)
    device = device_of(resolve_device(options.device))
    record.set_machine(device.facts())
    with tempfile.TemporaryDirectory() as folder:
        measuring = Measuring(options, device, Path(folder))
        places = plan(options)

        def conclude() -> None:
            record.aims = aims(record)
            record.write()
            say(record)

        timer = record.end_in_time(clock, places, conclude)
        peaks = record.machine.setdefault("peak_macs_per_s", {})
        for dtype in options.dtypes:
            if dtype not in peaks:
                peaks[dtype] = peak_macs_per_s(device.torch_device, resolve_dtype(dtype))
        measure_all(places, record, clock, measuring)
        timer.cancel()
        conclude()


if __name__ == "__main__":
    main()
