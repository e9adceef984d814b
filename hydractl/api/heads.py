"""What the signatures of ``score``, ``extract-circuit`` and ``prune`` share: words of their help, and ``auto``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.options.call import Call

Order = Literal["sequential", "one-shot"]

CRITERION = "The importance criterion; higher scores are kept"
SAMPLES = "Calibration samples, drawn by --seed without replacement"
OTHER_BASE = "Take a mask, scores or a circuit of a checkpoint with other weights"
DROP = "Remove heads one budget after another until one takes accuracy further than this below that of the model, on"
MAX_DROP = 0.01
approx_option = partial(opt, metavar="lazy:N", pattern=r"lazy:[1-9][0-9]{0,8}", example="lazy:4")
AUTO = f"auto: as many as --max-drop allows, {MAX_DROP:g} where that is not given"


def count_of_drop(call: Call, counted: str) -> None:
    """Turn a number of heads that is ``auto`` into ``--max-drop``, the largest loss that pruning may cost, in place.

    With ``--keep auto`` the call is changed as if ``--max-drop`` had been given in the same place, with its default
    unless it has a value. A number stays as it is.

    Args:
        call: the values of the options.
        counted: the option of the number.
    """
    if call.values[counted] != "auto":
        return
    if call.values["max_drop"] is None:
        call.values["max_drop"] = MAX_DROP
        call.sources["max_drop"] = call.sources[counted]
    call.ranks["max_drop"] = call.ranks.pop(counted)
    call.values[counted] = None
