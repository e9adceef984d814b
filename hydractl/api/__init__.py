"""What ``import hydractl`` offers: models, and the verbs of the command line as functions."""
