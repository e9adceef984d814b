"""Metrics of predictions, as pure functions on numpy arrays in float64.

``probabilities`` leads from the members' logits to p, block by block; ``samples`` reduces them in one pass to a few
numbers a sample, and all metrics start from those. ``rows`` and ``summary`` put the metrics together the way
``eval.json`` holds them. Each family is one module: ``classification``, ``calibration`` (its error), ``selective``,
``diversity``, ``ood_scores`` (one score a sample) and ``ood`` (how well a score separates). ``calibrators`` mends
calibration, ``bootstrap`` gives intervals, ``conformal`` prediction sets, ``threshold`` decisions, ``curves`` what is
drawn.

Everywhere M = members, N = samples, C = classes. Fractions are in [0, 1]. A metric that has no meaning for its input
(no sample, an empty side) is ``None``, never NaN; logits or scores that are not finite raise ``NonFiniteError``.
"""
