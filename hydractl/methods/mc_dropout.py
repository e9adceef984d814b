"""Monte Carlo dropout: one model that runs several times with its dropout left on, measured as an ensemble.

Gal and Ghahramani, Dropout as a Bayesian Approximation (ICML 2016), section 4. It takes no training: ``eval`` runs it
(:mod:`hydractl.evaluation.mc_dropout`) and has its options.
"""

from __future__ import annotations

from hydractl.methods.method import Method
from hydractl.methods.study_rows import AsMeasured, StudyRow

METHOD = Method(
    "mc_dropout",
    rows=(StudyRow("mc-dropout", AsMeasured({"mc_dropout": 0.1}), place=7, needs_training_data=False),),
)
