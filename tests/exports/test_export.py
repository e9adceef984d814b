"""Exported files against the model they were made of, run by ONNX Runtime and by plain PyTorch."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from rich.console import Console

import hydractl
from hydractl.cli.app import main
from hydractl.errors import InputError, UsageError
from hydractl.exports import targets as export
from hydractl.exports.graph import traced
from hydractl.exports.targets import plan_exports, write_exports
from hydractl.fusion.plan import FusionPlan, plan_fusion
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from hydractl.model.source import open_source
from hydractl.report.terminal import render
from tests.answers import result_of
from tests.families.test_contract import TEXTS, alone, padded, rolled_left, tokenized
from tests.pico import (
    LABELS,
    images,
    inputs,
    keeping,
    model_of,
    published,
    shared_source,
)
from tests.spread import ONE_OF_EACH, marked_long, marked_release

ROOT = Path(__file__).resolve().parents[2]
# Ragged, and with members that have no head at a site.
KEPT = [[[0, 2], [], [0, 1, 2]], [[1], [0, 1], []]]
TINY = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=12&depth=1&num_heads=3&num_classes=3"
PLAIN = """
import json, sys
sys.modules["hydractl"] = None
import torch
found = {}
for variant, inputs in torch.load("inputs").items():
    told = {"labels": ""}
    model = torch.export.load(variant + ".pt2", extra_files=told).module()
    with torch.no_grad():
        found[variant] = ([model(**one) for one in inputs], told)
libraries = {"hydractl", "timm", "transformers", "open_clip"} & {n for n, m in sys.modules.items() if m is not None}
assert not libraries, libraries
torch.save(found, "answers")
"""


def plan_of(variant: str) -> FusionPlan:
    """Two members with weights of their own."""
    members = []
    for seed, kept in enumerate(KEPT):
        source = shared_source(variant, seed, name=f"m{seed}")
        members.append(keeping(source, kept))
    return plan_fusion(members)


def inputs_of(variant: str) -> list[dict[str, torch.Tensor]]:
    """Return inputs of 1, 2 and 5 samples."""
    three_samples = inputs(variant)
    if not isinstance(three_samples, dict):
        return [{"pixel_values": images(samples)} for samples in (1, 2, 5)]
    batches = []
    for samples in (1, 2, 5):
        length = 5 + samples // 2  # another one for every number of samples
        batch = {}
        for name, tensor in three_samples.items():
            five_samples = torch.cat([tensor, tensor])[:5]  # rows 1 and 2 are padded
            batch[name] = five_samples[5 - samples :, :length].contiguous()
        batches.append(batch)
    return batches


@torch.no_grad()
def check(model: HydraModel, fed: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Compare outputs with those of the model, and with the mean of softmaxes in a few lines of its own."""
    logits = model.member_logits(fed.get("pixel_values", fed))
    tolerance = 1e-4 * max(1.0, float(logits.abs().max()))
    samples = len(next(iter(fed.values())))
    assert logits.shape == (2, samples, 5)
    mean = (logits[0].softmax(-1) + logits[1].softmax(-1)) / 2
    for name, expected in (("member_logits", logits), ("probabilities", mean)):
        actual = torch.as_tensor(outputs[name])
        assert actual.shape == expected.shape
        assert float((actual - expected).abs().max()) <= tolerance


class Exported:
    """Both files of one fused model, the model, and inputs of 1, 2 and 5 samples."""

    def __init__(self, variant: str, folder: Path) -> None:
        self.plan = plan_of(variant)
        targets = plan_exports(["onnx", "pt2"], folder / variant, self.plan.description, self.plan.tensors)
        self.onnx, self.pt2 = targets.values()
        records = write_exports(targets, self.model, ["a", "b"], 1, seed=0, force=False, log=Log())
        self.documents = [record.to_dict() for record in records]
        self.inputs = inputs_of(variant)

    def model(self) -> HydraModel:
        """Build the model anew."""
        return model_of(self.plan)

    def check(self, number: int, outputs: Mapping[str, Any]) -> None:
        """Compare the outputs for one of the inputs with those of the model."""
        check(self.model(), self.inputs[number], outputs)


