"""``hydractl predict`` by several processes: under torchrun, on devices, as jobs; the bytes of a single process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from tests.forked import Forked, team
from tests.running import main, run
from tests.spread import marked_release

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=24&depth=2&num_heads=3&mlp_ratio=2&num_classes=10"
)
# 70 samples in batches of 8: the parts have unequal sizes, and the last batch is short.
INPUTS = ["cal.st", "builtin:digits/test", "--limit", "70", "--batch-size", "8", "--device", "cpu", "-q"]
ON_TWO = ["--devices", "cpu,cpu"]


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


def without_device(words: list[str]) -> list[str]:
    """A command without its --device, in the place of which --devices stands."""
    place = words.index("--device")
    return [*words[:place], *words[place + 2 :]]


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
@pytest.mark.parametrize("ending", ["parquet", *marked_release(["jsonl"])])
def test_ranks_write_the_file_of_a_single_process(ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    run("predict", *INPUTS, "-o", f"one.{ending}", "--report", "one.json")
    done = ends(team(3, ["predict", *INPUTS, "-o", f"three.{ending}", "--report", "three.json"]))
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
        (["-o", "p.jsonl", "--part", "1/2"], "--part has no effect under torchrun"),
        (["-o", "p.jsonl", "-"], "standard input is one process's alone"),
        (["-o", "p.jsonl", "--devices", "cpu,cpu"], "not for torchrun"),
    ],
)
def test_what_ranks_cannot_share_is_refused(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert main(["predict", "cal.st", "builtin:digits/test", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*ON_TWO], "needs --output"),
        ([*ON_TWO, "-o", "p.jsonl", "--part", "1/2"], "give only one of --part"),
        (["--parts", "2", "-o", "p.jsonl"], "needs --devices or --slurm"),
        (["--slurm", "partition=gpu", "-o", "p.jsonl"], "needs time=MINUTES"),
    ],
)
def test_parts_that_make_no_sense_are_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "cal.st", "builtin:digits/test", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.long
def test_commands_on_devices_write_the_file_of_a_single_process_also_after_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken_images("new", 11, broken=[10])
    words = ["predict", "cal.st", "new", "--batch-size", "2", "--top", "2"]
    on_two = [*words, *ON_TWO, "-o", "two.csv", "--report", "two.json"]
    assert main(on_two) == 3
    assert "1 of the parts failed, first 2of2" in capsys.readouterr().err
    assert not Path("two.csv").exists()
    assert sorted(path.name for path in Path("two.csv.parts").glob("*.json")) == ["1.json", "plan.json"]
    Image.fromarray(np.full((8, 8), 10, np.uint8)).save("new/10.png")
    assert main([*on_two, "--members", "--resume"]) == 3
    assert "is of another command" in capsys.readouterr().err
    assert main([*on_two, "--resume"]) == 0
    assert "1of2: predicted before, nothing to do" in capsys.readouterr().err
    assert not Path("two.csv.parts").exists()
    run(*words, "--device", "cpu", "-o", "one.csv", "--report", "one.json")
    assert Path("two.csv").read_bytes() == Path("one.csv").read_bytes()
    assert summary("two.json") == summary("one.json")


@pytest.mark.release
def test_jobs_write_the_file_of_a_single_process() -> None:
    pytest.importorskip("submitit", reason="pip install 'hydractl[slurm]'")
    run("predict", *INPUTS, "-o", "one.jsonl")
    jobs = ["--slurm", "cluster=local,time=20", "--parts", "2"]
    hydractl.predict(
        "cal.st",
        data="builtin:digits/test",
        limit=70,
        batch_size=8,
        device="cpu",
        slurm="cluster=local,time=20",
        parts=2,
        output="two.jsonl",
    )
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert len(list(Path("slurm").rglob("*_submitted.pkl"))) == 2
    assert main(["predict", *without_device(INPUTS), *jobs, "-o", "two.jsonl"]) == 5  # it exists
