"""Bodies without a classifier: opened as their library reads them, scored and pruned, and given a classifier."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.errors import InputError
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import read_header
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, open_source
from hydractl.training.start import with_drawn_head, with_new_head
from tests import pico
from tests.pico import HF, SMALL, close, inputs, logits, write_inputs
from tests.running import read_json, refused
from tests.spread import marked_release

declare_operators()

import transformers  # noqa: E402

# The published class -> the pico model that it is the body of.
BODIES = {
    "BertModel": "bert",
    "BertForPreTraining": "bert",
    "BertForMaskedLM": "bert",
    "RobertaForMaskedLM": "roberta",
    "XLMRobertaModel": "xlm-roberta",
    "DistilBertForMaskedLM": "distilbert",
    "ElectraForPreTraining": "electra",
    "ModernBertForMaskedLM": "modernbert-mean",
    "ModernBertModel": "modernbert",
    "LlamaForCausalLM": "llama",
    "GPT2LMHeadModel": "gpt2",
    "Gemma3ForCausalLM": "gemma3",
    "ViTModel": "hf-vit",
    "DeiTModel": "hf-deit",
    "Dinov2Model": "hf-dinov2",
    "DebertaV2Model": "deberta-v3",
    "DebertaV2ForMaskedLM": "deberta-v3",
}
ALONE = ("BertModel", "ModernBertModel", "Dinov2Model", "DebertaV2Model")
"""Bodies that come with nothing of another task."""
TIMM = {
    "dinov2": "vit_small_patch14_dinov2?pretrained=0&img_size=28&embed_dim=24&depth=3&num_heads=3",
    "siglip": f"vit_base_patch16_siglip_224?{SMALL.replace('num_classes=5', 'num_classes=0')}",
    "swin": pico.TIMM["swin"].replace("num_classes=5", "num_classes=0"),
}
OFTEN = ("BertModel", "RobertaForMaskedLM", "ModernBertModel", "DebertaV2ForMaskedLM", "GPT2LMHeadModel", "ViTModel")
"""One of each kind: of texts and of images, alone, with another task and with what is tied."""
TIED = ("GPT2LMHeadModel", "Gemma3ForCausalLM")
"""Those whose head of words is the embedding."""
ALLOWED = ModelOptions(bodies=True)
PARTS = ("embed", "norm", "attention", "mlp", "own")


@cache
def stock_body(name: str) -> Any:
    _, config, settings = HF[BODIES[name]]
    torch.manual_seed(0)
    return getattr(transformers, name)._from_config(getattr(transformers, config)(**settings)).eval()


def published_body(name: str, folder: Path) -> Path:
    variant = BODIES[name]
    stock_body(name).save_pretrained(folder)
    write_inputs(folder, variant)
    return folder


def reference(name: str, folder: Path, classes: int, seed: int) -> tuple[Any, set[str]]:
    """The classifier as the library makes it of a body; what it has to draw, drawn by a seed, and its names."""
    cls = getattr(transformers, HF[BODIES[name]][0])
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=classes)
    torch.manual_seed(seed)
    drawn = cls._from_config(config).state_dict()
    model, report = cls.from_pretrained(folder, config=config, output_loading_info=True)
    state = model.state_dict()
    for missing in report["missing_keys"]:
        state[missing] = drawn[missing]
    model.load_state_dict(state)
    return model.eval(), report["missing_keys"]


@pytest.mark.long
@pytest.mark.parametrize("name", [*OFTEN, *marked_release(name for name in BODIES if name not in OFTEN)])
@torch.no_grad()
def test_a_body_gets_the_classifier_that_its_library_would_give_it(name: str, tmp_path: Path) -> None:
    folder = published_body(name, tmp_path)
    body = open_source(str(folder), ALLOWED)
    assert body.classes == 0
    assert body.description.labels is None
    classifier = with_drawn_head(with_new_head(body, None, 5, seed=3), seed=3)
    expected, missing = reference(name, folder, 5, seed=3)
    assert set(classifier.tensors.names()) - set(body.tensors.names()) == missing
    for tensor_name, tensor in expected.state_dict().items():
        assert torch.equal(classifier.tensors.read(tensor_name), tensor), tensor_name
    batch = inputs(BODIES[name])
    close(build_model(classifier).member_logits(batch)[0], logits(expected, batch))
    prefix = f"{type(expected).base_model_prefix}."
    inside = {tensor_name.removeprefix(prefix) for tensor_name in body.tensors.names()}
    assert not inside & set(body.left), "only tensors of another task are left"
    assert bool(body.left) is (name not in (*ALONE, *TIED))


def test_what_is_missing_from_a_body_or_unknown_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = published_body("BertForMaskedLM", tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    del tensors["bert.embeddings.LayerNorm.bias"]
    save_file({**tensors, "bert.encoder.extra.weight": torch.zeros(2)}, weights, {"format": "pt"})
    caught = refused(InputError, open_source, str(tmp_path), ALLOWED)
    assert sorted(caught.problems) == [
        "missing tensor 'bert.embeddings.LayerNorm.bias'",
        "unexpected tensor 'bert.encoder.extra.weight'",
    ]


@pytest.mark.parametrize("name", TIMM)
@torch.no_grad()
def test_a_timm_tag_without_classes_is_a_body(name: str) -> None:
    body = open_source(f"timm:{TIMM[name]}", ALLOWED)
    assert body.classes == 0
    made = with_drawn_head(with_new_head(body, ["a", "b", "c"], 3), seed=1)
    library = made.family.drawn(made.description.config).eval()
    library.load_state_dict({n: made.tensors.read(n) for n in made.tensors.names()})
    images = made.family.example_inputs(made.description.preprocess, 2, seed=0)
    head = "head.fc" if name == "swin" else "head"
    assert sorted(set(made.tensors.names()) - set(body.tensors.names())) == [f"{head}.bias", f"{head}.weight"]
    close(build_model(made).member_logits(images)[0], library(images))


# --- the verbs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bert(here: Path) -> Path:
    named = ["text,label"]
    numbered = ["text,label"]
    for _ in range(4):
        named += ["a fine film,good", "so dull,bad", "not unkind !,fair"]
        numbered += ["a fine film,0", "so dull,1", "not unkind !,2"]
    Path("train.csv").write_text("\n".join(named) + "\n")
    Path("numbers.csv").write_text("\n".join(numbered) + "\n")
    return published_body("BertForMaskedLM", here / "bert")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr()


def made_by(path: str) -> Any:
    return read_header(path).description["provenance"]["settings"]  # type: ignore[index]


@pytest.mark.long
def test_a_body_is_pruned_trained_with_a_new_classifier_and_fused(bert: Path, capsys: Any) -> None:
    said = run(capsys, "prune", "bert", "--method", "magnitude", "--keep", "2", "-o", "small.st")[1]
    assert "of another task, and left: cls.predictions." in said
    assert read_header("small.st").description["config"]["num_labels"] == 0  # type: ignore[index]
    train = ["finetune", "small.st", "--train", "train.csv", "--device", "cpu", "--epochs", "1", "--init", "head"]
    said = run(capsys, *train, "-o", "a.st")[1]
    names = ["bert.pooler.dense.bias", "bert.pooler.dense.weight", "classifier.bias", "classifier.weight"]
    assert f"small has no classifier; drawn by --seed 0: {', '.join(names)}" in said
    assert made_by("a.st")["drawn"] == names
    assert hydractl.load("a.st", device="cpu").labels == ["bad", "fair", "good"]
    run(capsys, *train, "-o", "b.st", "--seed", "1")
    run(capsys, "fuse", "a.st", "b.st", "-o", "h.st", "-q")  # relatives: they go back to one body
    assert hydractl.load("h.st", device="cpu").members == 2


def test_the_classes_of_a_new_classifier(bert: Path, capsys: Any) -> None:
    train = ["finetune", "bert", "--device", "cpu", "--steps", "1", "-q", "-o", "out.st", "--force", "--train"]
    run(capsys, *train, "numbers.csv", "--reset-head")
    assert FileTensors("out.st").info("classifier.weight").shape == (3, 24)
    assert made_by("out.st")["drawn"] == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    Path("seven.txt").write_text("a\nb\nc\nd\ne\nf\ng\n")
    run(capsys, *train, "numbers.csv", "--init", "head", "--labels", "seven.txt")
    assert FileTensors("out.st").info("classifier.weight").shape == (7, 24)
    Path("names.txt").write_text("fair\ngood\nbad\nugly\n")
    run(capsys, *train, "train.csv", "--init", "head", "--labels", "names.txt")
    assert hydractl.load("out.st", device="cpu").labels == ["fair", "good", "bad", "ugly"]
    Path("out.st").rename("four.st")
    run(capsys, "finetune", "four.st", *train[2:], "train.csv", "--init", "head", "--reset-head")
    assert hydractl.load("out.st", device="cpu").labels == ["bad", "fair", "good"]


def test_a_classifier_of_a_body_is_trained_alone_and_measured(bert: Path, capsys: Any) -> None:
    train = ["--train", "train.csv", "--device", "cpu", "--steps", "2", "--init", "head", "--train-last", "0"]
    run(capsys, "finetune", "bert", *train, "-o", "linear.st", "-q")
    before, after = open_source("bert", ALLOWED).tensors, FileTensors("linear.st")
    assert set(after.names()) - set(before.names()) == {
        *("bert.pooler.dense.bias", "bert.pooler.dense.weight"),
        *("classifier.bias", "classifier.weight"),
    }
    for name in before.names():
        assert torch.equal(after.read(name), before.read(name)), name
    Path("new.csv").write_text("text,label\nunkind film,bad\nso fine !,good\n")
    run(capsys, "eval", "linear.st", "--test", "new.csv", "-o", "e.json", "-q")
    assert read_json("e.json")["models"][0]["id"]["n"] == 2


NEED_A_CLASSIFIER = {
    "eval": ["eval", "bert", "--test", "train.csv"],
    "bench": ["bench", "bert"],
    "export": ["export", "bert", "--format", "pt2", "-o", "h"],
}


@pytest.mark.parametrize("verb", NEED_A_CLASSIFIER)
def test_what_needs_a_classifier_says_how_to_get_one(verb: str, bert: Path, capsys: Any) -> None:
    error = run(capsys, *NEED_A_CLASSIFIER[verb], code=3)[1]
    assert "bert has no classifier" in error and "--init head" in error
    with pytest.raises(InputError, match="no classifier"):
        hydractl.load("bert")


def test_a_folder_of_a_body_is_one_of_its_library(bert: Path, capsys: Any) -> None:
    run(capsys, "prune", "bert", "--method", "random", "--keep", "2", "--layout", "zeroed", "-o", "out/", "-q")
    assert read_json("out/config.json")["architectures"] == ["BertModel"]
    model, report = transformers.AutoModel.from_pretrained("out", add_pooling_layer=False, output_loading_info=True)
    assert not any(report.values())
    again = open_source("out", ALLOWED)
    assert again.classes == 0 and len(again.description.mask.removed_heads) == 3
    word = "embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[word], again.tensors.read(f"bert.{word}"))
