"""ImageNet's class names and prompts (from open_clip) and WordNet names of its classes (from timm)."""

from __future__ import annotations

from hydractl.families.torchvision_operators import declare_operators


def class_names() -> tuple[str, ...]:
    """Return the 1,000 class names that open_clip puts into prompts, in the order of the classes.

    ``missile`` and ``sunglasses`` each name two classes; a model always predicts the first of the two.
    """
    declare_operators()
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return tuple(IMAGENET_CLASSNAMES)


def synsets() -> tuple[str, ...]:
    """Return WordNet's names of the same classes in the same order, e.g. ``n01440764``: the names of the folders."""
    declare_operators()
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def templates(name: str) -> list[str]:
    """Return the prompts that CLIP was published with for ImageNet, with ``{label}`` in the place of the class name.

    Args:
        name: ``openai-imagenet`` for all 80 templates, or ``simple-imagenet`` for 7 of them.
    """
    declare_operators()
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES

    known = {"openai-imagenet": OPENAI_IMAGENET_TEMPLATES, "simple-imagenet": SIMPLE_IMAGENET_TEMPLATES}
    return [template("{label}") for template in known[name]]
