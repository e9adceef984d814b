"""The command line: parsing with Typer, a single sink for all output, and errors as one line with a hint."""
