"""What the methods that collect weights during a training have in common."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import FinetuneRequest, MethodOptions


@dataclass(frozen=True)
class CollectingOptions(MethodOptions):
    """Options of a method that does not keep the weights of one epoch."""

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the names of the options that would choose an epoch."""
        return ["patience", "min_delta"]
