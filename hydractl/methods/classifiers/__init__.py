"""Several classifiers on one body, trained together.

Lee et al., Why M Heads are Better than One (2015, arXiv 1511.06314), section 3, where members share all layers but the
last.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import TogetherOptions
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByTraining, StudyRow


@dataclass(frozen=True)
class ClassifiersOptions(TogetherOptions):
    """``classifiers:M``: members share a body and differ in their classifiers."""

    kind = "classifiers"
    summary = (
        "Train M classifiers on one body, drawn by --seed and the seeds after it: a.1.st, a.2.st and so on for a.st"
    )
    example = "3"
    made_by = "hydractl.methods.classifiers.one_body:Classifiers"
    can_be_sped_up = True


METHOD = Method(
    "classifiers",
    ClassifiersOptions,
    rows=(StudyRow("heads", ByTraining(ClassifiersOptions(MEMBERS)), place=10, needs_classifier=True),),
)
