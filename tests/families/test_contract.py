"""What every family must hold, with the library's own model as the reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hydractl.families.base import attention_names
from hydractl.heads.mask import HeadMask
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source, open_source, with_labels
from hydractl.model.stored import zeroed
from tests.pico import (
    CLIP,
    HF,
    LABELS,
    MORE,
    TEMPLATES,
    VARIANTS,
    close,
    inputs,
    keeping,
    logits,
    mask_of,
    model_of,
    prompts,
    prune_source,
    published,
    same_tensors,
    shared_source,
    shared_stock,
    stock,
    stock_logits,
    tensors_of,
)
from tests.spread import ONE_OF_EACH, RELEASE_VARIANTS, marked_release, spread

MASKS = {
    "unequal": [[0, 2], [1], [0, 1, 2]],
    "one-site-empty": [[1, 2], [], [0]],
    "first-and-last-empty": [[], [0, 1], []],
}


def first(fast: Sequence[str]) -> list[Any]:
    """These variants in every run, the others before a release."""
    rest = [variant for variant in VARIANTS if variant not in fast]
    return [*fast, *marked_release([*rest, *MORE])]


def pico(variant: str) -> Source:
    return shared_source(variant)


# One of each way in which the weights of heads are stored.
LAYOUTS = (
    *ONE_OF_EACH,
    *("qk-norm", "eva-post-norm", "distilbert", "deberta-v3", "gpt2", "eva-tower", "hf-clip"),
)


@cache
def dense(variant: str) -> HydraModel:
    """The model with all of its heads, made once: for tests that leave it as it was."""
    source = pico(variant)
    return model_of(source)


def without(variant: str, mask: HeadMask) -> torch.Tensor:
    """What the library says with the columns of the removed heads zeroed."""
    return stock_logits(variant, tuple(mask.removed_heads))


# Of each mechanism, one without any head, too.
SLICED = spread(VARIANTS, MASKS) + [(variant, "no head at all") for variant in ("class-token", "beit", "bert", "clip")]


@torch.no_grad()
@pytest.mark.parametrize(("variant", "name"), SLICED + marked_release(spread(MORE, MASKS)))
def test_slicing_equals_the_stock_model_with_zeroed_columns(variant: str, name: str) -> None:
    sliced = keeping(pico(variant), MASKS.get(name, [[], [], []]))
    mask = sliced.description.mask
    model = model_of(sliced)
    assert [a.head_counts[0] for a in model.attentions] == mask.counts()
    expected = without(variant, mask)
    assert not torch.allclose(expected, stock_logits(variant), atol=1e-3), "the removed heads must matter"
    close(model.member_logits(inputs(variant))[0], expected)


# Half of the models is zeroed where it is whole, and the other half where it is sliced.
@torch.no_grad()
@pytest.mark.parametrize(("variant", "sliced"), spread([*ONE_OF_EACH, "gpt2"], [False, True]))
def test_the_zeroed_layout_loads_in_the_stock_model(variant: str, sliced: bool) -> None:
    source = pico(variant)
    mask = mask_of(source, MASKS["one-site-empty"])
    stored, present = (prune_source(source, mask), mask) if sliced else (source, source.description.mask)
    loaded = stock(variant, seed=9)
    loaded.load_state_dict(tensors_of(zeroed(stored.tensors, source.family, source.sites, present, mask)))
    close(logits(loaded, inputs(variant)), without(variant, mask))


@torch.no_grad()
@pytest.mark.parametrize("variant", ["bert", "llama", "clip", "hf-siglip"])
def test_weights_and_inputs_of_16_bits_give_nearly_the_same(variant: str) -> None:
    found = model_of(pico(variant), dtype=torch.bfloat16).member_logits(
        move(inputs(variant), torch.device("cpu"), torch.bfloat16)
    )[0]
    expected = stock_logits(variant)
    assert found.dtype == torch.bfloat16
    assert float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())


@pytest.mark.parametrize("variant", first(LAYOUTS))
def test_read_then_write_is_bitwise_identity(variant: str) -> None:
    source = pico(variant)
    state = shared_stock(variant).state_dict()
    for site in source.sites:
        names = attention_names(source.family, state, site)
        stored = {name: state[name] for name in names}
        written: dict[str, torch.Tensor] = {}
        source.family.write(written, site, source.family.read(stored, site))
        assert same_tensors(written, stored), site.path


@pytest.mark.parametrize("variant", ["class-token", "qk-norm", "eva", "beit", "bert", "llama", "clip", "gpt2"])
def test_the_runtime_gives_its_weights_back_bitwise(variant: str) -> None:
    source = pico(variant)
    sliced = keeping(source, MASKS["one-site-empty"])
    back = model_of(sliced).stock_tensors()
    assert same_tensors(back, tensors_of(sliced.tensors))


@torch.no_grad()
@pytest.mark.parametrize("variant", ["class-token", "bert", "llama", "clip"])
def test_pruning_twice_composes_in_original_numbers(variant: str) -> None:
    source = pico(variant)
    first = keeping(source, [[0, 2], [1, 2], [0, 1, 2]])
    second = prune_source(first, mask_of(source, [[2], [1, 2], [0, 2]]))
    assert second.description.mask.kept[source.sites[0].path] == (2,)
    model = model_of(second)
    close(model.member_logits(inputs(variant))[0], without(variant, second.description.mask))


READS_TWO = ("distilled", "hf-deit-distilled")
READS_ALL = (
    *("average-pooling", "map-pooling", "eva", "swin"),
    *("modernbert-mean", "hf-dinov2", "hf-dinov2-registers", "hf-dinov2-swiglu", "hf-siglip"),
    *("hf-clip-images", "hf-siglip-images"),
)


def tokens_read(variant: str) -> int | None:
    """How many tokens of a sample the readout looks at; None: all."""
    if variant in READS_ALL:
        return None
    return 2 if variant in READS_TWO else 1


# Of each readout: one token, two, the last, and all. That its logits are the library's is tested of every model above.
READOUTS = (
    *("class-token", "average-pooling", "distilled", "map-pooling", "eva", "bert", "modernbert"),
    *("modernbert-mean", "llama", "hf-vit", "hf-dinov2", "clip", "hf-siglip", "swin", "hf-deit-distilled"),
)


@pytest.mark.parametrize("variant", first(READOUTS))
def test_the_last_block_for_the_tokens_that_are_read(variant: str) -> None:
    """With padding, causal masks, repeated samples, and a site without heads."""
    source = pico(variant)
    models = [dense(variant)]
    for kept in ([[0, 2], [1], [0, 2]], [[], [0, 1, 2], []]):
        pruned = keeping(source, kept)
        models.append(model_of(pruned))
    for model in models:
        for chain in model.chains:
            state = chain.stem(prompts(source) if chain.of_labels else inputs(variant))
            whole = chain.rest(chain.sites.start, state)
            for site in list(chain.sites)[:-1]:
                state = chain.block(site, state)
            close(chain.readout(chain.block(chain.sites[-1], state)), whole)
            last = chain.last_block(state)
            count = 1 if chain.of_labels else tokens_read(variant)
            if count is None:
                assert chain.query_tokens(state) is state
            else:
                assert last.hidden.shape[1] == count
            close(chain.readout(last), whole)
            twice = chain.readout(chain.last_block(chain.repeated(state, 2)))
            close(twice, torch.cat([whole, whole], dim=1))


# One of each kind of buffer that a library computes; a wrong one gives other logits.
BUFFERS = (
    *("class-token", "eva", "dinov3", "beit", "swin"),
    *("bert", "modernbert", "llama", "clip"),
)


@pytest.mark.parametrize("variant", first(BUFFERS))
def test_skeletons_have_the_buffers_of_the_library(variant: str) -> None:
    reference = dict(shared_stock(variant).named_buffers())
    source = pico(variant)
    skeleton = source.family.build(source.description.config)
    built = dict(skeleton.named_buffers())
    assert sorted(built) == sorted(reference)
    stored = shared_stock(variant).state_dict()
    made_anew = built.keys() - stored.keys()
    for name in made_anew:
        assert torch.equal(built[name], reference[name]), name
    assert all(parameter.is_meta for parameter in skeleton.parameters()) and not skeleton.training


# --- a batch never matters --------------------------------------------------------------------------------------------

TEXTS = ["a fine film", "not so dull !", "a", "unkind , dull films", "films"]
TEXT_VARIANTS = [name for name, (_, _, settings) in HF.items() if "vocab_size" in settings]
TEXTS_IN_EVERY_RUN = [name for name in TEXT_VARIANTS if name not in (*MORE, *RELEASE_VARIANTS)]
SIDES = ("left", "right")
PADDING = ("own", "end", "end-of-config", "none")
"""What the tokenizer pads with: a token of its own, or the token that ends every text, which the configuration may
name, too; or it names no token, and hydractl takes the end of a text."""


def padding_cases() -> list[Any]:
    """Every text model with padding on either side: of its own and by the end, a decoder with all kinds.

    In every run an encoder and a decoder with each kind on one side, and of the other models one case each.
    """
    cases: list[Any] = []
    for variant in (*TEXTS_IN_EVERY_RUN, *(name for name in TEXT_VARIANTS if name not in TEXTS_IN_EVERY_RUN)):
        kinds: Sequence[str] = PADDING if reads_the_last(variant) else PADDING[:2]
        chosen = [(variant, *case) for case in product(SIDES, kinds)]
        often = [case for case in chosen if case[1:] == ("left", "end")]
        if variant in ("bert", "gpt2"):
            often = spread([variant], SIDES, kinds, each=len(kinds))
        if variant not in TEXTS_IN_EVERY_RUN:
            often = []
        cases += [*often, *marked_release(case for case in chosen if case not in often)]
    return cases


def reads_the_last(variant: str) -> bool:
    """Of decoders alone hydractl chooses a token to pad with."""
    return (tokens_read(variant) == 1 and "num_key_value_heads" in HF[variant][2]) or variant == "gpt2"


def padded(folder: Path, variant: str, side: str, kind: str) -> Path:
    """A folder whose tokenizer pads in this way, and of which the library's own model reads one text at a time."""
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text()) | {"padding_side": side}
    config = json.loads((folder / "config.json").read_text())
    end = tokenizer["sep_token"]
    number = {"[SEP]": 3, "</s>": 2}[end]
    tokenizer["eos_token"] = end
    if kind == "none":
        del tokenizer["pad_token"]
    elif kind != "own":
        tokenizer["pad_token"] = end
    if reads_the_last(variant) and kind != "own":
        config["pad_token_id"] = number if kind == "end-of-config" else None
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tokenized(folder: Path) -> list[Any]:
    """Each text without any other, by the library."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, return_tensors="pt") for text in TEXTS]


def alone(folder: Path) -> torch.Tensor:
    """What the library itself says to each text without any other: ``[texts, classes]``."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return torch.cat([model(**one).logits for one in tokenized(folder)])


