"""Parsers for the values of single options that have several parts: data sets, models, conditions on figures.

For a wrong value they raise ValueError with a message that completes a sentence beginning with the name of the option.
"""
