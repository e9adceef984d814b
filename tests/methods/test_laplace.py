"""Laplace approximations over the last layers, against dense Hessians, naive loops and formulas written out."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import hydractl
from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.checkpoint import FileTensors, beside, with_tensors, write_tensors
from hydractl.files.header import read_header
from hydractl.methods import read_ensemble
from hydractl.methods.laplace import LaplaceOptions, curvature
from hydractl.methods.laplace.curvature import compared_factor, fit_classifier
from hydractl.model.detection import read_features
from hydractl.model.laplace import Posterior, last_layers
from hydractl.model.runtime import HydraModel
from hydractl.verbs.info import describe
from tests.calls import training_request
from tests.pico import close, images, inputs, shared_stock, source_of
from tests.pico_clip import pico_clip, publish_clip
from tests.running import quiet

VIT = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"


def fitted(model: Any, *, prior: float | None = None, **options: Any) -> Any:
    """The model with a posterior."""
    return hydractl.finetune(model, ensemble=LaplaceOptions(prior=prior), **options)


def built(variant: str) -> HydraModel:
    source = source_of(shared_stock(variant), variant)
    return HydraModel(source.description, source.tensors, dtype=torch.float64)


def covariance(posterior: Posterior) -> torch.Tensor:
    """Of the weights ``[k, d]`` as one vector, ``[k d, k d]``, float64."""
    vectors = torch.kron(posterior.outer, posterior.basis).double()
    return vectors @ torch.diag(posterior.spread.double().T.flatten()) @ vectors.T


def posterior_of(file: FileTensors, member: int, tower: str) -> Posterior:
    """As it is stored."""
    return Posterior(*(file.read(f"hydractl.laplace.{member}.{tower}.{part}") for part in ("basis", "spread", "outer")))


# --- classifiers ------------------------------------------------------------------------------------------------------


def test_of_one_sample_it_is_the_exact_hessian() -> None:
    """All samples alike, the curvature is one Kronecker product: nothing is approximated."""
    model, batch, prior = built("class-token"), images(1).double(), 0.7
    (fit,) = fit_classifier(model, [batch.repeat(4, 1, 1, 1)] * 2, None)
    curvature = fit.curvatures["main"]
    stock: Any = copy.deepcopy(shared_stock("class-token")).double()
    with torch.no_grad():
        x = F.pad(stock.forward_head(stock.forward_features(batch), pre_logits=True), (0, 1), value=1.0)
    weights = torch.cat([stock.head.weight, stock.head.bias[:, None]], dim=1).detach()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        logits = x @ flat.view(weights.shape).T
        return 8 * F.cross_entropy(logits, torch.tensor([2])) + prior / 2 * flat.square().sum()

    hessian = torch.func.hessian(loss)(weights.flatten())
    torch.testing.assert_close(covariance(curvature.posterior(prior, 8)), hessian.inverse(), rtol=1e-6, atol=1e-9)
    log_det = float(torch.linalg.slogdet(hessian)[1])
    expected = (weights.numel() * math.log(prior) - prior * float(weights.square().sum()) - log_det) / 2
    assert curvature.evidence(prior, 8) == pytest.approx(expected)


def test_the_factors_are_means_over_samples_of_any_batches() -> None:
    model, batch = built("class-token"), images(5).double()
    (fit,) = fit_classifier(model, [batch[:3], batch[3:]], None)
    stock: Any = copy.deepcopy(shared_stock("class-token")).double()
    with torch.no_grad():
        features = stock.forward_head(stock.forward_features(batch), pre_logits=True)
        each = [(F.pad(x, (0, 1), value=1.0), p) for x, p in zip(features, stock(batch).softmax(-1), strict=True)]
    a = sum(torch.outer(x, x) for x, _ in each) / 5
    b = sum(torch.diag(p) - torch.outer(p, p) for _, p in each) / 5
    found = fit.curvatures["main"]
    torch.testing.assert_close(found.basis @ torch.diag(found.a) @ found.basis.T, a)
    torch.testing.assert_close(found.outer @ torch.diag(found.b) @ found.outer.T, b)


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 255, (40, 16, 16, 3), dtype=np.uint8), draw.integers(0, 5, 40)


@pytest.fixture(scope="module")
def fused(data: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two members, and beside it the same with posteriors."""
    folder = tmp_path_factory.mktemp("laplace")
    members = [hydractl.prune(f"{VIT}", method="random", keep=2, seed=seed) for seed in range(2)]
    hydractl.fuse(members, output=str(folder / "plain.st"))
    fitted(folder / "plain.st", train=data[0], prior=0.01, output=str(folder / "with.st"))
    return folder


