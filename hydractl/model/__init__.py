"""From a reference to a model that runs."""
