"""The options of the verbs: declared by their signatures, read from flags, variables, YAML files and Python calls."""
