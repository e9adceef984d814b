"""From several checkpoints to one: what is averaged, what is shared, and a check of the result."""
