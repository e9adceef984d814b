"""Ctrl-C and SIGTERM in the midst of a step: noted, and acted upon where the training can be taken up again."""

from __future__ import annotations

import signal
import threading
from typing import Any

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """While in this context, the first signal only sets ``requested``; a second one ends the process at once.

    Outside the main thread signals cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _CAUGHT}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # A signal that was only noted has done its work: the next one is the first again.
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self.requested = True
        for number in _CAUGHT:
            signal.signal(number, signal.SIG_DFL)
