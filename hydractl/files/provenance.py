"""How an artefact was made: inputs by hash, settings that change the result, versions. No clock, host, user or path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hydractl


def provenance(verb: str, settings: Any, inputs: Sequence[str], details: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a file.

    Args:
        verb: which command made it.
        settings: the settings of the verb; only the seed is read here.
        inputs: SHA-256 of every input.
        details: the settings that decided the result, already resolved (method, budget, data fingerprint, ...).
    """
    import torch

    return {
        "hydractl": hydractl.__version__,
        "torch": torch.__version__.split("+")[0],
        "verb": verb,
        "seed": settings.seed,
        "inputs": list(inputs),
        "settings": {key: value for key, value in details.items() if value is not None},
    }
