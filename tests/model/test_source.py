"""From MODEL to a model that runs: every way to name one, and every way in which one can be wrong."""

from __future__ import annotations

import json
import pickle
import re
import socket
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import hydractl
from hydractl.errors import InputError, NonFiniteError, UsageError, near_path
from hydractl.expressions.models import ModelRef
from hydractl.families import FAMILIES, families_for_folder
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import DictTensors, write_tensors
from hydractl.heads.mask import HeadMask
from hydractl.jsonio import read_json_file
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.source import ModelOptions, Source, open_source, open_sources
from tests.running import refused

declare_operators()

import timm  # noqa: E402
from timm.models import save_for_hf  # noqa: E402

SIZES = "img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"
PICO = f"timm:vit_tiny_patch16_224?pretrained=0&{SIZES}"
ARCH = f"timm:vit_tiny_patch16_224?{SIZES}"


@pytest.fixture(autouse=True)
def nothing_leaves_and_nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test reached for the network or a pickle")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)


@pytest.fixture(scope="module")
def pico() -> Source:
    return open_source(PICO, name="pico")


def tensors_of(source: Source) -> dict[str, torch.Tensor]:
    return {name: source.tensors.read(name).clone() for name in source.tensors.names()}


def save(path: Path, tensors: dict[str, torch.Tensor], description: dict[str, Any]) -> Path:
    with open(path, "wb") as handle:
        write_tensors(handle, DictTensors(tensors), description)
    return path


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def refusal(ref: str | Path, kind: type[InputError | UsageError] = InputError, **options: Any) -> Any:
    caught = refused(kind, open_source, str(ref), **options)
    for line in (caught.message, caught.hint or "", *caught.problems):
        assert "\n" not in line
    return caught


# --- NAME=REF+REF -----------------------------------------------------------------------------------------------------

SPLIT = {
    "a.st": (None, ["a.st"]),
    "a.st+b.st": (None, ["a.st", "b.st"]),
    "deep=a.st+b.st+a.st": ("deep", ["a.st", "b.st", "a.st"]),
    "n=../x/a.st": ("n", ["../x/a.st"]),
    "runs/lr=0.1/a.st": (None, ["runs/lr=0.1/a.st"]),
    "timm:vit?pretrained=0": (None, ["timm:vit?pretrained=0"]),
    "timm:vit?depth=2+a.st": (None, ["timm:vit?depth=2", "a.st"]),
    "=a.st": (None, ["=a.st"]),
    # files of these names exist
    "lr=0.1.st": (None, ["lr=0.1.st"]),
    "a.st+lr=0.1.st": (None, ["a.st", "lr=0.1.st"]),
    "n=lr=0.1.st+a.st": ("n", ["lr=0.1.st", "a.st"]),
    "x+y.st": (None, ["x+y.st"]),
    "n=x+y.st": ("n", ["x+y.st"]),
    "n=x+z.st": ("n", ["x", "z.st"]),
}


def split(text: str) -> tuple[str | None, list[str]]:
    """The name of a row and the texts of its members."""
    name, members = ModelRef(text).split()
    return name, [member.text for member in members]


@pytest.mark.parametrize("text", list(SPLIT))
def test_splitting_a_model(text: str, here: Path) -> None:
    for name in ("a.st", "b.st", "lr=0.1.st", "x+y.st"):
        Path(name).touch()
    assert split(text) == SPLIT[text]


@pytest.mark.parametrize("text", ["", "n=", "+a.st", "a.st++b.st", "n=a.st+"])
def test_an_empty_member_is_refused(text: str) -> None:
    caught = refused(UsageError, split, text)
    assert caught.message == f"empty member in MODEL {text!r}"
    assert caught.exit_code == 2


@pytest.mark.fault(35)
def test_very_long_names_are_only_absent() -> None:
    long = "x" * 5000
    assert split(f"n={long}+{long}") == ("n", [long, long])
    assert refusal(long).message == f"no such model: {long}"


# --- what is no model -------------------------------------------------------------------------------------------------


