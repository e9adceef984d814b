"""Latency, memory and mult-adds of models, measured side by side."""
