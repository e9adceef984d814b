"""Fusion of several checkpoints into one: what is averaged, what is shared, and a check of the result."""
