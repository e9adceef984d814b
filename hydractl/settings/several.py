"""The options of a verb that does its work several times: members of one model, or one model after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.settings.common import Batched
from hydractl.settings.option import option

SEVERAL = "Several trainings"


@dataclass(kw_only=True)
class Several(Batched):
    """Members, and the devices they are trained on."""

    many_models: ClassVar[bool] = True
    models_help: ClassVar[str] = "A checkpoint (.st), a published folder, or timm:NAME; of several each is trained"

    members: int = option(
        1,
        help="Train the model so many times, with --seed and the seeds after it: a.st becomes a.0.st, a.1.st and so on",
        unit="trainings",
        at_least=1,
        at_most=1000,
        group=SEVERAL,
    )
    devices: list[str] = option(
        [],
        help="Where members, or several MODELs, are trained at the same time, one on each device; 0 is cuda:0, and a "
        "device may stand twice",
        metavar="DEVICE[,DEVICE...]",
        pattern=r"cpu|mps|(cuda:)?[0-9]{1,3}",
        split=True,
        repeats=True,
        default_text="--device, one after another",
        group=SEVERAL,
    )

    @property
    def several(self) -> bool:
        """Whether more than one training is asked for."""
        return len(self.model) * self.members > 1

    def several_conflicts(self, log: str | None) -> list[str]:
        """Problems of names: of several trainings each writes files of its own."""
        found = []
        if self.several and log not in (None, "-", "beside"):
            found.append(f"several trainings have a log each: --log beside, not {log}{self.where('log')}")
        if len(self.model) > 1 and self.output is not None and not self.output.endswith("/"):
            hint = "names their folder, as in out/"
            found.append(f"of several MODELs --output {hint}, not {self.output}{self.where('output')}")
        return found
