"""Members that one training makes against the networks of the papers, written out on torch's and the libraries' own."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hydractl
from hydractl.errors import UsageError
from hydractl.log import Log
from hydractl.methods import read_ensemble
from hydractl.methods.mimo import MimoOptions
from hydractl.methods.mimo.many_inputs import Mimo
from hydractl.model.loading import build_model
from hydractl.model.source import Source, open_source
from hydractl.training.loop import Training, TrainingContext
from hydractl.training.members import MemberMaker, Together
from tests.calls import training_request
from tests.image_data import write_images
from tests.pico import images, mask_of, prune_source, shared_stock, source_of, stock
from tests.running import answer, quiet, run, stopped_after
from tests.spread import marked_long, marked_release
from tests.training.test_loop import SIZE, batches, sample, settings, training_data

PLAIN = {"optimizer": "sgd", "weight_decay": 0.1, "clip": 0.0, "schedule": "constant", "warmup": 0}


def make_method(ensemble: str) -> MemberMaker:
    """What makes the members that ``--ensemble`` asks for."""
    maker = read_ensemble(ensemble).together()
    assert maker is not None
    return maker


def together(source: Source, ensemble: str, seed: int = 3) -> Together:
    """As the verb makes it."""
    method = make_method(ensemble)
    return method.model([build_model(one) for one in method.sources(source, seed)], source, seed)


def train(model: Together, **options: Any) -> None:
    s = settings(**{**PLAIN, "steps": 3, "lr": 0.02, **options})
    Training(model, training_data(), s, s.lr[0], TrainingContext(Log())).run()


def near(ours: Tensor, theirs: Tensor, atol: float = 1e-5) -> bool:
    return torch.allclose(ours, theirs, atol=atol)


def state_of(model: Together) -> list[dict[str, Tensor]]:
    return [model.stock_tensors(member) for member in range(model.members)]


# --- Packed-Ensembles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_packed_members_are_narrow_models_of_the_library_trained_side_by_side(optimizer: str) -> None:
    """Alpha is 2, so two of three heads and of each three features."""
    import timm

    model = together(source_of(stock("class-token"), "class-token"), "packed:3,2")
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
    members = []
    for state in state_of(model):
        narrow = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
        narrow.load_state_dict(state)
        members.append(narrow)
    expected = torch.stack([member(images()) for member in members])
    assert near(model.member_logits(images()), expected)
    for member in members:
        train_alone(member, optimizer)
    train(model, **({"eps": 1e-3, "optimizer": "adamw"} if optimizer == "adamw" else {"momentum": 0.9}))
    assert not near(model.member_logits(images()), expected, 1e-2)
    assert near(model.member_logits(images()), torch.stack([member(images()) for member in members]), 1e-4)


def train_alone(member: nn.Module, optimizer: str) -> None:
    """Train one network in a plain loop."""
    groups = [
        {"params": [p for p in member.parameters() if (p.ndim > 1) == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    steps: torch.optim.Optimizer = (
        torch.optim.SGD(groups, lr=0.02, momentum=0.9)
        if optimizer == "sgd"
        else torch.optim.AdamW(groups, lr=0.02, eps=1e-3)
    )
    for pixels, labels in batches(3):
        steps.zero_grad()
        F.cross_entropy(member(pixels), labels).backward()
        steps.step()


def test_what_cannot_be_packed_is_told() -> None:
    source = source_of(stock("class-token"), "class-token")
    pruned = prune_source(source, mask_of(source, [[0, 2], [1], [1]]))
    for model, value, complaint in (
        (source, "2,1", "1/2 of 3 heads"),
        (replace(source, drawn_by=None), "3,2", "draws narrow networks anew"),
        (pruned, "3,2", "lost heads"),
        (source_of(stock("swin"), "swin"), "3,2", "unknown"),
        (replace(source_of(stock("bert"), "bert"), drawn_by=3), "3,2", "unknown"),
    ):
        with pytest.raises(UsageError, match=complaint):
            make_method(f"packed:{value}").sources(model, 0)


# --- MIMO -------------------------------------------------------------------------------------------------------------


def test_samples_are_dealt_as_by_the_authors() -> None:
    torch.manual_seed(0)
    for equal, together_rows in ((0.0, 0), (0.5, 20), (1.0, 40)):
        rows = Mimo(MimoOptions(3, equal, 4)).deal(10)
        assert rows.shape == (3, 40) and torch.equal(
            rows[:, 40 - together_rows :], rows[:1, 40 - together_rows :].expand(3, -1)
        )
        assert all(torch.equal(row.bincount(), torch.full((10,), 4)) for row in rows)
        apart = rows[:, : 40 - together_rows]
        # Each input has the same samples in an order of its own.
        assert torch.equal(apart.sort(1).values, apart[:1].sort(1).values.expand(3, -1))
        assert equal == 1 or all((apart[a] != apart[b]).any() for a, b in ((0, 1), (0, 2), (1, 2)))


def dealt(model: Any, count: int) -> Tensor:
    """The rows that the next call deals."""
    with torch.random.fork_rng(devices=[]):
        return model.maker.deal(count)


@pytest.mark.parametrize("variant", ["class-token", "hf-vit"])
def test_mimo_is_the_library_model_of_three_images_at_once(variant: str) -> None:
    model = together(replace(source_of(stock(variant), variant), drawn_by=None), "mimo:3,0.5,2")
    x, y = sample()
    rows = dealt(model, SIZE)
    logits, labels = model.answers(x, y)
    assert torch.equal(labels, y[rows])
    kernels, heads = (torch.stack([state[name] for state in state_of(model)]) for name in KERNEL_AND_HEAD[variant])
    reference = three_at_once(variant, model)
    expected = said(reference, torch.cat([x[r] for r in rows], 1)).unflatten(1, (3, -1))
    assert near(logits, expected.transpose(0, 1))
    own = model.loss(logits, labels, 0.0)
    assert near(own, sum(F.cross_entropy(expected[:, m], y[rows[m]]) for m in range(3)))
    # Of three equal images each member is the library's model with the kernels added up.
    copies = said(reference, torch.cat([x] * 3, 1)).unflatten(1, (3, -1)).transpose(0, 1)
    for member, state in enumerate(state_of(model)):
        single = stock(variant)
        single.load_state_dict(state)
        assert near(said(single, x), copies[member])
    assert torch.equal(kernels[0], kernels[1]) and not torch.equal(heads[0], heads[1])
    # It begins where the given model was.
    assert near(kernels[0], stock(variant).state_dict()[KERNEL_AND_HEAD[variant][0]])


KERNEL_AND_HEAD = {
    "class-token": ("patch_embed.proj.weight", "head.weight"),
    "hf-vit": ("vit.embeddings.patch_embeddings.projection.weight", "classifier.weight"),
}


def said(model: Any, x: Tensor) -> Tensor:
    found = model(x)
    return getattr(found, "logits", found)


def three_at_once(variant: str, model: Together) -> Any:
    """The library's model of nine channels and three times as many classes, of the weights in training."""
    if variant == "hf-vit":
        config = stock(variant).config
        config.num_channels, config.num_labels = 9, 15
        reference = type(stock(variant))(config)
    else:
        import timm

        sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}
        reference = timm.create_model("vit_tiny_patch16_224", in_chans=9, num_classes=15, **sizes)
    only: Any = model.models[0]
    kernel, _ = KERNEL_AND_HEAD[variant]
    weights = only.stock_tensors()
    reference.load_state_dict({**weights, kernel: weights[kernel].transpose(0, 1).flatten(1, 2)})
    return reference.eval()


