"""The options of the verbs that run models to measure them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.settings.common import Common, run_option


@dataclass(kw_only=True)
class Measured(Common):
    """Options of the verbs that run models to measure them."""

    many_models: ClassVar[bool] = True

    whole_last_block: bool = run_option(
        "Run the last block for all tokens, not only for those that are read out", False
    )
