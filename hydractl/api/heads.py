"""What the signatures of ``score``, ``extract-circuit`` and ``prune`` share: words of their help."""

from __future__ import annotations

from functools import partial
from typing import Literal

from hydractl.options.signature import opt

Order = Literal["sequential", "one-shot"]

CRITERION = "The importance criterion; higher scores are kept"
SAMPLES = "Calibration samples, drawn by --seed without replacement"
OTHER_BASE = "Take a mask, scores or a circuit of a checkpoint with other weights"
DROP = "Remove heads one budget after another until one takes accuracy further than this below that of the model, on"
approx_option = partial(opt, metavar="lazy:N", pattern=r"lazy:[1-9][0-9]{0,8}", example="lazy:4")
