"""The family of open_clip's CLIP models."""

from hydractl.families.torchvision_operators import declare_operators

declare_operators()  # must come before the import of any module in this folder

from hydractl.families.open_clip.family import FAMILY  # noqa: E402

__all__ = ["FAMILY"]
