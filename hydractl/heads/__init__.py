"""Heads as plain data: masks, scores, weights, selection and overlap."""
