"""The verbs (subcommands), one file each. Only these rooms see the settings."""
