"""``python -m hydractl``: the same as the ``hydractl`` command."""

from __future__ import annotations

import sys

from hydractl.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
