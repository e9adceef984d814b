"""Metrics of predictions, as pure functions on numpy arrays in float64.

``probabilities`` computes p from the members' logits, block by block. ``samples`` reduces them in one pass to a few
numbers per sample, from which all metrics are computed. A metric is one ``declaration``: metrics of samples are in
``sample_metrics``, metrics of ID against OOD scores in ``ood``, and scores of single samples in ``ood_scores``.
``rows`` puts metrics together in the form of ``eval.json``. ``bootstrap`` computes intervals, ``calibrators`` corrects
calibration, ``conformal`` makes prediction sets, ``threshold`` makes decisions, and ``curves`` computes what is drawn.

Everywhere M = members, N = samples, C = classes. Fractions are in [0, 1]. A metric that has no meaning for its input
(no sample, an empty side) is ``None``, never NaN; logits or scores that are not finite raise ``NonFiniteError``.
"""