Export = Callable[[str], Exported]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """One model of a family, exported once."""
    folder = tmp_path_factory.mktemp("exported")
    return cache(lambda variant: Exported(variant, folder))


# One of images and one of texts: the files of the others differ from these in what torch.export alone decides.
WRITTEN = ["class-token", "bert"]
WRITTEN_BEFORE_A_RELEASE = ["clip", "swin", "deberta-v3", "llama"]
GRAPHS = [*ONE_OF_EACH, "gpt2"]
FAMILIES = pytest.mark.parametrize("variant", [*marked_long(WRITTEN), *marked_release(WRITTEN_BEFORE_A_RELEASE)])


@FAMILIES
def test_onnx_runtime_gives_what_the_model_gives(exported: Export, variant: str) -> None:
    model = exported(variant)
    session = onnxruntime.InferenceSession(str(model.onnx), providers=["CPUExecutionProvider"])
    input_shapes = {entry.name: entry.shape for entry in session.get_inputs()}
    dimensions = ["batch", 3, 16, 16] if "pixel_values" in model.inputs[0] else ["batch", "tokens"]
    assert input_shapes == dict.fromkeys(model.inputs[0], dimensions)
    output_shapes = {entry.name: entry.shape for entry in session.get_outputs()}
    assert output_shapes == {
        "probabilities": ["batch", 5],
        "ood_score": ["batch"],
        "member_logits": [2, "batch", 5],
    }
    for number, fed in enumerate(model.inputs):
        arrays = {name: tensor.numpy() for name, tensor in fed.items()}
        probabilities, _, member_logits = session.run(None, arrays)
        model.check(number, {"probabilities": probabilities, "member_logits": member_logits})


GRAPHS_ALONE = ["map-pooling", "custom-text-first-token"]
GRAPHS_BEFORE_A_RELEASE = [v for v in GRAPHS if v not in (*GRAPHS_ALONE, *WRITTEN, *WRITTEN_BEFORE_A_RELEASE)]


@pytest.mark.long
@pytest.mark.parametrize("variant", [*GRAPHS_ALONE, *marked_release(GRAPHS_BEFORE_A_RELEASE)])
def test_a_graph_takes_inputs_of_every_size(variant: str) -> None:
    plan = plan_of(variant)
    model = model_of(plan)
    used_up = model_of(plan)
    longest = used_up.family.longest_text(plan.description.preprocess)
    graph = traced(used_up, longest).program.module()
    for fed in inputs_of(variant):
        if "pixel_values" in fed:  # DINOv2 of transformers takes any size of image, and a file the checkpoint's
            fed = {"pixel_values": model.example_inputs(len(fed["pixel_values"]))}
        check(model, fed, graph(**fed))


@pytest.mark.fault(90, 91)
@pytest.mark.parametrize("variant", marked_long(["gpt2", "bert"]))
@torch.no_grad()
def test_an_exported_answer_to_a_text_is_that_to_it_alone(variant: str, tmp_path: Path) -> None:
    """In both formats, with padding on either side: of a decoder whose texts end in the token that it pads with."""
    folder = padded(published(variant, tmp_path / "published"), variant, "left", "none" if variant == "gpt2" else "own")
    expected = alone(folder)
    (one, *_) = tokenized(folder)
    source = open_source(str(folder))
    batch = model_of(source).preprocess(TEXTS)
    left = rolled_left(batch)
    targets = plan_exports(["onnx", "pt2"], tmp_path / "exported", source.description, source.tensors)
    write_exports(targets, lambda: model_of(source), ["a"], 1, seed=0, force=False, log=Log())
    onnx_file, pt2_file = targets.values()
    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    program = torch.export.load(pt2_file).module()
    for fed, rows in [(batch, expected), (left, expected), ({name: one[name] for name in batch}, expected[:1])]:
        by_onnx = session.run(["member_logits"], {name: tensor.numpy() for name, tensor in fed.items()})[0]
        for found in (torch.from_numpy(by_onnx)[0], program(**fed)["member_logits"][0]):
            assert float((found - rows).abs().max()) <= 1e-4 * max(1.0, float(rows.abs().max()))


