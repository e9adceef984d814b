"""Models for others: ONNX and torch.export files that run without hydractl, and repositories of the Hub."""
