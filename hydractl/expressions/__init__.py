"""What is written after one option and means several things: sets of data, conditions on figures, OOD scores.

Whatever reads such a text raises ValueError with the rest of a sentence that starts with the name of the option.
"""
