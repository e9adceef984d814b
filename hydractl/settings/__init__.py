"""The options of every verb, each declared once, and the reading and merging of their values.

One dataclass per verb declares name, type, default, unit, range and help of each option. Flags, ``HYDRACTL_*``
variables and ``hydra.yaml`` are read by the same parser and merged in :func:`hydractl.options.sources.merge`.
"""
