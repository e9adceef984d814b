"""Several classifiers on one body, trained together.

Lee et al., Why M Heads are Better than One (2015, arXiv 1511.06314), section 3, where members share all layers but the
last.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import MethodOption, OptionValues, TogetherMethod
from hydractl.methods.study_rows import MEMBERS, ByOneTraining, StudyRow

if TYPE_CHECKING:
    from hydractl.training.members import MemberMaker


class ClassifiersMethod(TogetherMethod):
    """Members share a body and differ in their classifiers."""

    name = "classifiers"
    can_be_sped_up = True
    rows = (StudyRow("heads", ByOneTraining({"classifiers": str(MEMBERS)}), place=10, needs_classifier=True),)
    options = (
        MethodOption(
            "classifiers",
            int,
            "Train this many classifiers on one body, drawn by --seed and the seeds after it: a.1.st, a.2.st and so on "
            "for a.st [classifiers; default: one, one output]",
            at_least=2,
            at_most=100,
        ),
    )

    def together(self, values: OptionValues) -> MemberMaker:
        """Return what makes as many classifiers as are asked for."""
        one_body = import_module("hydractl.methods.classifiers.one_body")
        maker: MemberMaker = one_body.Classifiers(values["classifiers"])
        return maker


METHOD = ClassifiersMethod()
