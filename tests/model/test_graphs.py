"""Batches that are padded to a few sizes, and recorded runs, with a recorder for CPUs in place of CUDA graphs.

It records operators with the tensors that they read and wrote, and a replay runs them again in the same memory: like
a CUDA graph it knows nothing of Python, refuses operators that wait for the device, and goes on to read the weights of
the recording. The contract of a model thus holds here for everything but the capture itself.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hydractl
from hydractl.errors import UsageError
from hydractl.model import graphs
from hydractl.model.graphs import BATCH_SIZES, PaddedRuns, batch_sizes_of
from hydractl.model.runtime import HydraModel
from tests.fusion.test_batched import NEARLY, SHARED, batched, one_weight, own_weights
from tests.model.test_host_path import CHANGES, MODELS, data_in_place, in_place
from tests.pico import VARIANTS, close, images, inputs, published, shared_stock, source_of
from tests.spread import ONE_OF_EACH, marked_release

REFUSED = {"_local_scalar_dense", "nonzero", "lift_fresh", "equal", "is_nonzero"}
"""Operators that wait for the device, or that copy from the memory of the host, where CUDA graphs cannot."""


class Tape(TorchDispatchMode):
    """Operators in the order in which they ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__ in REFUSED:
            raise RuntimeError(f"{function} is not permitted when stream is capturing\nhow to debug it")
        result = function(*args, **(kwargs or {}))
        self.entries.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Run the operators again, each into the memory of its result. Views are there already."""
        self.replays += 1
        with torch.inference_mode(False), torch.no_grad():
            for function, args, kwargs, result in self.entries:
                if function.is_view or function.overloadpacket.__name__ == "_unsafe_view":
                    continue
                again = function(*args, **kwargs)
                for tensor, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(tensor, Tensor):
                        tensor.copy_(new)

    def pool(self) -> tuple[int, int]:
        return (0, 1)


class OnTheHost(TorchDispatchMode):
    """Collects the operators that a model on the meta device, which stands for a GPU, gives to the host.

    On a GPU each of them copies to the device and waits for it, or a mask as an index is counted, and no graph can hold
    that.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        tensors = [value for value in tree_leaves([args, kwargs, result]) if isinstance(value, Tensor)]
        by_mask = name == "index" and any(tensor.dtype == torch.bool for tensor in tensors[1:])
        if by_mask or any(tensor.device.type == "cpu" for tensor in tensors):
            self.names.add(name)
        return result


class TapeRecorder:
    """Records tapes."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.tapes: list[Tape] = []
        self.pools: list[Any] = []

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.events.append("aside")
        yield
        self.events.append("back")

    def record(self, run: Callable[[], Tensor], pool: Any) -> tuple[Tape, Tensor]:
        self.events.append("record")
        self.pools.append(pool)
        tape = Tape()
        try:
            with while_capturing(), tape:
                output = run()
        except RuntimeError as error:
            raise UsageError(str(error)) from error
        self.tapes.append(tape)
        return tape, output

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        self.events.append("turn")
        yield


def while_capturing() -> Any:
    """What transformers asks for: then it does not look at the numbers in masks."""
    return mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True)


def recorded(model: HydraModel, batch_sizes: tuple[int, ...] = (2, 4)) -> TapeRecorder:
    """Let a model run by recordings as on a GPU, and return what records them."""
    recorder = TapeRecorder()
    runs = PaddedRuns(batch_sizes, lambda device: recorder)
    model._graphs = runs
    model._kept_of_weights.add(runs)
    return recorder


def single(variant: str) -> HydraModel:
    source = source_of(shared_stock(variant), variant)
    return HydraModel(source.description, source.tensors)


def padded_inputs(batch: Any, size: int) -> Any:
    """A batch with copies of its first sample."""
    if isinstance(batch, dict):
        return {name: padded_inputs(tensor, size) for name, tensor in batch.items()}
    rows = [*range(len(batch)), *([0] * (size - len(batch)))]
    return batch[rows]


def turned(batch: Any) -> Any:
    """The same samples in another order, so that each place has other padding."""
    if isinstance(batch, dict):
        return {name: turned(tensor) for name, tensor in batch.items()}
    return batch.roll(1, dims=0)


def on_meta(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: tensor.to("meta") for name, tensor in batch.items()}
    return batch.to("meta")


def seen_batches(model: HydraModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the model computes operator by operator."""
    sizes: list[int] = []
    original = model.eager_logits

    def counted(batch: Any) -> Tensor:
        tensors = batch.values() if isinstance(batch, dict) else [batch]
        sizes.append(len(next(iter(tensors))))
        return original(batch)

    monkeypatch.setattr(model, "eager_logits", counted)
    return sizes


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["class-token", "bert", "clip"])
@torch.no_grad()
def test_a_padded_batch_gives_its_answers(variant: str) -> None:
    model = own_weights(variant, NEARLY)
    plain = model(inputs(variant))
    of_padded_batch = model(padded_inputs(inputs(variant), 8))
    model.graphs = (1, 8)
    answers = model(inputs(variant))
    assert torch.equal(answers, of_padded_batch[:3])
    close(answers, plain)
    model.graphs = None
    assert torch.equal(model(inputs(variant)), plain)


