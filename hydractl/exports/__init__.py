"""Models as ONNX and torch.export files that run without hydractl."""
