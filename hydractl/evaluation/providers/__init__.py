"""Providers of member logits: everything that an evaluation can measure as a row.

``interface`` is the interface of all providers. ``running`` is a model that runs; ``answering``, ``dropout`` and
``probed`` are the three ways in which it can answer: with its own classifier, several times with dropout, or with a
probe. ``predicted`` reads logits that were stored in a file. ``stored_fit`` is the calibration and threshold in the
file of a model or of predictions.
"""