@pytest.mark.release
def test_plain_pytorch_gives_what_the_model_gives(exported: Export) -> None:
    variants = ["class-token", "bert", "clip", "swin", "deberta-v3"]
    folder = exported(variants[0]).pt2.parent
    torch.save({variant: exported(variant).inputs for variant in variants}, folder / "inputs")
    done = subprocess.run([sys.executable, "-c", PLAIN], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for variant, (answers, told) in torch.load(folder / "answers").items():
        assert len(answers) == 3
        for number, answer in enumerate(answers):
            exported(variant).check(number, answer)
        assert json.loads(told["labels"]) == exported(variant).plan.description.labels


@FAMILIES
def test_a_file_says_what_it_is_and_nothing_of_the_machine(exported: Export, variant: str) -> None:
    one = exported(variant)
    description = one.plan.description
    told = {entry.key: entry.value for entry in onnx.load(one.onnx).metadata_props}
    assert told["hydractl.schema"] == "hydractl.export/2"
    assert json.loads(told["hydractl.preprocess"]) == description.preprocess
    assert json.loads(told["hydractl.labels"]) == description.labels
    assert json.loads(told["hydractl.inputs"]) == ["a", "b"]
    assert (told["hydractl.members"], told["hydractl.arch"]) == ("2", description.arch)
    with zipfile.ZipFile(one.pt2) as archive:
        texts = [archive.read(name) for name in archive.namelist() if "/weights/weight_" not in name]
    for data in (one.onnx.read_bytes(), *texts):
        assert not re.search(rb"\.py\b|site-packages|HeadAttention", data)
        assert os.fsencode(ROOT) not in data


@pytest.mark.release
def test_the_tower_of_the_labels_is_not_exported(exported: Export) -> None:
    """Its embeddings alone would be 49408 * 24 * 4 bytes."""
    one = exported("clip")
    assert one.plan.description.labels == LABELS
    assert one.onnx.stat().st_size < 1e6 and one.pt2.stat().st_size < 1e6


@pytest.mark.long
def test_checks_are_told(exported: Export) -> None:
    for document in exported("bert").documents:
        check = document["check"]
        lengths = {tuple(sizes["input_ids"]) for sizes in check["inputs"]}
        assert lengths == {(1, 8), (3, 15)}  # the example has 2 texts of 16 tokens
        for name, difference in check["max_abs"].items():
            assert 0 <= difference <= check["tolerance"][name]
        assert document["bytes"] == Path(document["path"]).stat().st_size


# --- the command ------------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def members(here: Path) -> list[str]:
    """Two small members in the current folder."""
    for seed, name in enumerate(["a.st", "b.st"]):
        words = ["prune", TINY, "--method", "random", "--keep", "2", "--seed", str(seed), "-o", name, "-q"]
        assert run(*words)[0] == 0
    return ["a.st", "b.st"]


def files() -> set[str]:
    """What is in the current folder, hidden files too."""
    return {path.name for path in Path().iterdir()} - {"a.st", "b.st", "a.mask.json", "b.mask.json"}


def rendered(document: dict[str, Any]) -> str:
    """The table that a person is shown."""
    page = io.StringIO()
    Console(file=page, width=120).print(render(result_of(document), 120))
    return page.getvalue()


@pytest.mark.release
def test_another_process_exports_the_same_bytes(members: list[str]) -> None:
    kinds = "onnx,pt2"
    code, out, err = run("export", "a.st", "--format", kinds, "-o", "h.onnx", "--json")
    assert code == 0, err
    table = rendered(json.loads(out))
    assert "h.pt2" in table and "agrees with the model to" in table
    again = ["-m", "hydractl", "export", "a.st", "--format", kinds, "-o", "again.onnx", "-q"]
    done = subprocess.run([sys.executable, *again], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == ["again.onnx", "again.pt2"]
    for kind in ("onnx", "pt2"):
        assert Path(f"again.{kind}").read_bytes() == Path(f"h.{kind}").read_bytes()


def test_the_plan_of_one_model_names_its_files(members: list[str]) -> None:
    code, out, _ = run("export", "a.st", "--format", "onnx,pt2", "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "hydractl.export/3" and document["dry_run"]
    assert [line.split()[-1] for line in rendered(document).splitlines() if "would write" in line] == [
        "a.onnx",
        "a.pt2",
    ]
    assert files() == set()


def test_an_existing_file_is_refused_before_any_work(members: list[str]) -> None:
    Path("h.pt2").write_text("mine")
    for more in ([], ["--dry-run"]):
        code, _, err = run("export", "a.st", "-o", "h.pt2", *more)
        assert code == 5 and "the output exists: h.pt2" in err
    assert files() == {"h.pt2"} and Path("h.pt2").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.st", "-o", "x.st"], "--output x.st: export --format onnx writes no such file"),
        (["a.st", "--format", "pt2", "-o", "x.onnx"], "export --format pt2 writes no such file"),
        (["a.st", "-o", "-"], "--output - is for JSON, export writes weights"),
        (["a.st", "b.st"], "export takes one MODEL, not 2"),
        (["a.st", "--format", "tflite"], "--format must be one of onnx, pt2, not 'tflite'"),
    ],
)
def test_what_cannot_be_meant_is_refused(members: list[str], words: list[str], message: str) -> None:
    code, _, err = run("export", *words)
    assert code == 2 and message in err
    assert files() == set()


@pytest.mark.fault(68)
@pytest.mark.long
def test_the_way_to_an_exported_file_is_named(members: list[str]) -> None:
    code, _, err = run("fuse", *members, "-o", "h.pt2")
    assert code == 2 and files() == set()
    assert "name it h.st; hydractl export makes .onnx and .pt2 of it" in err
    with pytest.raises(UsageError, match="^save writes safetensors, not x.csv$") as caught:
        hydractl.save("a.st", "x.csv")
    assert str(caught.value.hint).startswith("name it x.st")


@pytest.mark.fault(58)
@pytest.mark.parametrize(
    "words",
    ["predict x.onnx new.npz", "prune x.onnx --method random --keep 2", "fuse a.st x.pt2 -o h.st", "--info x.pt2"],
)
def test_an_exported_file_is_no_model(members: list[str], words: str) -> None:
    """Nothing of it is read, whatever it holds."""
    for name in ("x.onnx", "x.pt2"):
        Path(name).write_bytes(b"")
    code, out, err = run(*words.split())
    name = "x.onnx" if "x.onnx" in words else "x.pt2"
    assert (code, out) == (3, "")
    assert err == (
        f"error: {name} is an exported file, which hydractl writes and does not open\n"
        "hint: give the .st file it was made of; docs/deploy.md has the lines that run and time it\n"
    )
    assert "## ONNX Runtime, images" in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="is an exported file"):
        hydractl.load(name)


