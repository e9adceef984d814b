"""Predictions as files: one line per sample for people and scripts, or all member logits for later analysis."""
