"""One file a verb; the only rooms that see settings."""
