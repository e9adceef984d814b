"""Pruned models as folders that timm and transformers load themselves, without hydractl.

hydractl prune vit.st --circuit circuit.json --layout zeroed -o vit-pruned/
python examples/interop/published_folders.py timm vit-pruned/ cat.png
python examples/interop/published_folders.py transformers bert-pruned/ "a fine film"
"""

from __future__ import annotations

import sys
from typing import Any


def with_timm(folder: str, image: Any) -> list[float]:
    """Probabilities of an image, by timm's own model and transform."""
    import timm
    import torch

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.no_grad():
        return model(transform(image)[None]).softmax(-1)[0].tolist()


def with_transformers(folder: str, sample: Any) -> list[dict[str, Any]]:
    """Labels with their scores, by a pipeline: a text, or an image or its file."""
    from transformers import AutoConfig, pipeline

    texts = any("Sequence" in name for name in AutoConfig.from_pretrained(folder).architectures or [])
    return pipeline("text-classification" if texts else "image-classification", model=folder, top_k=None)([sample])[0]


if __name__ == "__main__":
    library, where, what = sys.argv[1:]
    if library == "timm":
        from PIL import Image

        print(with_timm(where, Image.open(what).convert("RGB")))
    else:
        print(with_transformers(where, what))
