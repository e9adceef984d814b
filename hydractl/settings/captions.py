"""Which data go with the contrastive loss."""

from __future__ import annotations

from typing import Protocol

SCHEME = "captions:"
"""How the SPEC of pairs of images and captions starts."""


class _Settings(Protocol):
    """What is asked of the options of ``finetune``."""

    data: str | None
    val: str | None
    loss: str
    unread: frozenset[str]

    def where(self, name: str) -> str: ...


def pair_problems(settings: _Settings) -> list[str]:
    """Captions where classes are needed, and the reverse."""
    found = []
    data, loss = settings.data or "", settings.loss
    if data.startswith(SCHEME) and loss != "contrastive" and "loss" not in settings.unread:
        found.append(f"--data {data}{settings.where('data')}: captions need --loss contrastive")
    if data and loss == "contrastive" and not data.startswith(SCHEME):
        source = settings.where("loss")
        found.append(f"--loss contrastive{source} needs pairs of images and captions: --data {SCHEME}FILE")
    if (settings.val or "").startswith(SCHEME):
        source = settings.where("val")
        found.append(f"--val {settings.val}{source}: validation is by zero-shot accuracy, on labelled images")
    return found
