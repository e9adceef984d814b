"""Exports models: ONNX and torch.export files that run without hydractl, and repositories on the Hub."""
