"""Count what the scripts of this folder cost: operations, GPU memory and disk of each step, table and row.

    python examples/paper/cost.py -o docs/results/paper-cost.json

The steps are those that the scripts print with ``DRY=1`` and ``LR=0.01``, which trains once where the recipes try a
grid. Nothing of them is run: no data, weights or GPU are needed. The tests compare the mult-adds of a model with those
that hydractl has counted, and the memory of a training step with the tensors that torch keeps for it.

Left out, because they take minutes: ``prune``, ``score``, ``fuse``, ``calibrate``, ``bench``, ``report``, validation
between epochs, and the analyses, which run on the CPU. Texts count as 128 tokens, the most there can be.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SCRIPTS = sorted({path.stem for path in HERE.glob("*.sh")} - {"common", "openood"}, key=lambda name: (len(name), name))
"""Those of tables and figures of the paper."""

PATHS = ("IMAGENET", "IMAGENET21K", "OPENOOD", "CIFAR", "SST2", "TEXTS", "AGNEWS", "TORCHVISION", "LAION")
BLOCKS = 12
HEAD_WIDTH = 64

# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tower:
    """A transformer of twelve blocks, whose MLPs are four times as wide as it is.

    Attributes:
        width: of the model.
        tokens: of a sample.
        heads: in each block, as a mean.
        stem: mult-adds before the first block.
        ends: mult-adds, and numbers, behind the last one.
        table: numbers before the first block.
    """

    width: int
    tokens: int
    heads: int
    stem: int
    ends: int
    table: int

    def macs(self) -> int:
        """Count the multiply-adds of one sample; of the last block one token is read."""
        return self.stem + (BLOCKS - 1) * self._block_macs(self.tokens) + self._block_macs(1) + self.ends

    def _block_macs(self, read: int) -> int:
        """Count those of a block of which so many tokens are read: keys and values are needed of all."""
        of_heads = self.heads * HEAD_WIDTH
        projections = 2 * (read + self.tokens) * self.width * of_heads
        attention = 2 * read * self.tokens * of_heads
        mlp = 8 * read * self.width**2
        return projections + attention + mlp

    def own_numbers(self) -> int:
        """Count the weights that a member of a fused model keeps for itself, without biases."""
        return self.ends + BLOCKS * 4 * self.width * self.heads * HEAD_WIDTH

    def shared_numbers(self) -> int:
        """Count those that are averaged, without norms and biases."""
        return self.table + BLOCKS * 8 * self.width**2

    def kept_bytes(self, element: int) -> int:
        """Count what a block keeps of one sample for its gradient, its linear layers in numbers of so many bytes.

        Norms keep what they read, in float32. Linear layers keep what they read: the outputs of the norms, of attention
        and of the activation function, which keeps what it reads, too. Attention keeps queries, keys and values.
        """
        norms = 2 * (4 * self.width + 8)
        attention = 4 * self.heads * HEAD_WIDTH * element + 4 * self.heads
        layers = (2 * self.width + 8 * self.width) * element
        return self.tokens * (norms + attention + layers)


VIT = Tower(768, 197, 12, stem=196 * 768 * 768, ends=768 * 1000, table=768 * (198 + 768))
BERT = Tower(768, 128, 12, stem=0, ends=768 * (768 + 2), table=768 * (30522 + 512 + 2))
CLIP_IMAGE = Tower(768, 50, 12, stem=49 * 3072 * 768, ends=768 * 512, table=768 * (51 + 3072))
CLIP_TEXT = Tower(512, 77, 8, stem=0, ends=512 * 512, table=512 * (49408 + 77))


@dataclass(frozen=True)
class Model:
    """A file of a script.

    Attributes:
        tower: what a sample runs through.
        text: the text tower of a CLIP.
        members: how many there are.
        runs: how many of them run for a sample: of classifiers on one body, one.
        averaged: whether members share all that is not their own.
        made_by: the outputs of the steps that it took.
    """

    tower: Tower
    text: Tower | None = None
    members: int = 1
    runs: int = 1
    averaged: bool = False
    made_by: frozenset[str] = field(default_factory=frozenset)

    def macs(self) -> int:
        """Count the multiply-adds of one sample."""
        return self.runs * self.tower.macs()

    def parameters(self) -> int:
        """Count the weights."""
        towers = [self.tower] if self.text is None else [self.tower, self.text]
        own = sum(tower.own_numbers() for tower in towers)
        shared = sum(tower.shared_numbers() for tower in towers)
        if self.runs < self.members:  # classifiers on one body
            return own + shared + (self.members - 1) * self.tower.ends
        return self.members * own + (1 if self.averaged else self.members) * shared

    def with_heads(self, heads: int) -> Model:
        """Return it with so many heads in each block."""
        return replace(self, tower=replace(self.tower, heads=heads))


PUBLISHED = {"timm:": Model(VIT), "hf:": Model(BERT), "open_clip:": Model(CLIP_IMAGE, CLIP_TEXT)}
"""Models that no script makes, by how their names begin."""

# --- data: numbers of samples -----------------------------------------------------------------------------------------

NAMES = {
    "imagenet": "ImageNet-1K",
    "cifar100": "CIFAR-100",
    "sst2": "SST-2",
    "clip": "CLIP",
    "imagenet21k": "ImageNet-21k",
}
KEPT = {"imagenet": 8, "cifar100": 10, "sst2": 6, "clip": 10}
"""How many heads of each block a circuit leaves; the 24 that the CLIP loses count as two in each block for images."""

EPOCH = {"sst2": 64_349, "clip": 60_000_000, "imagenet21k": 13_153_500}
"""Training samples, where the recipe counts epochs."""

SEARCHED = {"imagenet": 500 + 1_763, "cifar100": 1_000 + 1_000, "sst2": 3_000 + 7_600, "clip": 500 + 1_763}
"""ID and OOD validation samples of a search."""

TESTED = {"imagenet": 49_500 + 70_039, "cifar100": 10_000 + 145_867, "sst2": 872 + 459_123}
"""ID test samples and those of all OOD sets."""

ZERO_SHOT = {
    "imagenet": 119_539,
    "cifar100": 163_660,
    "cifar10": 10_000,
    "food101": 25_250,
    "sun397": 54_377,
    "pets": 3_669,
    "dtd": 1_880,
    "eurosat": 13_500,
    "caltech101": 4_572,
}
"""The same of the nine sets of the CLIP."""

CLASSES = {"imagenet": 1000, "cifar100": 100, "sst2": 2, "clip": 1000}
COMPUTED = 0.44
"""The share of a plain search that is computed: 0.41 to 0.44 of those of the ViT, as ``--dry-run`` plans them."""

CORE_SECONDS_OF_A_SET = 0.043 * 50_000
"""To corrupt 50,000 images on one core: 43 ms each, measured as the mean of 14 kinds."""

# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What one command costs.

    Attributes:
        kind: ``training``, ``search``, ``prediction`` or ``corruption``.
        name: of steps that cost the same; empty where there is one like it with a name.
        operations: two for each multiply-add.
        memory: bytes on a GPU; 0 for a search, which keeps what there is room for.
        disk: bytes of what it writes.
        float32: whether it computes in float32, where trainings with images do in bfloat16.
    """

    kind: str
    name: str
    operations: float = 0
    memory: int = 0
    disk: int = 0
    float32: bool = True


