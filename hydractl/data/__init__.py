"""Data sets: from a SPEC on the command line to batches whose samples have ids.

``open_data`` reads whatever a SPEC names and maps its labels; ``batches`` feeds it to a model.
"""

from hydractl.data.base import Dataset
from hydractl.data.batching import Batch, batches
from hydractl.data.opening import open_data

__all__ = ["Batch", "Dataset", "batches", "open_data"]
