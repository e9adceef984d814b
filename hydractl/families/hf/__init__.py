"""The family of transformers' encoders for classification."""

from hydractl.families.torchvision_operators import declare_operators

declare_operators()  # before any module of this folder

from hydractl.families.hf.family import FAMILY  # noqa: E402

__all__ = ["FAMILY"]