def test_an_absent_file_names_those_that_are_there(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path / "a.st").hint
        == "give a .st file, a published folder, or FAMILY:NAME, FAMILY one of hf, open_clip, timm"
    )
    for name in ("c.st", "b.st"):
        (tmp_path / name).touch()
    error = refusal(tmp_path / "a.st")
    assert error.message == f"no such model: {tmp_path / 'a.st'}"
    assert error.hint == f"in {tmp_path}/ there is: c.st, b.st"
    (tmp_path / "vit.npz").touch()
    assert near_path(tmp_path / "vit.json") == f"in {tmp_path}/ there is: vit.npz"
    assert near_path(tmp_path / "vit.npz") is None, "it is there and cannot be read"
    assert near_path(tmp_path / "no" / "folder" / "b.st") == f"the path exists up to {tmp_path}/"
    assert refusal("timm:").message == "no such model: timm:"


@pytest.mark.fault(18)
@pytest.mark.parametrize("suffix", [".bin", ".pkl", ".BIN"])
def test_pickles_are_refused_by_their_names(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    torch.save({"a": torch.ones(1)}, path)
    error = refusal(path)
    assert error.message == f"{path} may hold a pickle, which hydractl never opens"
    assert """save_file(torch.load(F, map_location="cpu", weights_only=True), OUT)""" in error.hint


@pytest.mark.fault(18)
@pytest.mark.parametrize("legacy", [False, True])
def test_pickles_are_refused_by_their_content(legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.st"
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=not legacy)
    assert refusal(path).message == f"{path} is a pickle, which hydractl never opens"


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    expected = f"{tmp_path} is not a published model folder of a supported family"
    assert refusal(tmp_path).message == expected
    for text in ('{"model_type": "bert"}', "[1]", '"architecture"'):
        (tmp_path / "config.json").write_text(text)
        assert refusal(tmp_path).message == expected


def test_the_problems_of_all_models_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "b.st").write_bytes(b"")
    caught = refused(InputError, open_sources, [PICO, str(tmp_path / "a.st"), str(tmp_path / "b.st")])
    assert caught.message == "2 models cannot be opened"
    assert caught.problems == [
        f"no such model: {tmp_path / 'a.st'}",
        f"{tmp_path / 'b.st'} is empty, not a safetensors file",
    ]
    with pytest.raises(InputError, match=r"^no such model: "):
        open_sources([PICO, str(tmp_path / "a.st")])


# --- random models ----------------------------------------------------------------------------------------------------


def test_random_weights_follow_the_seed_alone(pico: Source) -> None:
    torch.manual_seed(123)
    expected = torch.rand(1)
    torch.manual_seed(123)
    again = open_source(PICO)
    assert torch.equal(torch.rand(1), expected), "the caller's random numbers are left alone"
    assert again.sha256 == pico.sha256
    assert open_source(PICO, ModelOptions(seed=1)).sha256 != pico.sha256
    assert again.name == "vit_tiny_patch16_224"
    assert again.file_bytes is None
    assert [(s.path, s.heads, s.head_dim, s.d_model) for s in again.sites] == [
        ("blocks.0.attn", 2, 8, 16),
        ("blocks.1.attn", 2, 8, 16),
    ]


OPTIONS = {
    "patch_size=0": "timm cannot build vit_tiny_patch16_224 with {'patch_size': 0}: integer division or modulo by zero",
    "num_heads=5": "timm cannot build vit_tiny_patch16_224 with {'num_heads': 5}: dim should be divisible by num_heads",
    "embed_dim=x": "timm cannot build vit_tiny_patch16_224 with {'embed_dim': 'x'}: ",
    "heads=3": "timm cannot build vit_tiny_patch16_224 with {'heads': 3}: ",
    "num_classes=0&depth=1": "vit_tiny_patch16_224 has no classifier",
    "global_pool=''&depth=1": "VisionTransformer pools no tokens (global_pool is empty)",
    "depth=0": "VisionTransformer has no blocks, so it has no attention heads",
    "in_chans=4&depth=1": "the model takes images of 4 channels; only 1 (grey) and 3 (RGB) can be read",
}


@pytest.mark.parametrize("options", list(OPTIONS))
def test_options_that_make_no_model(options: str) -> None:
    assert refusal(f"timm:vit_tiny_patch16_224?pretrained=0&{options}").message.startswith(OPTIONS[options])


