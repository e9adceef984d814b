"""Files of predictions: one line for each sample, or the logits of all members for later analysis."""
