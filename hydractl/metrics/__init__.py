"""Metrics of predictions, as pure functions on numpy arrays in float64.

:mod:`~hydractl.metrics.summary` puts them together the way ``eval.json`` holds them; each family is one module:
``classification``, ``calibration``, ``selective``, ``diversity``, ``ood_scores`` (one score a sample) and ``ood`` (how
well a score separates). ``probabilities`` leads from the members' logits to what the others take.

Everywhere M = members, N = samples, C = classes. Fractions are in [0, 1]. A metric that has no meaning for its input
(no sample, an empty side) is ``None``, never NaN; logits or scores that are not finite raise ``NonFiniteError``.
"""
