"""``hydractl predict`` by the processes of torchrun: the bytes of a single process, also after a failure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.forked import Forked, team
from tests.running import main, run
from tests.spread import marked_release

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=24&depth=2&num_heads=3&mlp_ratio=2&num_classes=10"
)
INPUTS = ["cal.st", "builtin:digits/test", "--batch-size", "8", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a threshold."""
    folder = tmp_path_factory.mktemp("parts")
    path = folder / "cal.st"
    names = folder / "names.txt"
    names.write_text("".join(f"{digit}\n" for digit in range(10)))
    chosen = ["--val", "builtin:digits/val", "--limit", "99", "--threshold", "id:0.1"]
    run("calibrate", BASE, *chosen, "--labels", names, "-o", path)
    return path


@pytest.fixture(autouse=True)
def inside(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    os.symlink(model, "cal.st")


def ends(processes: list[Forked]) -> list[tuple[int | None, str, str]]:
    """The exit code, stdout and stderr of each process."""
    said = [process.communicate(timeout=200) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, said, strict=True)]


def summary(file: str) -> dict[str, Any]:
    """What a summary says, but for the name of the file of the lines."""
    document = json.loads(Path(file).read_text())
    del document["output"]
    return dict(document)


def broken_images(folder: str, count: int, broken: list[int]) -> None:
    """Write so many images, some of which are none."""
    os.mkdir(folder)
    for number in range(count):
        path = Path(folder, f"{number:02}.png")
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(path)
        if number in broken:
            path.write_bytes(b"no image")


@pytest.mark.long
@pytest.mark.parametrize(("ending", "limit"), [("parquet", "70"), *marked_release([("jsonl", "5")])])
def test_ranks_write_the_file_of_a_single_process(ending: str, limit: str) -> None:
    """With 70 samples in batches of 8 the parts are unequal and the last batch is short; with 5 two ranks have none."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    inputs = [*INPUTS, "--limit", limit]
    run("predict", *inputs, "-o", f"one.{ending}", "--report", "one.json")
    done = ends(team(3, ["predict", *inputs, "-o", f"three.{ending}", "--report", "three.json"]))
    assert [code for code, _, _ in done] == [0, 0, 0], done
    assert [out for _, out, _ in done] == [f"three.{ending}\nthree.json\n", "", ""]
    assert Path(f"three.{ending}").read_bytes() == Path(f"one.{ending}").read_bytes()
    assert summary("three.json") == summary("one.json")
    assert not list(Path().glob("*.part"))


def test_ranks_leave_out_broken_images_wherever_they_are() -> None:
    broken_images("new", 12, broken=[0, 7, 8, 9, 10, 11])  # all that the second process has, and one of the first
    words = ["predict", "cal.st", "new", "--batch-size", "7", "--device", "cpu", "--on-bad", "skip", "-q"]
    run(*words, "-o", "one.jsonl", "--report", "one.json")
    done = ends(team(2, [*words, "-o", "two.jsonl", "--report", "two.json", "--require", "skipped<=5"]))
    assert [code for code, _, _ in done] == [4, 0], done
    assert "5 of 12 images are left out" in done[1][2]
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert summary("two.json") == summary("one.json")
    assert summary("two.json")["skipped"]["n"] == 6


@pytest.mark.long
def test_a_rank_that_fails_ends_all_and_as_many_go_on() -> None:
    broken_images("new", 16, broken=[15])
    words = ["predict", "cal.st", "new", "--batch-size", "2", "--device", "cpu", "-q"]
    done = ends(team(2, [*words, "-o", "two.jsonl"]))
    assert done[1][0] == 3 and "15.png" in done[1][2]
    assert done[0][0] == 1 and "another process of this run has ended" in done[0][2]
    assert not Path("two.jsonl").exists()
    before = Path("two.jsonl.1of2.part").read_bytes()
    assert main([*words, "-o", "two.jsonl", "--resume"]) == 2  # a single process
    Image.fromarray(np.full((8, 8), 15, np.uint8)).save("new/15.png")
    done = ends(team(2, [*words, "-o", "two.jsonl", "--resume"]))
    assert [code for code, _, _ in done] == [0, 0], done
    run(*words, "-o", "one.jsonl")
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert len(before.splitlines()) == 5  # the first process was done, and did nothing again


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-o", "-"], "several processes needs --output"),
        (["-o", "p.jsonl", "-"], "standard input is one process's alone"),
    ],
)
def test_what_ranks_cannot_share_is_refused(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert main(["predict", "cal.st", "builtin:digits/test", *words]) == 2
    assert expected in capsys.readouterr().err
