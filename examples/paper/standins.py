"""Tiny models and data sets in the place of the paper's, laid out as the real ones are; nothing is downloaded.

They have the names and numbers of heads of the real ones, and say nothing else of them: images are scikit-learn's
digits of 8 pixels, OOD sets are noise of several kinds, texts are words drawn at random.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from hydractl.families.torchvision_operators import declare_operators

CLASSES = 10
PER_CLASS = 30
OOD_IMAGES = 24
WORDS = ("a", "film", "fine", "dull", "not", "so", "un", "kind", ".", ",")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# By benchmark: the lists of OpenOOD, and the folder below the root that their paths start from.
OOD_LISTS = {
    "imagenet": ("ssb_hard", "ninco", "inaturalist", "textures", "openimage_o"),
    "imagenet200": ("ssb_hard", "ninco", "inaturalist", "textures", "openimage_o"),
    "cifar100": ("cifar10", "mnist", "svhn", "texture", "places365", "tin"),
    "cifar10": ("cifar100", "mnist", "svhn", "texture", "places365", "tin"),
}
SHIFTED = {
    "imagenet": ("imagenet_v2", "imagenet_c", "imagenet_r"),
    "imagenet200": ("imagenet200_v2", "imagenet200_c", "imagenet200_r"),
}
VALIDATION_LISTS = {"imagenet": "openimage_o", "imagenet200": "openimage_o", "cifar100": "tin", "cifar10": "tin"}
TEXT_SETS = ("yelp", "amazon", "20ng", "trec", "mnli", "rte", "wmt16", "agnews")


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images ``[N, 8, 8, 3]`` of 8 bits, as many of each class, and their classes ``[N]``, in turns."""
    from sklearn.datasets import load_digits

    source = load_digits()
    places = [np.flatnonzero(source.target == label)[: 3 * PER_CLASS] for label in range(CLASSES)]
    order = np.stack(places, axis=1).ravel()
    grey = np.round(source.images[order] * (255 / 16)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1), source.target[order]


def _save(images: np.ndarray, folder: Path) -> list[Path]:
    """Write images as files of numbers; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths


def make_images(folder: Path) -> None:
    """Make ``imagenet/``, ``cifar100.npz``, ``cifar100-test.npz`` and ``openood/`` in a folder."""
    images, labels = _digits()
    size = CLASSES * PER_CLASS
    for split, first in (("train", 0), ("val", size)):
        for label in range(CLASSES):
            some = images[first : first + size][labels[first : first + size] == label]
            _save(some, folder / "imagenet" / split / f"n{label:08}")
    for name, part in (("cifar100", slice(size)), ("cifar100-test", slice(size, 2 * size))):
        np.savez(folder / f"{name}.npz", x=images[part], y=labels[part], classes=np.array(NAMES))
    for name in ("imagenet", "cifar100", "pets"):
        (folder / f"{name}.txt").write_text("".join(f"{number}\n" for number in NAMES))
    for number, benchmark in enumerate(OOD_LISTS):
        _make_openood(folder / "openood", benchmark, images[2 * size :], labels[2 * size :], number)


def _make_openood(root: Path, benchmark: str, images: np.ndarray, labels: np.ndarray, seed: int) -> None:
    """Write a benchmark's lists of OpenOOD and their images.

    Args:
        root: OpenOOD's folder.
        benchmark: its name.
        images: ID images ``[N, 8, 8, 3]``, cut in three for training, validation and test.
        labels: their classes ``[N]``.
        seed: draws the OOD images.
    """
    large = benchmark.startswith("imagenet")
    below = root / ("images_largescale" if large else "images_classic")
    lists = root / "benchmark_imglist" / benchmark
    lists.mkdir(parents=True, exist_ok=True)
    for place, part in enumerate(("train", "val", "test")):
        some = slice(place, None, 3)
        paths = _save(images[some], below / f"{benchmark}_{part}")
        lines = [f"{path.relative_to(below)} {label}" for path, label in zip(paths, labels[some], strict=True)]
        (lists / f"{part}_{benchmark}.txt").write_text("\n".join(lines) + "\n")
    for number, name in enumerate(SHIFTED.get(benchmark, ())):
        paths = _save(255 - images[number : number + 20], below / name)
        pairs = zip(paths, labels[number : number + 20], strict=True)
        lines = [f"{path.relative_to(below)} {label}\n" for path, label in pairs]
        (lists / f"test_{name}.txt").write_text("".join(lines))
    draw = np.random.default_rng(seed)
    names = [f"test_{name}" for name in OOD_LISTS[benchmark]] + [f"val_{VALIDATION_LISTS[benchmark]}"]
    for number, name in enumerate(names):
        # The lists of textures start from the classic images in both kinds of benchmark.
        base = root / "images_classic" if "texture" in name else below
        brightest = int(draw.integers(64, 256))
        pixels = draw.integers(0, brightest, (OOD_IMAGES, 8, 8, 3), dtype=np.uint8)
        paths = _save(pixels, base / f"{benchmark}_{number}")
        (lists / f"{name}.txt").write_text("".join(f"{path.relative_to(base)} -1\n" for path in paths))


def make_texts_and_bert(folder: Path) -> None:
    """Make ``sst2/``, ``texts/`` and ``bert/`` in a folder: a BERT of two blocks of twelve heads."""
    declare_operators()
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    draw = np.random.default_rng(0)
    for name, rows in (("sst2/train", 160), ("sst2/dev", 60), *((f"texts/{name}", 20) for name in TEXT_SETS)):
        sentences = [" ".join(draw.choice(WORDS, 6)) for _ in range(rows)]
        lines = [f"{sentence}\t{int('fine' in sentence)}" for sentence in sentences]
        path = folder / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {token: number for number, token in enumerate((*special, *WORDS))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    numbers = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", numbers)
    tokens = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder / "bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 48}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=128, **sizes)).save_pretrained(
        folder / "bert"
    )


def make_pairs_and_clip(folder: Path) -> None:
    """Make ``pairs.jsonl`` and ``clip/`` in a folder: towers of two blocks, of twelve and of eight heads."""
    declare_operators()
    import open_clip
    import torch
    from open_clip.push_to_hf_hub import save_config_for_hf
    from open_clip.transform import PreprocessCfg
    from safetensors.torch import save_file

    if not (folder / "imagenet").is_dir():
        make_images(folder)
    images, labels = _digits()
    paths = _save(images[-40:], folder / "pairs")
    rows = [
        {"image": f"pairs/{path.name}", "caption": f"A photo of a {NAMES[label]}."}
        for path, label in zip(paths, labels[-40:], strict=True)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vision = {"image_size": 8, "patch_size": 4, "width": 48, "head_width": 4, "layers": 2, "mlp_ratio": 2.0}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 8, "layers": 2, "mlp_ratio": 2.0}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    torch.manual_seed(0)
    model = open_clip.CLIP(**config).eval()
    (folder / "clip").mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "clip" / "open_clip_model.safetensors", {"format": "pt"})
    open_clip.set_model_preprocess_cfg(model, asdict(PreprocessCfg(size=model.visual.image_size)))
    save_config_for_hf(model, folder / "clip" / "open_clip_config.json", config)