def rolled_left(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same texts with the padding before them."""
    shifts = (1 - batch["attention_mask"]).sum(1).tolist()
    return {name: torch.stack([r.roll(n) for r, n in zip(rows, shifts, strict=True)]) for name, rows in batch.items()}


@pytest.mark.fault(90, 91)
@torch.no_grad()
@pytest.mark.parametrize(("variant", "side", "kind"), padding_cases())
def test_a_batch_never_matters(variant: str, side: str, kind: str, tmp_path: Path) -> None:
    folder = padded(published(variant, tmp_path), variant, side, kind)
    expected = alone(folder)
    source = open_source(str(folder))
    model = model_of(source)
    for size in (1, 2, len(TEXTS)):
        for order in (range(len(TEXTS)), [3, 0, 4, 2, 1]):
            found = torch.zeros_like(expected)
            for start in range(0, len(TEXTS), size):
                rows = list(order)[start : start + size]
                batch = model.preprocess([TEXTS[row] for row in rows])
                found[rows] = model.member_logits(batch)[0]
            close(found, expected)
    # Whoever pads on the left by himself gets the same.
    left = rolled_left(model.preprocess(TEXTS))
    assert left["attention_mask"][:, -1].all()
    close(model.member_logits(left)[0], expected)


@pytest.mark.fault(90, 91)
@pytest.mark.parametrize(
    ("variant", "kind"), [("bert", "own"), ("roberta", "end"), ("gpt2", "none"), ("llama", "none")]
)
def test_the_gradient_of_a_batch_is_the_mean_of_those_alone(variant: str, kind: str, tmp_path: Path) -> None:
    """Of the library's own model, one text at a time; the words are among what is trained."""
    folder = padded(published(variant, tmp_path), variant, "left", kind)
    labels = torch.tensor([0, 4, 1, 2, 2])
    library = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for one, label in zip(tokenized(folder), labels, strict=True):
        loss = torch.nn.functional.cross_entropy(library(**one).logits, label[None])
        (loss / len(TEXTS)).backward()
    source = open_source(str(folder))
    model = model_of(source)
    logits_of_batch = model.member_logits(model.preprocess(TEXTS))[0]
    torch.nn.functional.cross_entropy(logits_of_batch, labels).backward()
    expected = dict(library.named_parameters())
    compared = 0
    for name, parameter in model.networks[0].named_parameters():
        if name in expected and expected[name].grad is not None:
            assert parameter.grad is not None, name
            close(parameter.grad, expected[name].grad)
            compared += 1
    assert compared > 15


@pytest.mark.fault(90)
@torch.no_grad()
@pytest.mark.parametrize("variant", CLIP)
def test_the_other_labels_never_matter(variant: str, tmp_path: Path) -> None:
    """A label has the same logit alone, and wherever the tokenizer pads; ``member_logits`` are not yet normalised."""
    folder = published(variant, tmp_path)
    settings = folder / "tokenizer_config.json"
    reads_padding = "siglip" in variant  # all texts have the full length, and the library pads where its tokenizer says
    if settings.exists() and not reads_padding:
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": "left"}))
    source = open_source(str(folder))
    together = stock_logits(variant)
    for index in (0, 3):
        asked = with_labels(source, [LABELS[index]], TEMPLATES)
        model = model_of(asked)
        close(model.member_logits(inputs(variant))[0], together[:, index : index + 1])
