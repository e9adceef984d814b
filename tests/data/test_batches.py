"""Batches: order, workers, and what happens when a worker fails or dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from hydractl.data import Batch, batches, open_data
from hydractl.data.batching import default_workers
from hydractl.errors import HydraError, InputError
from hydractl.training.data import Numbered
from tests.forked import Forked
from tests.image_data import stacked
from tests.running import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of twelve grey images."""
    for i in range(12):
        Image.new("L", (8, 8), i).save(tmp_path / f"{i:02}.png")
    return tmp_path


@pytest.mark.fault(34)
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_the_same_for_any_number_of_workers(workers: int) -> None:
    data = open_data("builtin:digits/test", limit=21)
    read = list(batches(data, stacked, 8, workers=workers))
    assert [batch.indices for batch in read] == [list(range(8)), list(range(8, 16)), list(range(16, 21))]
    images = torch.cat([batch.inputs for batch in read])
    assert torch.equal(images, stacked([data[i] for i in range(21)]))
    labels = torch.cat([batch.labels for batch in read if batch.labels is not None])
    assert labels.dtype == torch.int64
    assert labels.tolist() == data.labels.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_and_unlabelled(workers: int) -> None:
    data = open_data("builtin:photos")
    read = list(batches(data, lambda images: {"n": len(images)}, 2, workers=workers, indices=[7, 7, 3]))
    assert read == [Batch({"n": 2}, None, [7, 7]), Batch({"n": 1}, None, [3])]
    assert list(batches(data, stacked, 2, workers=workers, indices=[])) == []


def test_no_process_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data.DataLoader", None)
    data = open_data("builtin:photos", limit=3)
    processes = [batch.inputs for batch in batches(data, lambda _: os.getpid(), 2)]
    assert processes == [os.getpid()] * 2


@pytest.fixture
def own_processes() -> Callable[[], set[Any]]:
    """Return a function that gives the processes which a test has started and which still run."""
    # A traceback that is kept somewhere may keep those of an earlier test.
    before = set(multiprocessing.active_children())
    return lambda: set(multiprocessing.active_children()) - before


def test_workers_are_other_processes_that_end(own_processes: Callable[[], set[Any]]) -> None:
    read = batches(open_data("builtin:photos"), lambda _: os.getpid(), 4, workers=2)
    processes = {next(read).inputs, next(read).inputs}
    assert len(processes) == 2
    assert os.getpid() not in processes
    workers = own_processes()
    assert len(workers) == 2
    read.close()  # type: ignore[attr-defined]
    for worker in workers:  # a copy of a process that uses a GPU takes a while to end
        worker.join(60)
    assert not own_processes()


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process with nine processors and enough shared memory believe that it uses a GPU."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("hydractl.data.batching._SHARED_MEMORY_OF_WORKER", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(9)), raising=False)
    monkeypatch.setattr("sys.platform", "linux")


def test_image_files_are_decoded_in_workers_where_a_gpu_would_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    """Unless somebody says how many; and so are those of which other sets are made."""
    files = open_data(str(folder))
    sets = (
        files,
        open_data(f"{folder}?fraction=0:0.5"),
        open_data(f"{folder}?corruption=fog&severity=1"),
        open_data(f"{folder}?ood=auto"),
        Numbered(files),
    )
    assert [default_workers(data) for data in sets] == [8] * len(sets)
    read = batches(files, lambda _: os.getpid(), 2, workers=None)
    assert os.getpid() not in {batch.inputs for batch in read}
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5})
    assert default_workers(files) == 1


def test_this_process_reads_where_workers_gain_nothing_or_may_be_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    files = open_data(str(folder))
    assert default_workers(open_data("builtin:digits/val")) == 0  # nothing to decode
    with monkeypatch.context() as change:
        change.setattr("hydractl.data.batching._SHARED_MEMORY_OF_WORKER", 100)
        for free, workers in ((99, 0), (399, 3)):
            change.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
            assert default_workers(files) == workers
    with monkeypatch.context() as change:
        change.setattr("sys.platform", "win32")  # a collate function cannot be pickled
        assert default_workers(files) == 0
    with monkeypatch.context() as change:
        change.setattr("torch.cuda.is_initialized", lambda: False)
        assert default_workers(files) == 0
    assert default_workers(files) > 0


