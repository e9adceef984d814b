"""The command line: parsing with Typer, the one sink for everything said, and errors as one line with a hint."""
