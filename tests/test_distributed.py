"""Several processes: they hear each other, and none waits for ever for one that has gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hydractl.distributed import Processes, local_device, processes
from hydractl.errors import UsageError
from hydractl.log import Log

ROOT = Path(__file__).parents[1]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
BIG = 40_000

# What the processes of one case do, as the verb of a real command line. They are forked from one interpreter that has
# imported torch, and its compiler, for which a process group asks: this takes longer than all the rest.
SCRIPT = """
import gc, json, os, signal, sys, time, types
import pydantic.type_adapter, torch.distributed, torch._dynamo.convert_frame
from importlib.machinery import ModuleSpec
import hydractl.api.models, hydractl.api.prune, hydractl.cli.running
from hydractl.cli.app import main
from hydractl.verbs.outcome import Outcome
from hydractl.distributed import processes
from tests.answers import result_of

def gather(group):
    answers = [group.gather({"rank": group.rank, "text": "ü", "pair": (1, None)})]
    for length in (10, BIG, BIG + 1, 3):
        answers.append([len(text) for text in group.gather("x" * (length + group.rank))])
    for bad in ({1}, float("nan"), b"x"):
        try:
            group.gather(bad)
        except TypeError:
            answers.append("TypeError")
    return answers + group.gather(group.rank)

def killed(group):
    group.gather(None)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.gather(None)

def failed(group):
    group.gather(None)
    if group.rank == 1:
        raise ValueError("a defect")
    group.gather(None)

def silent(group):
    group.gather(None)
    if group.rank == 1:
        time.sleep(100)
    group.gather(None)

def interrupted(group):
    group.gather(None)
    if group.rank == 1:
        time.sleep(100)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    group.gather(None)

CASES = {"gather": (3, 20), "killed": (2, 30), "failed": (2, 30), "silent": (2, 2), "interrupted": (2, 30)}

def run(call):
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    group = processes(CASES[case][1])
    begun = time.monotonic()
    try:
        with group:
            answers = globals()[case](group)
    finally:
        print(json.dumps({"waited": time.monotonic() - begun}), file=sys.stderr, flush=True)
    return Outcome(result_of({"answers": answers}))

module = types.ModuleType("hydractl.verbs.prune")
module.__spec__ = ModuleSpec(module.__name__, None)
module.run = run
sys.modules["hydractl.verbs.prune"] = module
folder = sys.argv[1]
children = {}
gc.disable()
gc.freeze()  # or each process would take apart its copy of torch at its end
for number, (case, (size, _)) in enumerate(CASES.items()):
    for rank in range(size):
        child = os.fork()
        if child:
            children[child] = f"{case}.{rank}"
            continue
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/{case}.{rank}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = sys.argv[2 + number]
        sys.exit(main(["prune", "a.st", "--method", "random", "--keep", "1", "--json"]))
codes = {}
while len(codes) < len(children) - 2:  # but those that sleep
    child, status = os.wait()
    codes[children[child]] = os.waitstatus_to_exitcode(status)
print(json.dumps(codes))
for child, name in children.items():
    if name not in codes:
        os.kill(child, signal.SIGKILL)
"""


class Ended(NamedTuple):
    """How one process ended, and how long it was among the others, in seconds."""

    code: int
    out: str
    err: list[str]
    waited: float


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        **more,
    }


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All cases, run at the same time: by ``case.rank``."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-c", SCRIPT.replace("BIG", str(BIG)), folder, *(free_port() for _ in range(5))]
    process = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    found = {}
    for name, code in json.loads(process.stdout).items():
        out, err = ((folder / f"{name}.{stream}").read_text() for stream in (1, 2))
        waited = [json.loads(line)["waited"] for line in err.splitlines() if line.startswith("{")]
        lines = [line for line in err.splitlines() if not line.startswith("{")]
        found[name] = Ended(code, out, lines, waited[0] if waited else 0.0)
    return found


@pytest.mark.long
def test_all_hear_all(ended: dict[str, Ended]) -> None:
    lengths = [[length, length + 1, length + 2] for length in (10, BIG, BIG + 1, 3)]
    first = [{"rank": rank, "text": "ü", "pair": [1, None]} for rank in range(3)]
    for rank in range(3):
        code, out, err, _ = ended[f"gather.{rank}"]
        assert (code, err) == (0, [])
        assert json.loads(out)["answers"] == [first, *lengths, "TypeError", "TypeError", "TypeError", 0, 1, 2]


GONE = ["error: another process of this run has ended", "hint: run the same command with --resume"]


@pytest.mark.long
@pytest.mark.fault(36)
@pytest.mark.parametrize("case", ["killed", "failed", "silent"])
def test_one_that_has_gone_ends_the_others(case: str, ended: dict[str, Ended]) -> None:
    code, out, err, waited = ended[f"{case}.0"]
    assert (code, out, err) == (1, "", GONE)
    assert waited < 10, "the time-out is 2 s for the silent one, and a dead one is noticed long before its 30 s"
    if case != "silent":
        assert ended[f"{case}.1"].code == {"killed": -signal.SIGKILL, "failed": 1}[case]


@pytest.mark.long
def test_an_interrupt_is_heard_while_waiting_for_the_others(ended: dict[str, Ended]) -> None:
    code, out, err, waited = ended["interrupted.0"]
    assert (code, out, err) == (130, "", ["error: interrupted"])
    assert waited < 10


SEARCH = """
import os, sys
from hydractl.errors import HydraError
from hydractl.distributed import processes
try:
    with processes(float(sys.argv[1])) as group:
        print(group.gather(os.environ["LOCAL_RANK"]))
