"""The family of transformers' models."""

from hydractl.families.torchvision_operators import declare_operators

declare_operators()  # must come before the import of any module in this folder

from hydractl.families.hf.family import FAMILY  # noqa: E402

__all__ = ["FAMILY"]
