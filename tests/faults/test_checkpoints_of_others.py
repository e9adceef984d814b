"""Models as people have them: pruned by another tool, wrapped by a training framework, with odd configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import hydractl
from hydractl.errors import HydraError, InputError, UsageError, did_you_mean
from hydractl.model.source import ModelOptions, open_source
from tests.pico import close, inputs, logits, model_of, published, same_tensors, shared_stock, stock_logits, tensors_of
from tests.running import read_json, run

SIZES: dict[str, int] = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
NAME = "vit_tiny_patch16_224"
ARCH = f"timm:{NAME}?" + "&".join(f"{key}={value}" for key, value in SIZES.items())


def with_config(folder: Path, **changes: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**read_json(file), **changes}))
    return folder


def of_timm() -> dict[str, torch.Tensor]:
    import timm

    torch.manual_seed(0)
    state: dict[str, torch.Tensor] = timm.create_model(NAME, pretrained=False, **SIZES).state_dict()
    return state


def opened(path: Path, arch: str | None = ARCH) -> Mapping[str, torch.Tensor]:
    return tensors_of(open_source(str(path), ModelOptions(arch=arch)).tensors)


# --- transformers -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(109)
def test_heads_that_transformers_has_pruned_are_a_mask(tmp_path: Path) -> None:
    folder = with_config(published("hf-vit", tmp_path / "vit"), pruned_heads={"1": [0, 2]})
    state = load_file(folder / "model.safetensors")
    width = shared_stock("hf-vit").config.hidden_size // 3
    stays = slice(width, 2 * width)  # head 1 of three
    site = next(name for name in state if name.endswith("layer.1.attention.attention.query.weight"))
    site = site.removesuffix("attention.query.weight")
    for part in ("query", "key", "value"):
        for kind in ("weight", "bias"):
            name = f"{site}attention.{part}.{kind}"
            state[name] = state[name][stays].clone()
    state[f"{site}output.dense.weight"] = state[f"{site}output.dense.weight"][:, stays].clone()
    save_file(state, folder / "model.safetensors", {"format": "pt"})

    source = open_source(str(folder))
    path = source.sites[1].path
    assert source.description.kind == "pruned"
    assert source.description.mask.kept[path] == (1,)
    assert source.description.mask.counts() == [3, 1, 3]
    with torch.no_grad():
        log_probs = logits(model_of(source), inputs("hf-vit"))
    close(log_probs, stock_logits("hf-vit", ((path, 0), (path, 2))).log_softmax(-1))
    assert hydractl.prune(str(folder), method="random", keep=1).result.heads == [1, 1, 1]


@pytest.mark.fault(109)
@pytest.mark.parametrize("entry", [[1], {"0": 1}, {"a": [1]}, {"0": [-1]}])
def test_pruned_heads_that_name_none(entry: object, tmp_path: Path) -> None:
    folder = with_config(published("hf-vit", tmp_path / "vit"), pruned_heads=entry)
    with pytest.raises(InputError, match="pruned_heads .* names no heads by layer"):
        open_source(str(folder))


@pytest.mark.fault(109)
def test_capitals_that_a_tokenizer_loses(tmp_path: Path) -> None:
    """As of many cased BERTs whose ``tokenizer_config.json`` was lost: transformers then writes texts in lower case."""
    folder = published("bert", tmp_path / "bert")
    assert not open_source(str(folder)).warnings
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"film"', '"Film"').replace('"fine"', '"Fine"'))
    (warning,) = open_source(str(folder)).warnings
    assert "2 of 12 tokens have capitals" in warning
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**read_json(settings), "do_lower_case": True}))
    assert not open_source(str(folder)).warnings


@pytest.mark.fault(107)
@pytest.mark.parametrize("kind", [2, ["vit"], None])
def test_a_kind_of_model_that_is_no_text(kind: object, tmp_path: Path) -> None:
    folder = with_config(published("hf-vit", tmp_path / "vit"), model_type=kind)
    with pytest.raises(InputError, match=r"config.json: model_type is .*, no name"):
        open_source(str(folder))


@pytest.mark.fault(107)
def test_a_kind_of_model_that_its_class_is_not_of(tmp_path: Path) -> None:
    folder = with_config(published("hf-vit", tmp_path / "vit"), model_type="bert")
    assert same_tensors(opened(folder, None), opened(published("hf-vit", tmp_path / "same"), None))


@pytest.mark.fault(107)
def test_heads_that_do_not_divide_the_width(tmp_path: Path) -> None:
    folder = with_config(published("electra", tmp_path / "electra"), num_attention_heads=5)
    with pytest.raises(InputError, match="ElectraAttention has 5 attention heads for a width of 24"):
        open_source(str(folder))


@pytest.mark.fault(93)
def test_layers_without_tensors(tmp_path: Path) -> None:
    """They are missed before anything is drawn for them."""
    folder = with_config(published("llama", tmp_path / "llama"), num_hidden_layers=255)
    with pytest.raises(InputError, match="does not hold the weights of LlamaForSequenceClassification"):
        open_source(str(folder))


@pytest.mark.fault(93)
def test_images_of_a_size_that_the_weights_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image of that size is prepared, which takes gigabytes."""
    folder = published("clip", tmp_path / "clip")
    file = folder / "open_clip_config.json"
    document = read_json(file)
    document["model_cfg"]["vision_cfg"]["image_size"] = 8192
    file.write_text(json.dumps(document))
    monkeypatch.setattr("hydractl.families.open_clip.family.OpenClip.collate", lambda *_: pytest.fail("prepared"))
    with pytest.raises(InputError, match="does not hold the weights of CLIP"):
        open_source(str(folder))


