"""Ctrl+C in the middle of a request would leave its reply in the link: hold it off till then."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
)


class HoldSignals:
    """Context manager: signals that raise in Python code arrive when the block is over.

    May be nested. Does nothing outside the main thread, where no signal handler runs. What is
    inside must be short or bounded by a timeout of its own.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._previous: dict[int, Any] = {}
        self._noted: list[int] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth == 0:
            try:
                self._take_over()
            except BaseException:
                self._give_back()
                raise
        self._depth += 1

    def _take_over(self) -> None:
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if not callable(previous) or number in self._previous:
                continue  # default or ignored: nothing would be raised into our code
            try:
                signal.signal(number, self._note)
            except ValueError:  # a sub-interpreter
                return
            self._previous[number] = previous

    def _give_back(self) -> None:
        """Put all handlers back, even if one that is back already raises meanwhile."""
        try:
            while self._previous:
                number = next(reversed(self._previous))
                signal.signal(number, self._previous[number])
                del self._previous[number]
        finally:
            if self._previous:
                self._give_back()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._depth == 0 or threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        self._give_back()
        noted, self._noted = self._noted, []
        for number in dict.fromkeys(noted):
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._noted.append(number)