@torch.no_grad()
def naive(folder: Path, batch: torch.Tensor) -> torch.Tensor:
    """The softmax of the scaled logits of each member, from the covariance of its weights, ``[M, B, C]``."""
    plain, stored = hydractl.load(folder / "plain.st", device="cpu"), FileTensors(folder / "with.st")
    every = []
    for member, (logits, features) in enumerate(zip(*read_features(plain, batch), strict=True)):
        sigma = covariance(posterior_of(stored, member, "main"))
        x = F.pad(features.double(), (0, 1), value=1.0)
        jacobians = [torch.kron(torch.eye(5, dtype=torch.float64), row[None]) for row in x]
        variance = torch.stack([(j @ sigma @ j.T).diagonal() for j in jacobians])
        every.append((logits.double() / (1 + math.pi / 8 * variance).sqrt()).softmax(dim=-1))
    return torch.stack(every)


@torch.no_grad()
def test_every_pass_uses_the_posterior_of_each_member(fused: Path) -> None:
    batch = images(4)
    expected = naive(fused, batch)
    model = hydractl.load(fused / "with.st", device="cpu")
    found = model.member_logits(batch).softmax(dim=-1).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    plain = hydractl.load(fused / "plain.st", device="cpu")
    assert float((found - plain.member_logits(batch).softmax(dim=-1)).abs().max()) > 1e-2
    close(model(batch), expected.mean(dim=0).log().float())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(copied(batch), model(batch))
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_eval_sees_it_and_a_calibrated_file_keeps_it(fused: Path, data: tuple[Any, Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept.st"
    told = hydractl.evaluate(fused / "with.st", test=(data[0][:9], data[1][:9]), allow_seen=True,
                             train=(data[0], data[1]), ood_score="mahalanobis", ood={"o": data[0][20:]})  # fmt: skip
    hydractl.calibrate(fused / "with.st", train=(data[0], data[1]), ood_score="mahalanobis", output=str(kept))
    model = hydractl.load(fused / "with.st", device="cpu")
    batch = model.preprocess([Image.fromarray(one) for one in data[0][:9]])
    p = naive(fused, batch).mean(dim=0)
    nll = -float(p[torch.arange(9), torch.from_numpy(data[1][:9])].log().mean())
    assert told.models[0].id.nll == pytest.approx(nll, rel=1e-4)
    hydractl.save(hydractl.open(kept), tmp_path / "saved.st")
    with torch.no_grad():
        for path in (kept, tmp_path / "saved.st"):
            again = hydractl.load(path, device="cpu")
            close(again(batch), model(batch))
            assert again.predict(batch).ood_score.shape == (9,)
    # What was fitted to these logits is not kept beside another posterior.
    with pytest.warns(UserWarning, match="left out, as fitted to the logits.*: ood_score"):
        fitted(kept, train=data[0], prior=3.0, output=str(tmp_path / "anew.st"))
    info = describe(tmp_path / "anew.st").to_dict()
    assert info["laplace"]["prior"] == [{"main": 3.0}] * 2 and "ood_score" not in info
    assert not [name for name in read_header(tmp_path / "anew.st").tensors if name.startswith("hydractl.ood")]


@pytest.mark.release
def test_an_exported_file_has_it(fused: Path, tmp_path: Path) -> None:
    hydractl.export(fused / "with.st", tmp_path / "with.pt2")
    batch = images(4)
    found = torch.export.load(str(tmp_path / "with.pt2")).module()(pixel_values=batch)["member_logits"]
    torch.testing.assert_close(found.double().softmax(dim=-1), naive(fused, batch), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrong", ["missing", "shape", "negative"])
def test_a_damaged_posterior_is_refused(fused: Path, tmp_path: Path, wrong: str) -> None:
    path, name = fused / "with.st", "hydractl.laplace.1.main.spread"
    source, description = FileTensors(path), read_header(path).description
    parts = beside(source)
    if wrong == "missing":
        del parts[name]
    else:
        parts[name] = -parts[name] if wrong == "negative" else parts[name][1:]
    with open(tmp_path / "bad.st", "wb") as handle:
        write_tensors(handle, with_tensors(source, parts), description or {})
    with pytest.raises(InputError, match="broken Laplace posterior"):
        hydractl.load(tmp_path / "bad.st", device="cpu")


def test_weights_that_would_change_are_refused(fused: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fused / "with.st"
    quiet("fuse", path, path, "-o", fused / "no.st", code=3)
    assert "which is of its weights as they are" in capsys.readouterr().err
    with pytest.raises(UsageError, match="averages 2 classifiers"):
        last_layers(built("distilled"))


def test_the_prior_is_that_of_the_best_nll_or_of_the_evidence(fused: Path, data: tuple[Any, Any]) -> None:
    """Validation labels that are noise want the widest posterior, and say so."""
    found = fitted(fused / "plain.st", train=data[0][20:], val=(data[0][:20], data[1][:20]))
    each = [fitted(fused / "plain.st", train=data[0][20:], prior=prior) for prior in (1e-4, 1.0, 1e6)]

    def nll(model: Any) -> list[float]:
        run = hydractl.load(model, device="cpu")
        batch = run.preprocess([Image.fromarray(one) for one in data[0][:20]])
        with torch.no_grad():
            return [float(F.cross_entropy(z, torch.from_numpy(data[1][:20]))) for z in run.member_logits(batch)]

    best = nll(found)
    assert all(best[m] <= nll(other)[m] + 1e-6 for other in each for m in range(2))
    assert found.result.chosen_by == "nll"
    evidence = fitted(fused / "plain.st", train=data[0][20:]).result
    assert evidence.chosen_by == "marginal likelihood" and len(evidence.prior) == 2


# --- images and texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each_alone", [False, True])
def test_the_factor_of_a_projection_is_the_naive_one(each_alone: bool) -> None:
    torch.manual_seed(0)
    own, others, scale, bias = torch.randn(5, 4).double(), torch.randn(5, 4).double(), 3.0, -1.0
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for g in own:

        def logits(g: torch.Tensor) -> torch.Tensor:
            return scale * F.normalize(others, dim=-1) @ (g / g.norm()) + bias

        j = torch.func.jacrev(logits)(g)
        p = logits(g).sigmoid() if each_alone else logits(g).softmax(-1)
        inner = torch.diag(p * (1 - p)) if each_alone else torch.diag(p) - torch.outer(p, p)
        expected += j.T @ inner @ j / 5
    torch.testing.assert_close(compared_factor(own, others, scale, bias, each_alone), expected)


def test_pairs_are_compared_in_parts_and_a_part_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    own, others = torch.randn(10, 4).double(), torch.randn(10, 4).double()
    whole = compared_factor(own, others, 3.0, 0.0, False)
    monkeypatch.setattr(curvature, "CELLS_AT_ONCE", 20)  # two rows of ten
    torch.testing.assert_close(compared_factor(own, others, 3.0, 0.0, False), whole)
    monkeypatch.setattr(curvature, "PAIRS_COMPARED", 5)
    halves = [compared_factor(own[part], others[part], 3.0, 0.0, False) for part in (slice(5), slice(5, 10))]
    torch.testing.assert_close(compared_factor(own, others, 3.0, 0.0, False), sum(halves) / 2)
    assert not torch.allclose(sum(halves) / 2, whole, rtol=1e-3)


@pytest.mark.parametrize("variant", ["clip-bias", "hf-clip"])
def test_projections_are_found_in_both_towers(variant: str) -> None:
    """Inputs times the weight, normalised, are the features of the library's own towers."""
    source = source_of(shared_stock(variant), variant)
    model = HydraModel(source.description, source.tensors)
    with torch.no_grad():
        prompted = model.zero_shot(["a cat", "dog"], ["{label}", "a {label}."])
        assert prompted.prompted is not None
        ((image, text),) = last_layers(model)
        for chain, layer, given in (
            (model.chain_of_samples, image, inputs(variant)),
            (model.chain_of_labels, text, prompted.prompted.inputs()[0]),
        ):
            x = chain.of_projection()(given)[0]
            whole = x if layer.bias is None else F.pad(x, (0, 1), value=1.0)
            mean = F.normalize(whole @ layer.weight.T, dim=-1).mean(dim=1)
            close(F.normalize(mean, dim=-1), chain(given)[0])


def test_a_tower_without_a_projection_is_refused() -> None:
    with pytest.raises(UsageError, match="visual tower"):
        last_layers(built("hf-siglip"))


def check_precision(path: str, expected: torch.Tensor) -> None:
    """Compare the precision of the text projection of a stored posterior."""
    precision = covariance(posterior_of(FileTensors(Path(path)), 0, "text")).inverse()
    assert float((precision - expected).abs().max() / expected.abs().max()) < 1e-3


@pytest.mark.parametrize(
    ("asked", "of_samples", "of_pairs"), [("laplace", 12, 120), ("laplace:0.5", 6, 6), ("laplace:10,0.1", 120, 120)]
)
def test_the_curvature_counts_as_a_multiple_of_the_samples(asked: str, of_samples: float, of_pairs: float) -> None:
    options = read_ensemble(asked)
    assert isinstance(options, LaplaceOptions)
    assert options.counted_samples(12, are_pairs=False) == of_samples
    assert options.counted_samples(12, are_pairs=True) == of_pairs


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lr": [0.1]}, "--lr has no effect with --ensemble laplace"),
        ({"tower": "text"}, "--tower has no effect with --ensemble laplace"),
        ({"val": "v.npz", "ensemble": LaplaceOptions(prior=3)}, "--val chooses the prior: without PRIOR"),
    ],
)
def test_what_a_posterior_has_no_use_for_is_refused(options: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        training_request(**{"ensemble": LaplaceOptions(), **options})


def test_it_is_of_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.chdir(tmp_path):
        quiet("finetune", "a.st", "b.st", "--train", "t.npz", "--ensemble", "laplace", code=2)
    assert "--ensemble laplace takes one model, got 2" in capsys.readouterr().err


def test_the_curvature_of_pairs_and_the_logits_of_a_clip_with_a_bias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a table of captions to probabilities, against what is written out on the library's own features."""
    monkeypatch.chdir(tmp_path)
    Path("clip").mkdir()
    publish_clip(pico_clip("clip-bias"), "clip-bias", Path("clip"))
    draw, rows = np.random.default_rng(0), []
    for i in range(12):
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(f"{i}.png")
        rows.append({"image": f"{i}.png", "caption": f"picture {i * i}"})
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pairs = ["--train", "captions:pairs.jsonl"]
    quiet("finetune", "clip", *pairs, "--ensemble", "laplace:3.5,0.05", "-o", "b.st")
    plain, model = (hydractl.load(ref, device="cpu").zero_shot(["cat", "dog"]) for ref in ("clip", "b.st"))
    with torch.no_grad():
        batch = plain.preprocess([Image.open(f"{i}.png") for i in range(3)])
        found = model.member_logits(batch)[0]
        assert plain.prompted is not None
        stock: Any = pico_clip("clip-bias")
        given = {"visual": (plain.chain_of_samples, batch), "text": (plain.chain_of_labels, plain.prompted.inputs()[0])}
        of_images, text_layer = stock.visual.proj.T.double(), stock.text_projection.double()
        of_texts = torch.cat([text_layer.weight, text_layer.bias[:, None]], dim=1)
        moments = {}
        for tower, (chain, tensors) in given.items():
            x = chain.of_projection()(tensors)[0][:, 0].double()
            if tower == "text":
                x = F.pad(x, (0, 1), value=1.0)
            weight = of_images if tower == "visual" else of_texts
            sigma = covariance(posterior_of(FileTensors(Path("b.st")), 0, tower))
            jacobians = [torch.kron(torch.eye(len(weight), dtype=torch.float64), row[None]) for row in x]
            moments[tower] = [(weight @ row, j @ sigma @ j.T) for row, j in zip(x, jacobians, strict=True)]
        scale, bias = float(stock.logit_scale.exp()), float(stock.logit_bias)
        for i, (g, sg) in enumerate(moments["visual"]):
            for c, (h, sh) in enumerate(moments["text"]):
                lengths = (g @ g + sg.trace()) * (h @ h + sh.trace())
                variance = scale**2 * ((sg @ sh).trace() + g @ sh @ g + h @ sg @ h) / lengths
                expected = scale * g @ h / lengths.sqrt() / (1 + math.pi / 8 * variance).sqrt() + bias
                assert float(found[i, c]) == pytest.approx(float(expected), rel=1e-3, abs=1e-4)
        assert float((found - plain.member_logits(batch)[0]).abs().max()) > 1e-2
        close(pickle.loads(pickle.dumps(model)).member_logits(batch)[0], found)
        # The precision is 3.5 * 12 of the mean curvature of the pairs, and the prior.
        captions = plain.family.prompts(plain.description.config, {}, [row["caption"] for row in rows], ["{label}"])
        pixels = plain.preprocess([Image.open(row["image"]) for row in rows])
        x, y = (
            chain.of_projection()(tensors)[0][:, 0].double()
            for chain, tensors in ((plain.chain_of_samples, pixels), (plain.chain_of_labels, captions))
        )
        y = F.pad(y, (0, 1), value=1.0)
        g, h = x @ of_images.T, y @ of_texts.T
        b = compared_factor(h, g, scale, bias, True)
        curvature = torch.kron(b, y.T @ y / 12)
        check_precision("b.st", 42 * curvature + 0.05 * torch.eye(len(curvature)))
    with pytest.raises(HydraError, match="pairs"):
        fitted("clip", train=[Image.new("RGB", (16, 16))])
    # With two templates and validation data the prior is one for both towers.
    for name in ("cat", "dog"):
        Path("val", name).mkdir(parents=True)
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(f"val/{name}/0.png")
    told = fitted("clip", train="captions:pairs.jsonl", val="val", prompt=["{label}", "a {label}"]).result
    assert told.prior[0]["visual"] == told.prior[0]["text"]
