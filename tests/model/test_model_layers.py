"""What every block of a model gives, and the score of all layers, by the library's own model and sums in float64."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.fusion.plan import plan_fusion
from hydractl.metrics.feature_scores import layers as sums
from hydractl.model.detection import fit_detector, read_features, read_training
from tests.families.test_contract import READS_ALL, READS_TWO, reads_the_last
from tests.fusion.test_common import MASKS, of_one_checkpoint
from tests.metrics.arrays import class_distances
from tests.pico import HF, VARIANTS, close, images, inputs, model_of, shared_source, stock
from tests.spread import marked_release

SCORE = "mahalanobis-layers"

QUICK = ("class-token", "distilled", "swin", "bert", "modernbert-mean", "llama", "clip", "hf-dinov2")


def given_to(variant: str, count: int, seed: int) -> Any:
    """Samples: texts of unequal length, or pixels."""
    some = inputs(variant)
    if not isinstance(some, dict):
        return images(count, seed).double()
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 8, (count, 1), generator=generator)
    mask = (torch.arange(7) < lengths).long()
    ids = torch.randint(5, 40, (count, 7), generator=generator)
    padding = some["input_ids"][1, -1]
    batch = {"input_ids": torch.where(mask == 1, ids, padding), "attention_mask": mask}
    if "token_type_ids" in some:
        batch["token_type_ids"] = torch.zeros_like(ids)
    return batch


def block_outputs(network: Any, paths: list[str], batch: Any) -> list[torch.Tensor]:
    """What these modules of the library's model return, [B, T, d] each."""
    outputs: list[torch.Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        outputs.append(hidden.flatten(1, -2))

    with torch.no_grad(), ExitStack() as stack:
        for path in paths:
            stack.callback(network.get_submodule(path).register_forward_hook(keep).remove)
        if hasattr(network, "encode_image"):
            network.encode_image(batch)
        elif hasattr(network, "get_image_features"):
            network.get_image_features(**(batch if isinstance(batch, dict) else {"pixel_values": batch}))
        else:
            network(**batch) if isinstance(batch, dict) else network(batch)
    return outputs


def tokens_read(variant: str, batch: Any, tokens: int) -> list[tuple[list[int], int]]:
    """The places of the tokens of each sample that the classifier reads, and how many are no padding."""
    count = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
    mask = None
    if isinstance(batch, dict):
        mask = batch.get("attention_mask", batch.get("pixel_attention_mask"))
    places = []
    for sample in range(count):
        length = tokens if mask is None else int(mask[sample].sum())
        if variant in READS_ALL:
            read = list(range(length))
        elif variant in HF and reads_the_last(variant):
            read = [length - 1]
        else:
            read = [0, 1] if variant in READS_TWO else [0]
        places.append((read, length))
    return places


def library_vectors(variant: str, network: Any, paths: list[str], batch: Any) -> list[NDArray[np.float64]]:
    """Of each block the mean of the tokens read, [B, d], and that of the others where there are some, but the last."""
    vectors = []
    outputs = block_outputs(network, paths, batch)
    for block, hidden in enumerate(outputs):
        read, others = [], []
        for sample, (places, length) in zip(hidden, tokens_read(variant, batch, hidden.shape[1]), strict=True):
            read.append(sample[places].mean(dim=0).numpy())
            rest = [place for place in range(length) if place not in places]
            others.append(sample[rest].mean(dim=0).numpy() if rest else np.zeros(hidden.shape[2]))
        vectors.append(np.stack(read))
        if variant not in READS_ALL and block < len(outputs) - 1:
            vectors.append(np.stack(others))
    return vectors


def cut(batch: Any, rows: range) -> Any:
    """Some samples of a batch."""
    if isinstance(batch, dict):
        return {name: values[rows.start : rows.stop] for name, values in batch.items()}
    return batch[rows.start : rows.stop]


@pytest.mark.parametrize("variant", [*QUICK, *marked_release(v for v in VARIANTS if v not in QUICK)])
def test_the_score_of_all_layers_is_that_of_the_library_s_model(variant: str) -> None:
    network = stock(variant).double()
    model = model_of(shared_source(variant), dtype=torch.float64).with_classes()
    paths = model.chain_of_samples.block_paths
    training, batch = given_to(variant, 90, 1), given_to(variant, 7, 2)
    labels = np.arange(90) % 5
    with torch.no_grad():
        parts = [(rows, cut(training, rows)) for rows in (range(40), range(40, 90))]
        read = read_training([model], parts, labels)
        detector = fit_detector([SCORE, "mahalanobis"], [model], read, labels, 1, None)
        logits, (layers,) = read_features(model, batch, layers=detector.takes_layers)
        scores = detector.scores(logits, [layers])
        plain_logits, (features,) = read_features(model, batch)
        _, (training_features,) = read_features(model, training)

    expected = library_vectors(variant, network, paths, batch)
    assert torch.equal(logits, plain_logits)
    of_blocks = layers[:, features.shape[1] :].numpy()
    np.testing.assert_allclose(of_blocks, np.concatenate(expected, axis=1), rtol=1e-6, atol=1e-6)

    fit = [training_features.numpy(), *library_vectors(variant, network, paths, training)]
    naive = np.zeros(7)
    for of_training, of_samples in zip(fit, [features.numpy(), *expected], strict=True):
        naive += class_distances(of_training, labels, of_samples)
    assert scores[SCORE][0] == pytest.approx(naive, rel=1e-5)
    alone = fit_detector(["mahalanobis"], [model], read, labels, 1, None)
    np.testing.assert_array_equal(alone.scores(plain_logits, [features])["mahalanobis"], scores["mahalanobis"])


@pytest.mark.parametrize(("case", "side_by_side"), [("at-once", True), ("second", False), ("never", True)])
@pytest.mark.parametrize("variant", ["class-token", *marked_release(["swin", "bert", "llama", "clip"])])
@torch.no_grad()
def test_members_of_an_ensemble_give_what_they_give_alone(variant: str, case: str, side_by_side: bool) -> None:
    sources, _ = of_one_checkpoint(variant, MASKS[case])
    fused = model_of(plan_fusion(sources, [])).with_classes()
    fused.side_by_side = side_by_side
    batch = inputs(variant)
    _, together = read_features(fused, batch, layers=True)
    assert len(together) == len(sources)
    for source, found in zip(sources, together, strict=True):
        (expected,) = read_features(model_of(source).with_classes(), batch, layers=True)[1]
        close(found, expected)


@torch.no_grad()
def test_the_whole_last_block_gives_the_same() -> None:
    model = model_of(shared_source("class-token"))
    (expected,) = read_features(model, images(), layers=True)[1]
    model.whole_last_block = True
    close(read_features(model, images(), layers=True)[1][0], expected)


def test_layers_that_need_too_much_memory_are_refused() -> None:
    widths = [[4096] * 64]  # both vectors of 32 blocks
    with pytest.raises(InputError, match="mahalanobis-layers needs 8.0 GiB .* of 64 layers, more than 2"):
        sums.empty_sums(widths, 2)
    assert len(sums.empty_sums([[768] * 24], 1000)[0]) == 24
