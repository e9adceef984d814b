"""Ensembles that people compare with, one file each."""
