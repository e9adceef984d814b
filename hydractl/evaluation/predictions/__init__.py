"""Files of predictions: one line for each sample (``predict``), or the logits of all members for later analysis."""
