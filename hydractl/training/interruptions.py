"""Ctrl-C and SIGTERM in the midst of a step: noted, and acted upon where the training can be taken up again."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

_CAUGHT = (signal.SIGINT, signal.SIGTERM)
# A scheduler may send its signal to every process, and whoever started this one pass it on as well: that is one wish.
_ONE_WISH_S = 1.0


class Interruptions:
    """While in this context, the first signal only sets ``requested``; one a second later or more ends the process.

    Outside the main thread signals cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _CAUGHT}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # A signal that was only noted has done its work: the next one is the first again.
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if not self.requested:
            self.requested, self._since = True, time.monotonic()
        elif time.monotonic() - self._since >= _ONE_WISH_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