@pytest.mark.fault(107)
def test_a_processor_that_leaves_pixels_as_they_are(tmp_path: Path) -> None:
    folder = published("hf-vit", tmp_path / "vit")
    processor = {"image_processor_type": "ViTImageProcessor", "do_rescale": False, "do_normalize": False}
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "size": {"height": 16, "width": 16}}))
    image = Image.effect_noise((16, 16), 80).convert("RGB")
    image.save(tmp_path / "image.png")
    (row,) = hydractl.predict(str(folder), str(tmp_path / "image.png")).rows
    raw = torch.tensor(list(image.tobytes()), dtype=torch.float32).reshape(1, 16, 16, 3).permute(0, 3, 1, 2)
    with torch.no_grad():
        confidence = logits(shared_stock("hf-vit"), raw).softmax(-1).max()
    assert row["confidence"] == pytest.approx(float(confidence), rel=1e-5)


@pytest.mark.fault(108, 109)
def test_names_of_classes_in_other_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["ant", "bee", "cat", "dog", "eel"]
    as_list = with_config(published("hf-vit", tmp_path / "list"), id2label=names)
    assert open_source(str(as_list)).description.labels == names

    from_one = with_config(
        published("hf-vit", tmp_path / "one"),
        id2label={str(number): name for number, name in enumerate(names, 1)},
        num_labels=5,
    )
    source = open_source(str(from_one))
    assert source.description.labels is None
    (warning,) = source.warnings
    assert (
        warning
        == f"{from_one}: id2label has the keys ['1', '2', '3', '4', '5'] and not 0 to 4, so its names are not used"
    )
    run("prune", from_one, "--method", "random", "--keep", 1, "-o", tmp_path / "a.st")
    assert f"warning: {warning}" in capsys.readouterr().err


# --- state dicts ------------------------------------------------------------------------------------------------------


@pytest.mark.fault(109)
def test_a_checkpoint_of_lightning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = of_timm()
    of_training = {"epoch": 1, "pytorch-lightning_version": "2.5.0", "hyper_parameters": {"lr": 0.1}}
    content = {**of_training, "state_dict": {f"model.{name}": tensor for name, tensor in state.items()}}
    path = tmp_path / "last.ckpt"
    torch.save(content, path)
    assert same_tensors(opened(path), state)
    run("prune", path, "--arch", ARCH, "--method", "random", "--keep", 1, "-o", tmp_path / "a.st")
    said = capsys.readouterr().err
    assert "last: its weights are the entry state_dict of the file" in said
    assert "last: all names of its tensors begin with model., which is left out" in said


