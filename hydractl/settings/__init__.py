"""Every option of every verb, declared once, and where its value comes from.

One dataclass per verb declares name, type, default, unit, range and help of each option. Flags, ``HYDRACTL_*``
variables and ``hydra.yaml`` are read by the same parser and merged in :func:`hydractl.settings.sources.merge`.
"""
