"""The search for circuits: which heads can go, and in what order."""
