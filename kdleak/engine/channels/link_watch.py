"""Listens to what a debugger says while its target runs: whether the link is gone.

DbgEng waits on for ever when it is, and where the target was restarted behind its back it says so
again and again without ever getting back to it.
"""

from __future__ import annotations

import time
from typing import Callable

from kdleak.engine.channels.kd_text import says_connected, says_lost
from kdleak.engine.channels.running_text import RunningText

_WINDOW = 256  # characters: a phrase may come in two pieces


class WatchedText(RunningText):
    """Collects text and notes when it said that the link is lost.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._window = ""
        self._lost = False
        self._lost_at = 0.0

    def write(self, text: str) -> None:
        """Append text."""
        super().write(text)
        window = (self._window + text)[-max(_WINDOW, len(text)) :]
        if says_connected(window):
            self._lost, window = False, ""
        elif says_lost(window):
            if not self._lost:
                self._lost, self._lost_at = True, self._clock()
            window = ""
        self._window = window[-_WINDOW:]

    def lost_for(self) -> float:
        """Seconds since it said that the link is lost, with no word of a new one; else 0."""
        return self._clock() - self._lost_at if self._lost else 0.0

    def answered(self) -> None:
        """The debugger did what it was asked: the link is there."""
        self._lost = False

    def forget(self) -> None:
        """Drop everything: another debugger is to be heard."""
        self.take()
        self._lost, self._window = False, ""
