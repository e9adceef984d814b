"""Ensembles that run one after another, and finding the MODELs of a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hydractl.errors import InputError, UsageError
from hydractl.expressions.models import ModelRef
from hydractl.fusion.plan import plan_fusion
from hydractl.model.loading import ModelArgument, SequentialEnsemble, build_model, find_models, resolve_dtype
from hydractl.model.matching import check_agreement
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from tests.pico import images, model_of, shared_source, stock, write_stored
from tests.running import refused

VARIANT = "class-token"
NAMED = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes="


def sources(count: int) -> list[Source]:
    return [shared_source(VARIANT, seed, name=f"m{seed}") for seed in range(count)]


def found(*texts: str) -> list[ModelArgument]:
    return find_models([ModelRef(text) for text in texts])


def test_one_text_alone_is_no_list() -> None:
    preprocess = build_model(shared_source("bert", 0, name="m")).preprocess
    with pytest.raises(InputError, match="a list of texts, not one alone"):
        preprocess("a film")  # a list of letters otherwise


def test_an_unknown_dtype_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match="unknown dtype 'fp16', not one of float32, bfloat16, float16, float64"):
        resolve_dtype("fp16")


@torch.no_grad()
def test_members_are_the_models_and_the_average_is_of_their_softmaxes() -> None:
    references = [stock(VARIANT, seed)(images()) for seed in range(3)]
    ensemble = SequentialEnsemble([build_model(source) for source in sources(3)])
    assert torch.allclose(ensemble.member_logits(images()), torch.stack(references), atol=1e-5)
    pooled = torch.stack(references).softmax(-1).mean(0)
    assert torch.allclose(ensemble(images()).exp(), pooled, atol=1e-6)
    logits_averaged = torch.stack(references).mean(0).softmax(-1)
    assert not torch.allclose(pooled, logits_averaged, atol=1e-3)


@torch.no_grad()
def test_every_member_of_a_fused_model_counts_as_one() -> None:
    one, *others = sources(3)
    plan = plan_fusion(others, [])
    models = [build_model(one), model_of(plan)]
    ensemble = SequentialEnsemble(models)
    together = SequentialEnsemble([build_model(source) for source in (one, *others)])
    assert torch.allclose(ensemble(images()), together(images()), atol=1e-5)


@pytest.mark.fault(23)
def test_all_differences_are_listed() -> None:
    description = sources(1)[0].description
    preprocess = {**description.preprocess, "crop_pct": 0.5, "mean": [0, 0, 0]}
    labels = ["a", "b", "c", "d", "e"]
    models = [
        ("first", description),
        ("named", replace(description, labels=labels)),
        ("turned", replace(description, labels=labels[::-1])),
        ("cropped", replace(description, preprocess=preprocess)),
    ]
    with pytest.raises(InputError, match="cannot be averaged") as caught:
        check_agreement(models)
    mean, crop = description.preprocess["mean"], description.preprocess["crop_pct"]
    assert caught.value.problems == [
        "turned against named: the same classes in another order",
        f"cropped against first: preprocessing mean [0, 0, 0], not {mean!r}",
        f"cropped against first: preprocessing crop_pct 0.5, not {crop!r}",
    ]
    check_agreement(models[:2])


@pytest.mark.fault(23)
def test_other_numbers_of_classes_are_refused_before_building() -> None:
    caught = refused(InputError, found, f"{NAMED}3+{NAMED}4")
    assert caught.problems == ["vit_tiny_patch16_224 against vit_tiny_patch16_224: 4 classes, not 3"]


def test_names_and_sizes(tmp_path: Path) -> None:
    files = [str(write_stored(source, tmp_path / f"{source.name}.st")) for source in sources(2)]
    one, both, named, random = found(files[0], "+".join(files), f"deep={files[1]}+{files[0]}", f"{NAMED}3")
    assert [one.name, both.name, named.name, random.name] == ["m0", "m0+m1", "deep", "vit_tiny_patch16_224"]
    sizes = [Path(file).stat().st_size for file in files]
    assert one.file_bytes == sizes[0] and both.file_bytes == sum(sizes) and random.file_bytes is None
    ensemble = both.build(dtype="float64")
    assert isinstance(one.build(), HydraModel) and isinstance(ensemble, SequentialEnsemble)
    assert {parameter.dtype for parameter in ensemble.parameters()} == {torch.float64}
    assert isinstance(one.sha256, str) and named.sha256 == list(reversed(both.sha256))


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    file = write_stored(sources(1)[0], tmp_path / "m0.st")
    with pytest.raises(UsageError, match="MODEL names used twice: m0"):
        found(str(file), f"m0={file}+{file}")


def test_what_is_wrong_with_every_model_is_said(tmp_path: Path) -> None:
    caught = refused(InputError, found, str(tmp_path / "a.st"), f"x={tmp_path}/b.st+{tmp_path}/c.st")
    assert [problem.rpartition("/")[2] for problem in caught.problems] == ["a.st", "b.st", "c.st"]