def test_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    list(batches(open_data("builtin:photos", limit=9), stacked, 4, workers=2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_bad_image_is_the_same_error_from_a_worker(
    folder: Path, workers: int, own_processes: Callable[[], set[Any]]
) -> None:
    (folder / "05.png").write_bytes((folder / "05.png").read_bytes()[:40])
    found = batches(open_data(str(folder)), stacked, 2, workers=workers)
    assert [next(found).indices, next(found).indices] == [[0, 1], [2, 3]]
    error = refused(InputError, next, found)
    assert error.message.startswith(f"cannot read image {folder}/05.png: ")
    assert error.hint and "Traceback" not in str(error)
    assert not own_processes()


def test_a_defect_in_a_worker_shows_its_traceback() -> None:
    def broken(images: list[Any]) -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: here") as error:
        list(batches(open_data("builtin:photos"), broken, 4, workers=1))
    assert not isinstance(error.value, HydraError)


# From here on a copy of the process lacks the threads that operators count on.
ON_SEVERAL_THREADS = """
import os, torch
assert torch.get_num_threads() == 4
torch.nn.functional.conv2d(torch.rand(8, 3, 64, 64), torch.rand(8, 3, 3, 3))
torch.rand(2000, 2000).softmax(-1).sum()
assert len(os.listdir("/proc/self/task")) >= 4
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the threads of a process are counted on Linux")
def test_workers_may_start_once_operators_have_run_on_several_threads(tmp_path: Path) -> None:
    """Those of each epoch, too; they enlarge images and stacked them, on one thread each."""
    size = "img_size=16&patch_size=8&embed_dim=24&depth=1&num_heads=3&num_classes=10"
    model = f"timm:vit_tiny_patch16_224?pretrained=0&{size}"
    words = ["--train", "builtin:digits/train", "--val", "builtin:digits/val", "--workers", "2"]
    words += ["--epochs", "2", "--batch-size", "256", "--augment", "flip", "-q", "-o", str(tmp_path / "tuned.st")]
    process = Forked(["finetune", model, *words], {"OMP_NUM_THREADS": "4"}, before=ON_SEVERAL_THREADS)
    said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert (tmp_path / "tuned.st").is_file()


def kill_oneself(images: list[Any]) -> int:
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.fault(32)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_an_error(workers: int) -> None:
    started = time.monotonic()
    with pytest.raises(HydraError, match="a data worker process ended") as error:
        list(batches(open_data("builtin:photos"), kill_oneself, 4, workers=workers))
    assert "--workers" in error.value.hint
    assert "\n" not in error.value.message
    assert time.monotonic() - started < 20


@pytest.mark.long
def test_a_worker_killed_between_batches_is_no_error_of_the_caller() -> None:
    found = batches(open_data("builtin:photos"), lambda _: os.getpid(), 4, workers=1)
    first: Batch = next(found)
    before = signal.getsignal(signal.SIGCHLD)
    os.kill(first.inputs, signal.SIGKILL)
    time.sleep(0.5)  # the signal of the dead child arrives here, and must not raise here
    with pytest.raises(HydraError, match="a data worker process ended"):
        list(found)
    assert signal.getsignal(signal.SIGCHLD) == before


def test_the_longest_texts_come_first_and_equal_ones_in_order(tmp_path: Path) -> None:
    texts = ["one two", "one", "one two three", "two", "a"]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(texts) + "\n")
    data = open_data(str(tmp_path / "texts.csv"))
    batched = list(batches(data, lambda samples: torch.zeros(len(samples)), 2))
    assert [list(batch.indices) for batch in batched] == [[2, 0], [1, 3], [4]]
    given = [4, 0, 2, 2]
    assert [i for batch in batches(data, list, 3, indices=given, workers=2) for i in batch.indices] == given
