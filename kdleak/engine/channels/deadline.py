"""A time limit for a call that cannot be cut short except from another thread."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Callable, Optional, Type


class Deadline:
    """Calls ``action`` on a thread of its own when a block takes longer than it may.

    The thread is gone when the block is left: a sub-interpreter of WinDbg must not end with a
    thread of ours alive, which would end WinDbg. ``action`` is never called after the block.

    Args:
        seconds: how long the block may take; None for as long as it likes.
        action: what makes the block come back; its errors are kept in ``error``.

    Attributes:
        fired: whether the time was over before the block was.
        error: what ``action`` raised, None for nothing.
    """

    def __init__(self, seconds: Optional[float], action: Callable[[], object]) -> None:
        self.fired = False
        self.error: Optional[Exception] = None
        self._seconds = seconds
        self._action = action
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> Deadline:  # noqa: PYI034 - no Self on 3.9
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        # Ctrl+Break in WinDbg raises SystemExit at any bytecode, in here too: twice over, so that
        # the thread ends whatever happens.
        try:
            self._end()
        finally:
            self._end()

    def _end(self) -> None:
        self._over.set()
        thread = self._thread
        if thread is not None:
            thread.join(10.0)
            self._thread = None

    def _watch(self) -> None:
        if self._over.wait(max(0.0, self._seconds or 0.0)):
            return
        self.fired = True
        try:
            self._action()
        except Exception as error:  # noqa: BLE001 - the bindings' own kinds, told by the caller
            self.error = error
