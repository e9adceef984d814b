"""The version of hydractl. The package imports it from here, so that what it offers need not import the package."""

__version__ = "0.1.0"
