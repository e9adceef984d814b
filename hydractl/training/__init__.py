"""The training loop behind ``hydractl finetune``."""