@torch.no_grad()
def test_the_next_size_is_taken_and_larger_batches_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = single("class-token")
    model.graphs = (4, 1, 4)
    assert model.graphs == (1, 4)
    sizes = seen_batches(model, monkeypatch)
    for samples in (1, 2, 3, 4, 5, 0):
        assert model(images(samples)).shape[0] == samples
    assert sizes == [1, 4, 4, 4, 5, 0]


def in_training(model: HydraModel) -> None:
    model.train()


def with_dropout_on(model: HydraModel) -> None:
    """As MC dropout."""
    next(module for module in model.modules() if isinstance(module, nn.Dropout)).train()


def with_gates(model: HydraModel) -> None:
    for attention in model.attentions:
        attention.head_gate = torch.ones(1, sum(attention.head_counts))


def with_an_observer(model: HydraModel) -> None:
    model.attentions[0].observer = lambda heads: None


def with_dropped_outputs(model: HydraModel) -> None:
    model.attentions[0].drops = True


class Everything:
    """A cascade in which all samples go on."""

    member = 0

    def goes_on(self, logits: Any) -> Any:
        return logits[:, 0] == logits[:, 0]


def with_a_cascade(model: HydraModel) -> None:
    model.cascade = Everything()  # type: ignore[assignment]


@pytest.mark.parametrize("recording", [False, True])
@torch.no_grad()
def test_what_no_recording_can_answer_runs_as_it_is(recording: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = (in_training, with_dropout_on, with_gates, with_an_observer, with_dropped_outputs, with_a_cascade)
    for change in changes:
        model = own_weights("class-token", NEARLY)
        model.graphs = (4,)
        if recording:
            recorded(model)
        model(images())
        sizes = seen_batches(model, monkeypatch)
        change(model)
        model(images())
        assert sizes == [3], change.__name__
    model = single("class-token")
    model.graphs = (4,)
    sizes = seen_batches(model, monkeypatch)
    with torch.enable_grad():
        model(images()).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(images())
    assert sizes == [3, 3]


@pytest.mark.parametrize("wrong", [0, 8, (), (0, 4), (2.5,), "8", (True, 2), None])
def test_sizes_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"^graphs=.*: must be True, or batch sizes from 1 on, such as \(1, 8\)$"):
        batch_sizes_of(wrong)


# --- recordings -------------------------------------------------------------------------------------------------------


HOST = ("dinov3", "sapiens2", "deberta-v3")
"""The models that compute something on the host in every run: the library's positions of tokens."""


@pytest.mark.parametrize(
    "variant", [*ONE_OF_EACH, *marked_release(v for v in VARIANTS if v not in ONE_OF_EACH and v not in HOST)]
)
@torch.no_grad()
def test_a_replay_gives_what_the_model_gives(variant: str) -> None:
    model = own_weights(variant, NEARLY)
    batched(model)  # as on a GPU
    reference = copy.deepcopy(model)
    recorder = recorded(model)
    first_batch = inputs(variant)
    with torch.inference_mode():
        first = model.member_logits(first_batch)
    kept = first.clone()
    second = model.member_logits(turned(first_batch))
    assert torch.equal(first, reference.member_logits(padded_inputs(first_batch, 4))[:, :3])
    assert torch.equal(second, reference.member_logits(padded_inputs(turned(first_batch), 4))[:, :3])
    assert torch.equal(first, kept), "an answer is no place that the next replay writes to"
    assert recorder.events.count("record") == 1
    assert recorder.tapes[0].replays == 2

    on_device, batch_on_device = reference.to("meta"), on_meta(first_batch)
    on_device.member_logits(batch_on_device)  # makes what is kept from run to run
    on_the_host = OnTheHost()
    with while_capturing(), on_the_host:
        on_device.member_logits(batch_on_device)
    assert on_the_host.names == set()


