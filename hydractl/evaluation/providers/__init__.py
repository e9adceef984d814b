"""What gives the member logits of one row: one interface, and a file for each thing that can be measured.

``interface`` says what a row needs. ``running`` is a model that runs, and ``answering``, ``dropout`` and ``probed`` are
the three ways in which it answers: by its own classifier, several times with dropout, or by a probe. ``predicted``
reads the logits that were kept of a model. ``stored_fit`` is the calibration and the threshold that the file of either
holds.
"""
