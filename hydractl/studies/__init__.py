"""A study of one model: which rows are made, how one of them is chosen, and what the test data say about it."""