@torch.no_grad()
def test_each_shape_is_recorded_once() -> None:
    model = own_weights("bert", NEARLY)
    recorder = recorded(model)
    whole = inputs("bert")
    shorter = {name: tensor[:, :5] for name, tensor in whole.items()}
    without_types = {name: whole[name] for name in ("input_ids", "attention_mask")}
    in_int32 = {**whole, "attention_mask": whole["attention_mask"].int()}
    for batch in (whole, shorter, without_types, in_int32) * 2:
        close(model(batch), copy.deepcopy(model)(batch))
    two = {name: tensor[:2] for name, tensor in whole.items()}
    model(two)
    assert recorder.events == ["turn", "aside", "record", "back"] * 4 + ["turn"] * 4 + [
        "turn",
        "aside",
        "record",
        "back",
    ]
    assert recorder.pools == [None] + [(0, 1)] * 4, "all work in the memory of the first"


@torch.no_grad()
def test_the_recording_that_was_not_used_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_RECORDINGS", 2)
    model = single("class-token")
    recorder = recorded(model, (1, 2, 4))
    for samples in (1, 2, 1, 4, 1):
        model(images(samples))
    assert len(recorder.tapes) == 3
    model(images(2))
    assert len(recorder.tapes) == 4


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_weights_that_change_are_noticed(kind: str) -> None:
    original = MODELS[kind]()
    for change in CHANGES:
        model = copy.deepcopy(original)
        recorder = recorded(model)
        batch = images(4)
        before = model.member_logits(batch)
        assert torch.equal(model.member_logits(batch), before)
        change(model)
        if change is data_in_place and kind == "weights in common":
            model.eval()
        batch = batch.to(model.dtype)
        answer = model.member_logits(batch)
        assert torch.equal(answer, copy.deepcopy(model).member_logits(batch)), change.__name__
        assert not torch.allclose(answer.float(), before, rtol=1e-4), change.__name__
        assert torch.equal(model.member_logits(batch), answer), change.__name__
        assert len(recorder.tapes) <= 2, change.__name__


@torch.no_grad()
def test_settings_that_change_drop_recordings() -> None:
    model = own_weights("class-token", NEARLY)
    recorder = recorded(model)
    for setting in ("whole_last_block", "side_by_side", "batched"):
        count = len(recorder.tapes)
        setattr(model, setting, True)
        expected = copy.deepcopy(model).member_logits(images(4))
        assert torch.equal(model.member_logits(images(4)), expected), setting
        assert len(recorder.tapes) == count + 1, setting


@torch.no_grad()
def test_views_of_other_classes_have_recordings_of_their_own() -> None:
    model = own_weights("clip", NEARLY)
    model.graphs = (4,)
    view = model.zero_shot(["tin", "red oak"])
    assert view.graphs == (4,) and view._graphs is not model._graphs
    recorders = [recorded(one_model) for one_model in (model, view)]
    before = [model(images()), view(images())]
    assert [answer.shape[1] for answer in before] == [5, 2]
    for parameter in model.parameters():
        parameter.data.mul_(1.1)  # seen by nobody; features of prompts are copies
    model.eval()
    for one_model in (model, view):
        close(one_model(images()), copy.deepcopy(one_model)(images()))
    assert [len(recorder.tapes) for recorder in recorders] == [2, 2]
    in_place(view)
    close(model(images()), copy.deepcopy(model)(images()))


@torch.no_grad()
def test_memory_that_a_replay_reads_is_held() -> None:
    """Stacks that are copies and features of prompts belong to the model, which may drop them at any time."""
    model = batched(one_weight("clip", SHARED))
    recorded(model)
    first = model.member_logits(images(4))
    runs = model._graphs
    assert runs is not None
    (recording,) = runs._recordings.values()
    held = {storage.data_ptr() for storage in recording.storages}
    assert model.prompted is not None and model.prompted._features is not None
    assert model.prompted._features.untyped_storage().data_ptr() in held
    copies = [s.stack for attention in model.attentions for s in stacks_of(attention) if s.versions is not None]
    image_copies = [stack for stack in copies if stack.untyped_storage().data_ptr() in held]
    assert image_copies and len(held) < 200
    assert all(place.untyped_storage().data_ptr() in held for place in recording.places.values())
    assert recording.output.untyped_storage().data_ptr() not in held
    assert torch.equal(model.member_logits(images(4)), first)


def stacks_of(attention: Any) -> list[Any]:
    caches = attention._stacked._stacks.values()
    return [cache.cached for cache in caches if cache.cached is not None]


@torch.no_grad()
def test_several_threads() -> None:
    model = own_weights("class-token", NEARLY)
    reference = copy.deepcopy(model)
    recorder = recorded(model)
    batches = [images(4, seed) for seed in range(12)]

    def answer(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return model.member_logits(batch)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, batches))
    for batch, logits in zip(batches, answers, strict=True):
        close(logits, reference.member_logits(batch))
    assert len(recorder.tapes) == 1


