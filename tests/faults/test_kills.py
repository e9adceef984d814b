"""kill -9 at random points of every verb that writes: ``KILLS=60 python -m pytest tests/faults/test_kills.py``.

Whatever stands under the name of an output is whole, the old one or the new one, and the same command (with
``--resume`` where there is one) ends with the bytes of a run that nothing interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.forked import Forked
from tests.fuzz.readers import CORPUS

KILLS = int(os.environ.get("KILLS", "16"))
"""Of all verbs together."""
OLD = b"an older result"
DATA = ["--data", "set.npz", "-q"]
TRAIN = ["--train", "set.npz", "-q"]
TEST = ["--test", "set.npz", "-q"]
SEARCH = ["--val", "set.npz", "-q", "--objective", "acc", "--budget", "4"]
KEPT = ["--predictions", "out.st", "--allow-seen"]  # what vit.st has seen is known in an older form
VERBS = {
    "score": ["score", "vit.st", "--method", "taylor", *DATA, "--force", "-o", "out.json"],
    "extract-circuit": ["extract-circuit", "vit.st", *SEARCH, "--resume", "-o", "out.json"],
    "prune": ["prune", "vit.st", "--method", "taylor", "--keep", "1", *DATA, "--force", "-o", "out.st"],
    "folder": ["prune", "vit.st", "--method", "random", "--keep", "1", "-q", "--force", "-o", "out/"],
    "finetune": ["finetune", "vit.st", *TRAIN, "--epochs", "2", "--save-every", "3", "--resume", "-o", "out.st"],
    "fuse": ["fuse", "vit.st", "b.st", "-q", "--force", "-o", "out.st"],
    "eval": ["eval", "vit.st", "b=b.st", *TEST, *KEPT, "--resume", "-o", "out.json"],
    "bench": ["bench", "vit.st", "--rounds", "2", "-q", "--force", "-o", "out.json"],
}
EXPORT = ["export", "vit.st", "-q", "--force", "-o", "out.pt2", "--format", "pt2,onnx"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and 300 images that they have not seen."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("vit.st", "b.st"):
        shutil.copy(CORPUS / "beside" / "vit.st", folder / name)
    data = np.random.default_rng(1)
    x, y = data.integers(0, 256, (300, 4, 4), np.uint8), data.integers(0, 2, 300)
    np.savez(folder / "set.npz", x=x, y=y, classes=np.array(["zero", "one"]))
    return folder


def outputs(folder: Path, inputs: Path) -> dict[str, bytes]:
    """The files that are not inputs, and not hidden as those of a run that goes on."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: data for name, data in names.items() if not (inputs / name).exists()}


def fresh(place: Path, inputs: Path, words: list[str], expected: dict[str, bytes]) -> None:
    """The inputs, and older outputs where they may be replaced."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(inputs, place)
    for name in expected if "--force" in words else ():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(OLD)


def check(found: dict[str, bytes], expected: dict[str, bytes], same: bool) -> None:
    for name, content in found.items():
        if name.endswith(".journal"):
            assert expected[name].startswith(content[: content.rfind(b"\n") + 1])
        elif name in expected and content != OLD:
            assert content == expected[name] if same else json.loads(content), name


def killed(words: list[str], kills: int, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a command so many times, each time going on with what the last one left."""
    same, random = words[0] != "bench", Random(" ".join(words))
    place = inputs.with_name(f"work {words[0]} {len(words)}")
    fresh(place, inputs, words, {})
    monkeypatch.chdir(place)
    start, process = time.monotonic(), Forked(words)
    said = process.communicate()[1]
    lasts = time.monotonic() - start
    assert process.returncode == 0, said
    expected = outputs(place, inputs)
    fresh(place, inputs, words, expected)
    monkeypatch.chdir(place)
    done = 0
    while done < kills:
        process = Forked(words)
        time.sleep(random.uniform(0, lasts))
        process.kill()
        said = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), said
        check(outputs(place, inputs), expected, same)
        if process.returncode:
            done += 1
        else:  # it was finished before
            fresh(place, inputs, words, expected)
            monkeypatch.chdir(place)
    process = Forked(words)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    found = outputs(place, inputs)
    assert found == expected if same else found.keys() == expected.keys()


@pytest.mark.fault(1, 2, 6, 7, 52, 53)
@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_random_points(verb: str, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(VERBS[verb], -(-KILLS // len(VERBS)), inputs, monkeypatch)


@pytest.mark.fault(6)
@pytest.mark.release
def test_killed_while_it_exports(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(EXPORT, max(2, KILLS // len(VERBS)), inputs, monkeypatch)