def test_a_missing_library_is_named(members: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = export.importlib.util.find_spec
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    code, _, err = run("export", "a.st")
    assert code == 2
    assert "error: ONNX files need onnxruntime, not installed here\nhint: pip install 'hydractl[deploy]'\n" in err
    assert files() == set()


def test_a_zero_shot_model_needs_names(tmp_path: Path) -> None:
    from dataclasses import replace

    plan = plan_of("clip")
    with pytest.raises(UsageError, match="has no classes of its own") as caught:
        plan_exports(["pt2"], tmp_path / "x", replace(plan.description, labels=None), plan.tensors)
    assert caught.value.hint == "name them: --labels FILE"


@pytest.mark.long
@pytest.mark.parametrize("wrong", [2e-4, *marked_release([float("nan")])])
def test_a_file_that_deviates_is_not_left_behind(
    members: list[str], monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    def traced(model: HydraModel, *settings: Any) -> Any:
        logits = model.member_logits
        model.member_logits = lambda given: logits(given) + wrong  # type: ignore[method-assign]
        return original(model, *settings)

    original = export.traced
    monkeypatch.setattr(export, "traced", traced)
    code, out, err = run("export", "a.st", "-o", "h.pt2")
    assert (code, out) == (1, "")
    assert "the export h.pt2 failed its check: in torch" in err and "differ from the model by" in err
    assert files() == set()


def test_weights_too_large_for_onnx_are_refused(members: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_IN_ONNX", 0)
    code, _, err = run("export", "a.st", "--dry-run")
    assert code == 2 and "an ONNX file holds at most 2 GiB of weights" in err and "give --format pt2" in err
    assert run("export", "a.st", "--format", "pt2", "--dry-run")[0] == 0
