"""The family of open_clip's CLIP models."""

from hydractl.families.torchvision_operators import declare_operators

declare_operators()  # before any module of this folder

from hydractl.families.open_clip.family import FAMILY  # noqa: E402

__all__ = ["FAMILY"]