def printed(script: str) -> Iterator[tuple[list[str], str]]:
    """Yield the words of each command that a script prints, and the file that it makes."""
    variables = {name: f"/data/{name.lower()}" for name in PATHS}
    environment = {"PATH": os.environ["PATH"], "DRY": "1", "LR": "0.01", **variables}
    command = ["sh", str(HERE / f"{script}.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        words, _, output = line.rpartition("  # ")
        yield shlex.split(words), output


def option(words: Sequence[str], name: str, default: str = "") -> str:
    """Return the value of an option of a command."""
    return words[words.index(name) + 1] if name in words else default


def step_memory(tower: Tower, parameters: int, rows: int, element: int, share: float, states: int) -> int:
    """Count the bytes of a training step.

    Args:
        tower: that is trained.
        parameters: of the whole model.
        rows: samples that are computed at once.
        element: bytes of a number in its linear layers.
        share: of the blocks that are trained, the last ones.
        states: how many numbers the optimizer keeps for each weight.
    """
    in_both_formats = 4 + element % 4
    weights = parameters * (in_both_formats + share * (4 + 4 * states))
    kept = share * BLOCKS * tower.kept_bytes(element)
    # At the last block: gradients of the hidden units, and of what comes out of the block.
    gradients = tower.tokens * tower.width * (4 * element + 4)
    return int(weights + rows * (kept + gradients))


def answer_memory(model: Model, rows: int) -> int:
    """Count the bytes of a forward pass: weights, hidden units twice, and the input and output of a block."""
    return 4 * (model.parameters() + rows * model.runs * 10 * model.tower.tokens * model.tower.width)


class Counter:
    """Counts the steps of scripts, and follows the models from one to the next.

    Attributes:
        steps: by the file that each makes.
        rows: of the tables, by data set and name: the models of a row, one or several.
    """

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.rows: dict[tuple[str, str], list[Model]] = {}
        self._models: dict[str, Model] = {}
        self._predicted: dict[str, list[Model]] = {}  # by the file of stored predictions: who made them

    def count(self, script: str) -> dict[str, Step]:
        """Count the steps of a script, and return them by the file that each makes."""
        own = {}
        for words, output in printed(script):
            data = output.split("/")[2]
            step = self._counted(words, output, data)
            if step is not None:
                own[output] = self.steps[output] = step
        return own

    def _counted(self, words: list[str], output: str, data: str) -> Step | None:
        if words[0] != "hydractl":
            is_corruption = words[1].endswith("corrupt.py")
            name = "50,000 corrupted images"
            return Step("corruption", name, disk=1_300_000_000) if is_corruption else None
        verb = words[1]
        if verb == "finetune":
            return self._training(words, output, data)
        if verb == "extract-circuit":
            return self._search(words, data)
        if verb == "eval":
            return self._prediction(words, output, data)
        if verb == "prune":
            self._models[output] = self._pruned(words, data)
        elif verb == "fuse":
            self._models[output] = self._fused(words, output)
        elif verb == "calibrate" and output.endswith(".st"):
            self._models[output] = self._model(words[2])
        return None

    def _model(self, name: str) -> Model:
        for start, model in PUBLISHED.items():
            if name.startswith(start):
                return model
        return self._models[name]

    def _pruned(self, words: list[str], data: str) -> Model:
        model = self._model(words[2])
        heads = KEPT[data]
        if "--weights" in words:
            heads = model.tower.heads
        elif "--keep" in words:
            heads = int(option(words, "--keep"))
        # Circuits of several objectives are of one search, whose step ends with that for both.
        circuit = option(words, "--circuit")
        for objective in ("acc", "ood"):
            circuit = circuit.replace(f".{objective}.json", ".avg.json")
        steps = {circuit} & self.steps.keys()
        return replace(model.with_heads(heads), made_by=model.made_by | steps)

    def _fused(self, words: list[str], output: str) -> Model:
        members = [self._model(word) for word in words[2:] if word.endswith(".st") and word != output]
        steps = frozenset().union(*(member.made_by for member in members))
        runs = 1 if "/mimo." in output else len(members)
        averaged = option(words, "--merge") != "none"
        return replace(members[0], members=len(members), runs=runs, averaged=averaged, made_by=steps)

    def _training(self, words: list[str], output: str, data: str) -> Step:
        model = self._model(words[2])
        made_by = model.made_by | {output}
        ensemble = option(words, "--ensemble").partition(":")[0]
        if ensemble == "laplace":
            self._models[output] = replace(model, made_by=made_by)
            assert model.text is not None
            operations = 327_680 * 2 * (model.macs() + model.text.macs())
            return Step("training", "CLIP: BayesVLM's 327,680 pairs, on the CPU", operations, disk=5_000_000)

        settings = _recipe(option(words, "--recipe"))
        at_once = int(option(words, "--batch-size"))
        if "steps" in settings:
            samples = settings["steps"] * at_once * int(option(words, "--accumulate", "1"))
        else:
            samples = settings["epochs"] * EPOCH[data]
        together = {"packed": 3, "mimo": 3}.get(ensemble, 1)
        if ensemble == "packed":  # networks of two thirds of the width
            narrow = replace(VIT, width=512, heads=8, stem=196 * 768 * 512, ends=512 * 1000, table=512 * (198 + 768))
            model = replace(model, tower=narrow)
        for number in range(1, together + 1):
            name = output if together == 1 else output.replace(".3.", f".{number}.")
            self._models[name] = replace(model, made_by=made_by)

        # One pass forward, two for the gradients of inputs and weights, as finetune says itself.
        share = settings.get("train_last", BLOCKS) / BLOCKS
        passes = 1 + 2 * share
        rows = {"packed": 3, "mimo": 4}.get(ensemble, 1)  # of a sample: in each network; each sample four times
        element = 2 if "--autocast" in words else 4
        states = 2 if settings["optimizer"] == "adamw" else 1
        length = f"{settings['steps']:,} steps" if "steps" in settings else f"epochs: {settings['epochs']}"
        blocks = f" of the last {settings['train_last']} blocks" if share < 1 else ""
        name = f"{NAMES[data]}: {_way(model, ensemble)}, {length}{blocks}"
        if settings.get("loss") == "contrastive":
            assert model.text is not None
            # The image tower runs forward only. A step of several parts computes each twice, first for all features.
            operations = 2.0 * samples * (2 * model.macs() + 4 * model.text.macs())
            memory = step_memory(model.text, model.parameters(), at_once, element, 1, states)
            name = f"{NAMES[data]}: the text tower, 60 M pairs, {length}"
        else:
            operations = 2 * passes * samples * rows * model.macs()
            numbers = together * model.parameters() if ensemble == "packed" else model.parameters()
            memory = step_memory(model.tower, numbers, at_once * rows, element, share, states)
        disk = together * 4 * model.parameters()
        return Step("training", name, operations, memory, disk, float32=element == 4)

    def _search(self, words: list[str], data: str) -> Step:
        model = self._model(words[2])
        both_towers = model.text is not None and "--tower" not in words
        heads = BLOCKS * model.tower.heads
        heads_of_text = BLOCKS * model.text.heads if both_towers and model.text is not None else 0
        total = heads + heads_of_text
        budget = int(option(words, "--budget", "0"))
        if "--keep" in words:
            budget = total - BLOCKS * int(option(words, "--keep"))
        objectives = 1 + option(words, "--objective").count(",")
        evaluations = objectives * sum(total - step for step in range(budget))
        macs = SEARCHED[data] * model.macs()
        if both_towers and model.text is not None:  # without a head of texts, the prompts of 1,000 classes change
            macs = (heads * macs + heads_of_text * 1_000 * model.text.macs()) // total
        if words.count("--val") == 2:
            macs = (SEARCHED["imagenet"] + SEARCHED["cifar100"]) * model.macs()
        count = f"{objectives} objectives" if objectives > 1 else "an objective"
        name = f"{NAMES[data]}: search of {budget} of {total} heads, {count}"
        return Step("search", name, 2 * COMPUTED * evaluations * macs)

    def _prediction(self, words: list[str], output: str, data: str) -> Step | None:
        end = next(place for place, word in enumerate(words) if word.startswith("--"))
        rows = {}
        models = []  # those that run here
        for word in words[2:end]:
            name, _, files = word.rpartition("=")
            if files in self._predicted:
                rows[name] = self._predicted[files]
            else:
                rows[name] = [self._model(file) for file in files.split("+")]
                models += rows[name]
        if "--predictions" not in words:
            self.rows.update({(data, name): of_row for name, of_row in rows.items()})
        if not models:
            return None

        samples, classes = TESTED.get(data, 0), CLASSES[data]
        if "/corrupted/" in output:
            samples = 49_500
        if data == "clip":
            of_set = Path(output).name.removeprefix("table27.").removeprefix("vilu.").partition(".")[0]
            samples = ZERO_SHOT[of_set]
        passes = int(option(words, "--passes", "1"))
        name = ""
        if len(models) == passes == models[0].runs and models[0].tower.heads == 12 and data != "clip":
            name = f"{NAMES[data]}: predictions of the whole model"
        if "--predictions" in words:
            self._predicted[output] = [replace(model, runs=model.runs * passes) for model in models]
        operations = 2 * passes * samples * sum(model.macs() for model in models)
        members = passes * sum(model.members for model in models)
        disk = 4 * samples * classes * members if "--predictions" in words else 0
        memory = max(answer_memory(model, int(option(words, "--batch-size"))) for model in models)
        return Step("prediction", name, operations, memory, disk)


def _recipe(name: str) -> dict[str, Any]:
    """Read a recipe of hydractl."""
    text = resources.files("hydractl.training.recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings


def _way(model: Model, ensemble: str) -> str:
    """Say what is trained."""
    kinds = {"packed": "Packed-Ensembles", "mimo": "MIMO", "lora": "LoRA", "batch-ensemble": "BatchEnsemble"}
    if ensemble:
        return kinds[ensemble]
    if model.tower.width == 512:
        return "a member of Packed-Ensembles"
    return "whole model" if model.tower.heads == 12 else f"{model.tower.heads} of 12 heads"


# --- sums -------------------------------------------------------------------------------------------------------------


def counted() -> dict[str, Any]:
    """Count the steps of all scripts, their sums, and the rows of Tables 1, 2 and 3."""
    counter = Counter()
    steps_of = {}
    rows = {}
    for script in SCRIPTS:
        steps_of[script] = counter.count(script)
        if script in ("table1", "table2", "table3"):
            rows.update(counter.rows)
    named = {step.name: vars(step) for step in counter.steps.values() if step.name}
    scripts = []
    for script, steps in steps_of.items():
        left = [step for output, step in steps.items() if output not in steps_of["table1"]]
        scripts.append({"script": script, **_sum(list(steps.values())), "after_table1": _sum(left)})
    return {
        "steps": [{"name": name, **step} for name, step in sorted(named.items())],
        "scripts": scripts,
        "rows": [_row(counter, data, name, models) for (data, name), models in rows.items()],
    }


def _sum(steps: Sequence[Step]) -> dict[str, Any]:
    kinds = ("training", "search", "prediction")
    return {
        "counts": {kind: sum(step.kind == kind for step in steps) for kind in kinds},
        "operations": _operations(steps),
        "core_seconds": CORE_SECONDS_OF_A_SET * sum(step.kind == "corruption" for step in steps),
        "memory": max((step.memory for step in steps), default=0),
        "disk": sum(step.disk for step in steps),
    }


def _operations(steps: Sequence[Step]) -> dict[str, float]:
    """Add up operations by the number format they are computed in."""
    return {
        "float32": sum(step.operations for step in steps if step.float32),
        "bfloat16": sum(step.operations for step in steps if not step.float32),
    }


def _row(counter: Counter, data: str, name: str, models: Sequence[Model]) -> dict[str, Any]:
    """Count a row of a table: what it is made of beside the single model, and what it takes to run."""
    single = next(models[0] for (of, row), models in counter.rows.items() if (of, row) == (data, "single"))
    outputs = frozenset().union(*(model.made_by for model in models))
    if name != "single":
        outputs -= single.made_by
    steps = [counter.steps[output] for output in sorted(outputs)]
    distinct = set(models)
    return {
        "set": data,
        "row": name,
        "trainings": sum(step.kind == "training" for step in steps),
        "operations": _operations(steps),
        "memory": max((step.memory for step in steps), default=0),
        "parameters": sum(model.parameters() for model in distinct) * (len(models) // len(distinct)),
        "macs": sum(model.macs() for model in models),
        "mac_ratio": sum(model.macs() for model in models) / single.macs(),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Read the arguments, count, and write the file or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write it there")
    asked = parser.parse_args(words)
    text = json.dumps(counted(), indent=1) + "\n"
    if asked.output is None:
        print(text, end="")
    else:
        asked.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