QUERIES = {
    "pretrained=0&depth": "cannot read 'depth' in the options of a model",
    "pretrained=0&=3": "cannot read '=3' in the options of a model",
    "pretrained=0&&": "cannot read '' in the options of a model",
    "pretrained=0&img_size=[1": "cannot read the value of 'img_size=[1' in the options of a model",
    "pretrained=0&img_size=!!python/object:os.system x": "cannot read the value of 'img_size=!!python/",
    "pretrained=0&checkpoint_path=x.pth": "timm:vit_tiny_patch16_224 takes no option checkpoint_path",
    "pretrained=0&pretrained_cfg_overlay={file: x.pth}": "timm:vit_tiny_patch16_224 takes no option pretrained_cfg",
    "depth=3": "timm:vit_tiny_patch16_224 with pretrained weights takes no options (depth)",
    "crop_pct=1.2": "timm:vit_tiny_patch16_224: crop_pct 1.2 is no share of an image",
    "crop_pct=x": "timm:vit_tiny_patch16_224: crop_pct x is no share of an image",
    "pretrained=0&crop_mode=middle": "timm:vit_tiny_patch16_224: unknown crop_mode middle",
}


@pytest.mark.parametrize("query", list(QUERIES))
def test_options_that_cannot_be_taken(query: str) -> None:
    assert refusal(f"timm:vit_tiny_patch16_224?{query}", UsageError).message.startswith(QUERIES[query])


def test_a_name_says_how_images_are_cropped() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 60, 3), np.uint8)
    model = build_model(open_source(f"timm:vit_tiny_patch16_224?pretrained=0&{SIZES}&crop_pct=1&crop_mode=squash"))
    size, mean, std = (model.description.preprocess[key] for key in ("input_size", "mean", "std"))
    wide = Image.fromarray(pixels).resize(size[:0:-1], Image.Resampling.BICUBIC)
    expected = (torch.from_numpy(np.array(wide)).permute(2, 0, 1) / 255 - torch.tensor(mean)[:, None, None]) / std[0]
    torch.testing.assert_close(model.preprocess([Image.fromarray(pixels)])[0], expected)
    published = open_source(f"timm:vit_tiny_patch16_224?pretrained=0&{SIZES}").description.preprocess
    assert model.description.preprocess == {**published, "crop_pct": 1, "crop_mode": "squash"}


def test_names_that_timm_does_not_know() -> None:
    error = refusal("timm:nothing_of_the_kind?pretrained=0")
    assert error.message == f"timm {timm.__version__} has no model 'nothing_of_the_kind'"
    assert error.hint == "list them with: python -c 'import timm; print(timm.list_models())'"
    assert "; did you mean vit_tiny_" in refusal("timm:vit_tiny?pretrained=0").message
    assert "; did you mean vit_tiny_patch16_224?" in refusal("timm:vit_tinny_patch16_224").message
    for query in ("", "?pretrained=0"):
        assert "Invalid pretrained tag (nope)" in refusal(f"timm:vit_tiny_patch16_224.nope{query}").message
    assert "has no model 'hf-hub:org/name'" in refusal("timm:hf-hub:org/name").message


