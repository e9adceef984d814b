"""Cost of a fused model on a GPU compared with a single one, its members run sequentially and a deep ensemble.

    python benchmarks/gpu_cost.py -o gpu.json                           # everything, at most 8 minutes
    python benchmarks/gpu_cost.py --device cpu --arch vit_tiny_patch16_224 --batches 1 --rounds 2      # try it out

Weights are random. The members keep two thirds of the heads of every site, drawn for each; behind the sites they share
their attention has weights of its own, and everything else is the same in all of them, as when fusing has averaged it.
Before anything is timed every fused member is compared with that member alone, and the single model with the library's.
What does not fit into the time is said. Ratios are to the single model of the same format, batch and mode, in the same
rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydractl.families.torchvision_operators import declare_operators

declare_operators()

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hydractl.benchmark.figures import timed  # noqa: E402
from hydractl.benchmark.measuring import Contest  # noqa: E402
from hydractl.benchmark.rows import build_stock  # noqa: E402
from hydractl.errors import HydraError  # noqa: E402
from hydractl.files.checkpoint import DictTensors  # noqa: E402
from hydractl.fusion.plan import plan_fusion  # noqa: E402
from hydractl.heads.mask import HeadMask  # noqa: E402
from hydractl.log import Progress  # noqa: E402
from hydractl.model.cost import macs  # noqa: E402
from hydractl.model.loading import SequentialEnsemble, resolve_device, resolve_dtype  # noqa: E402
from hydractl.model.machine import peak_macs_per_s  # noqa: E402
from hydractl.model.runtime import HydraModel  # noqa: E402
from hydractl.model.source import Source, open_source, pruned  # noqa: E402

ARCHITECTURES = "vit_base_patch16_224,bert-base,open_clip:ViT-B-32"
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference of logits, times max(1, largest logit); a GPU may compute convolutions in TF32."""


