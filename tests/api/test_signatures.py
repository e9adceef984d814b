"""The types of the Python API: what a type checker of a client sees, and that it is what the verbs take."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hydractl
from hydractl.options.option import Option
from hydractl.options.registry import VERBS, function_of
from hydractl.options.verbs import options_of_verb

ROOT = Path(__file__).parents[2]
RIGHT = """
import datasets
import numpy as np
import torch
from torch.utils.data import TensorDataset
import hydractl

model = hydractl.open("vit.st")
x, y = np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int64)
scores = hydractl.score(model, method="taylor", data=(x, y), samples=24)
of_torch = hydractl.score(model, method="taylor", data=TensorDataset(torch.zeros(2, 3, 8, 8), torch.zeros(2)))
of_table = hydractl.score(model, method="taylor", data=datasets.Dataset.from_dict({"text": ["a"], "label": [0]}))
pruned: hydractl.Model = hydractl.prune(model, scores=scores, keep=2, dtype="float64", force=True)
removed = hydractl.prune(model, method="magnitude", max_drop=0.01, val="val.npz")
tuned = hydractl.finetune(pruned, train=(x, [0, 1]), lr=[1e-3, 1e-4], val=(x, y), epochs=1)
hydra = hydractl.fuse([pruned, removed], merge=["mlp", "norm"])
result = hydractl.evaluate({"single": model, "members": [pruned, removed]}, test=(x, None), ood={"noise:far": x})
accuracy: float = result.row("single").id.accuracy
names: list[str] = result.names
share: float | None = hydractl.predict(hydra, x, top=2).ood_share
bench = hydractl.bench(hydra, batch_size=[1, 8], dtype="bfloat16")
frame = bench.to_pandas()
"""
WRONG = {
    "hydractl.prune('vit.st', kep=2)": 'Unexpected keyword argument "kep" for "prune"',
    "hydractl.prune('vit.st', samples='many')": 'Argument "samples" to "prune" has incompatible type "str"',
    "hydractl.prune('vit.st', keep=2.5)": 'Argument "keep" to "prune" has incompatible type "float"',
    "hydractl.prune('vit.st', scope='everywhere')": 'Argument "scope" to "prune" has incompatible type',
    "hydractl.evaluate('vit.st', test=3)": 'Argument "test" to "evaluate" has incompatible type "int"',
    "hydractl.evaluate('vit.st').verdict": '"EvalAnswer" has no attribute "verdict"',
    "hydractl.predict('vit.st', 3)": 'Argument 2 to "predict" has incompatible type "int"',
    "hydractl.fuse('a.st', merge='head')": 'Argument "merge" to "fuse" has incompatible type',
}


@pytest.mark.release
def test_a_type_checker_takes_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = RIGHT.strip().splitlines()
    client = tmp_path / "client.py"
    client.write_text("\n".join([*lines, *WRONG, ""]))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", str(client)]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--ignore-missing-imports"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    own = [line for line in found.stdout.splitlines() if line.startswith(str(client)) and ": error:" in line]
    by_line = {int(line.split(":")[1]): line for line in own}
    assert sorted(by_line) == list(range(len(lines) + 1, len(lines) + len(WRONG) + 1)), found.stdout
    for number, message in enumerate(WRONG.values(), len(lines) + 1):
        assert message in by_line[number]


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_takes_what_it_says(verb: str) -> None:
    for option in options_of_verb(verb):
        assert option.complaints(option.default) == [], option.name
        for value in examples(option):
            assert option.complaints(option.read(value)) == [], option.name


def examples(option: Option) -> list[object]:
    """Values that an option takes, by its own declaration."""
    if option.reads is not None or option.pattern is not None or option.check is not None:
        return []
    whole_number = int(option.at_most or 100)
    plain = {bool: True, int: whole_number, float: 0.5, str: "text"}
    return list(option.choices) or [plain[option.type]]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_the_function_that_its_help_describes(verb: str) -> None:
    function = getattr(hydractl, function_of(verb))
    parameters = inspect.signature(function).parameters
    assert {"config", "force", "output"} <= set(parameters)
    assert not {"json", "quiet", "verbose"} & set(parameters)
    described = inspect.getdoc(function) or ""
    for option in options_of_verb(verb):
        assert option.name not in parameters or f"    {option.name}: " in described
    assert set(hydractl.__all__) >= {function_of(verb), "Evaluation", "Benchmark", "Scores"}


@pytest.mark.parametrize("verb", VERBS)
def test_an_editor_offers_every_argument(verb: str) -> None:
    """Of a file that nobody has run, as an editor sees it: from the source text alone."""
    jedi = pytest.importorskip("jedi")
    function = function_of(verb)
    text = f"import hydractl\nhydractl.{function}("
    completions = jedi.Script(text, project=jedi.Project(ROOT)).complete()
    offered = {completion.name for completion in completions}
    takes = inspect.signature(getattr(hydractl, function)).parameters
    assert {f"{name}=" for name in takes} - offered == set()
