"""Metrics of predictions, as pure functions on numpy arrays in float64.

``probabilities`` leads from the members' logits to p, block by block; ``samples`` reduces them in one pass to a few
numbers a sample, and all metrics start from those. A metric is one ``declaration``: of samples in ``sample_metrics``,
of ID against OOD scores in ``ood``; a score of single samples is one in ``ood_scores``. ``rows`` puts metrics together
the way ``eval.json`` holds them. ``bootstrap`` gives intervals, ``calibrators`` mends calibration, ``conformal`` makes
prediction sets, ``threshold`` decisions, ``curves`` what is drawn.

Everywhere M = members, N = samples, C = classes. Fractions are in [0, 1]. A metric that has no meaning for its input
(no sample, an empty side) is ``None``, never NaN; logits or scores that are not finite raise ``NonFiniteError``.
"""
