"""pybag's worker thread, with its exceptions brought back and a wait that says the truth."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Optional, Tuple

_INFINITE = 0xFFFFFFFF
_SLICE = 0.2
"""Seconds between looks: on Windows Ctrl+C does not interrupt a wait on a lock."""


class PybagWorker:
    """Posts work to the thread of a pybag debugger.

    The thread takes its methods from the debugger's objects each time; they are replaced by ones
    that note how they ended before pybag forgets it.

    Args:
        debugger: pybag's KernelDbg.
        work_item: pybag's class of queue entries.
        clock: seconds, monotonic.

    Attributes:
        busy: work was posted and its end was not seen yet.
        error: what the last work raised, None for nothing.
    """

    def __init__(
        self, debugger: Any, work_item: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.busy = False
        self.error: Optional[Exception] = None
        self._queue = debugger._q
        self._work_item = work_item
        self._clock = clock
        self._done = threading.Event()
        self._call: Optional[Callable[[], object]] = None
        client, control = debugger._client, debugger._control
        attach, wait = client.AttachKernel, control.WaitForEvent

        def attach_or_call(options: str) -> None:
            call, self._call = self._call, None
            self._noting(call if call is not None else lambda: attach(options))

        client.AttachKernel = attach_or_call
        control.WaitForEvent = lambda timeout=_INFINITE: self._noting(lambda: wait(timeout))

    def _noting(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, pybag would swallow it
            self.error = error
        finally:
            self._done.set()

    def post(self, task: str, arguments: Optional[Tuple[object, ...]] = None) -> None:
        """Hand over one of pybag's tasks, ``AttachKernel`` or ``WaitForEvent``, with no limit."""
        self.error = None
        self._done.clear()
        self.busy = True
        self._queue.put(self._work_item(task, _INFINITE, arguments))

    def post_call(self, call: Callable[[], object]) -> None:
        """Have any call made on the worker thread."""
        self._call = call
        self.post("AttachKernel", ("",))

    def wait(self, timeout: Optional[float]) -> bool:
        """Whether the work came to its end within ``timeout`` seconds (None: for ever)."""
        until = None if timeout is None else self._clock() + timeout
        while not self._done.is_set():
            left = _SLICE if until is None else min(_SLICE, until - self._clock())
            if left <= 0:
                return False
            self._done.wait(left)
        self.busy = False
        return True

    def quit(self) -> None:
        """Let the thread end."""
        self._queue.put(self._work_item("Quit", _INFINITE, None))
