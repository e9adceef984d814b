"""Adapters: few numbers that are trained in the place of whole weights, one file each."""
