"""Ensembles whose members are made by one training, each method chosen by an option of its own."""
