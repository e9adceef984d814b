"""transformers' folders: opened strictly, prepared and written exactly as the library itself would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import hydractl
from hydractl.errors import InputError, UsageError
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.description import Description
from hydractl.fusion.plan import plan_fusion
from hydractl.model.loading import build_model
from hydractl.model.source import open_source
from tests.pico import (
    HF,
    PAIRS,
    close,
    inputs,
    logits,
    mask_of,
    publish,
    published,
    same_tensors,
    stock,
    write_inputs,
    write_tokenizer,
    zero_columns,
)
from tests.running import refused, run
from tests.spread import marked_long, marked_release

declare_operators()

import transformers  # noqa: E402

TEXT = [name for name in HF if "vocab_size" in HF[name][2]]
TEXTS = ["A fine film!", "not so dull, so unkind", "", "fine " * 40, "é \0 日本"]
TWO = [("a fine film", "not so dull"), ("", "so"), ("fine " * 40, "dull " * 30)]
KEPT = [[0, 2], [], [1]]


def refusal(folder: Path | str, kind: type[Exception] = InputError) -> Any:
    caught = refused(kind, open_source, str(folder))
    return caught


def rewrite(folder: Path, changes: Mapping[str, Any], file: str = "config.json") -> Path:
    path = folder / file
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return folder


def reload(variant: str, folder: Path) -> Any:
    """The folder as the library opens it, and nothing missing or left over."""
    model, report = getattr(transformers, HF[variant][0]).from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    return model.eval()


# --- opening ----------------------------------------------------------------------------------------------------------


OTHERS = [name for name in HF if name not in ("bert", "hf-vit")]


@pytest.mark.parametrize("variant", ["bert", "hf-vit", *marked_release(OTHERS)])
@torch.no_grad()
def test_a_saved_folder_gives_the_librarys_logits(variant: str, tmp_path: Path) -> None:
    publish(stock(variant).half(), variant, tmp_path)
    source = open_source(str(tmp_path))
    state = stock(variant).half().state_dict()
    assert source.tensors.names() == sorted(state)
    for name, tensor in state.items():
        stored = source.tensors.read(name)
        assert stored.dtype == torch.float16
        assert torch.equal(stored, tensor), name
    batch = inputs(variant)
    close(build_model(source).member_logits(batch)[0], logits(reload(variant, tmp_path), batch))


@pytest.mark.parametrize(("variant", "old"), {
    "hf-vit": "vit.encoder.layer.0.attention.attention.query.weight",
    "hf-deit": "deit.encoder.layer.1.attention.output.dense.bias",
    "hf-dinov2": "dinov2.encoder.layer.2.attention.attention.value.bias",
}.items())  # fmt: skip
def test_published_names_of_vision_transformers_become_the_present_ones(variant: str, old: str, tmp_path: Path) -> None:
    tensors = safetensors.torch.load_file(published(variant, tmp_path) / "model.safetensors")
    assert old in tensors
    # Mixed dtypes stay what they are, name by name.
    tensors[old] = tensors[old].bfloat16()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    source = open_source(str(tmp_path))
    assert source.tensors.names() == sorted(stock(variant).state_dict())
    kinds = {name: source.tensors.info(name).dtype for name in source.tensors.names()}
    (low,) = [name for name, kind in kinds.items() if kind == "BF16"]
    assert torch.equal(source.tensors.read(low), tensors[old]) and set(kinds.values()) == {"F32", "BF16"}


@torch.no_grad()
def test_old_names_of_norms_are_understood(tmp_path: Path) -> None:
    path = published("bert", tmp_path) / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
           for n, t in tensors.items()}  # fmt: skip
    safetensors.torch.save_file({n: t.double() for n, t in old.items()}, path, {"format": "pt"})
    source = open_source(str(tmp_path))
    assert source.tensors.names() == sorted(tensors)
    assert {source.tensors.info(name).dtype for name in tensors} == {"F64"}
    close(build_model(source).member_logits(inputs("bert"))[0], logits(stock("bert"), inputs("bert")))


def test_what_a_checkpoint_keeps_of_a_folder(tmp_path: Path) -> None:
    folder = published("bert", tmp_path)
    names = {str(i): name for i, name in enumerate("abcde")}
    source = open_source(str(rewrite(folder, {"_name_or_path": "/home/me", "id2label": names})))
    assert source.description.labels == list("abcde")
    config = source.description.config
    assert config["architectures"] == ["BertForSequenceClassification"] and config["num_labels"] == 5
    assert not {"_name_or_path", "transformers_version", "dtype", "id2label", "label2id"} & set(config)
    placeholders = {str(i): f"LABEL_{i}" for i in range(5)}
    for unknown in (placeholders, None):
        labels = open_source(str(rewrite(folder, {"id2label": unknown, "num_labels": 5}))).description.labels
        assert labels is None


# --- refusing ---------------------------------------------------------------------------------------------------------


REFUSED = {
    "AlbertForSequenceClassification": "albert",
    "DebertaForSequenceClassification": "deberta",
    "DINOv3ViTModel": "dinov3_vit",
    "SwinForImageClassification": "swin",
}


@pytest.mark.parametrize(("name", "kind"), REFUSED.items())
def test_other_architectures_are_refused_by_name(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": kind}))
    error = refusal(tmp_path)
    assert error.message == f"transformers' {name} is not supported"
    assert "Bert" in error.hint


@pytest.mark.fault(39, 41)
def test_a_backbone_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration may name another model: the library would fetch it while it builds the first."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("this asks the network"))
    config = {"backbone": "microsoft/resnet-50", "use_pretrained_backbone": True, "backbone_config": None}
    name = "DPTForSemanticSegmentation"
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": "dpt", **config}))
    with pytest.raises(InputError, match=f"transformers' {name} is not supported"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("names", [["NoSuchModel"], [], ["BertModel", "BertModel"], "BertModel", ["AutoModel"]])
def test_names_of_no_model_are_refused(names: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": names, "model_type": "bert"}))
    assert refusal(tmp_path).message.endswith("is not supported")


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "code": ({"auto_map": {"AutoModel": "modeling.X"}}, "comes with code of its own (auto_map), which hydractl never"),
    "quantized": ({"quantization_config": {"bits": 4}}, "comes with quantized weights (quantization_config)"),
    "decoder": ({"is_decoder": True}, "it is a decoder"),
    "regression": ({"id2label": {"0": "score"}, "label2id": {"score": 0}}, "it has 1 labels and the problem type None"),
    "several labels": ({"problem_type": "multi_label_classification"}, "the problem type 'multi_label_classification'"),
    "positions": ({"position_embedding_type": "relative_key"}, "its positions are 'relative_key', not absolute"),
    "no layers": ({"num_hidden_layers": 0}, "has 0 layers"),
    "layers without end": ({"num_hidden_layers": 10**9}, "has 1000000000 layers"),
    "tokens without end": ({"max_position_embeddings": 10**12}, "takes 1000000000000 tokens"),
    "labels without end": ({"num_labels": 10**12}, "has 1000000000000 labels"),
    "no heads": ({"num_attention_heads": -1}, "has -1 attention heads"),
    "odd heads": ({"num_attention_heads": 7}, "cannot build BertForSequenceClassification: "),
    "no activation": ({"hidden_act": "nope"}, "cannot build BertForSequenceClassification: "),
    "text for a number": ({"hidden_size": "big"}, "cannot build BertForSequenceClassification: "),
}


@pytest.mark.fault(43)
@pytest.mark.parametrize("case", ODD)
def test_strange_configurations_are_refused(case: str, tmp_path: Path) -> None:
    changes, expected = ODD[case]
    error = refusal(rewrite(published("bert", tmp_path), changes))
    assert expected in "\n".join([error.message, *error.problems])


def test_hub_names_take_no_options() -> None:
    assert "takes no options (pretrained)" in refusal("hf:org/name?pretrained=0", UsageError).message
    assert refusal("hf:org/name").message.startswith("cannot get org/name from the hub: ")


@pytest.mark.fault(39)
def test_a_hub_name_asks_for_no_code_and_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(published("bert", tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    source = open_source("hf:org/bert")
    assert source.name == "org_bert" and asked["name"] == "org/bert"
    origin = f"org/bert@{tmp_path.name}"
    assert source.description.origin == plan_fusion([source] * 2).description.origin == origin
    assert Description.from_json(source.description.to_json(), "it").origin == origin
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(asked["allow_patterns"])
    assert all(pattern.endswith((".json", ".txt", ".model", ".safetensors")) for pattern in asked["allow_patterns"])


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["bert", "roberta", "distilbert", "llama", "qwen2"])
def test_tokens_are_those_of_the_library(variant: str, tmp_path: Path) -> None:
    collate = build_model(open_source(str(published(variant, tmp_path)))).preprocess
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for samples, columns in ((TEXTS, [TEXTS]), (TWO, [list(column) for column in zip(*TWO, strict=True)])):
        expected = theirs(*columns, padding="longest", truncation=True, return_tensors="pt")
        found = collate(samples)
        assert same_tensors(found, expected)
        assert ("token_type_ids" in found) == (variant in PAIRS)
        if variant != "qwen2":  # whose class takes a text for few tokens, whatever tokenizer.json says
            assert found["input_ids"].shape[1] == theirs.model_max_length
            assert bool((found["attention_mask"] == 0).any())
        if variant in PAIRS and columns[1:]:
            assert bool(found["token_type_ids"].any())


def test_texts_and_pairs_in_one_batch(tmp_path: Path) -> None:
    collate = build_model(open_source(str(published("bert", tmp_path)))).preprocess
    samples = ["a fine film", ("so", "dull")]
    found = collate(samples)
    for row, sample in enumerate(samples):
        alone = collate([sample])
        length = alone["input_ids"].shape[1]
        for name, tokens in alone.items():
            assert torch.equal(found[name][row, :length], tokens[0]), name
    assert found["attention_mask"].dtype == torch.int64


def test_the_length_is_the_least_of_tokenizer_model_and_512(tmp_path: Path) -> None:
    folder = published("bert", tmp_path)
    assert open_source(str(folder)).description.preprocess["max_length"] == 16
    rewrite(folder, {"model_max_length": 10**30}, "tokenizer_config.json")
    assert open_source(str(folder)).description.preprocess["max_length"] == 20
    # RoBERTa's positions start behind its padding token's number.
    folder = published("roberta", tmp_path / "roberta")
    rewrite(folder, {"model_max_length": 10**30}, "tokenizer_config.json")
    source = open_source(str(folder))
    assert source.description.preprocess["max_length"] == 18
    model = build_model(source)
    assert model.preprocess(["fine " * 40])["input_ids"].shape == (1, 18)
    assert model(model.preprocess(["fine " * 40])).shape == (1, 5)


@pytest.mark.parametrize("length", [4, 17, 16.0, None])
def test_lengths_that_the_model_cannot_take(length: Any, tmp_path: Path) -> None:
    source = open_source(str(published("bert", tmp_path)))
    with pytest.raises(InputError, match="this model takes 5 to 16"):
        source.family.collate({**source.description.preprocess, "max_length": length})
    collate = source.family.collate({**source.description.preprocess, "max_length": 5})
    assert collate([("fine " * 9, "dull " * 9)])["input_ids"].shape == (1, 5)


def test_what_is_no_text(tmp_path: Path) -> None:
    collate = build_model(open_source(str(published("bert", tmp_path)))).preprocess
    for strange in ("half a \ud800 character", ("a", None), ("a", "b", "c")):
        with pytest.raises(InputError, match="no text that can be tokenized"):
            collate(["fine", strange])


def test_a_folder_needs_a_tokenizer_that_fits(tmp_path: Path) -> None:
    folder = published("bert", tmp_path)
    rewrite(folder, {"pad_token": None}, "tokenizer_config.json")
    assert refusal(folder).problems == ["it has no padding token"]
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"].update({f"word{i}": 100 + i for i in range(50)})
    path.write_text(json.dumps(document))
    assert refusal(folder).problems == ["it knows 67 tokens, the model 40"]
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    assert refusal(folder).problems == ["there is no tokenizer.json, nor vocab.txt"]
    (folder / "vocab.txt").mkdir()  # which transformers would take for a vocabulary of special tokens
    assert refusal(folder).problems == ["there is no tokenizer.json, nor vocab.txt"]
    (folder / "tokenizer.json").write_text("{}")
    assert refusal(folder).message.startswith(f"{folder} has no tokenizer that transformers can read: ")


def test_an_old_folder_with_a_list_of_words(tmp_path: Path) -> None:
    folder = published("bert", tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "film", "un", "##kind"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    collate = build_model(open_source(str(folder))).preprocess
    found = collate([("Fine unkind", "film dull")])
    assert found["input_ids"].tolist() == [[2, 5, 7, 8, 3, 6, 1, 3]]
    assert found["token_type_ids"].tolist() == [[0] * 5 + [1] * 3]


BROKEN: dict[str, Any] = {
    "json": "{}",
    "special_tokens": {"pad_token": 3},
    "model_input_names": ["input_ids", "pixel_values"],
    "vocab_size": 0,
}


@pytest.mark.parametrize("key", BROKEN)
def test_broken_descriptions_of_tokenizers(key: str, tmp_path: Path) -> None:
    source = open_source(str(published("bert", tmp_path)))
    tokenizer = {**source.description.preprocess["tokenizer"], key: BROKEN[key]}
    with pytest.raises(InputError, match="stored tokenizer cannot be read" if key == "json" else "not described"):
        source.family.collate({**source.description.preprocess, "tokenizer": tokenizer})
    for preprocess in ({"kind": "text"}, {"kind": "sound"}, {}, {"kind": "image"}):
        with pytest.raises(InputError):
            source.family.collate(preprocess)


def test_example_inputs_fit_the_model(tmp_path: Path) -> None:
    for variant in ("bert", "roberta", "hf-vit"):
        model = build_model(open_source(str(published(variant, tmp_path / variant))))
        batch = model.example_inputs(2, seed=3)
        assert torch.isfinite(model(batch)).all()
        if variant != "hf-vit":
            assert batch["input_ids"].shape == (2, 16) and bool((batch["attention_mask"] == 1).all())
            assert torch.equal(batch["input_ids"], model.example_inputs(2, seed=3)["input_ids"])


# --- images -----------------------------------------------------------------------------------------------------------


def pictures() -> list[Image.Image]:
    noise = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    return [Image.fromarray(noise), Image.fromarray(noise[:11]), Image.fromarray(noise[:, :, 0])]


PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "hf-vit": ("ViTImageProcessor", {"size": {"height": 16, "width": 16}, "image_mean": [0.1, 0.2, 0.3]}),
    "hf-deit": (
        "DeiTImageProcessor",
        {"size": {"height": 20, "width": 20}, "crop_size": {"height": 16, "width": 16}, "resample": 2},
    ),
    "hf-dinov2": ("BitImageProcessor", {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}}),
}


@pytest.mark.parametrize("variant", PROCESSORS)
@torch.no_grad()
def test_pixels_are_those_of_the_library(variant: str, tmp_path: Path) -> None:
    name, settings = PROCESSORS[variant]
    getattr(transformers, name)(**settings).save_pretrained(published(variant, tmp_path))
    model = build_model(open_source(str(tmp_path)))
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    expected = theirs([image.convert("RGB") for image in pictures()], return_tensors="pt")["pixel_values"]
    assert torch.equal(model.preprocess(pictures()), expected)
    close(model.member_logits(expected)[0], logits(stock(variant), expected))


def test_image_processors_that_do_not_fit(tmp_path: Path) -> None:
    folder = published("hf-vit", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    assert "has no preprocessor_config.json" in refusal(folder).message
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    assert refusal(folder).message == f"{folder} prepares images of 32x32, its model takes 16x16"
    rewrite(folder, {"image_processor_type": "ConvNextImageProcessor"}, "preprocessor_config.json")
    assert refusal(folder).message == "transformers' image processor 'ConvNextImageProcessor' is not supported"
    rewrite(folder, {"image_processor_type": "ViTImageProcessor", "size": {"height": 10**9, "width": 1}},
            "preprocessor_config.json")  # fmt: skip
    assert "the image processor has the size" in refusal(folder).message
    for change in ({"size": {"shortest_edge": 16}}, {"do_resize": False}):
        rewrite(folder, {"image_processor_type": "ViTImageProcessor", **change}, "preprocessor_config.json")
        assert "keeps the proportions of images" in refusal(folder).message


# --- writing ----------------------------------------------------------------------------------------------------------


def exported(variant: str, tmp_path: Path) -> Path:
    """A pico folder, pruned by the command line into a folder for the stock library."""
    source = open_source(str(published(variant, tmp_path / "in")))
    mask = mask_of(source, KEPT).to_json(source.description.arch, {})
    (tmp_path / "mask.json").write_text(json.dumps(mask))
    run("prune", "in", "--mask", "mask.json", "-o", "out/")
    shutil.rmtree(tmp_path / "in")
    return tmp_path / "out"


@pytest.mark.parametrize("variant", ["bert", *marked_long(["roberta"]), "hf-vit"])
@torch.no_grad()
def test_a_zeroed_folder_is_the_stock_librarys(variant: str, here: Path) -> None:
    folder = exported(variant, here)
    source = open_source(str(folder))
    assert source.description.kind == "pruned" and source.description.mask.counts() == [2, 0, 1]
    expected = logits(zero_columns(stock(variant), source.description.mask.removed_heads), inputs(variant))
    close(logits(reload(variant, folder), inputs(variant)), expected)
    model = build_model(source)
    close(model.member_logits(inputs(variant))[0], expected)
    if variant in TEXT:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        batch = theirs(TEXTS, padding="longest", truncation=True, return_tensors="pt")
        assert same_tensors(batch, model.preprocess(TEXTS))
    else:
        theirs = transformers.AutoImageProcessor.from_pretrained(folder)
        batch = theirs([image.convert("RGB") for image in pictures()], return_tensors="pt")["pixel_values"]
        assert torch.equal(model.preprocess(pictures()), batch)


def test_an_exported_folder_keeps_the_labels(tmp_path: Path) -> None:
    source = open_source(str(published("bert", tmp_path / "in")))
    out = tmp_path / "out"
    out.mkdir()
    description = source.description
    assert source.family.export_folder(out, description.config, description.preprocess, list("vwxyz")) == (
        "model.safetensors"
    )
    shutil.copy(tmp_path / "in" / "model.safetensors", out)
    assert open_source(str(out)).description.labels == list("vwxyz")
    assert transformers.AutoConfig.from_pretrained(out).id2label == dict(enumerate("vwxyz"))


@torch.no_grad()
def test_a_checkpoint_needs_nothing_beside_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = open_source(str(published("bert", here / "in")))
    for name, kept in (("a", [[0, 2], [1], [0, 1, 2]]), ("b", [[1], [0, 1, 2], []])):
        (here / "mask.json").write_text(json.dumps(mask_of(source, kept).to_json(None, {})))
        run("prune", "in", "--mask", "mask.json", "-o", f"{name}.st")
    shutil.rmtree(here / "in")
    run("fuse", "a.st", "b.st", "-o", "hydra.st")
    model = hydractl.load(here / "hydra.st", device="cpu")
    assert model(model.preprocess([*TEXTS, *TWO])).shape == (8, 5)
    capsys.readouterr()
    run("--info", "--json", "hydra.st")
    info = json.loads(capsys.readouterr().out)
    told = json.dumps(info)
    assert "characters" in told and "[UNK]" in told and "##kind" not in told


# --- folders in other forms -------------------------------------------------------------------------------------------


def sharded(variant: str, folder: Path) -> Path:
    stock(variant).half().save_pretrained(folder, max_shard_size="10KB")
    write_inputs(folder, variant)
    return folder


@pytest.mark.parametrize("variant", ["bert", "hf-vit"])  # present names, and those of published files
@torch.no_grad()
def test_weights_in_several_files(variant: str, tmp_path: Path) -> None:
    folder = sharded(variant, tmp_path)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert not (folder / "model.safetensors").exists()
    source = open_source(str(folder))
    state = stock(variant).half().state_dict()
    assert source.tensors.names() == sorted(state)
    for name, tensor in state.items():
        assert torch.equal(source.tensors.read(name), tensor), name
    batch = inputs(variant)
    close(build_model(source).member_logits(batch)[0], logits(reload(variant, folder), batch))


def test_an_index_that_is_wrong_is_refused(tmp_path: Path) -> None:
    folder = sharded("bert", tmp_path)
    path = folder / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    moved = sorted(document["weight_map"])[0]
    for file, message in (
        ("../x.safetensors", "is no index"),
        ("a.bin", "is no index"),
        ("gone.safetensors", "are missing"),
    ):
        path.write_text(json.dumps({"weight_map": {**document["weight_map"], moved: file}}))
        assert message in refusal(folder).message
    path.write_text(json.dumps({"weight_map": {n: f for n, f in document["weight_map"].items() if n != moved}}))
    assert refusal(folder).problems == [f"tensor {moved!r} of {document['weight_map'][moved]}"]


def test_a_folder_of_pickles_says_what_to_do(tmp_path: Path) -> None:
    folder = published("bert", tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refusal(folder)
    assert error.message.endswith(
        "has no model.safetensors, but pytorch_model.bin: pickles, which hydractl never opens"
    )
    assert "transformers.BertForSequenceClassification.from_pretrained(" in error.hint
