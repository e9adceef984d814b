"""Providers of member logits: everything that an evaluation can measure as a row.

``interface`` is the interface of all providers. ``running`` is a model that runs; ``answering`` and ``dropout`` are the
two ways in which it can answer: once, or several times with dropout. ``predicted`` reads logits that were stored in a
file. ``stored_fit`` is the calibration and threshold in the file of a model or of predictions.
"""
