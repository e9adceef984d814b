"""Texts that are written after one option and have several parts: sets of data, conditions on figures, OOD scores.

A function that reads such a text raises ValueError with the rest of a sentence that starts with the name of the option.
"""