def test_mimo_of_texts_is_refused() -> None:
    with pytest.raises(UsageError, match="takes models that read images, not RobertaForSequenceClassification"):
        together(source_of(stock("roberta"), "roberta"), "mimo:3")


def test_one_stem_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    monkeypatch.setattr(source.family, "named_parts", {"head": source.family.named_parts["head"]})
    with pytest.raises(UsageError, match="no single convolution"):
        together(source, "mimo:3")


def test_patches_of_features_are_refused() -> None:
    hybrid = "timm:vit_tiny_r_s16_p8_224?pretrained=0&img_size=64&embed_dim=24&depth=1&num_heads=3&num_classes=3"
    with pytest.raises(UsageError, match="makes patches of features"):
        together(open_source(hybrid), "mimo:2")


# --- several classifiers ----------------------------------------------------------------------------------------------


def test_classifiers_are_trained_as_in_a_plain_loop() -> None:
    model = together(source_of(stock("class-token"), "class-token"), "classifiers:3")
    body, heads = stock("class-token"), nn.ModuleList()
    for state in state_of(model):
        heads.append(nn.Linear(24, 5))
        heads[-1].load_state_dict({name: state[f"head.{name}"] for name in ("weight", "bias")})
    body.reset_classifier(0)
    parameters = [*body.parameters(), *heads.parameters()]
    groups = [
        {"params": [p for p in parameters if (p.ndim > 1) == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    steps = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    for x, y in batches(3):
        steps.zero_grad()
        features = body(x)
        torch.stack([F.cross_entropy(head(features), y) for head in heads]).mean().backward()
        steps.step()
    train(model)
    features = body(images())
    assert near(model.member_logits(images()), torch.stack([head(features) for head in heads]))


# --- the command ------------------------------------------------------------------------------------------------------

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--val", "val.npz", "--device", "cpu", "--batch-size", "8",
         "--epochs", "2", "--lr", "0.01", "--dropout", "0.2"]  # fmt: skip
OPTIONS_OF = {
    "h": ["--ensemble", "classifiers:3"],
    "m": ["--ensemble", "mimo:3"],
    "p": ["--ensemble", "packed:3,2", "--init", "random"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and three members of each method."""
    path = tmp_path_factory.mktemp("together")
    with contextlib.chdir(path):
        write_images(train=44, val=20)
        for name, options in OPTIONS_OF.items():
            quiet(*TRAIN, *options, "-o", f"{name}.st")
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in made.iterdir():
        Path(file.name).symlink_to(file)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["h", *marked_release("mp")])
def test_stopped_and_resumed_it_gives_the_same_bytes(name: str) -> None:
    command = [*TRAIN, *OPTIONS_OF[name], "-o", "part.st"]
    with stopped_after(7):
        run(*command, code=130)
    quiet(*command, "--resume")
    parts, wholes = ([Path(f"{one}.{number}.st") for number in (1, 2, 3)] for one in ("part", name))
    assert [path.read_bytes() for path in parts] == [path.read_bytes() for path in wholes]
    found = answer(*command, "--resume")
    assert [(one["output"], one["member"]) for one in found["files"]] == [(str(p), n) for n, p in enumerate(parts, 1)]
    assert found["sha256"] == found["files"][-1]["sha256"]
    run(*command, "--resume", "--config", "{label_smoothing: 0.2}", code=3)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["h", *marked_long("mp")])
def test_members_fuse_to_one_model(name: str) -> None:
    members = [f"{name}.{number}.st" for number in (1, 2, 3)]
    found = answer("fuse", *members, "-o", "fused.st")
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        each = hydractl.load("fused.st", device="cpu").member_logits(x)
        for member, logits in zip(members, each, strict=True):
            assert near(logits, hydractl.load(member, device="cpu").member_logits(x)[0])
    cost, classifier = found["cost"], 24 * 5 + 5
    if name != "p":  # one body, and two more classifiers
        assert cost["fused"]["params"] == cost["single"]["params"] + 2 * classifier
        assert cost["fused"]["macs"] == cost["single"]["macs"] + 2 * 24 * 5


def test_what_does_not_go_together_is_refused() -> None:
    for more, complaint in (
        ({"ensemble": "mimo:3", "compile": True}, "--ensemble mimo does not go with --compile"),
        ({"ensemble": "classifiers:3", "freeze": ["head"]}, "without --freeze head"),
    ):
        with pytest.raises(UsageError, match=complaint):
            settings(**more)
    assert training_request(ensemble="packed:10,9/4").ensemble.models() == 10
