"""Parts of gpu_cost.py: the device that it measures on, and rows that cannot be lost."""
