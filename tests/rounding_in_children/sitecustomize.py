"""Read by every Python that a test starts while the tests round otherwise: see ``tests/rounding.py``."""

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("rounding_of_tests", Path(__file__).parents[1] / "rounding.py")
assert _spec is not None and _spec.loader is not None
_rounding = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _rounding
_spec.loader.exec_module(_rounding)
_rounding.start()