@torch.no_grad()
def test_a_copy_and_a_compiled_model_have_none() -> None:
    model = single("class-token")
    recorded(model)
    model(images())
    assert copy.deepcopy(model).graphs is None
    model.compile(backend="eager")
    assert model.graphs is None
    with pytest.raises(UsageError, match="a compiled model has no graphs"):
        model.graphs = (1,)


# --- CUDA -------------------------------------------------------------------------------------------------------------


class FakeCuda:
    """Stands in for ``torch.cuda``, and writes down what is called; a capture runs what is captured, as in a tape."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current = "default"

    def stream_class(self, device: torch.device) -> FakeStream:
        return FakeStream("side", self)

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.current, self)

    def event_class(self) -> FakeEvent:
        return FakeEvent(self)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    @contextmanager
    def graph(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        bound = inspect.signature(REAL_GRAPH).bind(*args, **kwargs)  # as torch would take them
        tape, mode = bound.arguments["cuda_graph"], bound.arguments["capture_error_mode"]
        self.calls.append(f"capture in {bound.arguments['stream'].name}, pool {bound.arguments['pool']}, {mode}")
        with tape:
            yield


class FakeStream:
    def __init__(self, name: str, cuda: FakeCuda) -> None:
        self.name = name
        self._cuda = cuda

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        self._cuda.calls.append(f"{self.name} waits for the last use")


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def record(self, stream: FakeStream) -> None:
        self._cuda.calls.append(f"use in {stream.name} ends")


REAL_GRAPH = torch.cuda.graph
IN_TURN = ["default waits for the last use", "use in default ends"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Stream", fake.stream_class)
    monkeypatch.setattr(torch.cuda, "Event", fake.event_class)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    for name in ("current_stream", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


@torch.no_grad()
def test_cuda_graphs_are_captured_in_a_side_stream(cuda: FakeCuda) -> None:
    model = single("class-token")
    model._graphs = PaddedRuns((2, 4), graphs.CudaRecorder)
    first = model(images(4))
    waits, ends = IN_TURN
    captured = ["side waits for default", "capture in side, pool None, thread_local", "default waits for side"]
    assert cuda.calls == [waits, *captured, ends]
    cuda.calls.clear()
    close(model(images(4, seed=2)), copy.deepcopy(model)(images(4, seed=2)))
    assert cuda.calls == IN_TURN
    cuda.calls.clear()
    model(images(2))
    captured[1] = "capture in side, pool (0, 1), thread_local"
    assert cuda.calls == [waits, *captured, ends]
    assert torch.equal(model(images(4)), first)


@torch.no_grad()
def test_what_cannot_be_captured_is_said(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    model = single("class-token")
    model._graphs = PaddedRuns((4,), graphs.CudaRecorder)
    original = model.eager_logits
    monkeypatch.setattr(model, "eager_logits", lambda batch: original(batch) * float(batch.sum()))
    with pytest.raises(UsageError, match=r"^no CUDA graph of this model: aten._local_scalar_dense.* is capturing$"):
        model(images())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", ONE_OF_EACH)
@torch.inference_mode()
def test_on_a_gpu(variant: str) -> None:
    model = own_weights(variant, NEARLY).cuda()
    reference = copy.deepcopy(model)
    model.graphs = (1, 4)

    def on_gpu(batch: Any) -> Any:
        return {name: tensor.cuda() for name, tensor in batch.items()} if isinstance(batch, dict) else batch.cuda()

    batch = on_gpu(inputs(variant))
    for _ in range(2):
        first = model.member_logits(batch)
        second = model.member_logits(turned(batch))
        with torch.cuda.stream(torch.cuda.Stream()):
            third = model.member_logits(batch)
        torch.cuda.synchronize()
        for answer, given in ((first, batch), (second, turned(batch)), (third, batch)):
            close(answer, reference.member_logits(padded_inputs(given, 4))[:, :3])
        in_place(model)
        in_place(reference)


# --- loading ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_load_takes_sizes(tmp_path: Path) -> None:
    folder = str(published("hf-vit", tmp_path))
    module = hydractl.load(folder, device="cpu", graphs=True)
    assert module.graphs == BATCH_SIZES
    few = hydractl.open(folder).load("cpu", graphs=(8, 1))
    assert few.graphs == (1, 8)
    plain = hydractl.load(folder, device="cpu")
    assert plain.graphs is None
    by_name = few(pixel_values=images(), labels=torch.tensor([0, 1, 2]))
    assert torch.equal(by_name["logits"], plain(padded_inputs(images(), 8))[:3])
    close(few.predict(images()).probabilities, plain.predict(images()).probabilities)
    with pytest.raises(UsageError, match="give only one of compile, graphs"):
        hydractl.load(folder, device="cpu", compile=True, graphs=True)
    with pytest.raises(UsageError, match="must be True, or batch sizes"):
        hydractl.load(folder, device="cpu", graphs=(0,))
