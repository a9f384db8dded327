"""Ctrl+C while something of ours is in the target: let in only where it does no harm.

While the guard is in place, SIGINT raises KeyboardInterrupt only inside ``admit()`` (around the
wait for the next stop). Everywhere else, arming and disarming above all, it is counted and acted
upon later. SIGTERM, SIGHUP (the terminal went away) and SIGBREAK count as Ctrl+C, because their
usual effect, the end of the process, would leave the tag armed. Outside the main thread, and in
WinDbg's sub-interpreters, no signal handler can be set; KeyboardInterrupt and SystemExit may then
come up anywhere and the callers retry.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any, Dict, Iterator, Optional

_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
)


class InterruptGuard:
    """Defers signals that ask us to end between ``install`` and ``remove``.

    Attributes:
        pressed: how often Ctrl+C was pressed (or an interruption was noted) so far.
    """

    def __init__(self) -> None:
        self.pressed = 0
        self._admitting = False
        self._previous: Dict[int, Any] = {}

    def install(self) -> None:
        """Take the signals over where that is possible."""
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            # None: set by C code (a debugger that hosts us), it could not be put back.
            # Ignored: somebody chose that (nohup), it stays.
            if previous is None or previous == signal.SIG_IGN:
                continue
            try:
                signal.signal(number, self._on_signal)
            except ValueError:  # a sub-interpreter
                return
            self._previous[number] = previous

    def remove(self) -> None:
        """Give the signals back."""
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, previous)

    def note(self) -> None:
        """Count an interruption that arrived as an exception."""
        self.pressed += 1

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Let Ctrl+C raise KeyboardInterrupt inside; at once if it was pressed before."""
        self._admitting = True
        try:
            if self.pressed:
                raise KeyboardInterrupt
            yield
        finally:
            self._admitting = False

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        del number, frame
        self.pressed += 1
        if self._admitting:
            self._admitting = False  # once is enough; the next one must not hit the clean-up
            raise KeyboardInterrupt


def take_signals() -> None:
    """Make the signals that ask a process to end unwind it, so that the target is let go."""
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        number = getattr(signal, name, None)
        # Ignored (nohup) stays ignored. Not in the main thread: the host's business.
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            with contextlib.suppress(ValueError):
                signal.signal(number, _end)


def _end(number: int, frame: Optional[FrameType]) -> None:
    del number, frame
    raise KeyboardInterrupt
