"""Open the model that a reference names, and run it."""
