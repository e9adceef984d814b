"""The demonstration: a small ViT on scikit-learn's handwritten digits, everything from packages, no GPU.

OOD images: punctuation signs choose the circuits; letters (near) and patches of photographs (far) are test sets only.
"""

from __future__ import annotations

from pathlib import Path

from chain import Study, run

STUDY = Study(
    runs=Path("runs/digits"),
    base=(
        "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=2&in_chans=1"
        "&embed_dim=72&depth=6&num_heads=6&mlp_ratio=2&num_classes=10"
    ),
    train="builtin:digits/train",
    val="builtin:digits/val",
    test="builtin:digits/test",
    ood_val="builtin:symbols",
    ood_test=["letters:near=builtin:letters", "photos:far=builtin:photos"],
    remove=12,  # of 36 heads, the share of the paper's 8 kept of 12
    samples=128,
    pretraining="--epochs 40 --lr 2e-3 --warmup 0.1 --weight-decay 0.05 --label-smoothing 0.05",
    tuning="--epochs 4 --lr 3e-4",
    search="--batch-size 300",
    bench="--batch-size 32 --rounds 20",
)

if __name__ == "__main__":
    run(STUDY)
