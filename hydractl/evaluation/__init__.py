"""Rows of models by data sets: what ``hydractl eval`` measures."""