REFUSED = {
    "cait_xxs24_224?embed_dim=16&num_heads=2&depth=1": "Cait is not supported: its attention is "
    "timm.models.cait.TalkingHeadAttn",
    "resnet10t": "ResNet is not supported: it has no attention",
    "mobilevit_xxs": "ByobNet is not supported: it",
    f"vit_tiny_patch16_224?{SIZES}&scale_attn_norm=true": "blocks.0.attn of VisionTransformer is an Attention that "
    "normalises across heads, so its heads cannot be separated",
    "vit_small_patch16_18x2_224?img_size=16&embed_dim=12&num_heads=2&depth=1": "blocks.0 of VisionTransformer is a "
    "ParallelThingsBlock with nothing as its attn, expected Attention",
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_refusal_names_the_attention_met(name: str) -> None:
    with torch.device("meta"):  # no weights are needed to refuse
        error = refusal(f"timm:{name}{'&' if '?' in name else '?'}pretrained=0")
    assert error.message.removeprefix("timm's ").startswith(REFUSED[name])
    assert error.exit_code == 3


# --- published folders ------------------------------------------------------------------------------------------------


def published(folder: Path, **config: Any) -> torch.nn.Module:
    """A pico model with random weights, saved by timm itself."""
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    torch.manual_seed(7)
    model = timm.create_model("vit_tiny_patch16_224", **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    save_for_hf(model, str(folder), model_config=config or None, safe_serialization="both")
    return model


OF_TIMM = {"architecture": "vit_tiny_patch16_224"}
OF_TRANSFORMERS = {"architectures": ["ViTForImageClassification"], "model_type": "vit"}
OF_OPEN_CLIP = {"model_cfg": {}}


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({"config.json": OF_TIMM}, ["timm"]),
        ({"config.json": OF_TRANSFORMERS}, ["hf"]),
        ({"config.json": OF_TRANSFORMERS, "open_clip_config.json": OF_OPEN_CLIP}, ["open_clip", "hf"]),
        ({"config.json": {"model_type": "vit"}}, []),
        ({"config.json": [1]}, []),
        ({}, []),
    ],
)
def test_only_families_that_may_load_a_folder_are_asked(
    files: dict[str, Any], asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing a family takes seconds: that of transformers must not be needed to open a folder of timm."""
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
    imported = []

    def get(name: str) -> Any:
        imported.append(name)
        return FAMILIES.get(name)

    monkeypatch.setattr("hydractl.families.get_family", get)
    assert [family.name for family in families_for_folder(tmp_path)] == asked
    assert sorted(imported) == sorted(asked)
    for family in FAMILIES.all():  # all others would have refused it
        if family.name not in asked:
            assert family.load_folder(tmp_path) is None, family.name


def test_a_folder_with_the_weights_of_one_library_is_not_taken_for_another_one(tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(OF_OPEN_CLIP))
    assert open_source(str(tmp_path)).description.family == "timm"
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="vision_cfg"):
        open_source(str(tmp_path))


@torch.no_grad()
def test_a_folder_gives_the_library_s_own_logits_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path / "vit", label_names=["cat", "dog", "Größe"])
    theirs = timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True).eval()
    source = open_source(str(tmp_path / "vit"))
    model = build_model(source, whole_last_block=True)
    assert torch.equal(model.member_logits(images())[0], theirs(images()))
    assert model.labels == ["cat", "dog", "Größe"]
    assert model(images()).exp().sum(1).tolist() == pytest.approx([1, 1])
    assert source.name == "vit"
    assert source.file_bytes == (tmp_path / "vit" / "model.safetensors").stat().st_size
    monkeypatch.chdir(tmp_path / "vit")
    assert open_source(".").name == "vit"
    assert torch.equal(
        hydractl.load(".", device="cpu", whole_last_block=True).member_logits(images())[0], theirs(images())
    )


def test_labels_of_the_wrong_number_are_unknown_labels(tmp_path: Path) -> None:
    published(tmp_path, label_names=["cat", "dog"])
    assert open_source(str(tmp_path)).description.labels is None
    published(tmp_path, label_names={"0": "cat", "1": "dog", "2": "cow"})
    assert open_source(str(tmp_path)).description.labels == ["cat", "dog", "cow"]
    published(tmp_path, label_names={"a": "cat", "b": "dog", "c": "cow"})
    assert open_source(str(tmp_path)).description.labels is None


def test_a_folder_without_safe_weights_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert (tmp_path / "pytorch_model.bin").exists()
    error = refusal(tmp_path)
    assert error.message.startswith(f"{tmp_path} has no model.safetensors, but pytorch_model.bin: pickles")
    assert "safetensors.torch.save_file" in error.hint


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown architecture": (lambda c: {**c, "architecture": "vit_nope"}, "cannot build 'vit_nope': Unknown model"),
    "architecture a list": (lambda c: {**c, "architecture": ["vit"]}, "cannot build ['vit']: "),
    "architecture a path": (lambda c: {**c, "architecture": "../x"}, "cannot build '../x': Unknown model"),
    "unknown argument": (lambda c: {**c, "model_args": {"nope": 1}}, "cannot build 'vit_tiny_patch16_224': "),
    "arguments a list": (lambda c: {**c, "model_args": [1]}, "cannot build 'vit_tiny_patch16_224': "),
    "a checkpoint to load": (
        lambda c: {**c, "model_args": {**c["model_args"], "checkpoint_path": "x.pth"}},
        "cannot build 'vit_tiny_patch16_224': ",
    ),
    "settings null": (lambda c: {**c, "pretrained_cfg": None}, "cannot build 'vit_tiny_patch16_224': "),
    "another family": (lambda c: {"architecture": "resnet10t", "pretrained_cfg": {}}, "timm's ResNet is not supported"),
}


@pytest.mark.parametrize("case", list(CONFIGS))
def test_configurations_that_make_no_model(case: str, tmp_path: Path) -> None:
    change, expected = CONFIGS[case]
    published(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(change(config)))
    message = refusal(tmp_path).message
    assert message.removeprefix(f"timm {timm.__version__} ").startswith(expected)
    assert "/tmp" not in message.replace(str(tmp_path), ""), "no folder of our own shows"


@pytest.mark.fault(15)
def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "a", "architecture": "b"}')
    assert refusal(tmp_path).message == f"{tmp_path / 'config.json'} has the key 'architecture' twice in one object"


# --- weights that do not fit ------------------------------------------------------------------------------------------


def damaged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    del tensors["blocks.1.attn.proj.weight"]
    tensors["extra.weight"] = torch.zeros(1)
    tensors["cls_token"] = torch.zeros(1, 1, 15)
    tensors["blocks.0.attn.qkv.weight"] = torch.zeros(24, 16)
    tensors["norm.weight"] = torch.zeros(16, dtype=torch.int64)
    return tensors


DAMAGE = [
    "missing tensor 'blocks.1.attn.proj.weight'",
    "unexpected tensor 'extra.weight'",
    "tensor 'blocks.0.attn.qkv.weight' is [24, 16], expected [48, 16]",
    "tensor 'cls_token' is [1, 1, 15], expected [1, 1, 16]",
    "tensor 'norm.weight' is I64, expected a floating point number",
]


@pytest.mark.fault(16)
@pytest.mark.parametrize("way", ["checkpoint", "bare", "folder"])
def test_every_tensor_that_does_not_fit_is_listed(way: str, pico: Source, tmp_path: Path) -> None:
    tensors = damaged(tensors_of(pico))
    if way == "folder":
        published(tmp_path)
        safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
        error = refusal(tmp_path)
    elif way == "bare":
        safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
        error = refusal(tmp_path / "a.safetensors", options=ModelOptions(ARCH))
    else:
        error = refusal(save(tmp_path / "a.st", tensors, pico.description.to_json()))
    assert error.message.endswith("does not hold the weights of vit_tiny_patch16_224")
    assert error.problems == DAMAGE
    assert error.exit_code == 3


@torch.no_grad()
def test_a_bare_file_with_its_architecture(pico: Source, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(tensors_of(pico), path)
    error = refusal(path)
    assert error.message == f"{path} does not describe itself"
    assert error.hint is not None
    assert error.hint.startswith("write --arch timm:NAME ")
    source = open_source(str(path), ModelOptions(ARCH, seed=99))
    assert source.name == "weights"
    assert torch.equal(build_model(source)(images()), build_model(pico)(images()))
    for arch in ("vit_base_patch16_224", "timm:", "hf:bert"):
        assert refusal(path, UsageError, options=ModelOptions(arch)).message == f"cannot read --arch {arch!r}"
    assert refusal(path, options=ModelOptions("timm:nope")).message.endswith("has no model 'nope'")
    problems = refusal(path, options=ModelOptions("timm:vit_tiny_patch16_224")).problems
    assert len(problems) == 6
    assert re.fullmatch(r"and \d+ more", problems[-1])


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "family": ({"family": "keras"}, "unknown model family 'keras'; known here: hf, open_clip, timm"),
    "architecture": ({"config": {"architecture": "vit_nope"}}, "cannot build 'vit_nope': "),
    "no architecture": ({"config": {}}, "cannot build None: "),
    "other sites": (
        {"sites": [["blocks.0.attn", 2]], "members": [{"kept": {"blocks.0.attn": [0, 1]}}]},
        "describes other attention blocks than its architecture vit_tiny_patch16_224 has",
    ),
    "other heads": (
        {
            "sites": [["blocks.0.attn", 2], ["blocks.1.attn", 4]],
            "members": [{"kept": {"blocks.0.attn": [0, 1], "blocks.1.attn": [0, 1, 2, 3]}}],
        },
        "describes other attention blocks than its architecture vit_tiny_patch16_224 has",
    ),
    "labels": ({"labels": ["a", "b"]}, "2 labels for 3 classes"),
    "no preprocessing": ({"preprocess": {}}, "the preprocessing has no input size [channels, height, width] but None"),
    "huge images": (
        {"preprocess": {"input_size": [3, 10**9, 10**9]}},
        "the preprocessing has no input size [channels, height, width] but [3, 1000000000, 1000000000]",
    ),
    "unknown preprocessing": (
        {"preprocess": {"input_size": [3, 16, 16], "nope": 1}},
        "timm cannot preprocess images with {'input_size': (3, 16, 16), 'nope': 1}: ",
    ),
    "means": (
        {"preprocess": {"input_size": [3, 16, 16], "mean": [0.5, 0.5], "std": [1, 1], "interpolation": "bicubic"}},
        "timm cannot preprocess images with ",
    ),
}


@pytest.mark.parametrize("case", list(CHANGES))
def test_descriptions_that_do_not_fit(case: str, pico: Source, tmp_path: Path) -> None:
    changes, expected = CHANGES[case]
    error = refusal(save(tmp_path / "a.st", tensors_of(pico), {**pico.description.to_json(), **changes}))
    assert any(expected in line for line in (error.message, *error.problems))


def test_a_pruned_file_holds_exactly_the_heads_it_keeps(pico: Source, tmp_path: Path) -> None:
    mask = HeadMask({"blocks.0.attn": 2, "blocks.1.attn": 2}, {"blocks.0.attn": (1,), "blocks.1.attn": ()})
    description = replace(pico.description, kind="pruned", masks=[mask]).to_json()
    tensors = tensors_of(pico)
    assert refusal(save(tmp_path / "a.st", tensors, description)).problems == [
        "tensor 'blocks.0.attn.proj.weight' is [16, 16], expected [16, 8]",
        "tensor 'blocks.0.attn.qkv.bias' is [48], expected [24]",
        "tensor 'blocks.0.attn.qkv.weight' is [48, 16], expected [24, 16]",
        "tensor 'blocks.1.attn.proj.weight' is [16, 16], expected [16, 0]",
        "tensor 'blocks.1.attn.qkv.bias' is [48], expected [0]",
        "and 1 more",
    ]
    zeroed = open_source(str(save(tmp_path / "z.st", tensors, {**description, "layout": "zeroed"})))
    assert zeroed.tensors.info("blocks.0.attn.proj.weight").shape == (16, 8)
    kept = tensors["blocks.0.attn.qkv.weight"].reshape(3, 2, 8, 16)[:, 1]
    assert torch.equal(zeroed.tensors.read("blocks.0.attn.qkv.weight"), kept.reshape(24, 16))
    assert build_model(zeroed).attentions[1].head_counts == [0]


def fused(pico: Source, owned: str = "head.") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Two members that share everything but what starts with ``owned``."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in tensors_of(pico).items():
        for target in [f"members.{m}.{name}" for m in (0, 1)] if name.startswith(owned) else [name]:
            tensors[target] = tensor + len(target) / 10
    masks = [pico.description.mask] * 2
    return tensors, replace(pico.description, kind="fused", masks=masks, merge=["mlp"], members=[{}, {}]).to_json()


@pytest.mark.fault(16)
def test_a_fused_file_is_complete_and_holds_nothing_else(pico: Source, tmp_path: Path) -> None:
    tensors, description = fused(pico)
    path = tmp_path / "hydra.st"
    assert len(open_source(str(save(path, tensors, description))).description.masks) == 2
    assert refusal(save(path, {**tensors, "members.2.head.bias": torch.zeros(3)}, description)).problems == [
        "unexpected tensor 'members.2.head.bias'"
    ]
    assert refusal(save(path, {**tensors, "head.bias": torch.zeros(3)}, description)).problems == [
        "unexpected tensor 'head.bias'"
    ]
    assert refusal(save(path, {**tensors, "members.1.norm.bias": torch.zeros(16)}, description)).problems == [
        "tensor 'norm.bias' belongs to all members and to one"
    ]
    missing = {name: t for name, t in tensors.items() if name != "members.1.head.bias"}
    assert refusal(save(path, missing, description)).problems == ["missing tensor 'head.bias'"]


@pytest.mark.fault(17)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(value: float, pico: Source, tmp_path: Path) -> None:
    tensors = tensors_of(pico)
    tensors["blocks.1.mlp.fc1.weight"][3, 2] = value
    path = save(tmp_path / "bad.st", tensors, pico.description.to_json())
    caught = refused(NonFiniteError, hydractl.load, path, device="cpu")
    assert caught.message == "bad: tensor 'blocks.1.mlp.fc1.weight' holds NaN or infinity"
    assert caught.exit_code == 6


# --- the hub ----------------------------------------------------------------------------------------------------------


def test_a_slow_format_is_measured_once_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydractl.model import loading

    asked: list[torch.dtype] = []

    def slow(dtype: torch.dtype, device: torch.device) -> str | None:
        asked.append(dtype)
        return "bfloat16 is 40 times slower" if dtype == torch.bfloat16 and device.type == "cpu" else None

    assert hasattr(loading.slow_format, "cache_clear")  # it is measured once
    monkeypatch.setattr(loading, "slow_format", slow)
    with pytest.warns(UserWarning, match="bfloat16 is 40 times slower") as caught:
        hydractl.load(PICO, device="cpu", dtype="bfloat16")
    assert Path(caught[0].filename).name == "test_source.py", "it points at who asked for the format"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hydractl.load(PICO, device="cpu")
    assert asked == [torch.bfloat16, torch.float32]


@pytest.mark.fault(39)
def test_a_name_is_downloaded_as_safe_weights_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = published(tmp_path)
    asked: list[tuple[str, list[str]]] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = open_source("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    repo = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert asked == [(repo, ["config.json", "model.safetensors"])]
    assert source.name == "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    with torch.no_grad():
        assert torch.equal(build_model(source, whole_last_block=True).member_logits(images())[0], reference(images()))
    assert open_source("timm:vit_tiny_patch16_224").sha256 == source.sha256
    assert asked[1] == asked[0], "without a tag it is the library's default"


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), OSError("disk"), ValueError("x")])
def test_a_failing_hub_says_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    caught = refusal("timm:vit_tiny_patch16_224")
    repo = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert caught.message == f"cannot get {repo} from the hub: {type(error).__name__}"
    assert caught.hint.startswith("check the name and the network, or give a local folder with config.json and ")
    assert caught.__cause__ is error


def test_a_repository_of_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text('{"model_type": "vit"}')
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert refusal("timm:vit_tiny_patch16_224").message.endswith("holds no config.json of such a model")


def test_a_model_that_was_never_published() -> None:
    name = next(n for n in timm.list_models("vit_*") if not getattr(timm.get_pretrained_cfg(n), "hf_hub_id", None))
    error = refusal(f"timm:{name}")
    assert error.message == f"timm:{name} has no published weights on the hub"
    assert error.hint == f"random weights: 'timm:{name}?pretrained=0'"


# --- small things -----------------------------------------------------------------------------------------------------


def test_json_files_that_are_not_there(tmp_path: Path) -> None:
    assert "no such file: " in refused(InputError, read_json_file, tmp_path / "b.json").message
    assert refused(InputError, read_json_file, tmp_path).message.endswith(" is a folder, not JSON")


@pytest.mark.fault(33)
def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("gpu", "", "cuda:x", "cuda:-1"):
        with pytest.raises(UsageError, match=r"^unknown device "):
            resolve_device(name)
    for name in ("meta", f"cuda:{torch.cuda.device_count() + 7}"):
        with pytest.raises(UsageError, match=r"is not available on this machine$") as caught:
            resolve_device(name)
        assert caught.value.hint == "use --device auto or --device cpu"