@pytest.mark.fault(109)
@pytest.mark.parametrize("ending", [".pt", ".PTH", ".ckpt"])
def test_a_bare_state_dict_by_any_of_its_endings(ending: str, tmp_path: Path) -> None:
    state = of_timm()
    torch.save(state, tmp_path / f"model{ending}")
    assert same_tensors(opened(tmp_path / f"model{ending}"), state)


@pytest.mark.fault(109)
@pytest.mark.parametrize("before", ["net._orig_mod.", "_orig_mod.module.", "module._orig_mod.net."])
def test_a_compiled_model_as_an_attribute(before: str, tmp_path: Path) -> None:
    state = of_timm()
    wrapped = {f"{before}{name}": tensor for name, tensor in state.items()}
    torch.save({"state_dict": wrapped}, tmp_path / "model.ckpt")
    assert same_tensors(opened(tmp_path / "model.ckpt"), state)


@pytest.mark.fault(109)
def test_averaged_weights_come_first(tmp_path: Path) -> None:
    state = of_timm()
    averaged = {name: tensor + 1 for name, tensor in state.items()}
    torch.save({"state_dict": state, "ema_state_dict": averaged}, tmp_path / "model.pth")
    assert same_tensors(opened(tmp_path / "model.pth"), averaged)


@pytest.mark.fault(109)
def test_positions_of_another_size_of_images(tmp_path: Path) -> None:
    torch.save(of_timm(), tmp_path / "model.pth")
    with pytest.raises(InputError, match="does not hold the weights") as raised:
        opened(tmp_path / "model.pth", ARCH.replace("img_size=16", "img_size=32"))
    assert raised.value.problems == ["tensor 'pos_embed' is [1, 5, 16], expected [1, 17, 16]"]
    assert "&img_size=64 (timm) for other images" in str(raised.value.hint)


# --- words that people type -------------------------------------------------------------------------------------------


@pytest.mark.fault(109)
def test_what_was_probably_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such model") as raised:
        open_source(NAME)
    assert f"such as timm:{NAME};" in str(raised.value.hint)
    assert did_you_mean("id.acc", ["id.aurc", "id.accuracy", "id.accuracy_at.0.90"]) == "; did you mean id.accuracy?"

    save_file(of_timm(), "model.safetensors")
    with pytest.raises(InputError, match="is a file of weights, not JSON"):
        hydractl.make_report("model.safetensors")
    Path("study.json").touch()
    for path in ("model.safetensors", "."):
        with pytest.raises(InputError, match="not JSON") as raised:
            hydractl.make_report(path)
        assert str(raised.value.hint).endswith("study.json")
    with pytest.raises(HydraError) as refused:
        hydractl.export("model.safetensors", arch=ARCH, output="hydra.pt")
    assert refused.value.hint == "-o hydra.onnx"


@pytest.mark.fault(109)
@pytest.mark.parametrize("samples", ["x.png", ["a film"], Path("x.png"), Image.new("RGB", (16, 16))])
def test_samples_in_place_of_a_batch(samples: object, tmp_path: Path) -> None:
    model = hydractl.load(str(published("hf-vit", tmp_path / "vit")), device="cpu")
    with pytest.raises(UsageError, match="takes a batch as its preprocess returns it, not ") as raised:
        model.predict(samples)
    assert "hydractl.predict(model, 'x.png') reads files" in str(raised.value.hint)


@pytest.mark.fault(108)
def test_an_input_that_is_given_twice_has_ids_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new").mkdir()
    Image.new("RGB", (16, 16)).save("new/a.png")
    save_file(of_timm(), "model.safetensors")
    run("predict", "model.safetensors", "new/a.png", "new/a.png", "--arch", ARCH, "-o", "out.jsonl")
    ids = [json.loads(line)["id"] for line in Path("out.jsonl").read_text().splitlines()]
    assert ids == ["new/a.png", "new/a.png#2"]