except HydraError as error:
    print(error.message, error.exit_code)
"""


@pytest.mark.long
def test_alone_where_others_should_be(tmp_path: Path) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    process = subprocess.run(
        [sys.executable, "-c", SEARCH, "0.5"], env=environment(**place), capture_output=True, text=True, timeout=60
    )
    assert process.stdout.startswith("the other processes of this run cannot be reached: ")
    assert process.stdout.endswith(" 1\n")
    assert process.stderr == "", "torch has kept its complaints to itself"


# --- one process, and environments ------------------------------------------------------------------------------------


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what torchrun sets; at first nothing is."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def put(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


def test_one_process_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hydractl.distributed import local_device, processes\nwith processes(1) as group:\n"
        "    assert group.gather((1, {'a': None})) == [[1, {'a': None}]]\n"
        "assert local_device('auto') == 'auto'\nassert not {'torch', 'numpy'} & set(sys.modules)"
    )
    single = environment(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0")
    for given in (single, {name: value for name, value in single.items() if name not in NAMES}):
        subprocess.run([sys.executable, "-c", code], env=given, check=True)


def test_one_process_takes_what_several_take(place: Callable[..., None]) -> None:
    with processes(1) as group:
        assert (group.rank, group.size) == (0, 1)
        for bad in ({1}, float("inf"), object()):
            with pytest.raises(TypeError):
                group.gather(bad)


def test_only_the_first_talks() -> None:
    group, log = Processes(), Log()
    assert group.quieted(log) is log
    group.rank = 1
    assert group.quieted(log) is not log and type(group.quieted(log)) is Log


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is '', not a number"),
        ({"WORLD_SIZE": "two", "RANK": "1", **MASTER}, "WORLD_SIZE is 'two', not a number"),
        ({"WORLD_SIZE": "2", "RANK": "-1", **MASTER}, "RANK is '-1', not a number"),
        ({"WORLD_SIZE": "2", "RANK": "2", **MASTER}, "RANK is 2, but WORLD_SIZE 2"),
        ({"WORLD_SIZE": "0", "RANK": "0", **MASTER}, "RANK is 0, but WORLD_SIZE 0"),
    ],
)
def test_an_environment_that_makes_no_sense(values: dict[str, str], message: str, place: Callable[..., None]) -> None:
    place(**values)
    with pytest.raises(UsageError) as caught:
        processes(1)
    assert caught.value.message == message


def test_a_gpu_of_its_own(place: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [local_device(name) for name in ("cuda", "auto", "cpu")] == ["cuda", "auto", "cpu"]
    place(WORLD_SIZE="4", RANK="3", LOCAL_RANK="1", **MASTER)
    assert [local_device(name) for name in ("cuda", "auto")] == ["cuda:1"] * 2
    assert [local_device(name) for name in ("cpu", "cuda:0", "mps")] == ["cpu", "cuda:0", "mps"]
    place(LOCAL_RANK="2")
    with pytest.raises(UsageError, match="process 2 has no GPU of its own: there are 2"):
        local_device("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert [local_device(name) for name in ("cuda", "auto")] == ["cuda", "auto"]


LOST = """
import gc, torch.distributed, weakref
from hydractl.distributed import _Group
from hydractl.errors import HydraError

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
team = _Group(0, 2)
group = weakref.ref(torch.distributed.group.WORLD)
try:
    with team.exchanging():
        raise torch.distributed.DistNetworkError("the connection is closed")
except HydraError as error:
    print(error)
gc.collect()
print(torch.distributed.is_initialized(), group() is not None)
"""


def test_a_group_that_is_lost_is_never_freed() -> None:
    """Freeing it can wait for a thread that waits for Python's lock."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["another process of this run has ended", "False True"])
