"""The options of ``push``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import Common, Rule
from hydractl.settings.option import option

hub_option = partial(option, "Hub")


def _a_model_and_a_repository(settings: PushSettings) -> list[str]:
    """Return a problem if the arguments are not one model and one repository ``hf:ORG/NAME``."""
    if len(settings.model) == 2:
        _, target = settings.model
        if target.startswith("hf:") and target != "hf:":
            return []
    told = " ".join(settings.model) or "nothing"
    return [f"push takes a file or folder and hf:ORG/NAME, not {told}"]


@dataclass(kw_only=True)
class PushSettings(Common):
    """Options of ``push``; ``model`` holds the model that is pushed, and the repository."""

    verb: ClassVar[str] = "push"
    many_models: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (_a_model_and_a_repository,)
    models_help: ClassVar[str] = "A checkpoint or a published folder, and hf:ORG/NAME[@BRANCH] to push it to"
    lacks: ClassVar[tuple[str, ...]] = (
        *("output", "data", "limit", "max_length", "labels", "prompt", "tower", "arch"),
        *("device", "workers", "seed"),
    )

    card: str | None = hub_option(
        "A model card with results, as report --card writes it [default: a card without results]",
        metavar="FILE",
        often=True,
    )
    include: list[str] = hub_option(
        "A further file of the folder, by its name there; repeat it for several [default: of a folder, only the files "
        "that libraries read with a model, its card and its licence]",
        [],
        metavar="NAME",
        often=True,
    )
    license: str | None = hub_option(
        "Licence of the weights, by the Hub's identifier, such as apache-2.0 [default: the card names none]",
        metavar="ID",
        often=True,
    )
    base_model: str | None = hub_option(
        "The model whose weights these go back to [default: the repository they came from, if they came from the Hub]",
        metavar="ORG/NAME",
        often=True,
    )
    private: bool = hub_option("Create the repository as a private one", False, often=True)
    message: str | None = hub_option("Commit message [default: Add FILE]", metavar="TEXT", often=True)