@dataclass
class Clock:
    """The time of the whole run."""

    seconds: float

    def __post_init__(self) -> None:
        self.start = time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.perf_counter() - self.start)


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
    """One member: its own heads and weights of them, in the sites of each tower behind the first ``shared``."""
    sites, first = base.sites, torch.Generator().manual_seed(0)
    own = torch.Generator().manual_seed(number)
    kept, changed, place = {}, {}, dict.fromkeys({site.tower for site in sites}, 0)
    for site in sites:
        count = max(1, 2 * site.heads // 3)
        common, drawn = (torch.randperm(site.heads, generator=g)[:count].sort().values.tolist() for g in (first, own))
        alike = place[site.tower] < shared
        place[site.tower] += 1
        kept[site.path] = tuple(common if alike or number == 0 else drawn)
        for name in base.tensors.names() if not alike else ():
            if name.startswith(f"{site.path}.") and base.family.part(name, sites) == "attention":
                tensor = base.tensors.read(name)
                changed[name] = tensor + 0.01 * torch.randn(tensor.shape, generator=own)
    tensors = DictTensors({name: changed.get(name, base.tensors.read(name)) for name in base.tensors.names()})
    mask = HeadMask({site.path: site.heads for site in sites}, kept)
    description, cut = pruned(replace(base, tensors=tensors), mask, "sliced")
    named = f"member{number}"
    return replace(base, name=named, digest=f"{named}-{shared}", description=description, tensors=cut)


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


class Rows:
    """The models of one architecture in one format.

    Args:
        base: the dense model.
        options: what was asked for.
        dtype: the format.
    """

    def __init__(self, base: Source, options: argparse.Namespace, dtype: str) -> None:
        self.dtype, self.device = dtype, resolve_device(options.device)
        single = self._build(base)
        self.models: dict[str, Any] = {"single": single}
        self.macs = {"single": macs(base.description, base.tensors)}
        self.worst = difference(build_stock(base, options.device, dtype), single, dtype, "the library's own")
        apart, sites = {}, len(single.chain_of_samples.sites)
        for shared in (count for count in options.shared if count < sites):
            members = [member(base, number, shared) for number in range(options.members)]
            plan = plan_fusion(members)
            alone = SequentialEnsemble([self._build(one) for one in members])
            for way in options.batched:
                name = f"fused, {shared} shared{'' if way else ', not batched'}"
                fused = self._build(replace(base, description=plan.description, tensors=plan.tensors))
                fused.batched, fused.side_by_side = way, True
                self.worst = max(self.worst, difference(alone, fused, dtype, name))
                self.models[name] = fused
                self.macs[name] = macs(plan.description, plan.tensors)
            if not apart:
                apart = {"members one after another": alone}
                work = sum(macs(one.description, one.tensors) for one in members)
        self.models |= apart
        self.models["deep ensemble"] = SequentialEnsemble([self._build(base) for _ in range(options.members)])
        self.operators = {name: operators(model) for name, model in self.models.items()}
        self.macs |= {"members one after another": work, "deep ensemble": options.members * self.macs["single"]}

    def _build(self, source: Source) -> HydraModel:
        return HydraModel(source.description, source.tensors, self.device, resolve_dtype(self.dtype)).with_classes()

    def measure(self, batch: int, mode: str, options: argparse.Namespace) -> list[dict[str, Any]]:
        """All rows at one batch size; compiled: only the single model and what is fused in the way a GPU runs it."""
        names = [n for n in self.models if mode == "eager" or n == "single" or n.endswith("shared")]
        compiled = None if mode == "eager" else options.compile_mode
        where = f"batch {batch}, {self.dtype}, {mode}"
        contest = Contest({n: self.models[n] for n in names}, batch, self.device, 0, compiled, where)
        runs = contest.run(options.warmup, max(2, options.rounds // (2 if batch >= 32 else 1)), Progress())
        found = []
        for name in names:
            figures = timed(runs[name], runs["single"], batch, 0)
            work = {"macs": self.macs[name], "mac_ratio": self.macs[name] / self.macs["single"]}
            memory = {"peak_memory_bytes": contest.peak_memory_bytes[name], "operators": self.operators[name]}
            found.append(
                {
                    "model": name,
                    "batch_size": batch,
                    "dtype": self.dtype,
                    "mode": mode,
                    **work,
                    **figures.to_json(),
                    **memory,
                }
            )
        return found


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


def plan(options: argparse.Namespace) -> list[tuple[str, int, str, str]]:
    """The measurements, the most informative first: format, batch, mode and architecture."""
    eager = [(d, b, "eager", a) for d in options.dtypes for a in options.arch for b in options.batches]
    small = [b for b in options.batches if b < 32]
    compiled = [(options.dtypes[0], b, "compiled", a) for a in options.arch for b in small]
    return eager + (compiled if "compiled" in options.modes else [])


def measure(options: argparse.Namespace, clock: Clock, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Everything that the time allows; the rows, and what is missing."""
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    bases: dict[str, Source] = {}
    built: tuple[str, str, Rows] | None = None
    longest = dict.fromkeys(("eager", "compiled"), 0.0)
    for dtype, batch, mode, arch in plan(options):
        label = f"{arch}, {dtype}, batch {batch}, {mode}"
        if clock.left < max(longest[mode], 1.0):
            missing.append(f"{label}: no time left")
            continue
        started = time.perf_counter()
        if built is None or built[:2] != (arch, dtype):
            built = None
            gc.collect()
            bases[arch] = bases.get(arch) or opened(arch, folder)
            built = (arch, dtype, Rows(bases[arch], options, dtype))
            print(
                f"{arch}, {dtype}: members agree, {built[2].worst:.1%} of what is allowed", file=sys.stderr, flush=True
            )
        begun = time.perf_counter()
        try:
            found = built[2].measure(batch, mode, options)
        except HydraError as error:
            missing.append(f"{label}: {error}")
            continue
        rows += [{"arch": arch, **row} for row in found]
        longest[mode] = max(longest[mode], time.perf_counter() - begun)
        print(f"{label}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    return rows, missing


def machine(device: torch.device, dtypes: list[str]) -> dict[str, Any]:
    """The software and hardware that the times depend on."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "capability": list(torch.cuda.get_device_capability(device)) if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "peak_macs_per_s": {dtype: peak_macs_per_s(device, resolve_dtype(dtype)) for dtype in dtypes},
    }


def table(document: dict[str, Any]) -> str:
    """In Markdown, as for docs/numbers/."""
    lines = [
        "| model | format | batch | mode | row | ms | time (95 %) | mult-adds | operators | of peak |",
        "|---|---|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        low, high = row["ratio_ci"]
        peak = document["machine"]["peak_macs_per_s"][row["dtype"]]
        share = "" if peak is None else f"{row['macs'] * row['throughput_per_s'] / peak:.0%}"
        place = f"| {row['arch']} | {row['dtype']} | {row['batch_size']} | {row['mode']} | {row['model']} "
        ratio = f"{row['ratio']:.2f} ({low:.2f}..{high:.2f}){' ~' if row['noisy'] else ''}"
        lines.append(
            f"{place}| {row['latency_ms']['median']:.3g} | {ratio} | {row['mac_ratio']:.2f} "
            f"| {row['operators']} | {share} |"
        )
    return "\n".join(lines)


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
    parser.add_argument("--modes", type=words, default=["eager", "compiled"])
    parser.add_argument("--compile-mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--shared", type=numbers, default=[0, 6, 10], help="numbers of leading sites in common")
    parser.add_argument("--batched", type=ways, default=[True, False], help="on, off or both")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30, help="half as many from a batch of 32 on")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=450, help="nothing is begun that would not end in this time")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_args()


def main() -> None:
    """Measure and print a table."""
    options = arguments()
    device = resolve_device(options.device)
    clock = Clock(options.seconds)
    facts = machine(device, options.dtypes)
    with tempfile.TemporaryDirectory() as folder:
        rows, missing = measure(options, clock, Path(folder))
    settings = {key: value for key, value in vars(options).items() if key != "output"}
    document = {"settings": settings, "machine": facts, "rows": rows, "missing": missing}
    print(table(document))
    print("".join(f"\nnot measured: {line}" for line in missing))
    print(json.dumps(facts))
    if options.output is not None:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
