"""ImageNet's class names and prompts as the libraries have them: open_clip the words, timm the synsets."""

from __future__ import annotations

from hydractl.families.torchvision_operators import declare_operators


def class_names() -> tuple[str, ...]:
    """Return the 1,000 names that open_clip makes prompts of, by the numbers of the classes.

    Two of them stand for two classes each (``missile``, ``sunglasses``): of these a model always says the first.
    """
    declare_operators()
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return tuple(IMAGENET_CLASSNAMES)


def synsets() -> tuple[str, ...]:
    """Return WordNet's names of the same classes in the same order (``n01440764``), which ImageNet's folders have."""
    declare_operators()
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def templates(name: str) -> list[str]:
    """Return the templates of prompts that CLIP was published with for ImageNet, ``{label}`` where the name goes.

    Args:
        name: ``openai-imagenet`` (80) or ``simple-imagenet`` (7 of them).
    """
    declare_operators()
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES

    known = {"openai-imagenet": OPENAI_IMAGENET_TEMPLATES, "simple-imagenet": SIMPLE_IMAGENET_TEMPLATES}
    return [template("{label}") for template in known[name]]
