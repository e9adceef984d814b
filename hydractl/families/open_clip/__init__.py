"""The family of open_clip's CLIP models."""

from hydractl.families.open_clip.family import FAMILY

__all__ = ["FAMILY"]
