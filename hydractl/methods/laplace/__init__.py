"""A Laplace approximation over the last linear layers: no members, but a posterior that every forward pass uses.

Daxberger et al., Laplace Redux (NeurIPS 2021); for models that compare images with texts Baumann et al., Post-hoc
Probabilistic Vision-Language Models (2024). ``hydractl laplace`` fits it and has its options.
"""

from __future__ import annotations

from hydractl.methods.method import Method
from hydractl.methods.study_rows import ByVerb, StudyRow

METHOD = Method(
    "laplace",
    "A Gaussian posterior of the weights of the last layers",
    rows=(StudyRow("laplace", ByVerb("laplace"), place=6, needs_labels=False, needs_classifier=True),),
)
