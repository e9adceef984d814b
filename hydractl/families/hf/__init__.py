"""The family of transformers' encoders for classification."""

from hydractl.families.hf.family import FAMILY

__all__ = ["FAMILY"]
